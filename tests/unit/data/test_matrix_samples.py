"""Labels joined with inputs, and their batches."""

import numpy as np
import pandas as pd
import pytest
import torch

from sparloom.data import MatrixSamples, TinySamples, matrix_samples
from sparloom.data.lightning import RankingData, collate
from sparloom.errors import MissingArtifact, SchemaError
from sparloom.space import CpuSpace, SpadeSpace

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


def test_values_outside_the_space_are_encoded(labels: pd.DataFrame) -> None:
    key = SPACE.default().replace(row_panel=64).key
    [item] = matrix_samples(labels.head(1).assign(config=key), TINY.inputs(), SPACE)
    assert item.shared[0, 49] == 6 / 16


def test_keys_of_another_space_are_refused(labels: pd.DataFrame) -> None:
    with pytest.raises(SchemaError, match=r"does not have the parameters rows_tile, .* of cpu"):
        matrix_samples(labels, TINY.inputs(), CpuSpace("spmm"))


def test_matrix_without_input_is_refused(labels: pd.DataFrame) -> None:
    with pytest.raises(MissingArtifact, match="no featurizer input of g/new"):
        matrix_samples(labels.assign(matrix="g/new"), TINY.inputs(), SPACE)


def test_epoch_shows_every_matrix_once_in_a_new_order(items: list[MatrixSamples]) -> None:
    loader = data(items).train_dataloader()
    epochs = [[batch.inputs[0].name for batch in loader] for _ in range(3)]
    assert len(loader) == 6
    for names in epochs:
        assert sorted(names) == sorted(item.input.name for item in items)
    assert len({tuple(names) for names in epochs}) > 1


def test_equal_seeds_give_equal_epochs(items: list[MatrixSamples]) -> None:
    first, second = (data(items, configs_per_step=5).train_dataloader() for _ in range(2))
    for ours, theirs in zip(first, second, strict=True):
        assert ours.inputs[0].name == theirs.inputs[0].name
        assert torch.equal(ours.shared, theirs.shared)


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


def test_batch_moves_as_lightning_moves_it(items: list[MatrixSamples]) -> None:
    from lightning.pytorch.utilities import move_data_to_device

    moved = move_data_to_device(collate(items[:2]), torch.device("meta"))
    assert moved.shared.device.type == "meta"
    assert moved.inputs == (items[0].input, items[1].input)


@pytest.mark.parametrize("changes", [{"configs_per_step": 1}, {"matrices_per_step": 0}])
def test_steps_without_pairs_are_refused(items: list[MatrixSamples], changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a pair needs two configurations"):
        data(items, **changes)
