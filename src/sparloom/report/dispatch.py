"""Reduce benchmarks of input-aware operations on CPU and GPU: speedups, cost of deciding, regret, tables, figures.

`per_case`, `decisions` and `candidates` are tables of `bench_dispatch` or `bench_dispatch_cuda`; `seed` is that of the
bootstrap over cases.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from sparloom.measure import geomean
from sparloom.report.figures import draw_means, figure, logarithmic, op_title, save, styled
from sparloom.report.runs import grouped_bounds, ratio_bounds

CASE = ["op", "matrix", "width"]
OWN, NEW = "sparloom", "sparloom_new"  # a prepared matrix, into an array that is there and into a new one
PLAIN_CALL, TUNED, KERNEL = "call", "tuned", "kernel"
WIDEST = 256  # columns, up to which a case counts
LARGE = 0.5e-3  # seconds of the best baseline, from which on a case counts
SLOWER = 0.97  # times as fast as the best baseline: below is a regression
ALIASES = {"attention": "over_composed", "sage_training": "over_pyg"}  # what over_best is called as well
CALLS = 100  # over which a decision is spread
PEERS: Mapping[str, tuple[str, str]] = {
    "torch": ("torch CSR", "#9a9a9a"), "torch_reduce": ("torch reduce", "#c8c8c8"), "mkl": ("MKL", "#7aa974"),
    "numba": ("Numba", "#d9a441"), "scipy": ("SciPy", "#5f7fa8"), "aocl": ("AOCL", "#b5651d"),
    "graphblas": ("GraphBLAS", "#8064a2"), "mkl_dot": ("sparse_dot_mkl", "#a3c79e"), "dgl": ("DGL", "#c58fbf"),
    "sampled_addmm": ("torch", "#9a9a9a"), "gather_dot": ("gather, dot", "#c8c8c8"),
    "composed": ("composed", "#9a9a9a"), "gathered": ("gathered", "#c8c8c8"), "pyg_csr": ("PyG, CSR", "#9a9a9a"),
    "pyg_csr_int32": ("PyG, int32", "#c8c8c8"), "pyg_edge_index": ("PyG, edges", "#7aa974"),
    "pyg_torch_sparse": ("PyG, SparseTensor", "#5f7fa8"), "float32": ("our float32", "#9a9a9a"),
    "cusparse": ("cuSPARSE", "#7aa974"), "cusparse_alg2": ("cuSPARSE, 2nd", "#5f7fa8"),
    "torch_mm": ("torch CSR", "#9a9a9a"), "torch_int64": ("torch CSR, int64", "#c8c8c8"),
    "torch_sampled_addmm": ("torch", "#9a9a9a"),
    "torch_gather": ("gather, dot", "#c8c8c8"),
}
MAKING = ("torch_reduce", "scipy", "graphblas", "mkl_dot", "dgl", "gather_dot", "composed", "gathered", "cusparse",
          "cusparse_alg2", "torch_mm", "torch_int64", "torch_sampled_addmm", "torch_gather")
"""Peers that make the array of their result in each call, as our `sparloom_new` does; the others write to one that is
there, as `sparloom` does. Where we have only one method, all are compared with it."""

FEW = 12  # graphs, up to which each has metrics of its own
VECTORS = ("vec1", "vec4")


def dispatch_seconds(per_case: pd.DataFrame) -> pd.DataFrame:
    """Tabulate median seconds: a row per case (op, matrix, width), a column per method, and `best` over the peers."""
    seconds = per_case[per_case["median"].notna()].pivot(index=CASE, columns="method", values="median")
    return seconds.assign(best=seconds[[name for name in PEERS if name in seconds]].min(axis=1))


def dispatch_ratios(seconds: pd.DataFrame) -> pd.DataFrame:
    """Divide the seconds of each peer by ours; peers that make their result are compared with our call that does."""
    making = seconds[NEW].fillna(seconds[OWN]) if NEW in seconds else seconds[OWN]
    return pd.DataFrame({name: seconds[name] / (making if name in MAKING else seconds[OWN])
                         for name in PEERS if name in seconds}, index=seconds.index)


def bound_shares(per_case: pd.DataFrame) -> pd.Series:
    """Divide the bound of each case by our seconds; cases without a bound, and runs older than bounds, have none."""
    if "bound_seconds" not in per_case:
        return pd.Series(dtype=float, index=pd.MultiIndex.from_arrays([[], [], []], names=CASE))
    timed = per_case[(per_case["method"] == OWN) & per_case["bound_seconds"].notna()].set_index(CASE)
    return (timed["bound_seconds"] / timed["median"]).dropna()


def decision_regret(candidates: pd.DataFrame, decisions: pd.DataFrame) -> pd.DataFrame:
    """Add the regret to every decision on an explored case: seconds of the choice over those of the best candidate.

    The best is chosen by the even repetitions of each case, and both are compared by the odd ones: the least of many
    noisy numbers is too low.
    """
    halves = {name: candidates["seconds"].map(lambda taken, first=first: _median_of_half(taken, first))
              for first, name in enumerate(("chosen_by", "judged_by"))}
    timed = candidates.assign(**halves)
    best = timed.loc[timed.groupby(CASE)["chosen_by"].idxmin(), [*CASE, "judged_by"]]
    judged = timed[[*CASE, "method", "judged_by"]].rename(columns={"method": "choice", "judged_by": "taken"})
    found = decisions.merge(judged, on=[*CASE, "choice"]).merge(best, on=CASE)
    return found.assign(regret=found["taken"] / found["judged_by"])


def _median_of_half(seconds: Sequence[float], first: int) -> float:
    return float(np.median(seconds[first::2] if len(seconds) > 1 else seconds))


def dispatch_metrics(
    per_case: pd.DataFrame, decisions: pd.DataFrame, candidates: pd.DataFrame, *, seed: int,
    least_seconds: float = LARGE, most_width: float = WIDEST,
) -> dict[str, float]:
    """Reduce a bench of input-aware operations.

    Args:
        least_seconds: of the best baseline, from which on a case counts.
        most_width: columns, up to which it does.

    Returns:
        Geometric means over the cases that count, with 95 % bounds `_low` and `_high` and the extremes `_min` and
        `_max`: `<op>/over_<baseline>`, how many times as fast we are, see `dispatch_ratios`; `<op>/over_best`, the
        least of these in each case; `<op>/new_over_best`, a prepared matrix that makes its result against the fastest
        baseline of any kind; `<op>/call_over_best`, a plain call against it; `<op>/over_tuned`, a prepared matrix
        against a tuned one; `<op>/cases` and `<op>/slower_share`, of over_best below 0.97.
        `<op>/all/over_best` of all cases up to `most_width`, however short, with bounds over matrices: the bootstrap
        draws matrices with all their cases; `<op>/all/call_over_best` likewise; `<op>/all/cases` and
        `<op>/all/slower_share`. `<op>/all/share_of_bound` likewise, the least seconds that arithmetic and caches allow
        over ours, and `<op>/share_of_bound` of the cases that count; both where cases have a bound.

        `<op>/<width>/over_best` by width, wider ones, too. `<op>/small/over_best` of the other cases, and what calls of
        a prepared matrix take beside the kernel, `replay_overhead_us`, median over all small cases, with `_p90`.
        `attention/over_composed` is attention/over_best, `sage_training/over_pyg` that of means over neighbours with
        their gradients. `<op>/memory_share` of attention and of training steps, their peak over that of the baseline
        which needs least, with the largest, `_max`.

        What tuning costs, of the same cases, any width: `measuring_share_median`, over 100 calls, and
        `measuring_runs_max`, in calls; `measured_share` of the decisions.

        Of the explored cases `ways/<way>/regret`, by operation `ways/<way>/<op>/regret`, see `decision_regret`; of what
        a plain call runs ("default") also as `regret` and `<op>/regret`. `default_over_tuned`, how many times as fast
        the kernel of a plain call is as that of a tuned matrix, and `prepared_over_tuned`; the same by operation.
    """
    seconds, shares = dispatch_seconds(per_case), bound_shares(per_case)
    found: dict[str, float] = {}
    for op, rows in seconds.groupby("op", sort=False):
        found |= _speedups(str(op), rows, seed, least_seconds=least_seconds, most_width=most_width)
        every = rows[rows.index.get_level_values("width") <= most_width]
        found |= _of_all(str(op), every, shares[shares.index.isin(every.index)], seed, least_seconds=least_seconds)
    small = seconds[seconds["best"] < least_seconds]
    if KERNEL in seconds and len(small):
        found |= _replay_overhead(small)
    found |= _memory(per_case)
    found |= _costs(decisions[decisions["way"].isin(("", TUNED))], seconds[seconds["best"] >= least_seconds])
    return found | _regrets(candidates, decisions, seed)


def _speedups(
    op: str, rows: pd.DataFrame, seed: int, *, least_seconds: float, most_width: float,
) -> dict[str, float]:
    small, counted = rows[rows["best"] < least_seconds], rows[rows["best"] >= least_seconds]
    large = counted[counted.index.get_level_values("width") <= most_width]
    over = dispatch_ratios(rows)
    ratio = over.loc[large.index].min(axis=1)
    found: dict[str, float] = {f"{op}/cases": len(large), **ratio_bounds(f"{op}/over_best", ratio, seed=seed)}
    if len(large):
        found[f"{op}/slower_share"] = float((ratio < SLOWER).mean())
    for width, least in over.loc[counted.index].min(axis=1).groupby("width"):
        found |= ratio_bounds(f"{op}/{width}/over_best", least, seed=seed)
    for name in over:
        found |= ratio_bounds(f"{op}/over_{name}", over.loc[large.index, name], seed=seed)
    if NEW in rows:
        found |= ratio_bounds(f"{op}/new_over_best", large["best"] / large[NEW], seed=seed)
    if PLAIN_CALL in rows:
        found |= ratio_bounds(f"{op}/call_over_best", large["best"] / large[PLAIN_CALL], seed=seed)
        found |= ratio_bounds(f"{op}/over_tuned", large[TUNED] / large[OWN], seed=seed)
    found |= ratio_bounds(f"{op}/small/over_best", over.loc[small.index].min(axis=1), seed=seed)
    alias = ALIASES.get(op)
    if alias:
        found |= {key.replace("over_best", alias): value for key, value in found.items()
                  if key.startswith(f"{op}/over_best")}
    return found


def _of_all(
    op: str, rows: pd.DataFrame, shares: pd.Series, seed: int, *, least_seconds: float,
) -> dict[str, float]:
    """Reduce cases of any size, with bounds over matrices."""
    ratio = dispatch_ratios(rows).min(axis=1).dropna()
    found: dict[str, float] = {f"{op}/all/cases": len(ratio)}
    if len(ratio):
        found[f"{op}/all/slower_share"] = float((ratio < SLOWER).mean())
    counted = shares[shares.index.isin(rows.index[rows["best"] >= least_seconds])]
    ratios = {"all/over_best": ratio, "all/share_of_bound": shares, "share_of_bound": counted}
    if PLAIN_CALL in rows:
        ratios["all/call_over_best"] = (rows["best"] / rows[PLAIN_CALL]).dropna()
    for key, each in ratios.items():
        found |= grouped_bounds(f"{op}/{key}", each, level="matrix", seed=seed)
    return found


def _replay_overhead(seconds: pd.DataFrame) -> dict[str, float]:
    over = 1e6 * (seconds[OWN] - seconds[KERNEL]).dropna()
    return {"replay_overhead_us": float(over.median()), "replay_overhead_us_p90": float(over.quantile(0.9))}


def _memory(per_case: pd.DataFrame) -> dict[str, float]:
    if "peak_bytes" not in per_case:
        return {}
    peaks = per_case[per_case["peak_bytes"] > 0].pivot(index=CASE, columns="method", values="peak_bytes")
    peers, found = [name for name in PEERS if name in peaks], {}
    for op, each in peaks.groupby("op", sort=False):
        own = NEW if NEW in each and each[NEW].notna().any() else OWN
        share = (each[own] / each[peers].min(axis=1)).dropna() if own in each else pd.Series(dtype=float)
        if len(share):
            found |= {f"{op}/memory_share": geomean(share.to_numpy()), f"{op}/memory_share_max": float(share.max())}
    return found


def _costs(decided: pd.DataFrame, counted: pd.DataFrame) -> dict[str, float]:
    """Reduce the cost of deciding over large cases."""
    if decided.empty or counted.empty:
        return {}
    known = decided.merge(counted.reset_index()[[*CASE, OWN]], on=CASE)
    if known.empty:
        return {}
    alone = known["decision_seconds"] / known[OWN]
    return {"measuring_share_median": float(alone.median() / CALLS), "measuring_runs_max": float(alone.max()),
            "measured_share": float((known["origin"] == "measured").mean())}


def _regrets(candidates: pd.DataFrame, decisions: pd.DataFrame, seed: int) -> dict[str, float]:
    if candidates.empty or decisions.empty:
        return {}
    judged, found = decision_regret(candidates, decisions), {}
    for way, rows in judged.groupby("way", sort=False):
        keys = [f"ways/{way}/", *([""] if way == "default" else [])]
        for op, part in ((None, rows), *rows.groupby("op", sort=False)):
            for key in keys:
                found |= ratio_bounds(f"{key}{op}/regret" if op else f"{key}regret", part["regret"], seed=seed)
    taken = judged.pivot(index=CASE, columns="way", values="taken")
    for way in ("default", "prepared"):
        faster = taken[TUNED] / taken[way]
        found |= ratio_bounds(f"{way}_over_tuned", faster, seed=seed)
        for op, part in faster.groupby("op", sort=False):
            found |= ratio_bounds(f"{op}/{way}_over_tuned", part, seed=seed)
    return found


def device_dispatch_metrics(per_case: pd.DataFrame, decisions: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce a bench of input-aware operations on a GPU.

    Returns:
        What `dispatch_metrics` gives, here of all widths and however short a case is. With at most 12 graphs also
        `<op>/<graph>/over_best`, with its bounds over widths, and `<op>/<graph>/<width>/over_best`.
        `<op>/vec4_gain`, how many times as fast the chosen kernel is with loads of four values as with loads of one,
        likewise by graph. `replay_overhead_us`, what asking for a run of a prepared plan takes beside asking for the
        kernel, median over the cases of at most a millisecond, with `_p90`. `<op>/own_share` of the decisions, in which
        a kernel of ours was chosen, and `<op>/same_share`, in which a second decision chose the same. `left_out`, cases
        in which ours did not fit the memory, or computed something else than it should.
    """
    seconds = dispatch_seconds(per_case)
    found = dispatch_metrics(per_case, decisions, pd.DataFrame(), seed=seed, least_seconds=0.0, most_width=math.inf)
    found |= _by_graph("over_best", dispatch_ratios(seconds).min(axis=1), seed)
    if seconds.columns.isin(VECTORS).sum() == len(VECTORS):
        gain = (seconds[VECTORS[0]] / seconds[VECTORS[1]]).dropna()
        for op, each in gain.groupby("op", sort=False):
            found |= ratio_bounds(f"{op}/vec4_gain", each, seed=seed)
        found |= _by_graph("vec4_gain", gain, seed)
    return found | _launches(per_case) | _shares(decisions) | {"left_out": _left_out(per_case)}


