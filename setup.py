"""Build steps beyond pyproject.toml: kernels/ and conf/ travel in the package, optionally with compiled kernels.

With SPARLOOM_PREBUILD=1 in the environment, the wheel holds kernels compiled for several levels of x86-64 processors
and is tagged for this platform; it needs no compiler for hand-written kernels. Otherwise the wheel is pure Python and
kernels are compiled where they are first used.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FOLDERS = ("kernels", "conf")
PREBUILD = os.environ.get("SPARLOOM_PREBUILD", "") not in ("", "0")


class BuildPackage(build_py):
    """Copy kernels/ and conf/ into the package as sparloom/_kernels and sparloom/_conf."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "sparloom"
        for name in FOLDERS:
            shutil.rmtree(package / f"_{name}", ignore_errors=True)
            shutil.copytree(ROOT / name, package / f"_{name}", ignore=shutil.ignore_patterns("__pycache__", "local"))
        if PREBUILD:
            environment = {**os.environ, "PYTHONPATH": str(Path(self.build_lib).resolve())}
            subprocess.run([sys.executable, "-m", "sparloom.jit.prebuild", str(package / "_prebuilt")],
                           env=environment, check=True)


class BuildWheel(bdist_wheel):
    """Tag a wheel with compiled kernels for this platform; it serves every version of Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = not PREBUILD

    def get_tag(self) -> tuple[str, str, str]:
        if not PREBUILD:
            return "py3", "none", "any"
        libc, version = platform.libc_ver()
        if libc != "glibc":
            raise SystemExit("SPARLOOM_PREBUILD=1 needs a Linux with glibc; build without it for other systems")
        return "py3", "none", f"manylinux_{version.replace('.', '_')}_{platform.machine()}"


setup(cmdclass={"build_py": BuildPackage, "bdist_wheel": BuildWheel})
