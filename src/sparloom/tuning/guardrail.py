"""Whether something new may take the place of what is known to be good."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Guardrail", "Verdict"]

NORMAL = 1.4826  # standard deviations in a median absolute deviation of normal numbers
MEDIAN_ERROR = 1.2533  # standard errors of the median in one of the mean, likewise
TICK = 1e-9  # seconds; a clock that does not tell so little apart says 0


@dataclass(frozen=True)
class Verdict:
    """Seconds of the challenger over those of the reference.

    Args:
        ratio: the larger of two: median over pairs, and least over least.
        noise: standard error of the median.
        sure: whether more pairs would hardly change it.
    """

    accepted: bool
    ratio: float
    noise: float
    sure: bool

    @property
    def text(self) -> str:
        """The verdict in words."""
        result = "accepted" if self.accepted else "refused"
        return f"{result}: {self.ratio:.3f} of the seconds of the baseline, standard error {self.noise:.3f}"


@dataclass(frozen=True)
class Guardrail:
    """Accept a challenger only if it is faster than the reference beyond doubt.

    Args:
        alpha: its seconds may be at most this share of the reference's, ...
        errors: ... and less by so many standard errors.
    """

    alpha: float = 0.97
    errors: float = 1.0

    def judge(self, challenger: Sequence[float], reference: Sequence[float]) -> Verdict:
        """Compare repetitions that were taken in turn.

        Args:
            challenger, reference: seconds, as many of each.
        """
        ratios = [one / max(other, TICK) for one, other in zip(challenger, reference, strict=True)]
        middle = median(ratios)
        spread = NORMAL * median(abs(ratio - middle) for ratio in ratios)
        noise = MEDIAN_ERROR * spread / math.sqrt(len(ratios))
        ratio = max(middle, min(challenger) / max(min(reference), TICK))
        accepted = ratio + self.errors * noise <= self.alpha
        return Verdict(accepted, ratio, noise, sure=abs(ratio - self.alpha) > 2 * noise)
