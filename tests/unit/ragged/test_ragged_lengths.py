"""Lengths of sequences, from files and generated."""

import gzip

import numpy as np
import pytest

from sparloom.ragged import DATASETS, LengthCorpus, generated_lengths, read_lengths


def corpus(folder=None):
    return LengthCorpus(folder, list(DATASETS), seed=0)


@pytest.fixture
def written(tmp_path):
    def write(lines, name="cola"):
        with gzip.open(tmp_path / f"{name}.txt.gz", "wt") as file:
            file.write("".join(f"{line}\n" for line in lines))
        return tmp_path

    return write


@pytest.mark.paper
@pytest.mark.parametrize("name", DATASETS)
def test_real_lengths_have_the_statistics_of_the_papers_table(seqlens, name):
    lengths = corpus(str(seqlens)).load(name)
    assert lengths.real
    assert lengths.statistics == DATASETS[name].statistics


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", DATASETS)
def test_generated_lengths_have_the_same_statistics(name, seed):
    lengths = generated_lengths(name, seed=seed)
    assert not lengths.real
    assert lengths.statistics == DATASETS[name].statistics
    assert lengths.values.shape == (1280,)


def test_a_batch_is_a_slice_in_descending_order(written):
    lengths = read_lengths("cola", written(range(1, 1400)))
    batches = lengths.batches(32)
    assert len(batches) == 10
    np.testing.assert_array_equal(batches[1], np.arange(64, 32, -1))
    np.testing.assert_array_equal(np.concatenate(lengths.batches(128)), np.concatenate(
        [np.arange(128 * batch, 128 * (batch - 1), -1) for batch in range(1, 11)]))
    np.testing.assert_array_equal(lengths.batches(1, count=3), [[1], [2], [3]])


@pytest.mark.parametrize(("size", "count"), [(256, 10), (1281, 1), (0, 1), (4, 0)])
def test_more_batches_than_entries_are_refused(size, count):
    with pytest.raises(ValueError, match=rf"{count} batches of {size} lengths of cola: there are 1280 entries"):
        generated_lengths("cola", seed=0).batches(size, count=count)


@pytest.mark.parametrize(("line", "shown"), [
    ("seven", "'seven'"), ("", "''"), ("-3", "'-3'"), ("0", "'0'"), ("1.5", "'1.5'"), (str(2**31), "'2147483648'")])
def test_an_invalid_line_is_named(written, line, shown):
    with pytest.raises(ValueError, match=f"cola.txt.gz, line 3: {shown} is not a length"):
        read_lengths("cola", written([5, 6, line] + [4] * 1277))


def test_a_short_file_is_refused(written):
    with pytest.raises(ValueError, match=r"cola.txt.gz: 1279 lengths, 1280 are needed"):
        read_lengths("cola", written([4] * 1279))


@pytest.mark.parametrize("damage", [
    lambda data: b"12\n" * 1280, lambda data: data[: len(data) // 2], lambda data: gzip.compress(b"\xff\n" * 1280)])
def test_a_damaged_file_is_refused(written, damage):
    folder = written(np.random.default_rng(0).integers(1, 1000, size=1280))
    path = folder / "cola.txt.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"cola.txt.gz: not a gzip file of decimal numbers .*: fetch it again"):
        read_lengths("cola", folder)


def test_a_missing_file_is_named_with_the_option_that_gives_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"race.txt.gz: no such file: paths.seqlens \(SPARLOOM_SEQLENS\)"):
        corpus(str(tmp_path)).load("race")


def test_unknown_data_sets_are_refused(tmp_path):
    with pytest.raises(ValueError, match="data set 'glue' is not in this choice of lengths: race, "):
        corpus().load("glue")
    with pytest.raises(ValueError, match="no data set 'glue': there are race, wiki512, "):
        read_lengths("glue", tmp_path)
    with pytest.raises(ValueError, match="no data set 'glue'"):
        generated_lengths("glue", seed=0)
