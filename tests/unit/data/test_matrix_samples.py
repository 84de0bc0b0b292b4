"""Labels joined with inputs, and their batches."""

import numpy as np
import pandas as pd
import pytest

from sparloom.data import MatrixSamples, TinySamples, matrix_samples
from sparloom.data.lightning import RankingData
from sparloom.space import SpadeSpace

TINY = TinySamples(matrices=6, configs=20, seed=0)
SPACE = SpadeSpace("spmm")


@pytest.fixture(scope="module")
def labels() -> pd.DataFrame:
    return TINY.table("spade", "", "spmm").labels()


@pytest.fixture(scope="module")
def items(labels: pd.DataFrame) -> list[MatrixSamples]:
    return matrix_samples(labels, TINY.inputs(), SPACE)


def data(items: list[MatrixSamples], **changes: int | None) -> RankingData:
    options = {"configs_per_step": None, "matrices_per_step": 1, "seed": 0, **changes}
    return RankingData(items, items[:2], **options)


def test_items_hold_the_labels_of_their_matrix(items: list[MatrixSamples], labels: pd.DataFrame) -> None:
    assert [item.input.name for item in items] == list(dict.fromkeys(labels["matrix"]))
    for item in items:
        rows = labels[labels["matrix"] == item.input.name]
        assert list(item.keys) == rows["config"].tolist()
        assert item.seconds.tolist() == rows["seconds"].tolist()
        shared, heterogeneous = SPACE.bind(item.input.shape).vectors([SPACE.parse(key) for key in item.keys])
        assert np.array_equal(item.shared, shared)
        assert np.array_equal(item.heterogeneous, heterogeneous)


def test_epoch_shows_every_matrix_once_in_a_new_order(items: list[MatrixSamples]) -> None:
    loader = data(items).train_dataloader()
    epochs = [[batch.inputs[0].name for batch in loader] for _ in range(3)]
    assert len(loader) == 6
    for names in epochs:
        assert sorted(names) == sorted(item.input.name for item in items)
    assert len({tuple(names) for names in epochs}) > 1


def test_steps_may_hold_several_matrices(items: list[MatrixSamples]) -> None:
    batches = list(data(items, matrices_per_step=4).train_dataloader())
    assert [len(batch.inputs) for batch in batches] == [4, 2]
    assert batches[0].owner.tolist() == np.repeat(range(4), 20).tolist()
    assert len(data(items, matrices_per_step=4).train_dataloader()) == 2


def test_configurations_of_each_step_are_drawn_again(items: list[MatrixSamples]) -> None:
    loader = data(items[:1], configs_per_step=5).train_dataloader()
    drawn = [next(iter(loader)).seconds.tolist() for _ in range(4)]
    assert all(len(set(seconds)) <= 5 for seconds in drawn)
    assert len({tuple(seconds) for seconds in drawn}) > 1
    known = set(items[0].seconds.astype(np.float32).tolist())
    assert all(set(seconds) <= known for seconds in drawn)


def test_validation_is_whole_and_in_order(items: list[MatrixSamples]) -> None:
    batches = list(data(items, configs_per_step=5).val_dataloader())
    assert [batch.inputs[0].name for batch in batches] == [item.input.name for item in items[:2]]
    assert all(len(batch.seconds) == 20 for batch in batches)
