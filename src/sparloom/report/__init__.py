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
        "autosage_ablation autosage_decisions autosage_metrics autosage_rows autosage_tables draw_autosage_ablations "
        "draw_autosage_speedups"),
    "designs": (
        "DESIGN_METHODS design_gains design_metrics designs_table draw_campaign draw_designs draw_sensitivity "
        "draw_signs draw_trials pareto per_design"),
    "dispatch": (
        "MAKING bound_shares decision_regret device_dispatch_metrics dispatch_metrics dispatch_ratios dispatch_seconds "
        "dispatch_tables draw_dispatch"),
    "encoders": "draw_encoders encoder_metrics encoder_table precision_of",
    "evaluation": (
        "Choices RuntimeTable judge optimum per_matrix places_by_bin random_choice baseline_choice summary"),
    "figures": (
        "draw_curves draw_levels draw_matrices draw_methods draw_spy op_title"),
    "fusion": (
        "draw_amortisation draw_fused_methods draw_fusion draw_gain draw_memory_time draw_rates draw_reuse "
        "draw_scaling draw_steps fusion_metrics fusion_tables ratio_means ratios"),
    "kernels": (
        "draw_graphsage draw_kernels draw_probe graphsage_metrics graphsage_tables in_stored_order portfolio_metrics "
        "portfolio_seconds portfolio_table probe_frame probe_metrics probe_tables"),
    "ragged": (
        "INTERNAL_PEERS PAPER_RACE breakdown_frame breakdown_metrics breakdown_tables case_seconds data_title "
        "draw_breakdown draw_ragged ragged_metrics ragged_tables schedule_metrics schedule_tables"),
    "ragged_padding": (
        "computation_metrics computation_tables draw_computation draw_memory draw_pad_fusion draw_padding "
        "draw_splitting over_ideal over_ragged pad_fusion_frame pad_fusion_metrics pad_fusion_tables "
        "splitting_frame splitting_metrics splitting_tables"),
    "ragged_storage": (
        "RAGGED_PARTS RaggedPart draw_hoisting draw_prelude draw_storage hoisting_frame hoisting_metrics "
        "hoisting_tables prelude_frame prelude_metrics prelude_tables storage_frame storage_metrics storage_tables"),
    "runs": (
        "Run grouped_bounds latex_table markdown_table ratio_bounds read_run read_runs report_table results_table"),
    "solvers": (
        "draw_gcn draw_jacobi gcn_metrics gcn_table jacobi_metrics jacobi_ratios jacobi_table "
        "minibatch_metrics minibatch_table"),
    "trees": (
        "JudgedProblems PaperClaim bounded contrast draw_efficiencies draw_learnings draw_recommendations efficiencies "
        "efficiency_metrics efficiency_table learnings_table paired_metrics slice_lead verdict"),
    "tuners": "draw_tuners leaderboard rank_rows tuner_metrics tuners_table",
}

__all__, __getattr__, __dir__ = attach(__name__, {module: names.split() for module, names in _HOMES.items()})
