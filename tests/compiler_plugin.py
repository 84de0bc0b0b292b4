"""Skip tests marked `cc` with a reason if no compiler is found."""

import pytest

from sparloom.errors import CompileError


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("cc")]
    reason = _missing() if marked else None
    for item in marked if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


def _missing() -> str | None:
    """Return the reason why no code can be compiled, with the remedy, or None."""
    from sparloom.jit.toolchain import find_toolchain

    try:
        for language in ("c", "c++"):
            find_toolchain(language)
    except CompileError as error:
        return str(error)
    return None
