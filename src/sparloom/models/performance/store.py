"""Save and load performance models: JSON and LightGBM's text in one folder, read without running code."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightgbm

from sparloom.errors import SchemaError
from sparloom.files import atomic_folder, read_json, restore_folder, write_checked_json, write_text
from sparloom.models.performance.features import FeatureSpec
from sparloom.models.performance.growth import Target
from sparloom.models.performance.model import Origin, PerformanceModel, PredictionInterval

FORMAT = 1
HEADER = "model.json"
INTERVAL = "interval.json"
END = "end of trees"
REMEDY = "run experiment=fit_trees, or restore it with `dvc pull --force`"


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
    restore_folder(folder)
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
    restore_folder(folder)
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
