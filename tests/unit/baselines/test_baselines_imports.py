"""Importing the package of baselines imports no other library until a name is used."""

import subprocess
import sys

import sparloom.baselines


def test_importing_the_package_imports_no_library():
    code = ("import sys, sparloom.baselines; "
            "assert not {'torch', 'numba', 'scipy', 'cupy'} & set(sys.modules), sorted(sys.modules); "
            "sparloom.baselines.cusparse_spmm; assert not {'torch', 'cupy'} & set(sys.modules), 'by cuSPARSE'")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_exists():
    assert [name for name in sparloom.baselines.__all__ if getattr(sparloom.baselines, name, None) is None] == []
