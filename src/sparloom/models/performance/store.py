"""Save and load performance models, JSON and LightGBM's text in one folder, and write them as C headers.

Loading runs no code. A header has features, trees and configurations, and needs only the C library.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from sparloom.errors import SchemaError, Unsupported
from sparloom.files import atomic_folder, read_json, write_checked_json, write_text
from sparloom.models.performance.features import FeatureSpec
from sparloom.models.performance.growth import Target
from sparloom.models.performance.model import Origin, PerformanceModel, PredictionInterval
from sparloom.space import Config

FORMAT = 1
HEADER = "model.json"
INTERVAL = "interval.json"
END = "end of trees"
REMEDY = "run experiment=fit_trees, or restore it with `dvc pull --force`"
RESTORE = {"raw": "{}", "log": "exp({})", "log1p": "expm1({})"}
PER_LINE = 6
TEMPLATE = """\
/* Which kernel of {platform} ({preset}) runs {op} fastest, by {trees} trees; written by sparloom, not to be edited.
 *
 *     int place = sparloom_{op}_best({call});
 *     double rate = sparloom_{op}_predict({call}, place);   ({unit})
 *     sparloom_{op}_configs[place]                          (its parameters)
 *
 * Where ({fallback}) is not 0 the kernels are not made for the problem, and best gives SPARLOOM_{OP}_FALLBACK.
 * Everything is computed in double precision, features and trees in the order of the Python model. Link with -lm.
 */
#ifndef SPARLOOM_{OP}_H
#define SPARLOOM_{OP}_H

#include <math.h>

enum {{ SPARLOOM_{OP}_CONFIGS = {configs}, SPARLOOM_{OP}_FALLBACK = {place} }};

typedef struct {{
{fields}
}} sparloom_{op}_config;

static const sparloom_{op}_config sparloom_{op}_configs[] = {{
{rows}
}};

/* What the model reads of each configuration: {kernel}. */
static const double sparloom_{op}_kernels[][{columns}] = {{
{numbers}
}};

/* feature <= threshold goes left; a child below 0 is the leaf -1 - child. */
static const struct {{ double threshold; int feature, left, right; }} sparloom_{op}_nodes[] = {{
{nodes}
}};

static const double sparloom_{op}_leaves[] = {{
{leaves}
}};

static const int sparloom_{op}_roots[] = {{
{roots}
}};

static double sparloom_{op}_learned({parameters}, int place)
{{
    const double *kernel = sparloom_{op}_kernels[place];
{features}
    const double read[] = {{{read}}};
    double sum = 0;
    (void)kernel;
{unread}
    for (int tree = 0; tree < {trees}; tree++) {{
        int node = sparloom_{op}_roots[tree];
        while (node >= 0)
            node = read[sparloom_{op}_nodes[node].feature] <= sparloom_{op}_nodes[node].threshold
                 ? sparloom_{op}_nodes[node].left : sparloom_{op}_nodes[node].right;
        sum += sparloom_{op}_leaves[-1 - node];
    }}
    return sum;
}}

/* Predicted {quantity} of one configuration, in {unit}. */
static inline double sparloom_{op}_predict({parameters}, int place)
{{
    return {restored};
}}

/* The configuration that is predicted to be fastest. */
static inline int sparloom_{op}_best({parameters})
{{
    int best = 0;
    double most = 0;
    if ({fallback})
        return SPARLOOM_{OP}_FALLBACK;
    for (int place = 0; place < SPARLOOM_{OP}_CONFIGS; place++) {{
        const double value = {sign}sparloom_{op}_learned({call}, place);
        if (place == 0 || value > most) {{
            best = place;
            most = value;
        }}
    }}
    return best;
}}

