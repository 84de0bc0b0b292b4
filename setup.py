"""Build steps beyond pyproject.toml: kernels/ and conf/ travel in the package; its core and kernels are compiled.

The environment variable SPARLOOM_PREBUILD says which kernels are compiled: by default the common ones, for this kind
of processor; 0: none; 1: all, for several levels of x86-64 processors, so that the wheel needs no compiler. What cannot
be compiled is left out, except with 1; kernels are then compiled where they are first used.
"""

import os
import platform
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FOLDERS = ("kernels", "conf")
COMPILED = ("_native.abi3.so", "_prebuilt")
KERNELS = {"0": "none", "1": "all"}.get(os.environ.get("SPARLOOM_PREBUILD", ""), "common")
HEADERS = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "kernels").rglob("*.hpp"))]
CORE = Extension("sparloom._native", ["kernels/native/module.cpp"], depends=HEADERS, py_limited_api=True, optional=True)


class BuildPackage(build_py):
    """Copy kernels/ and conf/ into the package as sparloom/_kernels and sparloom/_conf."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "sparloom"
        for name in (*(f"_{name}" for name in FOLDERS), "_prebuilt"):
            shutil.rmtree(package / name, ignore_errors=True)
        (package / "_native.abi3.so").unlink(missing_ok=True)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, package / f"_{name}", ignore=shutil.ignore_patterns("__pycache__", "local"))


class BuildNative(build_ext):
    """Compile the native core and kernels into the package: that of the checkout for an editable installation."""

    def run(self) -> None:
        sys.path.insert(0, str(ROOT / "src"))
        from sparloom.jit.prebuild import install

        install(ROOT / "src" / "sparloom" if self.inplace else Path(self.build_lib).resolve() / "sparloom", KERNELS)


class BuildWheel(bdist_wheel):
    """Tag a wheel with compiled files for this platform; it serves every later version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        package = Path(self.get_finalized_command("build").build_lib) / "sparloom"
        python = ("cp311", "abi3") if (package / "_native.abi3.so").is_file() else ("py3", "none")
        libc, version = platform.libc_ver()
        if not any((package / name).exists() for name in COMPILED):
            return *python, "any"
        if libc == "glibc":
            return *python, f"manylinux_{version.replace('.', '_')}_{platform.machine()}"
        return *python, super().get_tag()[2]


setup(ext_modules=[CORE], cmdclass={"build_py": BuildPackage, "build_ext": BuildNative, "bdist_wheel": BuildWheel})
