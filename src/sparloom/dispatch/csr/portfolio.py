"""The kernels that are worth a measurement: of these few, one is nearly as fast in the mean as the fastest."""

from collections.abc import Mapping

__all__ = ["PORTFOLIO"]

PORTFOLIO: Mapping[str, tuple[str, ...]] = {
    "spmm": (
        "order=column,balance=nonzeros,prefetch=0,strip=all,together=1,stream=1",
        "order=natural,balance=nonzeros,prefetch=8,strip=all,together=4,stream=1",
        "order=column,balance=nonzeros,prefetch=0,strip=all,together=1,stream=0",
        "order=column,balance=nonzeros,prefetch=8,strip=all,together=4,stream=1",
        "order=natural,balance=nonzeros,prefetch=0,strip=all,together=4,stream=1",
        "order=column,balance=nonzeros,prefetch=8,strip=all,together=1,stream=1",
        "order=natural,balance=nonzeros,prefetch=8,strip=all,together=1,stream=1",
        "order=column,balance=dynamic,prefetch=0,strip=all,together=4,stream=0",
    ),
    "sddmm": (
        "order=natural,balance=nonzeros,prefetch=4,group=4",
        "order=column,balance=nonzeros,prefetch=0,group=16",
        "order=natural,balance=rows,prefetch=0,group=4",
        "order=natural,balance=nonzeros,prefetch=8,group=1",
        "order=column,balance=nonzeros,prefetch=8,group=4",
        "order=natural,balance=nonzeros,prefetch=0,group=16",
        "order=natural,balance=nonzeros,prefetch=4,group=16",
        "order=natural,balance=dynamic,prefetch=4,group=1",
    ),
    "attention": (
        "order=natural,balance=nonzeros,prefetch=4",
        "order=natural,balance=nonzeros,prefetch=0",
        "order=natural,balance=dynamic,prefetch=8",
        "order=column,balance=nonzeros,prefetch=0",
        "order=natural,balance=rows,prefetch=0",
        "order=column,balance=dynamic,prefetch=0",
        "order=natural,balance=nonzeros,prefetch=8",
        "order=column,balance=dynamic,prefetch=8",
    ),
}
"""Operation -> keys of configurations, each the one that helps most beside those before.

From results/choose_kernels/portfolios.json, which `python run.py experiment=choose_kernels` writes."""
