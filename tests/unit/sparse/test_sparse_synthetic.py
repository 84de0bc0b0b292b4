"""The synthetic corpus: names, bytes, bins, roles."""

import hashlib
import logging
from collections import Counter
from pathlib import Path

import pytest
import yaml

from sparloom.sparse import ROW_BINS, SYNTHETIC_ROLES, SyntheticCorpus, synthetic
from sparloom.sparse.generators import GENERATORS

TABLE = Path(__file__).resolve().parents[3] / "conf" / "options" / "data.yaml"
CATALOGUE = Path(synthetic.__file__).with_name("synthetic.csv")


def corpus(name):
    arguments = yaml.safe_load(TABLE.read_text(encoding="utf-8"))["corpus"][name]
    assert arguments.pop("_target_") == "sparloom.sparse.SyntheticCorpus"
    return SyntheticCorpus(**arguments)


def digest(matrix):
    return hashlib.sha256(matrix.pattern.digest().encode() + matrix.values.tobytes()).hexdigest()


def test_there_are_at_least_fourteen_families_and_each_has_a_role():
    assert len(GENERATORS) >= 14
    assert set(SYNTHETIC_ROLES) == set(GENERATORS)
    assert set(SYNTHETIC_ROLES.values()) == {"train", "validation", "test"}


def test_default_corpus_covers_all_row_bins_with_every_family():
    entries = corpus("synthetic").entries()
    assert {(entry.family, entry.row_bin) for entry in entries} == {(f, b) for f in GENERATORS for b in ROW_BINS}
    assert len({entry.name for entry in entries}) == len(entries) == 7 * len(GENERATORS)


def test_no_family_has_two_roles():
    made = corpus("synthetic")
    split = made.split()
    roles = {(entry.family, split[entry.name]) for entry in made.entries()}
    assert len(roles) == len(GENERATORS)
    assert set(Counter(split.values())) == {"train", "validation", "test"}


def test_bytes_of_the_tiny_corpus_are_golden():
    lines = synthetic.catalogue_text(corpus("tiny")).splitlines()
    accepted = CATALOGUE.read_text().splitlines()
    assert lines[0] == accepted[0]
    assert set(lines) <= set(accepted), "generators changed: write catalogue_text of both corpora to synthetic.csv"


@pytest.mark.slow
@pytest.mark.parametrize("family", GENERATORS)
def test_bytes_of_every_family_are_golden(family):
    lines = synthetic.catalogue_text(SyntheticCorpus([1000, 4000, 28000], 1, 0, [family])).splitlines()
    assert set(lines) <= set(CATALOGUE.read_text().splitlines())


def test_catalogue_lists_the_configured_corpora_and_nothing_else():
    listed = {line.partition(",")[0] for line in CATALOGUE.read_text().splitlines()[1:]}
    assert listed == {entry.name for name in ("tiny", "synthetic") for entry in corpus(name).entries()}


@pytest.mark.parametrize(("name", "expected"), [
    ("star_2d/n1000_v0_s0", "eef06ffe870a59ca893a5262722ba660e211d3c58e7dbba743be12421239c501"),
    ("kronecker/n1000_v0_s0", "cc0509f12eb9688baa2b5b5a06a045b0adeaa44d0adf53ee14ae3ec24122ffef"),
    ("roads/n1000_v0_s0", "ca2c0555723b1ce15623580f552800c2b524e41c0e311d51bfb95992c8311674"),
])
def test_bytes_of_single_matrices_are_golden(name, expected):
    assert digest(corpus("synthetic").load(name)) == expected


def test_entries_describe_what_load_returns():
    made = SyntheticCorpus([60], 2, 7)
    for entry in made.entries():
        pattern = made.load(entry.name).pattern
        assert (pattern.rows, pattern.cols, pattern.nnz) == (entry.rows, entry.cols, entry.nnz)
        assert entry.name == f"{entry.family}/n60_{entry.name.partition('_v')[1][1:]}{entry.name.partition('_v')[2]}"


def test_difference_from_the_catalogue_is_a_warning(monkeypatch, caplog):
    other = GENERATORS | {"uniform": GENERATORS["banded"]}
    monkeypatch.setattr(synthetic, "GENERATORS", other)
    with caplog.at_level(logging.WARNING):
        corpus("tiny").load("uniform/n200_v0_s0")
    assert "uniform/n200_v0_s0 differs from the catalogue on this machine" in caplog.text
