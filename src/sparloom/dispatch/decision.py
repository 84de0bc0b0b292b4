"""Why a choice was made: what was measured for it, and what that took."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Decision", "Trial"]

Origin = Literal["rule", "measured", "cache"]


@dataclass(frozen=True)
class Trial:
    """One candidate that was measured.

    Args:
        candidate: key of its configuration in the space.
        seconds: one per repetition.
        build_seconds: what its schedule took, and its order.
    """

    candidate: str
    seconds: tuple[float, ...]
    build_seconds: float


@dataclass(frozen=True)
class Decision:
    """The evidence.

    Args:
        origin: "rule" where nothing was measured, "cache" where it was decided before.
        reason: in words.
        trials: what was measured.
        executions: how many runs of the product the decision took.
        seconds: from beginning to end, orders and schedules included.
    """

    origin: Origin
    reason: str
    trials: tuple[Trial, ...] = ()
    executions: int = 0
    seconds: float = 0.0

    def to_json(self) -> Mapping[str, Any]:
        """Write as JSON values."""
        return asdict(self)
