"""Fit the trees that choose sparse kernels of a processor from stored samples, judge them, and write them as C++."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from sparloom.data import SampleSource, SampleTable
from sparloom.experiments.harness import finish
from sparloom.files import write_text
from sparloom.measure import Caches
from sparloom.models.performance import BoostingConfig, Rows, machine_constants
from sparloom.platforms.cpu_kernels import GRAIN
from sparloom.report import ratio_bounds
from sparloom.space import Config
from sparloom.sparse import Corpus
from sparloom.tuning.sparse import choice

ROUNDS = 2  # that a case needs: the configuration that was fastest in one round is judged in the other
THREADS = 2  # of the samples
TODAY = "today"  # name of the cases that ran the kernels of this version
SETTINGS = ("direct", "prepared")
OPS = ("spmm", "sddmm")  # which may have trees, in the order of kModels
SIZES = 5  # features that the limits are for, kSizes of choose.cpp
WORK = choice.FEATURES.index("work")
THRESHOLD_DIGITS, LEAF_UNIT, LEAF_LIMIT = 3, 2.0**-15, 0.5 - 2.0**-15
MOST_THRESHOLDS = 32  # of a feature, and inner nodes and leaves of a tree

LINE = 116  # characters of numbers in a line of the header


@dataclass(frozen=True)
class Cases:
    """Seconds of all configurations on the problems of one operation and processor that run on several threads.

    Args:
        index: columns matrix and width.
        seconds: NaN where a configuration did not run.
        features: what trees read.
        rules: number of the configuration that the rule chooses.
    """

    index: pd.DataFrame
    configs: Sequence[Config]
    seconds: Float[np.ndarray, "rounds problems configs"]
    features: Float[np.ndarray, "problems configs features"]
    rules: Int[np.ndarray, " problems"]

    @cached_property
    def logarithms(self) -> Float[np.ndarray, "problems configs"]:
        """Logarithm of the seconds, mean over rounds."""
        return np.log(self.seconds).mean(axis=0)

    def permitted(self, setting: str, *, chosen: bool) -> Bool[np.ndarray, "problems configs"]:
        """Tell which configurations a setting permits; results bypass the caches only where the rule lets them.

        Args:
            chosen: only those among which choose.cpp chooses: equal shares of nonzeros, and no strips.
        """
        values = pd.DataFrame([dict(config.values) for config in self.configs])
        fits = pd.Series(True, values.index)
        if setting == "direct":
            fits &= values["order"].eq("natural") & values["balance"].eq("nonzeros")
            fits &= values.get("together", 1) == 1
        if chosen:
            fits &= values["balance"].eq("nonzeros") & values.get("strip", pd.Series("all", values.index)).eq("all")
        stream = values.get("stream", pd.Series(0, values.index)).to_numpy()
        return fits.to_numpy() & (stream <= stream[self.rules][:, None]) & np.isfinite(self.logarithms)

    def best(self, setting: str) -> Float[np.ndarray, " problems"]:
        """Logarithm of the seconds of the fastest configuration of one round in the other, mean over both ways."""
        seconds = np.where(self.permitted(setting, chosen=False), self.seconds, np.inf)
        found = [np.take_along_axis(seconds[1 - part], seconds[part].argmin(axis=1)[:, None], 1) for part in (0, 1)]
        return np.log(found).mean(axis=0)[:, 0]

    def choose(
        self, setting: str, scores: Float[np.ndarray, "problems configs"], *, margin: float, preparation: float,
    ) -> Int[np.ndarray, " problems"]:
        """Choose as `sparloom_choose` does."""
        prepares = np.array([config["order"] != "natural" or dict(config.values).get("together", 1) != 1
                             for config in self.configs])
        scores = np.where(self.permitted(setting, chosen=True), scores, np.inf) + preparation * prepares
        scores[np.arange(len(scores)), self.rules] -= margin
        return scores.argmin(axis=1)

    def take(self, kept: Bool[np.ndarray, " problems"]) -> "Cases":
        return Cases(self.index[kept], self.configs, self.seconds[:, kept], self.features[kept], self.rules[kept])


@dataclass(frozen=True)
class Trees:
    """Trees of one operation and setting, with the limits of their training problems.

    Args:
        booster: has rounded thresholds and leaves, see `rounded`.
        penalties: what balance=rows, balance=dynamic and narrow strips cost, as logarithms.
    """

    booster: lightgbm.Booster
    lowest: Float[np.ndarray, " sizes"]
    highest: Float[np.ndarray, " sizes"]
    penalties: tuple[float, float, float]

    @classmethod
    def fit(cls, cases: Cases, setting: str, growth: BoostingConfig) -> "Trees":
        """Predict logarithms of seconds, less the mean over the configurations that may be chosen."""
        kept, targets = cases.permitted(setting, chosen=True), cases.logarithms
        targets = targets - np.nanmean(np.where(kept, targets, np.nan), axis=1, keepdims=True)
        booster = growth.train(Rows(cases.features[kept], targets[kept]), choice.FEATURES)
        sizes = cases.features[:, 0, :SIZES]
        return cls(rounded(booster), sizes.min(axis=0), sizes.max(axis=0), _penalties(cases))

    def scores(self, cases: Cases) -> Float[np.ndarray, "problems configs"]:
        flat = cases.features.reshape(-1, len(choice.FEATURES))
        return self.booster.predict(flat).reshape(cases.features.shape[:2])


@dataclass(frozen=True)
class ChooseKernels:
    """Fit small trees for each operation and setting on training and validation matrices, and judge the choices.

    They are judged on test matrices, and on another processor. An operation whose trees are slower than the rule on
    the other processor, which ran today's kernels, has none in the header.

    Args:
        samples: of the processor that trees learn from.
        other: of the processor that they do not learn from; roles of matrices are those of `samples`.
        presets: operation -> preset of the samples of `other` -> name in the metrics; "today" ran today's kernels.
        corpus: has the patterns of all these matrices.
        trees: setting -> number of small trees.
        growth: of small trees.
        large: what differs for many trees, which are compared with the small ones.
        margin, preparation: see choose.cpp.
    """

    samples: SampleSource
    other: SampleSource
    presets: Mapping[str, Mapping[str, str]]
    corpus: Corpus
    trees: Mapping[str, int]
    growth: BoostingConfig
    large: Mapping[str, Any]
    margin: float
    preparation: float
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write choice_tables.hpp, its trees in the format of LightGBM, and per_case.parquet; return regrets."""
        rows, fitted = [], {}
        looked = cache(lambda matrix: choice.statistics(self.corpus.load(matrix).pattern))
        for op in OPS:
            known = self._cases(op, self.samples, "t2", looked=looked)
            test = self._of_test(known)
            judged = {"test": known.take(test)}
            for preset, name in self.presets[op].items():
                cases = self._cases(op, self.other, preset, looked=looked)
                judged[name] = cases.take(self._of_test(cases)) if self._of_test(cases).any() else cases
            for setting in SETTINGS:
                small = Trees.fit(known.take(~test), setting, self.growth.with_trees(self.trees[setting]))
                large = Trees.fit(known.take(~test), setting, replace(self.growth, **self.large))
                fitted[op, setting] = small
                rows += [row for name, cases in judged.items()
                         for row in self._judge(f"{op}/{setting}/{name}", cases, {"trees": small, "large": large})]
        frame = pd.DataFrame(rows)
        metrics = choice_metrics(frame, seed=self.seed)
        accepted = {key: trees for key, trees in fitted.items()
                    if metrics[f"{'/'.join(key)}/{TODAY}/trees/over_rule"] < 1}
        metrics |= {f"{op}/{setting}/accepted": float((op, setting) in accepted) for op, setting in fitted}
        for (op, setting), trees in accepted.items():
            write_text(out / f"{op}_{setting}.txt", trees.booster.model_to_string())
        write_text(out / "choice_tables.hpp", header(accepted, margin=self.margin, preparation=self.preparation))
        return finish(out, None, metrics, per_case=frame)

    def _of_test(self, cases: Cases) -> Bool[np.ndarray, " problems"]:
        return cases.index["matrix"].map(self.samples.split()).eq("test").to_numpy()

    def _cases(
        self, op: str, samples: SampleSource, preset: str, *,
        looked: Callable[[str], choice.PatternStatistics],
    ) -> Cases:
        """Read the cases of an operation that run on several threads.

        Args:
            looked: returns the statistics of the pattern of a matrix.
        """
        table = samples.table("cpu_kernels", preset, op)
        caches, sweeps = _caches(table), table.sweeps()
        wide = [sweeps[sweeps["round"] == part].pivot(index=["matrix", "width"], columns="config", values="seconds")
                for part in range(ROUNDS)]
        configs = [Config.parse("cpu_kernels", key) for key in wide[0].columns]
        index = wide[0].index.to_frame(index=False)
        problems = [(looked(matrix), int(width)) for matrix, width in index.itertuples(index=False)]
        features = np.stack([choice.features(op, found, width, configs, caches=caches) for found, width in problems])
        rules = np.array([configs.index(choice.by_rule(op, found, width, caches=caches)) for found, width in problems])
        seconds = np.stack([each.reindex_like(wide[0]).to_numpy(np.float64) for each in wide])
        return Cases(index, configs, seconds, features, rules).take(THREADS * 2.0 ** features[:, 0, WORK] >= GRAIN)

    def _judge(self, key: str, cases: Cases, trees: Mapping[str, Trees]) -> Iterator[Mapping[str, Any]]:
        """Yield a row for each case and chooser; `key` has operation, setting and machine."""
        op, setting, machine = key.split("/")
        best, numbers = cases.best(setting), np.arange(len(cases.rules))
        chosen = {"rule": cases.rules} | {
            name: cases.choose(setting, each.scores(cases), margin=self.margin, preparation=self.preparation)
            for name, each in trees.items()}
        for chooser, picks in chosen.items():
            taken = cases.logarithms[numbers, picks]
            for row, (matrix, width) in enumerate(cases.index.itertuples(index=False)):
                yield {"op": op, "setting": setting, "machine": machine, "matrix": matrix, "width": width,
                       "chooser": chooser, "config": cases.configs[picks[row]].key,
                       "regret": float(np.exp(taken[row] - best[row])),
                       "over_rule": float(np.exp(taken[row] - cases.logarithms[row, cases.rules[row]]))}


