"""The SPADE accelerator (ISCA'23) with the configuration space of COGNATE, simulated."""

from sparloom.platforms.spade.line_accurate import Agreement, Pair, both_levels, stratified
from sparloom.platforms.spade.machine import Machine, Prices, designs
from sparloom.platforms.spade.platform import SpadePlatform
from sparloom.platforms.spade.published_effects import Sign, sign_records
from sparloom.platforms.spade.simulate import simulate_many, simulate_ops, simulator_digest

__all__ = [
    "Agreement", "Machine", "Pair", "Prices", "Sign", "SpadePlatform", "both_levels", "designs", "sign_records",
    "simulate_many", "simulate_ops", "simulator_digest", "stratified",
]
