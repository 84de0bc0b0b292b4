"""COGNATE networks fine-tuned on sparse kernels of a CPU, behind the question that dispatch asks for its shortlists."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from sparloom.errors import IllegalSchedule, SchemaError, Unsupported
from sparloom.models.checkpoint import load_checkpoint
from sparloom.models.cognate_model import CognateModel
from sparloom.models.last_seen import LastSeen
from sparloom.models.restore import restore_cognate
from sparloom.models.view import MatrixView
from sparloom.ops import Operands
from sparloom.space import Config, GridSpace, SddmmSpace, SpmmSpace

__all__ = ["NetworkShortlists", "open_networks"]

SPACES: Mapping[str, Callable[[int], GridSpace]] = {"spmm": SpmmSpace, "sddmm": SddmmSpace}
PLATFORM = "cpu_kernels"


class NetworkShortlists:
    """Orders configurations by the network of their operation that was fine-tuned at the nearest width.

    A network does not read the width but by the extents of the loops, so one is fine-tuned at each of a few.

    Args:
        models: (operation, width) -> model.
    """

    def __init__(self, models: Mapping[tuple[str, int], CognateModel]) -> None:
        self._models = dict(models)
        self._views = LastSeen(MatrixView.of)

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast.

        Raises:
            Unsupported: no network of this operation, a matrix without nonzeros, or a configuration that the network
                has not seen.
        """
        widths = [width for known, width in self._models if known == op]
        if not widths:
            raise Unsupported(f"the networks are of {', '.join(sorted({known for known, _ in self._models}))}")
        pattern = operands.matrix.pattern
        if not pattern.nnz:
            raise Unsupported("a network reads the places of nonzeros, and there are none")
        width = min(widths, key=lambda known: (abs(math.log(known / operands.width)), known))
        model = self._models[op, width]
        try:
            for config in configs:
                model.space.validate(config)
        except IllegalSchedule as error:
            raise Unsupported(f"the network of {op} with {width} columns: {error}") from None
        return model.score(self._views.of(pattern), configs)


def open_networks(files: Sequence[Path], *, threads: int) -> NetworkShortlists:
    """Read networks, as experiment=finetune_cpu_kernels saves them.

    Args:
        files: one for each operation and width.
        threads: of the kernels; networks do not read it.

    Raises:
        SchemaError: a file holds no such network, or one for an earlier version of the space.
    """
    models = {}
    for path in files:
        stored = load_checkpoint(path, kind="cognate", platform=PLATFORM)
        width = stored.notes.get("width")
        if stored.op not in SPACES or not isinstance(width, int):
            raise SchemaError(f"{path} is a network of {stored.op} for width {width}: give one of "
                              f"{' or '.join(SPACES)} from experiment=finetune_cpu_kernels")
        space = SPACES[stored.op](width)
        if stored.space != space.digest():
            raise SchemaError(f"{path} was made for another space of {stored.op}: the space has changed since, run "
                              f"experiment=finetune_cpu_kernels op={stored.op} target.width={width}")
        models[stored.op, width] = CognateModel(restore_cognate(stored, path), space)
    return NetworkShortlists(models)
