"""A bench of input-aware operations on a GPU: what `sparloom.report.dispatch` reduces, of all cases and by graph."""

import math
from collections.abc import Mapping

import pandas as pd

from sparloom.report.dispatch import CASE, KERNEL, OWN, dispatch_metrics, dispatch_seconds
from sparloom.report.ratio_bounds import ratio_bounds

__all__ = ["device_dispatch_metrics"]

FEW = 12  # graphs, up to which each has metrics of its own
VECTORS = ("vec1", "vec4")


def device_dispatch_metrics(per_case: pd.DataFrame, decisions: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce a bench of input-aware operations on a GPU.

    Args:
        per_case, decisions: tables of `bench_dispatch_cuda`.
        seed: of the bootstrap over cases.

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
    found |= _by_graph("over_best", seconds["best"] / seconds[OWN], seed)
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
    over = 1e6 * (launched[OWN] - launched[KERNEL]).dropna()
    return {"replay_overhead_us": float(over.median()), "replay_overhead_us_p90": float(over.quantile(0.9))}


def _shares(decisions: pd.DataFrame) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for op, each in decisions.groupby("op", sort=False):
        chosen = each.pivot(index=CASE, columns="way", values="choice")
        found[f"{op}/own_share"] = float(each.loc[each["way"] == "first", "own"].astype(float).mean())
        found[f"{op}/same_share"] = float((chosen["first"] == chosen[""]).mean())
    return found
