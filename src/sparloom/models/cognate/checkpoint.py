"""Checkpoints: tensors and JSON in one file, loaded without running code and checked against what they are used for."""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from torch import Tensor

from sparloom.errors import SchemaError
from sparloom.files import atomic_path

FORMAT = 1
REMEDY = "train it again, or restore it with `dvc pull --force`"
READ_ERRORS = (RuntimeError, UnpicklingError, LookupError, TypeError, ValueError, AttributeError, OSError, EOFError,
           MemoryError, zipfile.BadZipFile, zlib.error, NotImplementedError)
"""Errors of readers when a file is damaged."""

TEXTS = ("kind", "op", "platform", "space")


@dataclass(frozen=True)
class Checkpoint:
    """Weights and what they are for.

    Args:
        kind: "cognate" or "encoder".
        op, platform: operation and platform it was trained for.
        space: digest of the configuration space.
        settings: settings of the network as JSON values; a network with other settings does not load it.
        notes: JSON values for the reader: training matrices, seed, versions, metrics.
    """

    kind: str
    op: str
    platform: str
    space: str
    settings: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    notes: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(
    path: Path, checkpoint: Checkpoint, *, precision: Literal["float32", "float16"] = "float32"
) -> None:
    """Write a checkpoint atomically; equal checkpoints give equal files.

    Args:
        precision: type of floating-point tensors in the file; float16 halves its size.

    Raises:
        ValueError: a weight is not finite in this precision.
    """
    dtype = getattr(torch, precision)
    weights = {}
    for name, tensor in checkpoint.weights.items():
        tensor = tensor.detach().cpu()
        weights[name] = (tensor.to(dtype) if tensor.is_floating_point() else tensor).clone()
        if not torch.isfinite(weights[name]).all():
            raise ValueError(f"weight {name} is not finite in {precision}: training diverged, or use float32")
    header = {name: getattr(checkpoint, name) for name in TEXTS}
    header |= {"format": FORMAT, "settings": checkpoint.settings, "notes": checkpoint.notes}
    content = {"header": json.dumps(header, allow_nan=False, sort_keys=True), "weights": weights}
    with atomic_path(path) as partial, partial.open("wb") as file:
        torch.save(content, file)  # given a path, it would write the name of the file into the file


def load_checkpoint(path: Path, **expected: str) -> Checkpoint:
    """Read a checkpoint; floating-point weights come back as float32.

    Args:
        expected: kind, op, platform or space that it must have been made for.

    Raises:
        SchemaError: not a checkpoint, another format, or made for something other than expected.
    """
    try:
        content = path.read_bytes()
        if not zipfile.is_zipfile(io.BytesIO(content)):
            raise ValueError("not a zip file")
        fault = _damaged_member(content)
        if fault is not None:
            raise ValueError(f"its member {fault} is damaged")
        stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        header, weights = json.loads(stored["header"]), dict(stored["weights"])
    except FileNotFoundError:
        raise
    except READ_ERRORS as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise SchemaError(f"{path} is not a checkpoint of sparloom ({reason}): {REMEDY}") from None
    if header.get("format") != FORMAT:
        raise SchemaError(f"{path} has checkpoint format {header.get('format')}, this version reads {FORMAT}: "
                          "train it again")
    lacking = [name for name in (*TEXTS, "settings", "notes") if name not in header]
    if lacking:
        raise SchemaError(f"{path} is damaged (its header has no {lacking[0]}): {REMEDY}")
    for name, wanted in expected.items():
        if header[name] != wanted:
            raise SchemaError(f"{path} was made for {name} {header[name]!r}, not {wanted!r}: {_remedy(name)}")
    floats = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    return Checkpoint(weights=floats, settings=header["settings"], notes=header["notes"],
                      **{name: header[name] for name in TEXTS})


def _damaged_member(content: bytes) -> str | None:
    """Return the first member of a zip file whose bytes do not match their CRC-32, or None."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.testzip()


def _remedy(name: str) -> str:
    if name == "space":
        return "the configuration space has changed, train it again"
    return f"choose the checkpoint of that {name}, or train one"
