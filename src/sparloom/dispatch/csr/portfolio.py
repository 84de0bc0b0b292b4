"""The kernels that are worth a measurement: of these few, one was near the fastest on every training matrix."""

from collections.abc import Mapping

__all__ = ["PORTFOLIO"]

PORTFOLIO: Mapping[str, tuple[str, ...]] = {
    "spmm": (),
    "sddmm": (),
    "attention": (),
}
"""Operation -> keys of configurations, each the one that helps most beside those before.

From results/choose_kernels/portfolios.json, which `python run.py experiment=choose_kernels` writes."""
