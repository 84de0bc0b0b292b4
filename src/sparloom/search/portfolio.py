"""A few configurations of which one is near the best on every problem."""

import numpy as np

__all__ = ["portfolio"]


def portfolio(seconds: np.ndarray, count: int) -> list[int]:
    """Choose configurations one by one, each as the mean logarithm of the least seconds falls the most.

    Args:
        seconds: (problems, configurations).
        count: of configurations, at most: it ends where another one would not help.

    Returns:
        Columns, in the order in which they were chosen.
    """
    logs, chosen = np.log(seconds), []
    least = np.full(len(logs), np.inf)
    while len(chosen) < count:
        means = np.minimum(logs, least[:, None]).mean(axis=0)
        best = int(means.argmin())
        if best in chosen or not means[best] < least.mean():
            break
        chosen.append(best)
        least = np.minimum(least, logs[:, best])
    return chosen
