"""What rates of every device have in common: all are numbers above 0, and caches keep them as JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from sparloom.errors import SchemaError

__all__ = ["check_rates", "read_rates"]

Read = TypeVar("Read")


def check_rates(rates: Any) -> None:
    """Check the fields of a dataclass.

    Raises:
        ValueError: one is not above 0, or infinite.
    """
    if not all(math.isfinite(number) and number > 0 for number in asdict(rates).values()):
        raise ValueError(f"rates {asdict(rates)} must be above 0")


def read_rates(kind: type[Read], value: Mapping[str, Any], *, of: str) -> Read:
    """Make rates of what `dataclasses.asdict` wrote.

    Args:
        kind: the dataclass.
        of: the device, for the message.

    Raises:
        SchemaError: other fields, or no numbers above 0.
    """
    try:
        return kind(**{name: float(number) for name, number in value.items()})
    except (TypeError, ValueError, AttributeError) as error:
        raise SchemaError(f"rates of {of}: {error}") from error
