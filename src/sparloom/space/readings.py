"""How this project reads the places where COGNATE is ambiguous about configurations."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

__all__ = ["Readings"]


@dataclass(frozen=True)
class Readings:
    """Choices that change what a model sees of a configuration, never what a platform runs.

    Args:
        barrier: the SPADE barrier sets the loop order and stays among the hardware-specific flags ("both",
            appendix E), only sets the order, or is only a flag.
        panels: row panels map to I and column panels to J ("rows_to_i", appendix E), or the reverse ("literal", phi
            in §3.2).
        panel_values: panel parameters are sizes, or numbers of panels.
        split: the SPADE split is the number of dense columns per pass, or the number of passes.
        sddmm: loops of SDDMM are matched between platforms by role, k being the dense dimension, or by the paper's
            letter, where j is the dense dimension on the CPU.
        numbers: extents enter the vector as log2(x) / 16, or raw.
        cpu_latent: hardware-specific part of a CPU schedule: the level formats, or chunk and parallel loop besides.
        latent: the latent encoder reads the hardware-specific part, or the whole configuration.
    """

    barrier: Literal["both", "order", "latent"] = "both"
    panels: Literal["rows_to_i", "literal"] = "rows_to_i"
    panel_values: Literal["sizes", "counts"] = "sizes"
    split: Literal["columns", "passes"] = "columns"
    sddmm: Literal["role", "letter"] = "role"
    numbers: Literal["log2", "raw"] = "log2"
    cpu_latent: Literal["formats", "all"] = "formats"
    latent: Literal["hardware", "config"] = "hardware"

    def __post_init__(self) -> None:
        for field in fields(self):
            choices = get_args(field.type)
            given = getattr(self, field.name)
            if given not in choices:
                raise ValueError(f"reading {field.name}={given!r} is not one of {', '.join(choices)}")