def _by_graph(name: str, ratio: pd.Series, seed: int) -> Mapping[str, float]:
    if ratio.index.get_level_values("matrix").nunique() > FEW:
        return {}
    found: dict[str, float] = {}
    for (op, graph), each in ratio.dropna().groupby(["op", "matrix"], sort=False):
        found |= ratio_bounds(f"{op}/{graph}/{name}", each, seed=seed)
        found |= {f"{op}/{graph}/{width}/{name}": float(value)
                  for width, value in zip(each.index.get_level_values("width"), each, strict=True)}
    return found


def _left_out(per_case: pd.DataFrame) -> int:
    return int(per_case.loc[per_case["method"] == OWN, "median"].isna().sum())


def _launches(per_case: pd.DataFrame) -> Mapping[str, float]:
    if "launch_seconds" not in per_case:
        return {}
    launched = per_case[per_case["launch_seconds"].notna()].pivot(index=CASE, columns="method", values="launch_seconds")
    if not {OWN, KERNEL} <= set(launched.columns):
        return {}
    return _replay_overhead(launched)


def _shares(decisions: pd.DataFrame) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for op, each in decisions.groupby("op", sort=False):
        chosen = each.pivot(index=CASE, columns="way", values="choice")
        found[f"{op}/own_share"] = float(each.loc[each["way"] == "first", "own"].astype(float).mean())
        found[f"{op}/same_share"] = float((chosen["first"] == chosen[""]).mean())
    return found


