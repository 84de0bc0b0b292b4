"""Splits of matrices into train, validation and test by family, and selections of training samples on the target.

Every method trains on the same selected matrices and configurations.
"""

import csv
import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

import numpy as np
import pandas as pd

from sparloom.errors import SchemaError
from sparloom.files import write_text
from sparloom.sparse import ROW_BINS, Role, row_bin, signed_logarithm

ROLES: tuple[Role, ...] = get_args(Role)
"""Roles of matrices: train, validation, test."""
CANDIDATE_SHARE = 0.75  # of the candidates that `Coverage` considers
REPEAT_COST = 4.0  # of a configuration that was tried before, relative to a value that occurs once too often
TIE_NOISE = 0.3  # breaks ties at random

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split:
    """Roles of matrices.

    Args:
        families: family by name; an unlisted matrix is its own family.

    Raises:
        ValueError: an unknown role, or a family with two roles.
    """

    roles: Mapping[str, Role]
    families: Mapping[str, str]

    def __post_init__(self) -> None:
        first: dict[str, str] = {}
        for name, role in self.roles.items():
            if role not in ROLES:
                raise ValueError(f"role {role!r} of {name} is not one of {', '.join(ROLES)}")
            other = first.setdefault(self.families.get(name, name), name)
            if self.roles[other] != role:
                family = self.families.get(name, name)
                sides = f"{other} is in {self.roles[other]}, {name} in {role}"
                raise ValueError(f"family {family} leaks: {sides}; give a family one role")

    def names(self, role: Role) -> tuple[str, ...]:
        """Return the names with this role, sorted."""
        return tuple(sorted(name for name, other in self.roles.items() if other == role))

    def write(self, path: Path) -> None:
        """Write name, family and role as CSV."""
        lines = [f"{name},{self.families.get(name, name)},{role}" for name, role in sorted(self.roles.items())]
        write_text(path, "\n".join(["name,family,role", *lines]) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Split":
        """Read a file of `write`, or a CSV file with the columns group, name, family, role.

        Raises:
            SchemaError: other columns, an unknown role, or a matrix listed twice.
        """
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if not {"name", "family", "role"} <= set(rows.fieldnames or ()):
                raise SchemaError(f"{path}: a split has the columns name, family, role, not {rows.fieldnames}")
            roles: dict[str, Role] = {}
            families: dict[str, str] = {}
            for row in rows:
                name = f"{row['group']}/{row['name']}" if row.get("group") else row["name"]
                if name in roles:
                    raise SchemaError(f"{path}, line {rows.line_num}: {name} is listed twice")
                if row["role"] not in ROLES:
                    raise SchemaError(f"{path}, line {rows.line_num}: role {row['role']!r} is not one of "
                                      f"{', '.join(ROLES)}")
                roles[name], families[name] = row["role"], row["family"]
        return cls(roles, families)


def split_by_family(
    families: Mapping[str, str], *, strata: Mapping[str, str], shares: Mapping[Role, float], seed: int
) -> Split:
    """Assign roles to whole families so that each stratum has about the requested shares.

    Families are taken in the order of a hash, each for the role with the largest deficit in its stratum.

    Args:
        strata: stratum by name, such as the row bin; a family belongs to the stratum of its first member.
        shares: share of the matrices by role, with sum 1.
    """
    if abs(sum(shares.values()) - 1) > 1e-9:
        raise ValueError(f"shares {dict(shares)} add up to {sum(shares.values())}, not to 1")
    members: dict[str, list[str]] = defaultdict(list)
    for name in sorted(families):
        members[families[name]].append(name)
    counts: dict[str, dict[Role, int]] = defaultdict(lambda: dict.fromkeys(shares, 0))
    roles: dict[str, Role] = {}
    for family in sorted(members, key=lambda family: _hash(family, seed)):
        names = members[family]
        stratum = counts[strata[names[0]]]
        role = _largest_deficit(stratum, shares, incoming=len(names))
        stratum[role] += len(names)
        roles.update(dict.fromkeys(names, role))
    return Split(roles, dict(families))


def _largest_deficit(counts: Mapping[Role, int], shares: Mapping[Role, float], incoming: int) -> Role:
    total = sum(counts.values()) + incoming
    candidates: Sequence[Role] = [role for role in shares if shares[role] > 0]
    return max(candidates, key=lambda role: shares[role] * total - counts[role])


def _hash(family: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{family}".encode()).hexdigest()


class Selection(Protocol):
    """Selects matrices by their statistics, and configurations of each, without knowing run times."""

    matrices: int
    configs_per_matrix: int

    def choose(self, statistics: pd.DataFrame, candidates: Sequence[str], count: int, seed: int) -> list[str]: ...
    def configs(self, keys: Sequence[str], taken: Mapping[str, int], rng: np.random.Generator) -> list[int]: ...


class RandomConfigs:
    """Base of selections that draw configurations uniformly for every matrix."""

    configs_per_matrix: int

    def configs(self, keys: Sequence[str], taken: Mapping[str, int], rng: np.random.Generator) -> list[int]:
        """Choose indices of `keys`, which are sorted.

        Args:
            taken: number of other matrices for which each configuration was chosen.
        """
        count = min(self.configs_per_matrix, len(keys))
        return np.sort(rng.choice(len(keys), count, replace=False)).tolist()


@dataclass(frozen=True)
class Random(RandomConfigs):
    """Matrices drawn uniformly."""

    matrices: int
    configs_per_matrix: int

    def choose(self, statistics: pd.DataFrame, candidates: Sequence[str], count: int, seed: int) -> list[str]:
        names = _known(statistics, candidates, count)
        return sorted(np.random.default_rng(seed).choice(names, count, replace=False).tolist())


@dataclass(frozen=True)
class Stratified(RandomConfigs):
    """Equally many matrices from each row bin, spread over all densities.

    Source: COGNATE §4.1: five bins by rows, random matrices from each, spanning a diverse range of sparsity. Departure:
    the paper does not say how the range is ensured. Here density is divided into as many levels as there are matrices
    to choose, and the levels are assigned to bins in random order.
    """

    matrices: int
    configs_per_matrix: int

    def choose(self, statistics: pd.DataFrame, candidates: Sequence[str], count: int, seed: int) -> list[str]:
        names = _known(statistics, candidates, count)
        rng = np.random.default_rng(seed)
        known = statistics.loc[names].sort_values(["density", "rows"])
        bins = known["rows"].map(lambda rows: row_bin(int(rows)))
        pools = [known.index[(bins == name).to_numpy()].tolist() for name in ROW_BINS]
        quotas = _quotas([len(pool) for pool in pools], count, rng)
        levels = rng.permutation(count) / count  # quantile of the density of each matrix to choose
        chosen: list[str] = []
        for pool, quota in zip(pools, quotas, strict=True):
            wanted = levels[len(chosen): len(chosen) + quota]
            chosen += _near_levels(pool, wanted, 1 / count, rng)
        return sorted(chosen)


@dataclass(frozen=True)
class Coverage(RandomConfigs):
    """Medoids: matrices such that every candidate is similar to one of them.

    Distances are between signed logarithms of statistics, scaled to unit variance. k-medoids starts from a k-means++
    draw and swaps until no swap lowers the summed distance. It uses a random three quarters of the candidates: with all
    of them most seeds give the same medoids, and repetitions over seeds would show no variance.
    """

    matrices: int
    configs_per_matrix: int

    def choose(self, statistics: pd.DataFrame, candidates: Sequence[str], count: int, seed: int) -> list[str]:
        rng = np.random.default_rng(seed)
        known = _known(statistics, candidates, count)
        names = rng.choice(known, max(count, round(CANDIDATE_SHARE * len(known))), replace=False).tolist()
        values = signed_logarithm(statistics.loc[names].to_numpy(np.float64))
        scale = values.std(axis=0)
        values = (values - values.mean(axis=0)) / np.where(scale > 0, scale, 1)
        distance = np.sqrt(np.maximum(0, ((values[:, None] - values[None]) ** 2).sum(axis=2)))
        return sorted(names[index] for index in _medoids(distance, count, rng))


@dataclass(frozen=True)
class Spread(Coverage):
    """Medoids as in `Coverage`, and configurations that use every value of every parameter about equally often.

    Configurations that were chosen for few other matrices come first, so that all matrices together cover the space.
    """

    def configs(self, keys: Sequence[str], taken: Mapping[str, int], rng: np.random.Generator) -> list[int]:
        """Choose greedily: rarely chosen configurations first, then those with the rarest values."""
        values = _value_indices(keys)
        before = np.array([taken.get(key, 0) for key in keys], np.float64)
        used = [np.zeros(column.max() + 1) for column in values.T]
        chosen: list[int] = []
        for step in range(min(self.configs_per_matrix, len(keys))):
            often = [use[column] * len(use) / (step + 1) for use, column in zip(used, values.T, strict=True)]
            cost = REPEAT_COST * before + np.sum(often, axis=0) + rng.random(len(keys)) * TIE_NOISE
            cost[chosen] = np.inf
            chosen.append(int(cost.argmin()))
            for use, value in zip(used, values[chosen[-1]], strict=True):
                use[value] += 1
        return sorted(chosen)


@dataclass(frozen=True)
class Uncertainty(Spread):
    """Active learning: some labels as in `Spread`, the others in rounds where a model is most uncertain.

    Each round adds new matrices, and on each those of its best-scored configurations on which the members of the model
    disagree most.

    Args:
        first: share of the matrices that is chosen without a model.
        promising: number of best-scored configurations of a matrix to consider.
    """

    first: float
    rounds: int
    promising: int

    def __post_init__(self) -> None:
        if not 0 < self.first <= 1 or self.rounds < 1 or self.promising < self.configs_per_matrix:
            raise ValueError(f"first={self.first} must be in (0, 1], rounds={self.rounds} at least 1, promising="
                             f"{self.promising} at least configs_per_matrix={self.configs_per_matrix}")

    def initial(self) -> Spread:
        """Return the selection that needs no model."""
        return Spread(matrices=max(1, round(self.first * self.matrices)), configs_per_matrix=self.configs_per_matrix)

    def quotas(self) -> list[int]:
        """Return the number of new matrices in every round."""
        left = self.matrices - self.initial().matrices
        return [len(part) for part in np.array_split(np.arange(left), self.rounds) if len(part)]

    def most_uncertain(self, scores_by_matrix: Mapping[str, np.ndarray], count: int) -> dict[str, list[int]]:
        """Choose matrices, and indices of their configurations.

        Args:
            scores_by_matrix: comparable scores of every member of the model by matrix, (members, configs) each.
        """
        wanted = {}
        for name, scores in scores_by_matrix.items():
            best = np.argsort(scores.mean(axis=0), kind="stable")[:self.promising]
            deviation = scores[:, best].std(axis=0)
            order = np.argsort(-deviation, kind="stable")[:self.configs_per_matrix]
            wanted[name] = (float(deviation[order].mean()), sorted(best[order].tolist()))
        chosen = sorted(wanted, key=lambda name: (-wanted[name][0], name))[:count]
        return {name: wanted[name][1] for name in chosen}


def select_labels(labels: pd.DataFrame, chosen: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Return the rows of the chosen configurations of each matrix, as far as they are labelled."""
    parts = [labels[(labels["matrix"] == name) & labels["config"].isin(keys)] for name, keys in chosen.items()]
    return pd.concat(parts, ignore_index=True)


def draw_labels(
    selection: Selection, labels: pd.DataFrame, *, statistics: pd.DataFrame, candidates: Sequence[str], seed: int
) -> pd.DataFrame:
    """Select matrices and labelled configurations of each: the training data of every method.

    Args:
        labels: result of `SampleTable.labels`.
        candidates: names to choose from; those without labels are ignored.

    Returns:
        Rows of `labels`: `selection.matrices` matrices with `selection.configs_per_matrix` configurations each, or as
        many as exist. Equal seeds and labels give equal rows.

    Raises:
        ValueError: there are too few labelled matrices, or the budget is not a positive integer.
    """
    budget = selection.configs_per_matrix
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ValueError(f"selection.configs_per_matrix={budget}: give an integer of at least 1")
    labelled = set(labels["matrix"])
    names = selection.choose(statistics, [name for name in candidates if name in labelled], selection.matrices, seed)
    parts = []
    taken: Counter[str] = Counter()
    for name in names:
        rows = labels[labels["matrix"] == name].sort_values("config")
        rng = np.random.default_rng([seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")])
        parts.append(rows.iloc[selection.configs(rows["config"].tolist(), taken, rng)])
        taken.update(parts[-1]["config"])
    fewest = min(map(len, parts), default=budget)
    if fewest < budget:
        logger.warning("selection.configs_per_matrix=%d: a matrix has samples of only %d configurations, so %d of %d "
                       "rows are used", budget, fewest, sum(map(len, parts)), budget * len(parts))
    return pd.concat(parts, ignore_index=True)


def _value_indices(keys: Sequence[str]) -> np.ndarray:
    """Number the values of every parameter in keys "name=value,...": (keys, parameters)."""
    table = np.array([[part.partition("=")[2] for part in key.split(",")] for key in keys])
    return np.stack([np.unique(column, return_inverse=True)[1] for column in table.T], axis=1)


def _known(statistics: pd.DataFrame, candidates: Sequence[str], count: int) -> list[str]:
    names = sorted(set(candidates))
    missing = [name for name in names if name not in statistics.index]
    if missing:
        raise ValueError(f"no statistics of {len(missing)} matrices, first {missing[0]}; run experiment=prepare_inputs")
    if not 1 <= count <= len(names):
        raise ValueError(f"cannot choose {count} of {len(names)} matrices; lower selection.matrices")
    return names


def _quotas(sizes: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """Distribute `count` matrices evenly over bins of limited size, the remainder at random."""
    quotas = [0] * len(sizes)
    while count:
        open_bins = [index for index, size in enumerate(sizes) if quotas[index] < size]
        for index in rng.permutation(open_bins)[:count].tolist():
            quotas[index] += 1
            count -= 1
    return quotas


def _near_levels(pool: Sequence[str], wanted: np.ndarray, width: float, rng: np.random.Generator) -> list[str]:
    """Draw a matrix near each level of the ordered pool, or take the nearest unused one."""
    free = dict(enumerate(pool))
    chosen = []
    for level in wanted:
        target = (level + width * rng.random()) * len(pool) - 0.5
        nearest = min(free, key=lambda index: abs(index - target))
        chosen.append(free.pop(nearest))
    return chosen


def _medoids(distance: np.ndarray, count: int, rng: np.random.Generator) -> list[int]:
    chosen = [int(rng.integers(len(distance)))]
    while len(chosen) < count:
        nearest = distance[chosen].min(axis=0)
        nearest[chosen] = 0
        weights = nearest**2 if nearest.any() else np.where(np.isin(np.arange(len(distance)), chosen), 0.0, 1.0)
        chosen.append(int(rng.choice(len(distance), p=weights / weights.sum())))
    cost = distance[chosen].min(axis=0).sum()
    improved = True
    while improved:
        improved = False
        for slot in range(count):
            others = [medoid for index, medoid in enumerate(chosen) if index != slot]
            rest = distance[others].min(axis=0) if others else np.full(len(distance), np.inf)
            costs = np.minimum(rest[None], distance).sum(axis=1)
            costs[others] = np.inf
            best = int(costs.argmin())
            if costs[best] < cost - 1e-12:
                chosen[slot], cost, improved = best, float(costs[best]), True
    return chosen
