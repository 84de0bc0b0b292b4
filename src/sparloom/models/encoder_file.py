"""Latent encoders on disk: the same format as networks, kind "encoder"."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparloom.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sparloom.models.encoder import FrozenEncoder
from sparloom.space import ConfigSpace

__all__ = ["load_encoder", "save_encoder"]


def save_encoder(path: Path, encoder: FrozenEncoder, space: ConfigSpace, *, notes: Mapping[str, Any]) -> None:
    """Write the encoder of one platform and operation."""
    save_checkpoint(path, Checkpoint(
        kind="encoder", op=space.op, platform=space.name, space=space.digest(),
        settings={"codes": len(encoder.mean), "width": encoder.width}, weights=encoder.state_dict(), notes=notes,
    ))


def load_encoder(path: Path, space: ConfigSpace) -> FrozenEncoder:
    """Read it back.

    Raises:
        SchemaError: made for another op, platform or version of the space.
    """
    stored = load_checkpoint(path, kind="encoder", op=space.op, platform=space.name, space=space.digest())
    return FrozenEncoder.restore(stored.weights)
