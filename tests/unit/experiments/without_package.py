"""Run a script as where a package is not installed: python without_package.py PACKAGE SCRIPT ARGUMENT ..."""

import importlib.util
import runpy
import sys
from importlib.machinery import ModuleSpec

from sparloom.experiments.harness import loggers

find, missing = importlib.util.find_spec, sys.argv[1]


def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
    """Find no such package, and every other one."""
    return None if name == missing else find(name, package)


if __name__ == "__main__":
    importlib.util.find_spec = loggers.find_spec = find_spec
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
