"""Storage in other dimensions than those of a tensor: split, fused, in another order.

    dimensions  := split(dim, factor)        i  ->  i_block = i // factor, i_within = i % factor
                 | fuse(outer, inner)        o, i  ->  o_i = o * n + i, or where i varies with o: starts(o) + i
                 | order(dim*)

Source: CoRa §4.1 (tensor dimension scheduling), §5.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, simplify_expr, walk
from sparloom.ragged.dimensions import Axis, canonical, free, replaced, round_up
from sparloom.ragged.tables import At, FusedOuter, Offsets

__all__ = ["Change", "FusedDims", "OrderedDims", "SplitDim", "Stored"]


@dataclass(frozen=True)
class Stored:
    """Dimensions as they are stored.

    Args:
        axes: with extents.
        places: coordinates along them, over the dimensions of the tensor.
    """

    axes: tuple[Axis, ...]
    places: tuple[Expr, ...]

    def position(self, owner: str, name: str) -> int:
        """Count the dimensions outside of one.

        Raises:
            IllegalSchedule: there is none of that name.
        """
        names = [dim.name for dim, _ in self.axes]
        if name not in names:
            raise IllegalSchedule(f"tensor {owner} stores no dimension {name}; there are: {', '.join(names)}")
        return names.index(name)

    def put(self, place: int, count: int, axes: Sequence[Axis], places: Sequence[Expr]) -> Stored:
        """Put dimensions in place of others."""
        return Stored((*self.axes[:place], *axes, *self.axes[place + count:]),
                      (*self.places[:place], *places, *self.places[place + count:]))

    def asking(self, values: dict[str, Expr]) -> Stored:
        """Let extents read other names."""
        return Stored(tuple((dim, simplify_expr(replaced(extent, values))) for dim, extent in self.axes), self.places)


@dataclass(frozen=True)
class SplitDim:
    """Cut a stored dimension into blocks of `factor`; slices are rounded up to whole blocks."""

    name: str
    factor: int

    def applied(self, owner: str, stored: Stored) -> Stored:
        """Give the dimensions afterwards.

        Raises:
            IllegalSchedule: a table, such as a length function, is asked for the dimension: it has no entry in padding.
        """
        at = stored.position(owner, self.name)
        extent, place, factor = stored.axes[at][1], stored.places[at], Const(self.factor)
        asked = [node.table.label for _, each in stored.axes for node in walk(each)
                 if isinstance(node, At) and self.name in free(node)]
        if asked and self.factor > 1:
            raise IllegalSchedule(f"tensor {owner}: dimension {self.name} cannot be cut into blocks, since {asked[0]} "
                                  f"has no entry beyond its end: cut another dimension")
        outer, inner = Ref(f"{self.name}_block"), Ref(f"{self.name}_within")
        blocks = simplify_expr(Binary("//", round_up(extent, self.factor), factor))
        axes = ((outer, blocks), (inner, factor))
        return stored.asking({self.name: outer * self.factor + inner}).put(
            at, 1, axes, (Binary("//", place, factor), Binary("%", place, factor)))


@dataclass(frozen=True)
class FusedDims:
    """Make one dimension of two neighbours."""

    outer: str
    inner: str

    def applied(self, owner: str, stored: Stored) -> Stored:
        """Give the dimensions afterwards.

        Raises:
            IllegalSchedule: they are not neighbours, or an extent depends on more than the outer one.
        """
        at = stored.position(owner, self.outer)
        if stored.position(owner, self.inner) != at + 1:
            raise IllegalSchedule(f"tensor {owner}: {self.inner} is not stored directly inside {self.outer}: reorder "
                                  "dimensions first")
        (outer, count), (_, extent) = stored.axes[at : at + 2]
        o, i = stored.places[at : at + 2]
        fused = Ref(f"{self.outer}_{self.inner}")
        deep = [dim.name for dim, each in stored.axes if self.inner in free(each)]
        if deep or free(extent) - {self.outer}:
            raise IllegalSchedule(f"tensor {owner}: {self.outer} and {self.inner} cannot be fused, since the extent of "
                                  f"{deep[0] if deep else self.inner} depends on more than {self.outer}")
        if isinstance(extent, Const):
            axis: Axis = (fused, simplify_expr(count * extent.value))
            values: dict[str, Expr] = {self.outer: Binary("//", fused, extent)}
            return stored.asking(values).put(at, 2, (axis,), (o * extent.value + i,))
        if free(count):
            raise IllegalSchedule(f"tensor {owner}: {self.outer} and {self.inner} cannot be fused, since the extent of "
                                  f"{self.outer} varies, too: fuse it with what it varies with first")
        inner = replaced(extent, canonical([outer]))
        starts = Offsets((count,), inner)
        values = {self.outer: At(FusedOuter(count, inner), (fused,))}
        return stored.asking(values).put(at, 2, ((fused, At(starts, (count,))),), (At(starts, (o,)) + i,))


@dataclass(frozen=True)
class OrderedDims:
    """Store dimensions in another order; those that are not named keep their places."""

    names: tuple[str, ...]

    def applied(self, owner: str, stored: Stored) -> Stored:
        """Give the dimensions afterwards.

        Raises:
            IllegalSchedule: a dimension would stand outside of one that its extent depends on.
        """
        here = [stored.position(owner, name) for name in self.names]
        if len(set(here)) < len(here):
            raise IllegalSchedule(f"tensor {owner}: order {', '.join(self.names)} names a dimension twice")
        axes, places = list(stored.axes), list(stored.places)
        for to, at in zip(sorted(here), here, strict=True):
            axes[to], places[to] = stored.axes[at], stored.places[at]
        for number, (dim, extent) in enumerate(axes):
            late = sorted(free(extent) & {other.name for other, _ in axes[number:]})
            if late:
                raise IllegalSchedule(f"tensor {owner}: dimension {dim.name} cannot be stored outside of {late[0]}, on "
                                      f"which its extent depends: keep {late[0]} outside")
        return Stored(tuple(axes), tuple(places))


Change = SplitDim | FusedDims | OrderedDims
