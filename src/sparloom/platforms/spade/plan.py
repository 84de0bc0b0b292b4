"""Configurations in the form that decides a simulation."""

from dataclasses import dataclass

from sparloom.space import Config

__all__ = ["Plan", "plan"]


@dataclass(frozen=True)
class Plan:
    """A configuration in the form that decides the simulation: equal plans are equal programs but for the barrier cost.

    Args:
        column_panel: columns of a tile; at most the columns of the matrix, so that all larger values are one.
        phased: there are barriers and more than one column panel.
        slice_width: dense columns per pass.
    """

    reorder: int
    row_panel: int
    column_panel: int
    phased: bool
    slice_width: int
    bypass: int


def plan(config: Config, shape: tuple[int, int], width: int) -> Plan:
    """Resolve a configuration for a matrix of `shape` and dense operands of `width` columns.

    Raises:
        ValueError: the split does not divide the width.
    """
    rows, cols = max(1, shape[0]), max(1, shape[1])
    panel = cols if config["column_panel"] == "all" else min(cols, int(config["column_panel"]))
    slice_width = min(int(config["split"]), width)
    if width % slice_width:
        raise ValueError(f"split {slice_width} does not divide the width {width}: choose a width that is a multiple")
    return Plan(
        reorder=int(config["reorder"]), row_panel=min(rows, int(config["row_panel"])), column_panel=panel,
        phased=bool(config["barrier"]) and panel < cols, slice_width=slice_width, bypass=int(config["bypass"]),
    )
