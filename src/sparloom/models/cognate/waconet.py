"""WACO's program embedder: a lookup table per parameter, for the parameters of several platforms at once.

WacoNet, the network of WACO, made to read the configurations of several platforms (COGNATE §4.1, figure 3a).
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sparloom.models.cognate.encoder import FeatureAugmentation, FeatureMapping, FrozenEncoder, LatentEncoder
from sparloom.models.cognate.network import Network
from sparloom.space import ENCODED_WIDTH, LOOPS

__all__ = ["LookupTable", "ProgramEmbedder", "WacoNet"]

ORDER = len(LOOPS) ** 2           # numbers of the flattened permutation, before the extents
EXTENTS = ENCODED_WIDTH - ORDER
EXTENT_SCALE = 16                 # an extent x comes as log2(x) / 16
LARGEST = 4.0                     # encoded 2**64: whatever is larger was not encoded as a logarithm


class LookupTable(nn.Module):
    """A vector for every place 0, 1, ... of a parameter; a value between two places is interpolated between theirs.

    Args:
        rows: places; values beyond the last read the last.
        width: of the vectors.
    """

    def __init__(self, *, rows: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(rows, width))

    def reset(self, generator: torch.Generator) -> None:
        """Draw the table as PyTorch does: standard normal."""
        with torch.no_grad():
            self.weight.normal_(generator=generator)

    def forward(self, places: Float[Tensor, " n"]) -> Float[Tensor, "n width"]:
        places = places.clamp(0, len(self.weight) - 1)
        low = places.floor()
        share = (places - low)[:, None]
        below, above = low.long(), places.ceil().long()
        return (1 - share) * nn.functional.embedding(below, self.weight) + share * nn.functional.embedding(
            above, self.weight)


class ProgramEmbedder(nn.Module):
    """Embed configurations of several platforms; what a platform lacks is zero.

    Every parameter has a table of its own, the order of the loops a linear layer over its flattened permutation. The
    loops of all platforms share their tables where they are mapped onto each other (`encoder=mapping`, WACO+FM); each
    platform has its own where they are not (`encoder=augmentation`, WACO+FA). The platform's own parameters have tables
    of their own in either case.

    Source: WACO, model.py of its repository; COGNATE §4.3 says that it was "modified to support feature augmentation
    and feature mapping". Departures: WACO's tables have a row per power of two, and an extent cut off by the size of a
    matrix lies between two; WACO's permutation is that of six loops.

    Args:
        padding: how platforms lie side by side.
        codes: platform -> how many numbers its own parameters have at most; each is 0, 1 or between.
        extents: rows of the tables of loop extents, for 2**0, 2**1, ...
        table_width: of every lookup, 32 in WACO.
        hidden, width: of the two layers on top, 128 and 128 in WACO.
    """

    def __init__(
        self, *, padding: LatentEncoder, codes: Mapping[str, int], extents: int, table_width: int, hidden: int,
        width: int,
    ) -> None:
        super().__init__()
        if not isinstance(padding, FeatureAugmentation | FeatureMapping):
            raise ValueError(f"a program embedder puts parameters side by side and has no use for {_named(padding)}: "
                             "choose encoder=augmentation (WACO+FA) or encoder=mapping (WACO+FM)")
        missing = [platform for platform in padding.platforms if platform not in codes]
        if missing:
            raise ValueError(f"no number of codes for platform {missing[0]}: codes has {', '.join(codes)}")
        self.width, self.platforms = width, padding.platforms
        self.settings: dict[str, Any] = {
            "padding": _named(padding), "codes": {name: codes[name] for name in padding.platforms},
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

        Args:
            slot: which of the platforms.

        Raises:
            ValueError: the platform has more codes than tables, or its extents are no logarithms.
        """
        if codes.shape[1] > len(self.own[slot]):
            raise ValueError(f"{codes.shape[1]} codes of {self.platforms[slot]} exceed its {len(self.own[slot])} "
                             f"tables: raise codes.{self.platforms[slot]} of the program embedder")
        if len(shared) and float(shared[:, ORDER:].max()) > LARGEST:
            raise ValueError("extents that are no logarithms have no place in a lookup table: read them as "
                             "readings.numbers=log2")
        parts = []
        for place, bank in enumerate(self.loops):
            present = len(self.loops) == 1 or place == slot
            parts.append(bank(shared) if present else shared.new_zeros(len(shared), bank.width))
        for place, tables in enumerate(self.own):
            for number, table in enumerate(tables):
                present = place == slot and number < codes.shape[1]
                parts.append(table(codes[:, number]) if present else shared.new_zeros(len(shared), table.width))
        return self.layers(torch.cat(parts, dim=1))


class _LoopTables(nn.Module):
    """Lookups of the four extents and the order of the loops, side by side."""

    def __init__(self, extents: int, table_width: int) -> None:
        super().__init__()
        self.width = (EXTENTS + 1) * table_width
        self.extents = nn.ModuleList(LookupTable(rows=extents, width=table_width) for _ in range(EXTENTS))
        self.order = nn.Linear(ORDER, table_width)

    def forward(self, shared: Float[Tensor, "n 53"]) -> Float[Tensor, "n width"]:
        places = shared[:, ORDER:] * EXTENT_SCALE
        found = [table(places[:, number]) for number, table in enumerate(self.extents)]
        return torch.cat([*found, self.order(shared[:, :ORDER])], dim=1)


def _named(padding: LatentEncoder) -> str:
    return type(padding).__name__


class WacoNet(Network):
    """A matrix embedding and a program embedding meet in a predictor.

    The encoder of a platform only says which platform it is and how many codes that has: the program embedder reads the
    codes themselves.

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
        """Read the configurations of one platform from now on.

        Raises:
            ValueError: it was made by an encoder that has no slots.
        """
        if encoder.slot is None:
            raise ValueError("WacoNet puts the parameters of platforms side by side, and this latent encoder was made "
                             "otherwise: make it with encoder=augmentation (WACO+FA) or encoder=mapping (WACO+FM)")
        super().use_encoder(encoder)

    def score(
        self, embedding: Float[Tensor, "n width"], shared: Float[Tensor, "n 53"], codes: Float[Tensor, "n h"]
    ) -> Float[Tensor, " n"]:
        if self.encoder is None:
            raise ValueError("the network does not know the platform: call use_encoder with the encoder of it")
        self.encoder.check(codes)
        program = self.embedder(shared, codes, slot=self.encoder.slot)
        return self.predictor(embedding, program, program.new_zeros(len(program), 0))
