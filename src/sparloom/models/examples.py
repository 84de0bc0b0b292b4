"""Labelled matrices as batches: sample table and matrix views in, maps and tensors out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from sparloom.models.cognate import Cognate, RankingBatch
from sparloom.models.encoder import FrozenEncoder
from sparloom.models.view import MatrixView
from sparloom.space import ConfigSpace

__all__ = ["Example", "cell_features", "example_loader", "make_examples"]


@dataclass(frozen=True)
class Example:
    """One matrix with its labelled configurations, ready for a network.

    Args:
        coords, features: sites and what the first layer reads of them; None is 1 everywhere.
        sites: map of this matrix alone.
        keys: configurations, in the order of the rows of `shared`, `latent`, `seconds` and `spread`.
    """

    name: str
    coords: np.ndarray
    features: np.ndarray | None
    sites: Any
    side: Tensor
    keys: tuple[str, ...]
    shared: Tensor
    latent: Tensor
    seconds: Tensor
    spread: Tensor


def cell_features(view: MatrixView, cells: str) -> np.ndarray | None:
    """Prepare what the first layer reads: None for 1 per site, or 1 and log2(1 + count)."""
    if cells == "ones":
        return None
    counts = view.input.counts.astype(np.float32)
    return np.stack([np.ones_like(counts), np.log2(1 + counts)], axis=1)


def make_examples(
    views: Mapping[str, MatrixView],
    labels: pd.DataFrame,
    *,
    net: Cognate,
    space: ConfigSpace,
    encoder: FrozenEncoder,
) -> list[Example]:
    """Join labels (columns matrix, config, seconds, spread) with views, in the order of `views`.

    Raises:
        ValueError: a matrix has no labels.
    """
    grouped = dict(tuple(labels.groupby("matrix", sort=False, observed=True)))
    examples = []
    for name, view in views.items():
        if name not in grouped:
            raise ValueError(f"no labels for matrix {name}: collect it, or leave it out of the selection")
        rows = grouped[name]
        bound = space.bind(view.shape)
        shared, codes = bound.vectors([bound.parse(key) for key in rows["config"]])
        features = cell_features(view, net.featurizer.cells)
        examples.append(Example(
            name=name, coords=view.input.coords, features=features,
            sites=build_sites(net, [view.input.coords], [features]),
            side=torch.from_numpy(net.side.read(view)), keys=tuple(rows["config"]),
            shared=torch.from_numpy(shared), latent=torch.from_numpy(encoder.encode(codes)),
            seconds=_column(rows, "seconds"), spread=_column(rows, "spread"),
        ))
    return examples


def build_sites(net: Cognate, coords: Sequence[np.ndarray], features: Sequence[np.ndarray | None]) -> Any:
    """Build a map of one or several matrices for the backend of a network."""
    given = None if any(feature is None for feature in features) else features
    return net.featurizer.backend.build_map(coords, given, channels=net.featurizer.level_channels)


def example_loader(
    examples: Sequence[Example],
    net: Cognate,
    *,
    seed: int,
    shuffle: bool,
    matrices_per_step: int = 1,
    configs_per_step: int | None = None,
) -> DataLoader:
    """Serve batches of whole matrices.

    Args:
        matrices_per_step: of one optimiser step and one pass of the convolutions.
        configs_per_step: draw this many configurations of each matrix anew in every step (32 in WACO); None for all.
    """
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(
        list(examples), batch_size=matrices_per_step, shuffle=shuffle, generator=generator,
        collate_fn=_collate(net, configs_per_step, generator),
    )


def _collate(net: Cognate, configs: int | None, generator: torch.Generator) -> Callable[[list[Example]], RankingBatch]:
    def collate(examples: list[Example]) -> RankingBatch:
        chosen = [_chosen(len(example.keys), configs, generator) for example in examples]
        counts = tuple(map(len, chosen))
        single = len(examples) == 1
        sites = examples[0].sites if single else build_sites(
            net, [example.coords for example in examples], [example.features for example in examples])

        def joined(field: str) -> Tensor:
            return torch.cat([getattr(example, field)[rows] for example, rows in zip(examples, chosen, strict=True)])

        return RankingBatch(
            names=tuple(example.name for example in examples), sites=sites,
            side=torch.stack([example.side for example in examples]), shared=joined("shared"), latent=joined("latent"),
            owner=torch.repeat_interleave(torch.arange(len(examples)), torch.tensor(counts)), counts=counts,
            seconds=joined("seconds"), spread=joined("spread"),
        )

    return collate


def _chosen(total: int, wanted: int | None, generator: torch.Generator) -> Tensor:
    if wanted is None or wanted >= total:
        return torch.arange(total)
    return torch.randperm(total, generator=generator)[:wanted]


def _column(rows: pd.DataFrame, name: str) -> Tensor:
    return torch.from_numpy(rows[name].to_numpy(np.float32))
