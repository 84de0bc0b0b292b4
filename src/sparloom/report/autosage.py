"""Make AutoSAGE's decisions from stored times, judge them on the whole graph, and reduce them to its tables.

A decision takes the fastest of the default kernel and the shortlisted ones in a probe, if that takes at most alpha
times the baseline's seconds there; else the baseline runs. Probes are on an induced subgraph, on our samples of rows,
or on the whole graph. On the whole graph, the even repetitions decide and the odd ones judge, so no decision is judged
by the noise that made it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparloom.report.figures import figure, logarithmic, op_title, save, styled
from sparloom.report.runs import ratio_bounds

CASE = ["op", "matrix", "width"]
SIZES = ["scale", "rows", "nnz"]
VENDOR, DEFAULT = "vendor", "default"
ALPHA, SHARE = 0.95, 0.03  # of AutoSAGE
ALPHAS = (0.8, 0.9, 0.95, 0.98, 1.0)
LEAST_ROWS, LEAST_NONZEROS = 64, 512  # of a sample on which a candidate may be accepted
ARMS: Mapping[str, tuple[str, str]] = {
    DEFAULT: ("our default kernel", "#9a9a9a"), "autosage": ("AutoSAGE: subgraph", "#b5443c"),
    "rows": ("the same on our samples", "#d9a441"), "full": ("the same on all rows", "#5f7fa8"),
    "online": ("calls as the race (earlier design)", "#2b2b2b"), "tuned": ("sparloom.tune", "#2b2b2b")}
"""Arm -> name and colour; runs of the earlier design have `online` in place of `tuned`."""
ABLATIONS: Mapping[str, str] = {
    "share": "share of the rows in the probe", "alpha": "guardrail alpha", "hub": "shared rows"}


@dataclass(frozen=True)
class _Probe:
    """What a decision reads: seconds of a run and of all that a method took, by name, and the cost of the sample."""

    best: Mapping[str, float]
    elapsed: Mapping[str, float]
    iterations: float = 1.0
    drawing: float = 0.0
    enough: bool = True

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "_Probe":
        """Read the rows of one sample."""
        first = rows.iloc[0]
        enough = first["sampled_rows"] >= LEAST_ROWS and first["sampled_nnz"] >= LEAST_NONZEROS
        return cls(dict(zip(rows["method"], rows["best"], strict=True)),
                   dict(zip(rows["method"], rows["elapsed"], strict=True)),
                   float(first["iterations"]), float(first["drawing"]), bool(enough))


@dataclass(frozen=True)
class _Timed:
    """One case on the whole graph and on samples.

    Args:
        roles: of the methods, in the order of the shortlist.
        truth: seconds that judge.
        probes: (sample, share) -> probe.
    """

    roles: Mapping[str, str]
    truth: Mapping[str, float]
    probes: Mapping[tuple[str, float], _Probe]

    @classmethod
    def of(cls, whole: pd.DataFrame, probes: pd.DataFrame) -> "_Timed":
        """Read the rows of one case; the even repetitions decide, the odd ones judge."""
        seconds = {name: np.asarray(taken) for name, taken in zip(whole["method"], whole["seconds"], strict=True)}
        full = _Probe({name: float(np.median(taken[::2])) for name, taken in seconds.items()},
                      {name: float(np.sum(taken[::2]) + taken[0]) for name, taken in seconds.items()})
        truth = {name: float(np.median(taken[1::2] if taken.size > 1 else taken)) for name, taken in seconds.items()}
        samples = {key: _Probe.of(rows) for key, rows in probes.groupby(["sample", "share"])}
        return cls(dict(zip(whole["method"], whole["role"], strict=True)), truth, {("all", 1.0): full, **samples})

    def named(self, role: str) -> str:
        """Return the only method with a role."""
        return next(name for name, each in self.roles.items() if each == role)

    def judged(
        self, methods: tuple[str, str, str], predicted: float, elapsed: float, *, accepted: bool,
    ) -> dict[str, Any]:
        """Judge a choice by the whole graph.

        Args:
            methods: the baseline, the winner of the probe, and what was chosen.
            elapsed: seconds of the decision.
        """
        baseline, winner, chosen = (self.truth[name] for name in methods)
        least = min(self.truth[name] for name, role in self.roles.items() if role in (VENDOR, DEFAULT, "candidate"))
        return {"choice": methods[2], "accepted": accepted, "predicted": predicted, "winner_speedup": baseline / winner,
                "baseline_seconds": baseline, "chosen_seconds": chosen, "speedup": baseline / chosen,
                "regret": chosen / min(least, chosen), "wrong": accepted and chosen > baseline,
                "probe_calls": elapsed / self.truth[VENDOR], "first_seconds": elapsed + chosen}


@dataclass(frozen=True)
class _Rule:
    """One way to decide.

    Args:
        baseline: "vendor" or "default", against which the guardrail holds and which runs otherwise.
        sample: "subgraph", "rows", or "all" for the whole graph.
        candidates: roles of the candidates, or the name of one method.
    """

    baseline: str
    sample: str
    share: float
    alpha: float
    cap_seconds: float = math.inf
    candidates: tuple[str, ...] = (DEFAULT, "candidate")

    def decide(self, case: _Timed) -> dict[str, Any]:
        """Decide one case."""
        base, probe = case.named(self.baseline), case.probes.get((self.sample, self.share))
        if probe is None:
            return case.judged((base, base, base), math.nan, 0.0, accepted=False)
        names, spent = [], 0.0
        for name, role in case.roles.items():
            if name == base or not {name, role} & set(self.candidates) or (names and spent >= self.cap_seconds):
                continue
            names.append(name)
            spent += probe.iterations * probe.best[name]
        elapsed = probe.drawing + sum(probe.elapsed[name] for name in (base, *names))
        if not names:
            return case.judged((base, base, base), math.nan, elapsed, accepted=False)
        winner = min(names, key=probe.best.__getitem__)
        accepted = probe.enough and probe.best[winner] <= self.alpha * probe.best[base]
        return case.judged((base, winner, winner if accepted else base), probe.best[base] / probe.best[winner], elapsed,
                           accepted=accepted)


def autosage_decisions(
    whole: pd.DataFrame, probes: pd.DataFrame, tuned: pd.DataFrame, *, cap_seconds: float,
) -> pd.DataFrame:
    """Decide every case by every arm and ablation.

    Args:
        whole, probes, tuned: whole.parquet, probes.parquet and tuned.parquet of `bench_autosage`.
        cap_seconds: of the timed runs of AutoSAGE's candidates; no ablation has a cap.

    Returns:
        A row for each case, `kind` ("arm", "share", "alpha" or "hub"), `name`, `sample` and `baseline` ("vendor" or
        "default"): the sizes of the graph, choice, `accepted`, speedup over the baseline that the
        probe `predicted` for its winner, and the winner has on the whole graph (`winner_speedup`), that of the choice,
        seconds of baseline and choice, `regret` over the fastest timed method, `wrong` (accepted, but slower on the
        whole graph), `probe_calls` (cost of the decision in calls of the vendor's product) and `first_seconds`
        (decision and one call).
    """
    probed, calls = dict(list(probes.groupby(CASE))), tuned.set_index(CASE)
    rules = _rules(sorted(probes["share"].unique()), cap_seconds)
    rows = []
    for case, each in whole.groupby(CASE, sort=False):
        known = {**dict(zip(CASE, case, strict=True)), **each.iloc[0][SIZES].to_dict()}
        timed = _Timed.of(each, probed.get(case, probes.iloc[:0]))
        rows += [{**known, "kind": kind, "name": name, "sample": rule.sample, "baseline": rule.baseline,
                  **rule.decide(timed)} for kind, name, rule in (*rules, *_hub_rules(timed, rules))]
        rows += [{**known, "kind": "arm", "name": name, "sample": "", "baseline": VENDOR, **row}
                 for name, row in _fixed_arms(timed, calls.loc[case]).items()]
    return pd.DataFrame(rows)


def _rules(shares: Sequence[float], cap_seconds: float) -> list[tuple[str, str, _Rule]]:
    """List arms and ablations: kind, name and rule."""
    usual = min(shares, key=lambda share: abs(share - SHARE))
    rules = []
    for baseline in (VENDOR, DEFAULT):
        arms = {"autosage": _Rule(baseline, "subgraph", usual, ALPHA, cap_seconds),
                "rows": _Rule(baseline, "rows", usual, ALPHA), "full": _Rule(baseline, "all", 1.0, ALPHA)}
        rules += [("arm", name, rule) for name, rule in arms.items()]
        for sample in ("subgraph", "rows"):
            rules += [("share", f"{share:g}", _Rule(baseline, sample, share, ALPHA)) for share in shares]
            rules += [("alpha", f"{alpha:g}", _Rule(baseline, sample, usual, alpha)) for alpha in ALPHAS]
        rules += [("share", "1", _Rule(baseline, "all", 1.0, ALPHA))]
        rules += [("alpha", f"{alpha:g}", _Rule(baseline, "all", 1.0, alpha)) for alpha in ALPHAS]
    return rules


def _hub_rules(case: _Timed, rules: Sequence[tuple[str, str, _Rule]]) -> list[tuple[str, str, _Rule]]:
    """Decide with one hub threshold at a time: the kernel that shares rows above it is the only candidate."""
    arms = [replace(rule, cap_seconds=math.inf) for kind, _, rule in rules if kind == "arm"]
    return [("hub", name.removeprefix("hub_"), replace(rule, candidates=(name,)))
            for name, role in case.roles.items() if role == "hub" for rule in arms]


def _fixed_arms(case: _Timed, tuned: pd.Series) -> dict[str, dict[str, Any]]:
    """Judge the default kernel, which needs no measurement, and what `sparloom.tune` has chosen."""
    vendor, default, choice = case.named(VENDOR), case.named(DEFAULT), str(tuned["choice"])
    arms = {DEFAULT: case.judged((vendor, default, default), math.nan, 0.0, accepted=True),
            "tuned": case.judged((vendor, choice, choice), math.nan, max(0.0, float(tuned["beyond_seconds"])),
                                 accepted=True)}
    arms["tuned"]["first_seconds"] = float(tuned["first_seconds"])
    return arms


def autosage_metrics(decisions: pd.DataFrame, whole: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce decisions to metrics.

    Args:
        decisions: of `autosage_decisions`.
        seed: of the bootstrap over cases.

    Returns:
        For each arm `<arm>/...`, and by operation `<op>/<arm>/...`: `speedup` over the vendor and `regret` over the
        fastest timed method, with bounds as of `ratio_bounds`; `accepted` and `wrong`, shares of the cases;
        `probe_calls`, median; `error`, the factor by which predicted and true speedup of the probe's winner differ,
        geometric mean. For each row of AutoSAGE's tables `<op>/<graph>/<width>/vendor_ms`, `/<arm>_ms`,
        `/<arm>_first_ms` (decision and one call) and `/<arm>`, the speedup. For the ablations
        `share/<sample>/<share>/...`, `alpha/<sample>/<alpha>/...` and `hub/<sample>/<threshold>/...` with the keys of
        arms, and the same under `over_default/`, where our default kernel is the baseline.
        `hub/<op>/<graph>/<threshold>` is the speedup over rows that are never shared, and `vectors/<graph>/<width>`
        that of the machine's vectors over those of four numbers.
    """
    found: dict[str, float] = {}
    arms = decisions[(decisions["kind"] == "arm") & (decisions["baseline"] == VENDOR)]
    for name, rows in arms.groupby("name", sort=False):
        found |= _reduced(str(name), rows, seed)
        for op, part in rows.groupby("op", sort=False):
            found |= _reduced(f"{op}/{name}", part, seed)
    for row in arms.itertuples():
        key = f"{row.op}/{row.matrix}/{row.width}"
        found |= {f"{key}/vendor_ms": 1e3 * row.baseline_seconds, f"{key}/{row.name}_ms": 1e3 * row.chosen_seconds,
                  f"{key}/{row.name}_first_ms": 1e3 * row.first_seconds, f"{key}/{row.name}": row.speedup}
    for baseline, prefix in ((VENDOR, ""), (DEFAULT, "over_default/")):
        ablated = decisions[(decisions["kind"] != "arm") & (decisions["baseline"] == baseline)]
        for (kind, sample, name), rows in ablated.groupby(["kind", "sample", "name"], sort=False):
            found |= _reduced(f"{prefix}{kind}/{sample}/{name}", rows, seed)
    seconds = whole.assign(median=whole["seconds"].map(np.median)).set_index([*CASE, "method"])["median"]
    for (op, graph, width, method), taken in seconds.items():
        if str(method).startswith("hub_"):
            never = seconds[op, graph, width, "hub_never"]
            found[f"hub/{op}/{graph}/{str(method).removeprefix('hub_')}"] = float(never / taken)
    defaults = whole[whole["role"] == DEFAULT].set_index(CASE)["method"]
    for (op, graph, width, method), taken in seconds.items():
        if method == "vectors_4":
            usual = seconds[op, graph, width, defaults[op, graph, width]]
            found[f"vectors/{graph}/{width}"] = float(taken / usual)
    return found


def _reduced(key: str, rows: pd.DataFrame, seed: int) -> dict[str, float]:
    missed = np.abs(np.log(rows["predicted"] / rows["winner_speedup"])).dropna()
    found = ratio_bounds(f"{key}/speedup", rows["speedup"], seed=seed)
    found |= ratio_bounds(f"{key}/regret", rows["regret"], seed=seed)
    if missed.size:
        found[f"{key}/error"] = float(np.exp(missed.mean()))
    return found | {f"{key}/accepted": float(rows["accepted"].mean()), f"{key}/wrong": float(rows["wrong"].mean()),
                    f"{key}/probe_calls": float(rows["probe_calls"].median())}


def autosage_rows(
    decisions: pd.DataFrame, *, graphs: Sequence[str] | None = None, ops: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Lay out a table of the paper: a row for each graph, operation, width and arm.

    Args:
        decisions: of `autosage_decisions`.
        graphs, ops: that are kept; None: all.
    """
    rows = decisions[(decisions["kind"] == "arm") & (decisions["baseline"] == VENDOR)]
    rows = rows[rows["matrix"].isin(graphs or set(rows["matrix"])) & rows["op"].isin(ops or set(rows["op"]))]
    shown = pd.DataFrame({
        "graph": rows["matrix"], "scale": rows["scale"], "rows": rows["rows"], "nnz": rows["nnz"], "op": rows["op"],
        "F": rows["width"], "arm": rows["name"], "baseline ms": 1e3 * rows["baseline_seconds"],
        "chosen ms": 1e3 * rows["chosen_seconds"], "choice": rows["choice"], "predicted": rows["predicted"],
        "winner": rows["winner_speedup"], "speedup": rows["speedup"], "probe calls": rows["probe_calls"],
        "first call ms": 1e3 * rows["first_seconds"]})
    return shown.set_index(["graph", "scale", "rows", "nnz", "op", "F", "arm"]).sort_index()


def autosage_ablation(metrics: Mapping[str, float], kind: str) -> pd.DataFrame:
    """Lay out an ablation: a row for each baseline, sample and value.

    Args:
        metrics: of `autosage_metrics`.
        kind: "share", "alpha" or "hub".
    """
    rows = []
    for prefix, baseline in (("", VENDOR), ("over_default/", DEFAULT)):
        for key in metrics:
            if key.startswith(f"{prefix}{kind}/") and key.endswith("/accepted"):
                name = key.removesuffix("/accepted")
                sample, value = name.removeprefix(f"{prefix}{kind}/").split("/")
                rows.append({"baseline": baseline, "sample": sample, kind: value, **{
                    column: metrics.get(f"{name}/{column}", math.nan)
                    for column in ("accepted", "wrong", "speedup", "regret", "error", "probe_calls")}})
    return pd.DataFrame(rows).set_index(["baseline", "sample", kind]) if rows else pd.DataFrame()


@styled
def draw_autosage_speedups(
    decisions: pd.DataFrame, stem: Path, *, graphs: Sequence[str] | None = None, ops: Sequence[str] | None = None,
) -> None:
    """Draw the speedup of every arm over the vendor, a point per width.

    Args:
        graphs, ops: as in `autosage_rows`.
    """
    shown = autosage_rows(decisions, graphs=graphs, ops=ops).reset_index()
    groups = list(shown.groupby(["graph", "op", "F"], sort=False).groups)
    arms = {name: look for name, look in ARMS.items() if name in set(shown["arm"])}
    drawn, (axes,) = figure(max(4.0, 1.5 + 0.35 * len(groups)), 4.2)
    for number, (name, (label, colour)) in enumerate(arms.items()):
        rows = shown[shown["arm"] == name].set_index(["graph", "op", "F"])["speedup"]
        places = np.arange(len(groups)) + 0.14 * (number - len(arms) // 2)
        axes.plot(places, [rows[group] for group in groups], "o", color=colour, markersize=4, label=label)
    logarithmic(axes)
    axes.set_xticks(range(len(groups)), [f"{graph} {op_title(op)} {width}" for graph, op, width in groups],
                    fontsize=7, rotation=90)
    axes.set_ylabel("speedup over torch")
    axes.legend(fontsize=7)
    save(drawn, stem)


@styled
def draw_autosage_ablations(metrics: Mapping[str, float], stem: Path, *, kinds: Sequence[str] | None = None) -> None:
    """Draw accepted and wrongly accepted shares of the cases: a column per ablation, a row per baseline.

    Args:
        kinds: that are drawn; None: all that were made.
    """
    frames = {kind: autosage_ablation(metrics, kind) for kind in kinds or ABLATIONS}
    frames = {kind: frame for kind, frame in frames.items() if not frame.empty}
    columns = max(1, len(frames))
    drawn, panels = figure(3.6 * columns, 5.6, rows=2, columns=columns)
    places = [(baseline, kind) for baseline in (VENDOR, DEFAULT) for kind in frames]
    for panel, (baseline, kind) in zip(panels, places, strict=False):
        rows = frames[kind].loc[baseline]
        values = list(dict.fromkeys(rows.index.get_level_values(kind)))
        for sample, colour in (("subgraph", "#b5443c"), ("rows", "#d9a441"), ("all", "#5f7fa8")):
            if sample not in rows.index.get_level_values("sample"):
                continue
            part = rows.loc[sample]
            across = [values.index(value) for value in part.index]
            panel.plot(across, part["accepted"], "o-", color=colour, markersize=4, label=f"{sample}: accepted")
            panel.plot(across, part["wrong"], "x--", color=colour, markersize=4, label=f"{sample}: wrongly")
        panel.set_xticks(range(len(values)), values, fontsize=8)
        panel.set(xlabel=ABLATIONS[kind], ylim=(-0.05, 1.05))
        panel.set_title(f"baseline: {'torch' if baseline == VENDOR else 'our default'}", fontsize=9)
    for panel in panels[::columns]:
        panel.set_ylabel("share of the cases")
    panels[0].legend(fontsize=6)
    save(drawn, stem)
