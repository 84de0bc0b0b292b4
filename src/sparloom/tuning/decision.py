"""Why a choice was made: what was measured for it, and what that took."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from sparloom.errors import SchemaError

__all__ = ["Decision", "Origin", "Trial"]

Origin = Literal["rule", "measured"]


@dataclass(frozen=True)
class Trial:
    """One candidate of a measurement.

    Args:
        candidate: key of its configuration, or name of a library.
        seconds: one per repetition; none where time did not suffice to begin with it.
    """

    candidate: str
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Decision:
    """The evidence for a choice.

    Args:
        origin: "rule" where no candidate was measured beside what runs in any case (loops that are not fused, or a safe
            kernel), else "measured".
        reason: in words.
        trials: a race of candidates, whether or not time sufficed to begin with each, then the duel of its winner with
            the best baseline.
        executions: runs, on a sample where there is one, that the decision took, those of baselines included; calls of
            the program where these were the race.
        seconds: from beginning to end, with orders, schedules and estimates; where calls were the race, what they took
            beyond as many of what was chosen.
        from_cache: it was made before, by this or another process.
    """

    origin: Origin
    reason: str
    trials: tuple[Trial, ...] = ()
    executions: int = 0
    seconds: float = 0.0
    from_cache: bool = False

    def to_json(self) -> dict[str, Any]:
        """Write as JSON values, all but `from_cache`."""
        return {name: value for name, value in asdict(self).items() if name != "from_cache"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Decision":
        """Read what `to_json` wrote.

        Raises:
            SchemaError: a field is missing, unknown or of another type.
        """
        try:
            trials = tuple(Trial(str(each["candidate"]), tuple(map(float, each["seconds"])))
                           for each in value["trials"])
            decision = cls(**{**value, "trials": trials}, from_cache=True)
        except (TypeError, KeyError, ValueError) as error:
            raise SchemaError(f"a decision does not have its fields: {error!r}") from error
        if decision.origin not in get_args(Origin) or not isinstance(decision.reason, str):
            raise SchemaError(f"origin {decision.origin!r} of a decision is not one of {', '.join(get_args(Origin))}")
        return decision
