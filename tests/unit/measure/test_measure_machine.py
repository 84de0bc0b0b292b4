"""Description of the machine."""

import platform
import subprocess

import pytest

from sparloom.measure import vector_lanes


@pytest.mark.cc
@pytest.mark.skipif(platform.machine() != "x86_64", reason="macros of compilers for x86")
def test_vector_lanes_agree_with_the_compiler():
    told = subprocess.run(["gcc", "-march=native", "-dM", "-E", "-"], input="", capture_output=True, text=True,
                          check=True).stdout
    assert vector_lanes() == (16 if "__AVX512F__" in told else 8 if "__AVX__" in told else 4)
