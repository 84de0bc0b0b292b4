"""What marks a loop for fusion."""

__all__ = ["fprange"]


def fprange(*bounds: int) -> range:
    """Mark an outermost loop whose iterations are independent; in plain Python it is `range`.

    Source: tile fusion §3.1, Listing 1.
    """
    return range(*bounds)
