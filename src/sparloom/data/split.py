"""Which matrices train, validate and test: by family, so that no input is known in two versions."""

import csv
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sparloom.errors import SchemaError
from sparloom.files import read_json, write_json, write_text
from sparloom.sparse import Role

__all__ = ["Split", "split_by_family"]

ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class Split:
    """Roles of matrices.

    Args:
        roles: role by name.
        families: family by name; a matrix that is not listed is a family of its own.

    Raises:
        ValueError: an unknown role, or a family with matrices in two roles.
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
        """Names with this role, sorted."""
        return tuple(sorted(name for name, given in self.roles.items() if given == role))

    def write(self, path: Path) -> None:
        """Write name, family and role: as CSV, or as JSON with one list of names per role."""
        if path.suffix == ".json":
            families = {name: family for name, family in sorted(self.families.items()) if name in self.roles}
            write_json(path, {**{role: list(self.names(role)) for role in ROLES}, "families": families})
            return
        lines = [f"{name},{self.families.get(name, name)},{role}" for name, role in sorted(self.roles.items())]
        write_text(path, "\n".join(["name,family,role", *lines]) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Split":
        """Read what `write` writes; a CSV may also have the columns group, name, family, role.

        Raises:
            SchemaError: other columns, or a matrix listed twice.
        """
        if path.suffix == ".json":
            try:
                stored = read_json(path)
                return cls({name: role for role in ROLES for name in stored[role]}, stored["families"])
            except (ValueError, KeyError, TypeError) as error:
                raise SchemaError(f"{path} is damaged, or no split ({error}): make it again") from None
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
                roles[name], families[name] = row["role"], row["family"]
        return cls(roles, families)


def split_by_family(
    families: Mapping[str, str], *, strata: Mapping[str, str], shares: Mapping[Role, float], seed: int
) -> Split:
    """Give whole families their roles so that each stratum has about the wanted shares.

    Args:
        families: family by name.
        strata: stratum by name, such as the row bin; a family counts where its first member does.
        shares: share of the matrices by role; they add up to 1.

    Source: families go in the order of a hash, each to the role that is furthest behind in its stratum.
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
        given = counts[strata[names[0]]]
        role = _furthest_behind(given, shares, coming=len(names))
        given[role] += len(names)
        roles.update(dict.fromkeys(names, role))
    return Split(roles, dict(families))


def _furthest_behind(given: Mapping[Role, int], shares: Mapping[Role, float], coming: int) -> Role:
    total = sum(given.values()) + coming
    candidates: Sequence[Role] = [role for role in shares if shares[role] > 0]
    return max(candidates, key=lambda role: shares[role] * total - given[role])


def _hash(family: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{family}".encode()).hexdigest()
