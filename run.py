"""Run one experiment: python run.py experiment=<name>, with options from conf/. Without arguments: list experiments."""

import sys
from pathlib import Path

from sparloom.__main__ import run

if __name__ == "__main__":
    sys.exit(run(Path(__file__).resolve().parent))
