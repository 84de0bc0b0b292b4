"""WacoNet, WACO's network extended to configurations of several platforms (COGNATE §4.1, figure 3a).

Its program embedder has a lookup table per parameter.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.models.cognate.encoder import FeatureAugmentation, FeatureMapping, FrozenEncoder, LatentEncoder
from sparloom.models.cognate.network import Network
from sparloom.space import ENCODED_WIDTH, EXTENT_SCALE, ORDER_WIDTH

EXTENTS = ENCODED_WIDTH - ORDER_WIDTH
MAX_EXTENT = 4.0                  # encoded 2**64: larger values were not encoded as logarithms


class LookupTable(nn.Module):
    """Look up a vector for each value 0, 1, ... of a parameter, with linear interpolation in between.

    Args:
        rows: number of vectors; larger values read the last one.
    """

    def __init__(self, *, rows: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(rows, width))

    def reset(self, generator: torch.Generator) -> None:
        """Draw the table as PyTorch does: standard normal."""
        with torch.no_grad():
            self.weight.normal_(generator=generator)

    def forward(self, values: Float[Tensor, " n"]) -> Float[Tensor, "n width"]:
        values = values.clamp(0, len(self.weight) - 1)
        low = values.floor()
        share = (values - low)[:, None]
        below, above = low.long(), values.ceil().long()
        return (1 - share) * nn.functional.embedding(below, self.weight) + share * nn.functional.embedding(
            above, self.weight)


class ProgramEmbedder(nn.Module):
    """Embed configurations of several platforms; parameters that a platform lacks are read as zero.

    Every parameter has its own lookup table; the order of the loops goes through a linear layer over the flattened
    permutation. With `encoder=mapping` (WACO+FM) the shared loops of all platforms read the same tables, with
    `encoder=augmentation` (WACO+FA) each platform has its own. Hardware-specific parameters have their own tables in
    both cases.

    Source: WACO, model.py of its repository; COGNATE §4.3 says that it was "modified to support feature augmentation
    and feature mapping". Departures: WACO's tables have a row per power of two, whereas an extent limited by the size
    of a matrix is interpolated here; WACO's permutation is that of six loops.

    Args:
        padding: FeatureAugmentation or FeatureMapping.
        codes: platform -> largest number of hardware-specific codes, each in [0, 1].
        extents: rows of the tables of loop extents, for 2**0, 2**1, ...
        table_width: width of every lookup, 32 in WACO.
        hidden, width: widths of the two layers on top, 128 and 128 in WACO.
    """

    def __init__(
        self, *, padding: LatentEncoder, codes: Mapping[str, int], extents: int, table_width: int, hidden: int,
        width: int,
    ) -> None:
        super().__init__()
        if not isinstance(padding, FeatureAugmentation | FeatureMapping):
            raise ValueError(f"a program embedder cannot read latent vectors of {_class_name(padding)}: "
                             "choose encoder=augmentation (WACO+FA) or encoder=mapping (WACO+FM)")
        missing = [platform for platform in padding.platforms if platform not in codes]
        if missing:
            raise ValueError(f"codes has no entry for platform {missing[0]}, only {', '.join(codes)}")
        self.width, self.platforms = width, padding.platforms
        self.settings: dict[str, Any] = {
            "padding": _class_name(padding), "codes": {name: codes[name] for name in padding.platforms},
            "extents": extents, "table_width": table_width, "hidden": hidden, "width": width,
        }
        banks = 1 if padding.mapped else len(padding.platforms)
        self.loops = nn.ModuleList(_LoopTables(extents, table_width) for _ in range(banks))
        self.own = nn.ModuleList(
            nn.ModuleList(LookupTable(rows=2, width=table_width) for _ in range(codes[name]))
            for name in padding.platforms
        )
        tables = banks * (EXTENTS + 1) + sum(map(len, self.own))
        self.layers = nn.Sequential(nn.Linear(tables * table_width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(
        self, shared: Float[Tensor, "n 53"], codes: Float[Tensor, "n h"], *, slot: int
    ) -> Float[Tensor, "n width"]:
        """Embed configurations of one platform.

        Raises:
            ValueError: the platform has more codes than tables, or its extents are not encoded as logarithms.
        """
        if codes.shape[1] > len(self.own[slot]):
            raise ValueError(f"{codes.shape[1]} codes of {self.platforms[slot]} exceed its {len(self.own[slot])} "
                             f"tables: raise codes.{self.platforms[slot]} of the program embedder")
        if len(shared) and float(shared[:, ORDER_WIDTH:].max()) > MAX_EXTENT:
            raise ValueError("the lookup tables need extents that are encoded as logarithms: set "
                             "readings.numbers=log2")
        parts = []
        for platform, bank in enumerate(self.loops):
            present = len(self.loops) == 1 or platform == slot
            parts.append(bank(shared) if present else shared.new_zeros(len(shared), bank.width))
        for platform, tables in enumerate(self.own):
            for number, table in enumerate(tables):
                present = platform == slot and number < codes.shape[1]
                parts.append(table(codes[:, number]) if present else shared.new_zeros(len(shared), table.width))
        return self.layers(torch.cat(parts, dim=1))


class _LoopTables(nn.Module):
    """Embed the four extents and the order of the loops and concatenate the vectors."""

    def __init__(self, extents: int, table_width: int) -> None:
        super().__init__()
        self.width = (EXTENTS + 1) * table_width
        self.extents = nn.ModuleList(LookupTable(rows=extents, width=table_width) for _ in range(EXTENTS))
        self.order = nn.Linear(ORDER_WIDTH, table_width)

    def forward(self, shared: Float[Tensor, "n 53"]) -> Float[Tensor, "n width"]:
        exponents = shared[:, ORDER_WIDTH:] * EXTENT_SCALE
        vectors = [table(exponents[:, number]) for number, table in enumerate(self.extents)]
        return torch.cat([*vectors, self.order(shared[:, :ORDER_WIDTH])], dim=1)


def _class_name(padding: LatentEncoder) -> str:
    return type(padding).__name__


class WacoNet(Network):
    """Score a configuration from matrix embedding and program embedding.

    The program embedder reads the codes themselves; the latent encoder only tells the platform and its number of codes.

    Args:
        featurizer, side: see `Network`.
        embedder: mapped loops (n, 53), codes (n, h), slot of the platform -> (n, program width).
        predictor: (n, matrix), (n, program), (n, 0) -> (n,).
    """

    def __init__(
        self, *, featurizer: nn.Module, side: nn.Module, embedder: ProgramEmbedder, predictor: nn.Module
    ) -> None:
        super().__init__(featurizer=featurizer, side=side, embedder=embedder, predictor=predictor)

    def use_encoder(self, encoder: FrozenEncoder) -> None:
        """Score configurations of the platform of this encoder from now on.

        Raises:
            ValueError: the encoder has no slot.
        """
        if encoder.slot is None:
            raise ValueError("WacoNet needs a latent encoder with a slot for the platform: make it with "
                             "encoder=augmentation (WACO+FA) or encoder=mapping (WACO+FM)")
        super().use_encoder(encoder)

    def score(
        self, embedding: Float[Tensor, "n width"], shared: Float[Tensor, "n 53"], codes: Float[Tensor, "n h"]
    ) -> Float[Tensor, " n"]:
        if self.encoder is None:
            raise ValueError("the network has no latent encoder: call use_encoder with the encoder of the platform")
        self.encoder.check(codes)
        program = self.embedder(shared, codes, slot=self.encoder.slot)
        return self.predictor(embedding, program, program.new_zeros(len(program), 0))
