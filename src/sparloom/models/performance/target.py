"""What trees predict of a measurement, and on which scale."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["Target"]

Quantity = Literal["throughput", "bandwidth", "latency"]
Scale = Literal["raw", "log", "log1p"]

FORWARD = {"raw": np.asarray, "log": np.log, "log1p": np.log1p}
INVERSE = {"raw": np.asarray, "log": np.exp, "log1p": np.expm1}
UNITS = {"throughput": "GFLOP/s", "bandwidth": "GB/s", "latency": "us"}
GIGA, MICRO = 1e9, 1e-6


@dataclass(frozen=True)
class Target:
    """A quantity in its unit (GFLOP/s, GB/s of compulsory traffic, microseconds) on a scale.

    Args:
        quantity: throughput, bandwidth or latency.
        scale: raw, log or log1p; log1p depends on the unit, log does not.

    Raises:
        ValueError: an unknown quantity or scale.
    """

    quantity: Quantity
    scale: Scale

    def __post_init__(self) -> None:
        for name, given, known in (("quantity", self.quantity, UNITS), ("scale", self.scale, FORWARD)):
            if given not in known:
                raise ValueError(f"{name} {given!r} of a target is not one of {', '.join(known)}")

    @property
    def unit(self) -> str:
        """Unit of the quantity."""
        return UNITS[self.quantity]

    @property
    def sign(self) -> int:
        """-1 where more is faster: sign times a prediction is low for fast."""
        return 1 if self.quantity == "latency" else -1

    def of(self, seconds: np.ndarray, flops: np.ndarray, traffic: np.ndarray) -> np.ndarray:
        """What trees learn, from measured seconds; NaN stays NaN."""
        return FORWARD[self.scale](self.quantity_of(seconds, flops, traffic))

    def quantity_of(self, seconds: np.ndarray, flops: np.ndarray, traffic: np.ndarray) -> np.ndarray:
        """The quantity in its unit."""
        if self.quantity == "latency":
            return seconds / MICRO
        return (flops if self.quantity == "throughput" else traffic) / seconds / GIGA

    def restore(self, learned: np.ndarray) -> np.ndarray:
        """Bring a prediction back into the unit."""
        return INVERSE[self.scale](learned)