def choice_metrics(per_case: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce the rows of per_case.parquet.

    Returns:
        By operation, setting, machine and chooser, with bounds as of `ratio_bounds`: `.../regret`, seconds over those
        of the best configuration, and `.../over_rule`, seconds over those of the rule's; and `.../cases` by machine.
    """
    found: dict[str, float] = {}
    for (op, setting, machine, chooser), rows in per_case.groupby(["op", "setting", "machine", "chooser"], sort=False):
        key = f"{op}/{setting}/{machine}"
        found[f"{key}/cases"] = float(len(rows))
        for name in ("regret", "over_rule"):
            found |= ratio_bounds(f"{key}/{chooser}/{name}", rows[name], seed=seed)
    return found


def rounded(booster: lightgbm.Booster) -> lightgbm.Booster:
    """Round thresholds and leaves as the header has them, so that the booster and C++ agree to the last bit."""
    def numbers(values: str, change: Any) -> str:
        return " ".join(repr(float(change(float(value)))) for value in values.split())

    def leaf(value: float) -> float:
        return LEAF_UNIT * round(np.clip(value, -LEAF_LIMIT, LEAF_LIMIT) / LEAF_UNIT)

    lines = []
    for line in booster.model_to_string().splitlines():
        name, _, values = line.partition("=")
        if name == "tree_sizes":  # in bytes, which change
            continue
        change = {"threshold": lambda value: round(value, THRESHOLD_DIGITS), "leaf_value": leaf}.get(name)
        lines.append(f"{name}={numbers(values, change)}" if change else line)
    return lightgbm.Booster(model_str="\n".join(lines) + "\n")


def header(fitted: Mapping[tuple[str, str], Trees], *, margin: float, preparation: float) -> str:
    """Render choice_tables.hpp."""
    tables, models = [], []
    for op in OPS:
        for setting in SETTINGS:
            trees = fitted.get((op, setting))
            models.append("    {}," if trees is None else _model(f"{op.title()}{setting.title()}", trees, tables))
    return TEMPLATE.format(margin=margin, preparation=preparation, tables="\n".join(tables), models="\n".join(models))


def _model(name: str, trees: Trees, tables: list[str]) -> str:
    """Append the arrays of one model, and return its entry."""
    structures = [tree["tree_structure"] for tree in trees.booster.dump_model()["tree_info"]]
    thresholds: dict[int, list[float]] = {}
    for feature, threshold in sorted({split for tree in structures for split in _splits(tree)}):
        thresholds.setdefault(feature, []).append(threshold)
    encoded = [_encoded(tree, thresholds) for tree in structures]
    roots = np.cumsum([0, *map(len, encoded)])[:-1]
    counts = [len(thresholds.get(feature, ())) for feature in range(len(choice.FEATURES))]
    arrays = {"uint16_t kNodes": [node for tree in encoded for node in tree], "uint16_t kRoots": roots.tolist(),
              "uint16_t kFirst": np.cumsum([0, *counts])[:-1].tolist(),
              "double kThresholds": [value for values in thresholds.values() for value in values],
              "double kLowest": np.round(trees.lowest, 2), "double kHighest": np.round(trees.highest, 2)}
    for array, values in arrays.items():
        tables.append(_array(f"{array}{name}", values))
    pointers = [f"{array.split()[1]}{name}" for array in arrays]
    penalties = ", ".join(f"{each:.3f}" for each in trees.penalties)
    return (f"    {{{', '.join(pointers[:3])},\n     {', '.join(pointers[3:])},\n"
            f"     {len(encoded)}, {penalties}}},")


def _splits(tree: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    if "split_feature" in tree:
        yield tree["split_feature"], tree["threshold"]
        yield from _splits(tree["left_child"])
        yield from _splits(tree["right_child"])


def _encoded(tree: Mapping[str, Any], thresholds: Mapping[int, Sequence[float]]) -> list[int]:
    """Encode a tree in preorder, see `predict` in choose.cpp."""
    if "split_feature" not in tree:
        return [0x8000 | (0x4000 + round(tree["leaf_value"] / LEAF_UNIT))]
    feature = tree["split_feature"]
    left, right = (_encoded(tree[side], thresholds) for side in ("left_child", "right_child"))
    place = thresholds[feature].index(tree["threshold"])
    if place >= MOST_THRESHOLDS or len(left) + 1 >= MOST_THRESHOLDS:
        raise ValueError(f"{len(left) + len(right)} nodes, {place + 1} thresholds of {choice.FEATURES[feature]}: "
                         "the header has room for 16 leaves and 32 thresholds, grow fewer (growth.leaves, growth.bins)")
    return [feature << 10 | place << 5 | len(left) + 1, *left, *right]


def _array(declaration: str, values: Sequence[float]) -> str:
    kind, name = declaration.split()
    lines, line = [], ""
    for value in values:
        text = f"{value!r}," if kind == "uint16_t" else f"{float(value)!r},"
        if len(line) + len(text) > LINE:
            lines.append(line)
            line = ""
        line += text
    body = "\n".join(f"    {each}" for each in [*lines, line])
    return f"constexpr {kind} {name}[] = {{\n{body}\n}};"


def _penalties(cases: Cases) -> tuple[float, float, float]:
    """Average what a configuration takes longer than the one with equal shares of nonzeros and no strips."""
    numbers = {config: number for number, config in enumerate(cases.configs)}

    def penalty(name: str, usual: str, values: Sequence[str]) -> float:
        ratios = [cases.logarithms[:, number] - cases.logarithms[:, numbers[config.replace(**{name: usual})]]
                  for config, number in numbers.items() if name in config.names and str(config[name]) in values]
        return float(np.nanmean(ratios)) if ratios else 0.0

    strips = {str(config["strip"]) for config in cases.configs if "strip" in config.names} - {"all"}
    return (penalty("balance", "nonzeros", ["rows"]), penalty("balance", "nonzeros", ["dynamic"]),
            penalty("strip", "all", sorted(strips)))


def _caches(table: SampleTable) -> Caches:
    """Read the caches of the processor of a table, whose threads share the last level."""
    sizes = machine_constants(table.provenance[-1]["machine"], threads=THREADS)
    return Caches(sizes["l2_bytes"], sizes["l3_bytes"], THREADS)


TEMPLATE = """\
// Written by `python run.py experiment=choose_kernels`; kernels/cpu/choose.cpp explains the encoding.

#pragma once

#include <cstdint>

namespace sparloom::choice {{

struct Model {{
    const uint16_t *nodes, *roots, *first;  // of all trees; of each tree in `nodes`; of each feature in `thresholds`
    const double *thresholds, *lowest, *highest;  // the last two: sizes of the training problems
    int trees;
    double rows, dynamic, strip;  // what balance=rows, balance=dynamic and narrow strips cost
}};

constexpr double kMargin = {margin};       // predicted gain below which the rule's configuration stays
constexpr double kPreparation = {preparation};  // gain that sorting or comparing rows must promise in addition

{tables}

constexpr Model kModels[4] = {{  // SpMM, then SDDMM: without and with preparation; no trees: the rule decides
{models}
}};

}}  // namespace sparloom::choice
"""