def draw_dispatch(
    per_case: pd.DataFrame, decisions: pd.DataFrame, candidates: pd.DataFrame, *, folder: Path,
    least_seconds: float = LARGE,
) -> None:
    """Draw speedups.png over each baseline, best.png over the best one by size, and regret.png of all ways.

    Args:
        least_seconds: of the best baseline, from which on a case is drawn.
    """
    seconds = dispatch_seconds(per_case)
    large = seconds[seconds["best"] >= least_seconds]
    if len(large):
        _draw_speedups(large, folder / "speedups")
        _draw_best(per_case, large, folder / "best")
    explored = decisions[decisions["way"] != ""].drop_duplicates([*CASE, "way"])  # earlier runs repeated decisions
    if len(candidates) and len(explored):
        _draw_regret(decision_regret(candidates, explored), folder / "regret")


def _draw_speedups(large: pd.DataFrame, stem: Path) -> None:
    """Draw a row of grouped points per operation."""
    panels, most = {}, 0
    for op in dict.fromkeys(large.index.get_level_values("op")):
        over = dispatch_ratios(large.xs(op, level="op"))
        found = {(peer, int(width)): own.to_numpy() for peer in PEERS if peer in over
                 for width, own in over[peer].dropna().groupby("width")}
        panels[f"{op_title(op)}, over each baseline, by width"] = found
        most = max(most, len({peer for peer, _ in found}))
    draw_means(panels, PEERS, stem, y="times as fast", size=(1.2 + 1.6 * most, 2.6 * len(panels)), rows=True)


