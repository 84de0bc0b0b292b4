"""What `eval_ragged` reports of each of its parts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pandas as pd
from rich.table import Table

from sparloom.report.ragged_breakdown import breakdown_metrics, breakdown_tables, draw_breakdown
from sparloom.report.ragged_computation import (
    computation_metrics,
    computation_tables,
    draw_computation,
    draw_memory,
    draw_padding,
)
from sparloom.report.ragged_hoisting import draw_hoisting, hoisting_metrics, hoisting_tables
from sparloom.report.ragged_pad_fusion import draw_pad_fusion, pad_fusion_metrics, pad_fusion_tables
from sparloom.report.ragged_prelude import draw_prelude, prelude_metrics, prelude_tables
from sparloom.report.ragged_splitting import draw_splitting, splitting_metrics, splitting_tables
from sparloom.report.ragged_storage import draw_storage, storage_metrics, storage_tables

__all__ = ["RAGGED_PARTS", "RaggedPart"]


@dataclass(frozen=True)
class RaggedPart:
    """Functions of per_case.parquet.

    Args:
        figures: by the name of the file.
    """

    metrics: Callable[[pd.DataFrame], dict[str, float]]
    tables: Callable[[pd.DataFrame], Iterable[Table]]
    figures: Mapping[str, Callable[[pd.DataFrame, Path], None]]


RAGGED_PARTS: Mapping[str, RaggedPart] = MappingProxyType({
    "computation": RaggedPart(computation_metrics, computation_tables, {
        "computation": draw_computation, "padding": draw_padding, "memory": draw_memory}),
    "prelude": RaggedPart(prelude_metrics, prelude_tables, {"prelude": draw_prelude}),
    "hoisting": RaggedPart(hoisting_metrics, hoisting_tables, {"hoisting": draw_hoisting}),
    "storage": RaggedPart(storage_metrics, storage_tables, {"storage": draw_storage}),
    "splitting": RaggedPart(splitting_metrics, splitting_tables, {"splitting": draw_splitting}),
    "pad_fusion": RaggedPart(pad_fusion_metrics, pad_fusion_tables, {"pad_fusion": draw_pad_fusion}),
    "breakdown": RaggedPart(breakdown_metrics, breakdown_tables, {"breakdown": draw_breakdown}),
})
"""In the order of the paper's arguments."""
