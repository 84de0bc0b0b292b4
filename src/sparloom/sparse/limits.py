"""What a file may make this process allocate, whatever it claims."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["LIMIT_BYTES", "check_extents", "check_size", "memory_for"]

LIMIT_BYTES = 4 << 30
POINTER_BYTES = 8  # int64


def check_size(size_bytes: int, limit_bytes: int, place: str) -> None:
    """Refuse more than `limit_bytes`; `place` ends in a verb.

    Raises:
        ValueError: as the name says.
    """
    if size_bytes > limit_bytes:
        raise ValueError(
            f"{place} {size_bytes} bytes, more than {limit_bytes}: raise limit_bytes if the file is trusted")


def check_extents(shape: tuple[int, int], limit_bytes: int, place: str) -> None:
    """Refuse a shape whose row or column pointers alone take more than `limit_bytes`.

    Raises:
        ValueError: as the name says.
    """
    for extent, axis in zip(shape, ("rows", "columns"), strict=True):
        check_size(POINTER_BYTES * (extent + 1), limit_bytes, f"{place}: {extent} {axis} need")


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Say in a `MemoryError` what the memory was wanted for."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"not enough memory for {what}") from error
