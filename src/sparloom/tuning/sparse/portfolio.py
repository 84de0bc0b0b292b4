"""The kernels that are worth a measurement: of these few, one is nearly as fast in the mean as the fastest."""

from collections.abc import Mapping

from sparloom.ops import Operands
from sparloom.tuning.caches import Caches

__all__ = ["PORTFOLIO", "STORED", "portfolios"]

Keys = tuple[str, ...]

PORTFOLIO: Mapping[str, Keys] = {
    "spmm": (
        "order=natural,balance=nonzeros,prefetch=0,strip=all,together=1,stream=1",
        "order=column,balance=nonzeros,prefetch=0,strip=all,together=1,stream=0",
        "order=natural,balance=rows,prefetch=8,strip=all,together=4,stream=1",
        "order=column,balance=nonzeros,prefetch=0,strip=all,together=1,stream=1",
        "order=natural,balance=rows,prefetch=8,strip=all,together=1,stream=1",
        "order=natural,balance=nonzeros,prefetch=0,strip=all,together=4,stream=1",
        "order=natural,balance=dynamic,prefetch=0,strip=all,together=4,stream=0",
        "order=column,balance=dynamic,prefetch=0,strip=all,together=1,stream=1",
    ),
    "sddmm": (
        "order=natural,balance=nonzeros,prefetch=8,group=4",
        "order=column,balance=nonzeros,prefetch=0,group=4",
        "order=natural,balance=nonzeros,prefetch=0,group=16",
        "order=natural,balance=nonzeros,prefetch=8,group=1",
        "order=column,balance=nonzeros,prefetch=0,group=16",
        "order=natural,balance=dynamic,prefetch=8,group=4",
        "order=column,balance=nonzeros,prefetch=4,group=4",
        "order=natural,balance=nonzeros,prefetch=4,group=16",
    ),
    "attention": (
        "order=natural,balance=nonzeros,prefetch=4",
        "order=natural,balance=nonzeros,prefetch=0",
        "order=natural,balance=dynamic,prefetch=8",
        "order=column,balance=nonzeros,prefetch=0",
        "order=natural,balance=dynamic,prefetch=4",
        "order=natural,balance=rows,prefetch=0",
        "order=natural,balance=dynamic,prefetch=0",
        "order=natural,balance=nonzeros,prefetch=8",
    ),
}
"""Operation -> keys of configurations, each the one that helps most beside those before."""

STORED: Mapping[str, Keys] = {
    "spmm": (
        "order=natural,balance=nonzeros,prefetch=0,strip=all,together=1,stream=1",
        "order=natural,balance=nonzeros,prefetch=0,strip=all,together=1,stream=0",
        "order=natural,balance=rows,prefetch=8,strip=all,together=4,stream=1",
        "order=natural,balance=rows,prefetch=8,strip=all,together=1,stream=1",
        "order=natural,balance=dynamic,prefetch=0,strip=all,together=1,stream=1",
        "order=natural,balance=nonzeros,prefetch=0,strip=all,together=4,stream=1",
        "order=natural,balance=dynamic,prefetch=4,strip=all,together=4,stream=1",
        "order=natural,balance=dynamic,prefetch=0,strip=all,together=4,stream=0",
    ),
    "sddmm": (
        "order=natural,balance=nonzeros,prefetch=8,group=4",
        "order=natural,balance=nonzeros,prefetch=0,group=4",
        "order=natural,balance=nonzeros,prefetch=0,group=16",
        "order=natural,balance=nonzeros,prefetch=8,group=1",
        "order=natural,balance=dynamic,prefetch=8,group=4",
        "order=natural,balance=nonzeros,prefetch=0,group=1",
        "order=natural,balance=nonzeros,prefetch=4,group=16",
        "order=natural,balance=rows,prefetch=4,group=4",
    ),
    "attention": (
        "order=natural,balance=nonzeros,prefetch=4",
        "order=natural,balance=nonzeros,prefetch=0",
        "order=natural,balance=dynamic,prefetch=8",
        "order=natural,balance=dynamic,prefetch=4",
        "order=natural,balance=dynamic,prefetch=0",
        "order=natural,balance=rows,prefetch=0",
        "order=natural,balance=nonzeros,prefetch=8",
        "order=natural,balance=rows,prefetch=4",
    ),
}
"""Likewise, of those that take rows as they are stored.

Both from results/choose_kernels/portfolios.json, which `python run.py experiment=choose_kernels` writes."""


def portfolios(op: str, operands: Operands, caches: Caches) -> list[Keys]:
    """Name the portfolios that serve a problem, the better one first; none where none was chosen.

    Rows in the order of their columns reuse what caches hold. Where dense rows come from afar that seldom gains
    anything, and the rows of the other operand or of the result come from afar, too; only SpMM gains by it again where
    dense rows are more than the shared cache (of the matrices of data/samples/cpu_kernels_*, meshes).
    """
    if op not in PORTFOLIO:
        return []
    pattern, width = operands.matrix.pattern, operands.width
    if caches.distant(pattern, width) and not (op == "spmm" and caches.beyond(pattern, width)):
        return [STORED[op]]
    return [PORTFOLIO[op], STORED[op]]