@styled
def _draw_best(per_case: pd.DataFrame, large: pd.DataFrame, stem: Path) -> None:
    """Draw every case over the nonzeros of its matrix."""
    nonzeros = per_case.drop_duplicates("matrix").set_index("matrix")["nnz"]
    ops = list(dict.fromkeys(large.index.get_level_values("op")))
    colours = {width: f"C{number}" for number, width in enumerate(sorted(set(large.index.get_level_values("width"))))}
    columns = min(3, len(ops))
    drawn, panels = figure(3.4 * columns, 3.2 * math.ceil(len(ops) / columns), rows=math.ceil(len(ops) / columns),
                           columns=columns)
    for panel, op in zip(panels, ops, strict=False):
        for width, least in dispatch_ratios(large.xs(op, level="op")).min(axis=1).groupby("width"):
            at = nonzeros.loc[least.index.get_level_values("matrix")]
            panel.plot(at, least, "o", color=colours[width], markersize=3.5, alpha=0.6)
        panel.set_xscale("log")
        logarithmic(panel)
        panel.set(xlabel="nonzeros", title=op_title(op))
    for panel in panels[::columns]:
        panel.set_ylabel("times as fast as the best baseline")
    for panel in panels[len(ops):]:
        panel.set_axis_off()
    for width, colour in colours.items():
        panels[0].plot([], [], "o", color=colour, markersize=4, label=f"{width} columns")
    save(drawn, stem, legend=True, columns=len(colours))


def _draw_regret(judged: pd.DataFrame, stem: Path) -> None:
    """Draw a dot per case and a point for the geometric mean."""
    found = {(str(way), ""): rows["regret"].to_numpy() for way, rows in judged.groupby("way", sort=False)}
    looks = {way: (way.replace("_", "\n"), "#b5443c" if way == "default" else "#5f7fa8") for way, _ in found}
    draw_means({"regret of decisions": found}, looks, stem, y="times as slow as the best candidate",
               size=(1.4 + 0.64 * len(found), 3.4))
