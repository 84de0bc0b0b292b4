"""Fixture `golden`: compare a text with the accepted one; `--update-golden` accepts the present text."""

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="accept the texts of tests/golden as printed now")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Call with a name such as "ir/spmm.c" and the text; the file is tests/golden/<name>."""
    update = request.config.getoption("--update-golden")

    def check(name: str, text: str) -> None:
        path = FOLDER / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.is_file():
            pytest.fail(f"no accepted text {path}: look at the new one, then run pytest with --update-golden")
        accepted = path.read_text(encoding="utf-8")
        assert text == accepted, f"{path} differs: if the new text is right, run pytest with --update-golden"

    return check
