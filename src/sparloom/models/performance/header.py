"""Write a performance model as a C header with features, trees and configurations; it needs only the C library."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np

from sparloom.errors import Unsupported
from sparloom.models.performance.model import PerformanceModel
from sparloom.space import Config

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
