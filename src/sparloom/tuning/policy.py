"""The constants of decisions, and the rule that needs no clock."""

from dataclasses import dataclass, field

from sparloom.fusion import LEAST_FUSED_RATIO
from sparloom.tuning.guardrail import Guardrail
from sparloom.tuning.orders import has_places, metis_is_installed
from sparloom.tuning.problem import Problem
from sparloom.tuning.racing import Effort

__all__ = ["Policy"]

LARGEST = {"ct_size": 16384, "cache_bytes": 1 << 62}  # tiles that fuse the most


@dataclass(frozen=True)
class Policy:
    """How decisions are made.

    Args:
        least_fused_rows: where less of loop two can be fused, in any order tried, nothing fused is measured.
        enough_fused_rows: where so much can be, no order but the natural one is tried.
        order_row_bytes: nor where rows of D1 are shorter: matrices stay as they are, so every row of B, C and D that
            is met out of turn costs some 20 ns, and fusion saves at most a row of D1 written and read.
        order_seconds, order_nonzeros: nor of a pattern on which it may take longer to make one, at so many nonzeros
            per second.
        effort: of measurements.
        guardrail: what fused loops must pass.
    """

    least_fused_rows: float = 0.05
    enough_fused_rows: float = 0.8
    order_row_bytes: int = 1024
    order_seconds: float = 2.0
    order_nonzeros: float = 4e6
    effort: Effort = field(default_factory=Effort)
    guardrail: Guardrail = field(default_factory=Guardrail)

    def try_fusion(self, problem: Problem, *, threads: int, cache_bytes: float) -> tuple[tuple[str, ...], str]:
        """Choose the orders in which fusion is tried; without one, say why it is not.

        Args:
            cache_bytes: of the caches that threads do not share, all together.
        """
        if not problem.fusible:
            return (), "the loops differ in length"
        if _touched(problem) <= cache_bytes:
            return (), f"all {_touched(problem) / 2**20:.1f} MiB lie in the caches of the cores"
        orders = self.orders(problem, threads=threads)
        fused = self.fused_rows(problem, orders, threads=threads)
        if fused < self.least_fused_rows:
            return (), f"{fused:.1%} of loop two could be fused (orders: {', '.join(orders)})"
        return orders, ""

    def orders(self, problem: Problem, *, threads: int) -> tuple[str, ...]:
        """Choose the orders of iterations that are tried, "natural" first; makes some of them.

        The paper's order is tried below its ratio; one by parts where too little is fused and the graph can be cut:
        our own, and that of METIS where even that does not fuse half of what is enough.
        """
        tried = ("natural",)
        natural = self.fused_rows(problem, tried, threads=threads)
        affordable = problem.graph.nnz <= self.order_seconds * self.order_nonzeros
        if natural >= self.enough_fused_rows or problem.row_bytes < self.order_row_bytes or not affordable:
            return tried
        if natural / 2 < LEAST_FUSED_RATIO:
            tried += ("bandwidth",)
        if has_places(problem.graph):
            tried += ("partition",)
            if metis_is_installed() and 2 * self.fused_rows(problem, tried, threads=threads) < self.enough_fused_rows:
                tried += ("metis",)
        return tried

    def fused_rows(self, problem: Problem, orders: tuple[str, ...], *, threads: int) -> float:
        """Largest share of loop two that could be fused in any of the orders."""
        return max(problem.sketch(order).tiling(**LARGEST, threads=threads).fused_rows for order in orders)


def _touched(problem: Problem) -> int:
    """Bytes of all operands, D1 and D."""
    value, middle = problem.element_bytes, problem.graph.cols * problem.row_bytes
    sparse = (value + 4) * (problem.pattern.nnz + (0 if problem.right is None else problem.right.nnz))
    dense = problem.pattern.cols * problem.inner if problem.right is None else problem.right.cols * problem.width
    return sparse + middle + value * (dense + problem.pattern.rows * problem.width)
