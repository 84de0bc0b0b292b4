"""Lightning data module: batches of whole matrices with some or all of their labelled configurations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from sparloom.data.batches import MatrixSamples
from sparloom.data.inputs import MatrixInput


@dataclass
class RankingBatch:
    """Configurations of several matrices, concatenated by matrix.

    Args:
        owner: int64 (n,), index into `inputs` of every row.
        shared, heterogeneous, seconds, spread: as in `MatrixSamples`, float32, concatenated.
        repeated: another process has this batch too; it only makes the numbers of batches equal.
    """

    inputs: tuple[MatrixInput, ...]
    owner: torch.Tensor
    shared: torch.Tensor
    heterogeneous: torch.Tensor
    seconds: torch.Tensor
    spread: torch.Tensor
    repeated: bool = False

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "RankingBatch":
        """Copy the tensors to a device; inputs are not copied."""
        tensors = (self.owner, self.shared, self.heterogeneous, self.seconds, self.spread)
        moved = (tensor.to(device, non_blocking=non_blocking) for tensor in tensors)
        return RankingBatch(self.inputs, *moved, repeated=self.repeated)


class RankingData(lightning.LightningDataModule):
    """Training and validation matrices in batches.

    Args:
        train: training matrices, shuffled in each epoch.
        validation: validation matrices, in this order and with all configurations.
        configs_per_step: labelled configurations of a matrix per step, drawn in each epoch; None: all (WACO: 32).
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
        """Load shuffled matrices, distributed over processes."""
        return DataLoader(
            _Epochs(self.train, self.matrices_per_step, self.configs_per_step, self.seed), batch_size=None)

    def val_dataloader(self) -> DataLoader:
        """Load one validation matrix per batch, distributed over processes."""
        return DataLoader(_Validation([collate((item,)) for item in self.validation]), batch_size=None)


class _Epochs(IterableDataset):
    """Batches of one epoch per pass, each with its own order and draw of configurations.

    Processes share one order. All must take equally many steps, since they synchronise at every step, so the first
    matrices of the order are used twice if the number of matrices is not a multiple of the number of processes.
    """

    def __init__(self, items: Sequence[MatrixSamples], group: int, configs: int | None, seed: int) -> None:
        super().__init__()
        self._items, self._group, self._configs, self._seed = tuple(items), group, configs, seed
        self._epoch = 0

    def __len__(self) -> int:
        _, processes = _rank_and_size()
        return -(-len(self._items) // (processes * self._group))

    def __iter__(self) -> Iterator[RankingBatch]:
        rng = np.random.default_rng([self._seed, self._epoch])
        self._epoch += 1
        order = rng.permutation(len(self._items))
        rank, processes = _rank_and_size()
        own = np.resize(order, -(-len(order) // processes) * processes)[rank::processes]
        draws = rng if processes == 1 else rng.spawn(processes)[rank]
        for start in range(0, len(own), self._group):
            items = [self._items[index] for index in own[start: start + self._group]]
            yield collate([_subset(item, self._configs, draws) for item in items])


class _Validation(IterableDataset):
    """Batches in order, equally many for each process; batches that are used twice are marked."""

    def __init__(self, batches: Sequence[RankingBatch]) -> None:
        super().__init__()
        self._batches = tuple(batches)

    def __len__(self) -> int:
        return -(-len(self._batches) // _rank_and_size()[1])

    def __iter__(self) -> Iterator[RankingBatch]:
        rank, processes = _rank_and_size()
        for index in range(rank, len(self) * processes, processes):
            batch = self._batches[index % len(self._batches)]
            yield batch if index < len(self._batches) else replace(batch, repeated=True)


def collate(items: Sequence[MatrixSamples]) -> RankingBatch:
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


def _rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _subset(item: MatrixSamples, count: int | None, rng: np.random.Generator) -> MatrixSamples:
    if count is None or count >= len(item):
        return item
    chosen = np.sort(rng.choice(len(item), count, replace=False))
    return MatrixSamples(
        input=item.input, keys=tuple(item.keys[index] for index in chosen), shared=item.shared[chosen],
        heterogeneous=item.heterogeneous[chosen], seconds=item.seconds[chosen], spread=item.spread[chosen],
    )
