"""Fine-tuned networks that rank sparse CPU kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from sparloom.errors import IllegalSchedule, SchemaError, Unsupported
from sparloom.models.cognate.checkpoint import load_checkpoint
from sparloom.models.cognate.model import CognateModel, restore_cognate
from sparloom.models.cost_model import MatrixFeatures, OneEntryCache
from sparloom.ops import Operands
from sparloom.space import Config, GridSpace, SddmmSpace, SpmmSpace

SPACES: Mapping[str, Callable[[int], GridSpace]] = {"spmm": SpmmSpace, "sddmm": SddmmSpace}
PLATFORM = "cpu_kernels"


class NetworkShortlists:
    """Ranks configurations with the network of the operation that was fine-tuned at the nearest width.

    Networks read the width only through the extents of loops, so one is fine-tuned for each of a few widths.

    Args:
        models: (operation, width) -> model.
    """

    def __init__(self, models: Mapping[tuple[str, int], CognateModel]) -> None:
        self._models = dict(models)
        self._matrices = OneEntryCache(MatrixFeatures.from_pattern)

    def score(self, op: str, operands: Operands, configs: Sequence[Config]) -> Float[np.ndarray, " configs"]:
        """Score configurations: low = fast.

        Raises:
            Unsupported: no network for this operation, a matrix without nonzeros, or a configuration outside the
                network's space.
        """
        widths = [width for known, width in self._models if known == op]
        if not widths:
            raise Unsupported(f"there are networks only for {', '.join(sorted({known for known, _ in self._models}))}")
        pattern = operands.matrix.pattern
        if not pattern.nnz:
            raise Unsupported("the matrix has no nonzeros for a network to read")
        width = min(widths, key=lambda known: (abs(math.log(known / operands.width)), known))
        model = self._models[op, width]
        try:
            for config in configs:
                model.space.validate(config)
        except IllegalSchedule as error:
            raise Unsupported(f"the network of {op} with {width} columns: {error}") from None
        return model.score(self._matrices.get(pattern), configs)


def load_networks(files: Sequence[Path]) -> NetworkShortlists:
    """Load networks that experiment=finetune_cpu_kernels saved.

    Args:
        files: one checkpoint per operation and width.

    Raises:
        SchemaError: a file does not hold such a network, or one for another version of the space.
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
            raise SchemaError(f"{path} was made for another space of {stored.op}: the space has changed, run "
                              f"experiment=finetune_cpu_kernels op={stored.op} target.width={width}")
        models[stored.op, width] = CognateModel(restore_cognate(stored, path), space)
    return NetworkShortlists(models)
