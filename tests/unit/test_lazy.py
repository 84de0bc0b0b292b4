"""Lazily imported names, in every package that has them."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import sparloom
from sparloom.lazy import attach


@pytest.mark.parametrize(
    "package", ["sparloom.tuning", "sparloom.ragged", "sparloom.platforms", "sparloom.models", "sparloom.experiments"])
def test_every_public_name_exists(package):
    module = importlib.import_module(package)
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'Nothing'; it has [A-Z]\w+, "):
        module.Nothing  # noqa: B018


def test_modules_are_imported_on_first_use():
    code = ("import sys, sparloom.tuning, sparloom.models, sparloom.platforms, sparloom.experiments; "
            "assert not {'numpy', 'torch', 'sparloom.tuning.fusion'} & set(sys.modules); "
            "sparloom.tuning.Guardrail; assert 'sparloom.tuning.fusion' not in sys.modules")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_failing_import_is_reported():
    _, find, _ = attach("sparloom", {"nowhere": ["There"]})
    with pytest.raises(ModuleNotFoundError, match=r"sparloom\.nowhere"):
        find("There")


def test_a_name_that_its_module_would_hide_is_refused():
    with pytest.raises(ValueError, match=r"race of sparloom\.tuning would be hidden by modules of the same name"):
        attach("sparloom.tuning", {"race": ["race", "duel"]})


def test_every_package_is_an_attribute_of_sparloom():
    folders = {path.parent.name for path in Path(sparloom.__file__).parent.glob("*/__init__.py")} - {"cli"}
    for name in folders:  # by the function: a package that was imported before is an attribute anyway
        assert sparloom.__getattr__(name).__name__ == f"sparloom.{name}"
