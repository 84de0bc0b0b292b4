"""Two processes that train together share every epoch and take equally many steps."""

import json
import multiprocessing
from pathlib import Path

import pytest
import torch
from lightning import LightningModule
from torch import distributed, nn

from sparloom.data import TinySamples, matrix_samples
from sparloom.data.lightning import RankingBatch, RankingData
from sparloom.models import fit, make_trainer
from sparloom.space import SpadeSpace

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("processes_loaded")]

EPOCHS = 2


def data(matrices: int, *, group: int, configs: int | None) -> RankingData:
    source = TinySamples(matrices=matrices, configs=20, seed=0)
    items = matrix_samples(source.table("spade", "", "spmm").labels(), source.inputs(), SpadeSpace("spmm"))
    return RankingData(items, items[:3], configs_per_step=configs, matrices_per_step=group, seed=0)


def epochs(matrices: int, group: int, configs: int | None) -> list[list[list[tuple[str, float]]]]:
    """Names of the matrices and sums of their seconds, by epoch and step."""
    loader = data(matrices, group=group, configs=configs).train_dataloader()
    found = []
    for _ in range(EPOCHS):
        steps = [[(item.name, float(seconds.sum())) for item, seconds in zip(
            batch.inputs, batch.seconds.split(torch.bincount(batch.owner).tolist()), strict=True)] for batch in loader]
        assert len(steps) == len(loader)
        found.append(steps)
    return found


def _work(folder: Path, number: int, cases: list[tuple[int, int, int | None]]) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=number, world_size=2)
    (folder / f"{number}.json").write_text(json.dumps([epochs(*case) for case in cases]))
    distributed.destroy_process_group()


CASES = [(6, 1, None), (7, 1, None), (7, 2, None), (1, 1, None), (8, 2, 5)]


@pytest.fixture(scope="module")
def seen(processes_loaded, tmp_path_factory) -> dict[tuple, list]:
    """Collect the matrices of both processes: case -> [first, second]."""
    folder = tmp_path_factory.mktemp("processes")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(folder, number, CASES)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    both = [json.loads((folder / f"{number}.json").read_text()) for number in range(2)]
    return {case: [both[0][place], both[1][place]] for place, case in enumerate(CASES)}


def names(epoch: list) -> list[str]:
    return [name for step in epoch for name, _ in step]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_processes_take_equally_many_steps(seen, case):
    for first, second in zip(*seen[case], strict=True):
        assert [len(step) for step in first] == [len(step) for step in second]


@pytest.mark.parametrize(("case", "twice"), [(CASES[0], 0), (CASES[1], 1), (CASES[2], 1), (CASES[3], 1), (CASES[4], 0)],
                         ids=str)
def test_processes_cover_all_matrices_and_repeat_at_most_one(seen, case, twice):
    for first, second in zip(*seen[case], strict=True):
        together = names(first) + names(second)
        assert len(set(together)) == case[0]
        assert len(together) == case[0] + twice


def test_every_epoch_shuffles_again(seen):
    first, _ = seen[CASES[0]]
    assert names(first[0]) != names(first[1])


class _Counting(LightningModule):
    """Module of one weight that counts its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("steps", torch.zeros(()))

    def training_step(self, batch: RankingBatch, index: int) -> torch.Tensor:
        self.steps += 1
        return self.weight * batch.seconds.mean()

    def validation_step(self, batch: RankingBatch, index: int) -> None:
        self.log("seconds", batch.seconds.mean(), sync_dist=True, batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def test_lightning_trains_with_two_processes(tmp_path):
    module, count = _Counting(), 7
    trainer = make_trainer(accelerator="cpu", devices=2, strategy="ddp_spawn", precision="32-true", epochs=EPOCHS,
                           validate_every=1, out=tmp_path)
    fit(trainer, module, data(count, group=1, configs=None))
    assert int(module.steps) == EPOCHS * -(-count // 2)
    assert float(module.weight.detach()) < 0
    assert float(trainer.callback_metrics["seconds"]) > 0
