"""What distinguishes one generated kernel from another: a configuration without the numbers passed at run time."""

from dataclasses import dataclass

from sparloom.platforms.cpu.storage import LEVELS, Layout
from sparloom.space import Config

__all__ = ["Program"]


@dataclass(frozen=True)
class Program:
    """A loop nest over one sparse operand; tile sizes of rows and columns and the chunk come at run time.

    Loops of extent 1 are left out: jo when one tile holds every column, ko when one tile holds the whole width. So
    configurations that differ only in the place of such a loop share their program.

    Args:
        op: "spmm" or "sddmm".
        order: loops outer to inner, ki last.
        compressed: for each level of LEVELS; False for a level that is left out.
        parallel: the loop that is shared among threads, or None when that loop was left out.
        width: columns of the dense operands.
        dense_tile: columns of a tile, at most `width`.
        register_columns: columns that are kept in registers at once.
    """

    op: str
    order: tuple[str, ...]
    compressed: tuple[bool, ...]
    parallel: str | None
    width: int
    dense_tile: int
    register_columns: int

    @classmethod
    def of(cls, op: str, config: Config, layout: Layout, *, width: int, register_columns: int) -> "Program":
        """Name the program of `config` for a matrix laid out as `layout`."""
        given = config["dense_tile"]
        tile = width if given == "all" else min(int(given), width)
        absent = {name for name, there in (("jo", layout.extent("jo") > 1), ("ko", tile < width)) if not there}
        order = tuple(loop for loop in str(config["order"]).split(".") if loop not in absent)
        parallel = str(config["parallel"])
        return cls(
            op=op,
            order=order,
            compressed=tuple(layout.compressed[layout.order.index(level)] for level in LEVELS),
            parallel=None if parallel in absent else parallel,
            width=width,
            dense_tile=tile,
            register_columns=register_columns,
        )

    def is_compressed(self, level: str) -> bool:
        return self.compressed[LEVELS.index(level)]

    @property
    def name(self) -> str:
        """Name of the kernel, a C identifier."""
        formats = "".join("UC"[compressed] for compressed in self.compressed)
        loops = "_".join(self.order)
        return f"{self.op}_{loops}_{formats}_{self.parallel or 'serial'}_{self.width}_{self.dense_tile}_" \
               f"{self.register_columns}"

    @property
    def levels(self) -> tuple[str, ...]:
        """Storage levels that have a loop, outer to inner."""
        return tuple(loop for loop in self.order if loop in LEVELS)

    @property
    def overwrites(self) -> bool:
        """Whether every element of the result is stored to before it is read, so that it need not be zeroed.

        SpMM: the innermost sparse loop runs over all columns of a row, and no row is left out.
        SDDMM: the dense loops are inside all sparse ones.
        """
        if self.op == "sddmm":
            return "ko" not in self.order or self.order.index("ko") > self.order.index(self.levels[-1])
        every_row = not (self.is_compressed("io") or self.is_compressed("ii"))
        return "jo" not in self.order and self.order[-2] == "ji" and every_row
