"""One measured, simulated or failed configuration: a row of a sample table."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sparloom.errors import SchemaError
from sparloom.measure import Measurement
from sparloom.space import Config

__all__ = ["Sample"]


@dataclass(frozen=True)
class Sample:
    """What one configuration did in one round, and under which conditions.

    Args:
        op, platform, preset: what ran where; the preset names a set of machine parameters ("" where there is only one).
        matrix: "group/name".
        width: columns of the dense operand.
        config: key of the configuration in the platform's space.
        round: independent repetition of the whole measurement, from 0.
        seconds: one per repetition; empty when it failed.
        cpu_seconds: processor time of the same repetitions, or empty.
        kind: which clock: wall, device or simulated.
        failure: why there are no seconds, or None.
        stolen: the machine was taken away during every attempt.
        machine: one line that describes it.
        commit: of the code that measured.
        started: UTC, ISO 8601, seconds.
        conditions: digest of everything else that the seconds depend on, see `Conditions`, then ":" and a digest of
            the matrix; "" in rows of older versions. Journals keep it in every row, tables once for all of a preset.
    """

    op: str
    platform: str
    preset: str
    matrix: str
    width: int
    config: str
    round: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    kind: str
    failure: str | None
    stolen: bool
    machine: str
    commit: str
    started: str
    conditions: str = ""

    @classmethod
    def of(cls, measurement: Measurement, config: Config, *, round: int, **conditions: Any) -> "Sample":
        """Make the row of one measurement.

        Args:
            conditions: op, platform, preset, matrix, width, machine, commit, conditions, and started if it is not now.
        """
        conditions.setdefault("started", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        return cls(
            config=config.key,
            round=round,
            seconds=tuple(map(float, measurement.seconds)),
            cpu_seconds=tuple(map(float, measurement.cpu_seconds)),
            kind=measurement.kind,
            failure=measurement.failure,
            stolen=measurement.stolen,
            **conditions,
        )

    def record(self) -> dict[str, Any]:
        """Plain values under the column names."""
        return dict(vars(self))

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Sample":
        """Read plain values back.

        Raises:
            SchemaError: a field is missing or unknown.
        """
        try:
            row = cls(**record)
        except TypeError as error:
            raise SchemaError(f"a sample has fields {', '.join(cls.__dataclass_fields__)}: {error}") from None
        return cls(**{**record, "seconds": _floats(row.seconds), "cpu_seconds": _floats(row.cpu_seconds)})


def _floats(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, values))
