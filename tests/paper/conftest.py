"""Helpers of the SPADE tests, which live beside the unit tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "platforms" / "spade"))
