"""Reduce finished runs to metrics, tables and figures.

`runs` opens finished runs and formats tables; `figures` holds the style and COGNATE's figures. The others belong to one
kind of experiment each: `evaluation` and `arms` (COGNATE), `designs` and `tuners` (SPADE), `trees` (performance
models), `dispatch`, `kernels` and `autosage` (sparse kernels), `fusion` and `solvers` (tile fusion), `ragged`,
`ragged_padding`, `ragged_storage` and `encoders` (CoRa). Names are imported on demand.
"""

from sparloom.lazy import attach

_HOMES = {
    "arms": (
        "Bars Compared Curves GroupFigure Lines Matrices Shares read_compared row_label row_metrics row_statistics "
        "rows_cells rows_table"),
    "autosage": (
        "autosage_ablation autosage_decisions autosage_metrics autosage_rows draw_autosage_ablations "
        "draw_autosage_speedups"),
    "designs": (
        "DESIGN_METHODS design_gains draw_campaign draw_designs draw_sensitivity draw_signs"
        " draw_trusts"),
    "dispatch": (
        "MAKING bound_shares decision_regret device_dispatch_metrics dispatch_metrics dispatch_ratios "
        "dispatch_seconds draw_dispatch"),
    "encoders": "draw_encoders encoder_metrics precision_of",
    "evaluation": "Choices RuntimeTable judge optimum per_matrix places_by_bin random_choice baseline_choice summary",
    "figures": "draw_curves draw_levels draw_matrices draw_methods draw_spy op_title",
    "fusion": (
        "draw_amortisation draw_fused_methods draw_fusion draw_gain draw_memory_time draw_rates draw_reuse "
        "draw_scaling draw_steps fusion_metrics ratio_means ratios"),
    "kernels": (
        "draw_kernels draw_probe probe_frame"),
    "ragged": (
        "INTERNAL_PEERS PAPER_RACE breakdown_frame breakdown_metrics case_seconds data_title draw_breakdown "
        "draw_ragged ragged_metrics"),
    "ragged_padding": (
        "computation_metrics draw_computation draw_memory draw_pad_fusion draw_padding draw_splitting over_ideal "
        "over_ragged pad_fusion_frame pad_fusion_metrics splitting_frame splitting_metrics"),
    "ragged_storage": (
        "RAGGED_PARTS RaggedPart draw_hoisting draw_prelude draw_storage hoisting_frame hoisting_metrics "
        "prelude_frame prelude_metrics storage_frame storage_metrics"),
    "runs": (
        "Run bounded_metrics grouped_bounds latex_table markdown_table metrics_tables ratio_bounds read_run read_runs "
        "report_table results_table"),
    "solvers": "draw_gcn draw_jacobi gcn_metrics jacobi_metrics jacobi_ratios minibatch_metrics",
    "trees": (
        "JudgedProblems PaperClaim bounded contrast draw_efficiencies draw_learnings "
        "efficiencies efficiency_metrics efficiency_table paired_metrics slice_lead verdict"),
    "tuners": (
        "draw_source_gains draw_spaces draw_trials draw_tuners leaderboard rank_rows source_gains space_metrics "
        "tuner_metrics"),
}

__all__, __getattr__, __dir__ = attach(__name__, {module: names.split() for module, names in _HOMES.items()})
