"""Finished runs to tables and figures; what a run prints and draws at its end."""

from sparloom.report.arm_figures import Bars, Curves, GroupFigure, Lines, Matrices, Shares
from sparloom.report.arms import Compared, read_compared, row_label, row_metrics, row_statistics, rows_cells, rows_table
from sparloom.report.design_figures import draw_designs
from sparloom.report.designs import DESIGN_METHODS, design_gains, design_metrics, designs_table, pareto, per_design
from sparloom.report.dispatch import (
    MAKING,
    decision_regret,
    dispatch_metrics,
    dispatch_ratios,
    dispatch_seconds,
    dispatch_tables,
)
from sparloom.report.dispatch_device import device_dispatch_metrics
from sparloom.report.dispatch_figures import draw_dispatch
from sparloom.report.efficiency import (
    Scene,
    bounded,
    draw_efficiencies,
    efficiencies,
    efficiency_metrics,
    efficiency_table,
    paired_metrics,
)
from sparloom.report.evaluation import Choices, Truth, judge, optimum, random_choice, rival_choice
from sparloom.report.figures import draw_curves, draw_matrices, draw_methods, op_title
from sparloom.report.fusion_figures import (
    draw_amortisation,
    draw_fused_methods,
    draw_fusion,
    draw_gain,
    draw_memory_time,
    draw_rates,
    draw_reuse,
    draw_scaling,
    draw_steps,
)
from sparloom.report.fusion_metrics import fusion_metrics, ratio_means, ratios
from sparloom.report.fusion_tables import fusion_tables
from sparloom.report.gcn import draw_gcn, gcn_metrics, gcn_table
from sparloom.report.gcn_losses import loss_error_metrics, loss_error_table
from sparloom.report.jacobi import draw_jacobi, jacobi_metrics, jacobi_ratios, jacobi_table
from sparloom.report.kernels import draw_kernels
from sparloom.report.learnings import Learning, contrast, draw_learnings, learnings_table, slice_lead, verdict
from sparloom.report.levels import draw_levels
from sparloom.report.portfolio import in_stored_order, portfolio_metrics, portfolio_seconds, portfolio_table
from sparloom.report.probe import draw_probe, probe_frame, probe_metrics, probe_tables
from sparloom.report.ragged import INTERNAL_PEERS, case_seconds, draw_ragged, ragged_metrics, ragged_tables
from sparloom.report.ragged_breakdown import (
    PAPER_RACE,
    breakdown_frame,
    breakdown_metrics,
    breakdown_tables,
    draw_breakdown,
)
from sparloom.report.ragged_choices import schedule_metrics, schedule_tables
from sparloom.report.ragged_computation import (
    computation_metrics,
    computation_tables,
    draw_computation,
    draw_memory,
    draw_padding,
    over_ideal,
    over_ragged,
)
from sparloom.report.ragged_hoisting import draw_hoisting, hoisting_frame, hoisting_metrics, hoisting_tables
from sparloom.report.ragged_names import data_title
from sparloom.report.ragged_pad_fusion import draw_pad_fusion, pad_fusion_frame, pad_fusion_metrics, pad_fusion_tables
from sparloom.report.ragged_parts import RAGGED_PARTS, RaggedPart
from sparloom.report.ragged_prelude import draw_prelude, prelude_frame, prelude_metrics, prelude_tables
from sparloom.report.ragged_splitting import draw_splitting, splitting_frame, splitting_metrics, splitting_tables
from sparloom.report.ragged_storage import draw_storage, storage_frame, storage_metrics, storage_tables
from sparloom.report.ratio_bounds import ratio_bounds
from sparloom.report.recommendations import draw_recommendations
from sparloom.report.runs import Run, read_run, read_runs
from sparloom.report.sensitivity import draw_sensitivity
from sparloom.report.signs import draw_signs
from sparloom.report.spy import draw_spy
from sparloom.report.summary import per_matrix, summary
from sparloom.report.tables import results_table
from sparloom.report.written import latex_table, markdown_table

__all__ = [
    "DESIGN_METHODS", "INTERNAL_PEERS", "MAKING", "PAPER_RACE", "RAGGED_PARTS", "Bars", "Choices", "Compared",
    "Curves", "GroupFigure", "Learning", "Lines", "Matrices", "RaggedPart", "Run", "Scene", "Shares", "Truth",
    "bounded", "breakdown_frame", "breakdown_metrics", "breakdown_tables", "case_seconds", "computation_metrics",
    "computation_tables", "contrast", "data_title", "decision_regret", "design_gains", "design_metrics",
    "designs_table", "device_dispatch_metrics", "dispatch_metrics", "dispatch_ratios", "dispatch_seconds",
    "dispatch_tables", "draw_amortisation", "draw_breakdown", "draw_computation", "draw_curves", "draw_designs",
    "draw_dispatch", "draw_efficiencies", "draw_fused_methods", "draw_fusion", "draw_gain", "draw_gcn",
    "draw_hoisting", "draw_jacobi", "draw_kernels", "draw_learnings", "draw_levels", "draw_matrices", "draw_memory",
    "draw_memory_time", "draw_methods", "draw_pad_fusion", "draw_padding", "draw_prelude", "draw_probe",
    "draw_ragged", "draw_rates", "draw_recommendations", "draw_reuse", "draw_scaling", "draw_sensitivity",
    "draw_signs", "draw_splitting", "draw_spy", "draw_steps", "draw_storage", "efficiencies", "efficiency_metrics",
    "efficiency_table", "fusion_metrics", "fusion_tables", "gcn_metrics", "gcn_table", "hoisting_frame",
    "hoisting_metrics", "hoisting_tables", "in_stored_order", "jacobi_metrics", "jacobi_ratios", "jacobi_table",
    "judge", "latex_table", "learnings_table", "loss_error_metrics", "loss_error_table", "markdown_table",
    "op_title", "optimum", "over_ideal", "over_ragged", "pad_fusion_frame", "pad_fusion_metrics",
    "pad_fusion_tables", "paired_metrics", "pareto", "per_design", "per_matrix", "portfolio_metrics",
    "portfolio_seconds", "portfolio_table", "prelude_frame", "prelude_metrics", "prelude_tables", "probe_frame",
    "probe_metrics", "probe_tables", "ragged_metrics", "ragged_tables", "random_choice", "ratio_bounds",
    "ratio_means", "ratios", "read_compared", "read_run", "read_runs", "results_table", "rival_choice", "row_label",
    "row_metrics", "row_statistics", "rows_cells", "rows_table", "schedule_metrics", "schedule_tables",
    "slice_lead", "splitting_frame", "splitting_metrics", "splitting_tables", "storage_frame", "storage_metrics",
    "storage_tables", "summary", "verdict",
]
