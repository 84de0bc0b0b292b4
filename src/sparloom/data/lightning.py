"""Batches for Lightning: whole matrices with some or all of their labelled configurations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from sparloom.data.batches import MatrixSamples
from sparloom.data.inputs import MatrixInput

__all__ = ["RankingBatch", "RankingData"]


@dataclass
class RankingBatch:
    """Configurations of several matrices, matrix after matrix.

    Args:
        inputs: one per matrix.
        owner: int64 (n,), which of `inputs` a row belongs to.
        shared, heterogeneous, seconds, spread: as in `MatrixSamples`, float32, rows of all matrices joined.
        repeated: another process has this batch, too; it is here so that all take equally many.
    """

    inputs: tuple[MatrixInput, ...]
    owner: torch.Tensor
    shared: torch.Tensor
    heterogeneous: torch.Tensor
    seconds: torch.Tensor
    spread: torch.Tensor
    repeated: bool = False

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "RankingBatch":
        """Copy the tensors to a device; inputs stay where they are."""
        tensors = (self.owner, self.shared, self.heterogeneous, self.seconds, self.spread)
        moved = (tensor.to(device, non_blocking=non_blocking) for tensor in tensors)
        return RankingBatch(self.inputs, *moved, repeated=self.repeated)


class RankingData(lightning.LightningDataModule):
    """Training and validation matrices in batches.

    Args:
        train: matrices to learn from, shuffled anew each epoch.
        validation: matrices to watch, in this order, always with all configurations.
        configs_per_step: labelled configurations of a matrix per step, drawn anew each epoch; None: all (WACO: 32).
        matrices_per_step: matrices per optimiser step of each process.
        seed: of the shuffling.
    """

    def __init__(
        self,
        train: Sequence[MatrixSamples],
        validation: Sequence[MatrixSamples],
        *,
        configs_per_step: int | None,
        matrices_per_step: int,
        seed: int,
    ) -> None:
        super().__init__()
        if matrices_per_step < 1 or (configs_per_step is not None and configs_per_step < 2):
            raise ValueError(f"matrices_per_step {matrices_per_step} must be at least 1 and configs_per_step "
                             f"{configs_per_step} at least 2, since a pair needs two configurations")
        self.train = tuple(train)
        self.validation = tuple(validation)
        self.configs_per_step = configs_per_step
        self.matrices_per_step = matrices_per_step
        self.seed = seed

    def train_dataloader(self) -> DataLoader:
        """Shuffled matrices; of several processes each gets its share."""
        return DataLoader(
            _Epochs(self.train, self.matrices_per_step, self.configs_per_step, self.seed), batch_size=None)

    def val_dataloader(self) -> DataLoader:
        """One validation matrix per batch; of several processes each gets its share."""
        return DataLoader(_Watched([collate((item,)) for item in self.validation]), batch_size=None)


class _Epochs(IterableDataset):
    """Each pass is one epoch with its own order and draw of configurations.

    Processes that train together deal one order out among themselves. All take equally many steps, since each waits
    for the others at every step: where the matrices do not come out even, the first of the order are dealt twice.
    """

    def __init__(self, items: Sequence[MatrixSamples], group: int, configs: int | None, seed: int) -> None:
        super().__init__()
        self._items, self._group, self._configs, self._seed = tuple(items), group, configs, seed
        self._epoch = 0

    def __len__(self) -> int:
        _, processes = _process()
        return -(-len(self._items) // (processes * self._group))

    def __iter__(self) -> Iterator[RankingBatch]:
        rng = np.random.default_rng([self._seed, self._epoch])
        self._epoch += 1
        order = rng.permutation(len(self._items))
        number, processes = _process()
        dealt = np.resize(order, -(-len(order) // processes) * processes)[number::processes]
        draws = rng if processes == 1 else rng.spawn(processes)[number]
        for begin in range(0, len(dealt), self._group):
            items = [self._items[place] for place in dealt[begin: begin + self._group]]
            yield collate([_subset(item, self._configs, draws) for item in items])


class _Watched(IterableDataset):
    """Batches in order, shared out among processes, equally many for each: what is given twice is marked."""

    def __init__(self, batches: Sequence[RankingBatch]) -> None:
        super().__init__()
        self._batches = tuple(batches)

    def __len__(self) -> int:
        return -(-len(self._batches) // _process()[1])

    def __iter__(self) -> Iterator[RankingBatch]:
        number, processes = _process()
        for place in range(number, len(self) * processes, processes):
            batch = self._batches[place % len(self._batches)]
            yield batch if place < len(self._batches) else replace(batch, repeated=True)


def collate(items: Sequence[MatrixSamples]) -> RankingBatch:
    """Join matrices into one batch."""
    sizes = [len(item) for item in items]

    def joined(name: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([getattr(item, name) for item in items]).astype(np.float32))

    return RankingBatch(
        inputs=tuple(item.input for item in items),
        owner=torch.from_numpy(np.repeat(np.arange(len(items)), sizes)),
        shared=joined("shared"),
        heterogeneous=joined("heterogeneous"),
        seconds=joined("seconds"),
        spread=joined("spread"),
    )


def _process() -> tuple[int, int]:
    """Number of this process among those that train together, and how many they are."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _subset(item: MatrixSamples, count: int | None, rng: np.random.Generator) -> MatrixSamples:
    if count is None or count >= len(item):
        return item
    kept = np.sort(rng.choice(len(item), count, replace=False))
    return MatrixSamples(
        input=item.input, keys=tuple(item.keys[place] for place in kept), shared=item.shared[kept],
        heterogeneous=item.heterogeneous[kept], seconds=item.seconds[kept], spread=item.spread[kept],
    )