#endif
"""


def save_performance(folder: Path, model: PerformanceModel) -> None:
    """Write a model as `folder`/model.json and `folder`/trees_<i>.txt, replacing an earlier one atomically."""
    with atomic_folder(folder) as made:
        _write(made, model)


def load_performance(
    folder: Path, *, spec: FeatureSpec | None = None, threads: int = 1, **expected: str
) -> PerformanceModel:
    """Read a model.

    Args:
        spec: features that it must have been trained on exactly.
        expected: platform, preset or space that it must have been trained for.

    Raises:
        SchemaError: no model, another format, damaged, or trained for something other than expected.
    """
    try:
        header = read_json(folder / HEADER)
    except (OSError, ValueError) as error:
        raise SchemaError(f"{folder} holds no performance model ({error}): {REMEDY}") from None
    if header.get("format") != FORMAT:
        raise SchemaError(f"{folder} has format {header.get('format')}, this version reads {FORMAT}: "
                          "run experiment=fit_trees")
    try:
        return _model(folder, header, spec, expected, threads)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise SchemaError(f"{folder / HEADER} is damaged ({type(error).__name__}: {error}): {REMEDY}") from None


def save_interval(folder: Path, interval: PredictionInterval) -> None:
    """Write interval.json and the models of both quantiles, as folders, into `folder`."""
    with atomic_folder(folder) as made:
        for name in ("low", "high"):
            (made / name).mkdir()
            _write(made / name, getattr(interval, name))
        write_checked_json(made / INTERVAL, {"margin": interval.margin, "coverage": interval.coverage})


def load_interval(folder: Path, *, spec: FeatureSpec | None = None, threads: int = 1) -> PredictionInterval:
    """Read what `save_interval` wrote.

    Raises:
        SchemaError: as `load_performance`.
    """
    low, high = (load_performance(folder / name, spec=spec, threads=threads) for name in ("low", "high"))
    try:
        return PredictionInterval(low, high, **read_json(folder / INTERVAL))
    except (OSError, ValueError, TypeError) as error:
        raise SchemaError(f"{folder / INTERVAL} is damaged ({error}): {REMEDY}") from None


def digest(model: PerformanceModel) -> str:
    """Hash everything that predictions depend on to 16 hexadecimal digits."""
    header = _header(model)
    content = json.dumps([header[name] for name in ("spec", "target", "origin", "names", "trees")], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _header(model: PerformanceModel) -> Mapping[str, Any]:
    return {
        "format": FORMAT, "spec": model.spec.record(), "target": asdict(model.target), "origin": asdict(model.origin),
        "names": list(model.names), "trees": [_checksum(_text(member)) for member in model.members],
        "folds": dict(model.folds), "lineage": list(model.lineage),
    }


def _write(folder: Path, model: PerformanceModel) -> None:
    for index, member in enumerate(model.members):
        write_text(folder / _trees(index), _text(member))
    write_checked_json(folder / HEADER, _header(model))


def _model(
    folder: Path, header: Mapping[str, Any], spec: FeatureSpec | None, expected: Mapping[str, str], threads: int,
) -> PerformanceModel:
    stored = FeatureSpec.from_record(header["spec"])
    if spec is not None:
        spec.check(stored, origin=str(folder))
    for name, wanted in expected.items():
        if header["origin"][name] != wanted:
            raise SchemaError(f"{folder} was trained for {name} {header['origin'][name]!r}, not {wanted!r}: "
                              "train it again, experiment=fit_trees")
    members = tuple(_member(folder / _trees(index), header["names"], checksum)
                    for index, checksum in enumerate(header["trees"]))
    return PerformanceModel(
        spec=stored, target=Target(**header["target"]), origin=Origin(**header["origin"]),
        names=tuple(header["names"]), members=members, folds=header["folds"], lineage=tuple(header["lineage"]),
        threads=threads,
    )


def _member(path: Path, names: list[str], checksum: str) -> lightgbm.Booster:
    content = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(content).hexdigest() != checksum:
        raise SchemaError(f"{path} is not the file that was saved with its model: run experiment=fit_trees")
    member = lightgbm.Booster(model_str=content.decode())
    if member.feature_name() != names:
        raise SchemaError(f"{path} reads the features {', '.join(member.feature_name())}, its model says "
                          f"{', '.join(names)}: run experiment=fit_trees")
    return member


def _text(member: lightgbm.Booster) -> str:
    """Return the text of the trees without the settings after them, which loading does not preserve."""
    text = member.model_to_string(num_iteration=-1)
    return text[:text.index(END) + len(END)] + "\n"


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _trees(index: int) -> str:
    return f"trees_{index}.txt"


def c_header(model: PerformanceModel, configs: Sequence[Config], *, fallback: Config) -> str:
    """Write a model with a single member as C99.

    Constants of the machine become numbers; features that no tree needs are left out.

    Raises:
        Unsupported: the model has several members.
        ValueError: the fallback is not among the configurations.
    """
    if len(model.members) != 1:
        raise Unsupported(f"a header holds one model, this one has {len(model.members)} members: distil it first")
    if fallback not in configs:
        raise ValueError(f"the fallback {fallback} is not one of the {len(configs)} configurations of the header")
    spec, forest = model.spec, _Forest.of(model.members[0])
    used = spec.needed(forest.features)
    kernel = [name for name in used if spec.group(name) == "kernel"]
    columns = spec.kernel(configs)
    numbers = np.stack([columns[name] for name in kernel] or [np.zeros(len(configs))], axis=1)
    inputs = [name for name in spec.inputs if name not in model.origin.machine]
    column = {name: index for index, name in enumerate(forest.features)}
    return TEMPLATE.format(
        op=spec.op, OP=spec.op.upper(), platform=model.origin.platform, preset=model.origin.preset,
        trees=len(forest.roots), configs=len(configs), place=list(configs).index(fallback),
        unit=model.target.unit, quantity=model.target.quantity, call=", ".join(inputs),
        parameters=", ".join(f"double {name}" for name in inputs), fallback=spec.fallback_formula.c(),
        fields="\n".join(_fields(configs)), rows="\n".join(_rows(configs)),
        kernel=", ".join(kernel), columns=numbers.shape[1], numbers=_braced(numbers),
        nodes=_listed(f"{{{threshold!r}, {column[name]}, {left}, {right}}}"
                      for name, threshold, left, right in forest.nodes),
        leaves=_listed(map(repr, forest.leaves)), roots=_listed(map(str, forest.roots)),
        features="\n".join(f"    const double {name} = {_value(model, name, kernel)};" for name in used
                           if name not in inputs),
        unread="\n".join(f"    (void){name};" for name in inputs),
        read=", ".join(forest.features), sign="" if model.target.sign < 0 else "-",
        restored=RESTORE[model.target.scale].format(f"sparloom_{spec.op}_learned({', '.join(inputs)}, place)"),
    )


@dataclass(frozen=True)
class _Forest:
    """All trees in one list of nodes.

    Args:
        features: features that are read, in the order of first use.
        nodes: feature, threshold, left, right; negative children are leaves.
        roots: first node of each tree, or a leaf.
    """

    features: list[str]
    nodes: list[tuple[str, float, int, int]]
    leaves: list[float]
    roots: list[int]

    @classmethod
    def of(cls, booster: lightgbm.Booster) -> "_Forest":
        forest = cls([], [], [], [])
        dumped = booster.dump_model()
        for tree in dumped["tree_info"]:
            forest.roots.append(forest._add(tree["tree_structure"], dumped["feature_names"]))
        return forest

    def _add(self, node: Mapping[str, Any], names: Sequence[str]) -> int:
        if "leaf_value" in node:
            self.leaves.append(float(node["leaf_value"]))
            return -len(self.leaves)
        assert node["decision_type"] == "<=", node["decision_type"]
        name, index = names[node["split_feature"]], len(self.nodes)
        if name not in self.features:
            self.features.append(name)
        self.nodes.append(("", 0.0, 0, 0))
        children = [self._add(node[side], names) for side in ("left_child", "right_child")]
        self.nodes[index] = (name, float(node["threshold"]), *children)
        return index


def _value(model: PerformanceModel, name: str, kernel: Sequence[str]) -> str:
    if name in kernel:
        return f"kernel[{list(kernel).index(name)}]"
    if name in model.origin.machine:
        return repr(float(model.origin.machine[name]))
    return model.spec.formula(name).c()


def _numeric(configs: Sequence[Config]) -> dict[str, bool]:
    """Return for each parameter whether all its values are numbers."""
    return {name: all(isinstance(config[name], int) for config in configs) for name in configs[0].names}


def _fields(configs: Sequence[Config]) -> Iterator[str]:
    for name, number in _numeric(configs).items():
        yield f"    int {name};" if number else f"    const char *{name};"


def _rows(configs: Sequence[Config]) -> Iterator[str]:
    numeric = _numeric(configs)
    for config in configs:
        values = (str(value) if numeric[name] else f'"{value}"' for name, value in config.values)
        yield f"    {{{', '.join(values)}}},"


def _braced(numbers: np.ndarray) -> str:
    return "\n".join(f"    {{{', '.join(map(repr, row))}}}," for row in numbers.tolist())


def _listed(items: Iterator[str]) -> str:
    items = list(items)
    lines = (items[start : start + PER_LINE] for start in range(0, len(items), PER_LINE))
    return "\n".join(f"    {', '.join(line)}," for line in lines)
