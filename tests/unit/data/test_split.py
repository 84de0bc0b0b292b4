"""Splits: roles by family, files, errors."""

from collections import Counter
from pathlib import Path

import pytest

from sparloom.data import Split, split_by_family
from sparloom.errors import SchemaError

SPLIT = Split({"g/a": "train", "g/a_2": "train", "g/b": "test", "h/c": "validation"}, {"g/a": "a", "g/a_2": "a"})
SHARES = {"train": 0.5, "validation": 0.1, "test": 0.4}


def test_family_in_two_roles_is_refused() -> None:
    with pytest.raises(ValueError, match="family a leaks: g/a is in train, g/a_2 in test; give a family one role"):
        Split({"g/a": "train", "g/a_2": "test"}, {"g/a": "a", "g/a_2": "a"})


def test_files_read_back(tmp_path: Path) -> None:
    SPLIT.write(tmp_path / "split.csv")
    back = Split.read(tmp_path / "split.csv")
    assert dict(back.roles) == dict(SPLIT.roles)
    assert {back.families.get(key, key) for key in ("g/a", "g/a_2")} == {"a"}


def test_matrix_listed_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("name,family,role\na,a,train\na,a,train\n")
    with pytest.raises(SchemaError, match="line 3: a is listed twice"):
        Split.read(tmp_path / "s.csv")


def test_split_by_family_keeps_families_and_shares_in_every_stratum() -> None:
    families = {f"g/m{place}": f"f{place // 3}" for place in range(600)}
    strata = {name: "small" if int(name[3:]) < 300 else "large" for name in families}
    split = split_by_family(families, strata=strata, shares=SHARES, seed=0)
    assert set(split.roles) == set(families)
    for stratum in ("small", "large"):
        counts = Counter(role for name, role in split.roles.items() if strata[name] == stratum)
        for role, share in SHARES.items():
            assert abs(counts[role] - 300 * share) <= 3


def test_split_by_family_depends_on_the_seed_only() -> None:
    families = {f"g/m{place}": f"f{place}" for place in range(50)}
    strata = dict.fromkeys(families, "all")
    turned = dict(reversed(families.items()))
    first = split_by_family(families, strata=strata, shares=SHARES, seed=0)
    assert dict(first.roles) == dict(split_by_family(turned, strata=strata, shares=SHARES, seed=0).roles)
    assert dict(first.roles) != dict(split_by_family(families, strata=strata, shares=SHARES, seed=1).roles)
