"""Measure the quality and the speed of recommendations on matrix files that no training has seen."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom import log
from sparloom.data import SampleSource
from sparloom.experiments.cognate.calibration import static_scores
from sparloom.experiments.cognate.evaluation_data import EvaluationData
from sparloom.experiments.cognate.recommender import TOP_K, Ranking, Recommender, draw_ranking
from sparloom.experiments.harness import finish
from sparloom.files import scratch_folder
from sparloom.measure import bootstrap_interval, geomean
from sparloom.ops import Op
from sparloom.report import op_title
from sparloom.sparse import ROW_BINS, Role, SuiteSparseCorpus, row_bin

if TYPE_CHECKING:
    from sparloom.platforms import Platform

LARGE = 1_000_000  # nonzeros
SLOWER = 0.02  # than another configuration, of choices that count as slower
OF_BINS = ("matrices", "of_optimum", "over_static")  # of `quality`
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BenchRecommend:
    """Recommend for matrix files as `Recommend` does, and judge the choices by stored seconds.

    Times exclude imports and the preparation of the recommender. The first recommendation includes one-time work and is
    also reported separately. Files are in the page cache, because their checksums are compared before.

    Args:
        recommender: recommender for this platform and operation.
        role: role of the matrices; "test" only when nothing is chosen by the result.
        matrices: names; empty: all of the role.
        limit: largest number of matrices, taken evenly over their numbers of nonzeros; None: all.
    """

    op: Op
    platform: "Platform"
    recommender: Recommender
    samples: SampleSource
    corpus: SuiteSparseCorpus
    role: Role
    matrices: Sequence[str]
    limit: int | None
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet; return regrets with 95 % bounds, of all and by rows, and seconds."""
        title = f"{op_title(self.op.name)} on {self.platform.name} {self.platform.preset}"
        study = EvaluationData(self.platform, self.op, self.samples, self.role)
        recommender = self.recommender
        began = time.perf_counter()
        _ = recommender.fitted, recommender.calibration
        loading = time.perf_counter() - began
        names = self._names(study, recommender)
        paths = self._files(names)
        logger.info("%s: %d training matrices, ready in %.2f s", title, len(recommender.fitted.matrices), loading)
        with scratch_folder("cache") as folder:
            scores = static_scores(study)
            static = min(scores, key=scores.__getitem__)
            rows = [self._measured(name, path, study, recommender, static=static,
                                   stem=Path(folder) / "spy")
                    for name, path in log.track(zip(names, paths, strict=True), "recommendations", total=len(names))]
        frame = pd.DataFrame(rows).merge(study.about(names), left_on="matrix", right_index=True)
        judged = quality(frame, seed=self.seed) | by_rows(frame, seed=self.seed)
        metrics = {f"{self.role}/{key}": value for key, value in judged.items()}
        metrics |= timings(frame) | {"load_seconds": loading}
        return finish(out, None, metrics, per_matrix=frame)

    def _names(self, study: EvaluationData, recommender: Recommender) -> list[str]:
        """List matrices of the role by name; matrices that the recommender has learned from are refused."""
        judged = study.truth.matrices
        unknown = sorted(set(self.matrices) - set(judged))
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no {self.role} matrix with seconds for all configurations: "
                             "task.matrices takes names with the role task.role")
        names = sorted(self.matrices or judged)
        known = [name for name in names if name in recommender.fitted.matrices]
        if known:
            raise ValueError(f"{recommender.fitted.name} was trained on {len(known)} of the {len(names)} matrices "
                             f"({', '.join(known[:3])}{', ...' if len(known) > 3 else ''}), so its choices for them "
                             "say nothing: task.role=test, or a recommender that has not seen them")
        calibration = recommender.calibration
        used = [] if calibration is None else sorted(set(names) & set(calibration.matrices))
        if used:
            raise ValueError(f"the choices of {recommender.fitted.name} are calibrated on {len(used)} of the "
                             f"{len(names)} matrices: task.role=test, or take {self.role} out of the calibration_roles "
                             "of the recommender")
        if self.limit is None or self.limit >= len(names):
            return names
        if self.limit < 1:
            raise ValueError(f"task.limit={self.limit} leaves no matrix: give at least 1, or null for all")
        by_size = study.statistics.loc[names].sort_values("nnz", kind="stable").index
        return sorted(by_size[np.linspace(0, len(by_size) - 1, self.limit).round().astype(int)])

    def _files(self, names: Sequence[str]) -> Sequence[Path]:
        if not hasattr(self.corpus, "fetch"):
            raise ValueError(f"{type(self.corpus).__name__} has no matrix files: choose corpus=suitesparse")
        return self.corpus.fetch(names)

    def _measured(
        self, name: str, path: Path, study: EvaluationData, recommender: Recommender, *, static: str, stem: Path
    ) -> dict[str, object]:
        """Recommend for one file as a user would, and look up the seconds of the choice."""
        ranking = recommender.rank(path)
        began = time.perf_counter()
        draw_ranking(ranking, recommender.space, stem)
        drawing = time.perf_counter() - began
        if ranking.view.input.digest != study.inputs[name].digest:
            raise ValueError(f"the pattern of {path} differs from that of {name} when it was sampled: choose the "
                             "mirror that the samples were collected from (paths.mirror)")
        return {"matrix": name, **_judged(name, ranking, study, static),
                **({} if ranking.loss is None else {"expected_loss": ranking.loss.mean,
                                                    "loss_bound": ranking.loss.bound}),
                "read_seconds": ranking.read_seconds,
                "rank_seconds": ranking.rank_seconds, "draw_seconds": drawing}


def quality(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce true seconds of choices to regrets and speedups over matrices.

    Args:
        frame: columns top1_seconds, top5_seconds, best_seconds, baseline_seconds, static_seconds and, if the
            recommender is calibrated, expected_loss and loss_bound; one row per matrix.

    Returns:
        `regret`, first choice over the best of all configurations; `regret_top5`, first choice over the best of the
        first five, as `verify=top` tells it; `speedup` of the first choice over the default; `of_optimum` and
        `top5_of_optimum`, best time over that of the first choice and of the best of the first five; `over_static`,
        the time of the configuration that is best over all training matrices over that of the first choice. Geometric
        means, and `regret_p90`, `regret_top5_p90`, each with its bootstrap bounds over matrices `_low` and `_high`;
        `_max` has none, since no resample exceeds it. `slower_than_static` and `slower_than_default`: share of the
        matrices whose first choice is more than 2 % slower; of the loss against the best, `coverage`: share within its
        bound, `bound_median`, and `loss_correlation`: rank correlation of the expected with the true one.
    """
    first, five = (frame[f"{top}_seconds"].to_numpy() for top in ("top1", "top5"))
    best, default, static = (frame[f"{name}_seconds"].to_numpy() for name in ("best", "baseline", "static"))
    values = {"regret": first / best, "regret_top5": first / five, "speedup": default / first,
              "of_optimum": best / first, "top5_of_optimum": best / five, "over_static": static / first}
    found: dict[str, float] = {"matrices": len(frame)}
    for name, other in (("static", static), ("default", default)):
        found[f"slower_than_{name}"] = float(np.mean(first > (1 + SLOWER) * other))
    if "loss_bound" in frame:
        losses = frame.assign(loss=first / best - 1)[["loss", "expected_loss", "loss_bound"]]
        found |= {"coverage": float((losses["loss"] <= losses["loss_bound"]).mean()),
                  "bound_median": float(losses["loss_bound"].median())}
        if losses.nunique().min() > 1:
            found["loss_correlation"] = float(losses["loss"].corr(losses["expected_loss"], "spearman"))
    for key, numbers in values.items():
        _put(found, key, geomean(numbers), bootstrap_interval(numbers, seed=seed))
        if key.startswith("regret"):
            bounds = bootstrap_interval(numbers, seed=seed, statistic=_tail)
            _put(found, f"{key}_p90", _tail(numbers), bounds)
            found[f"{key}_max"] = float(numbers.max())
    return found


def by_rows(frame: pd.DataFrame, *, seed: int) -> dict[str, float]:
    """Reduce true seconds of choices over the matrices of each row bin that has any.

    Args:
        frame: as for `quality`, and the column rows.

    Returns:
        `rows<bin>/` and a key of `quality`, such as `rows<8192/of_optimum`: those that begin as in `OF_BINS`.
    """
    bins = frame["rows"].map(lambda rows: row_bin(int(rows)))
    return {f"rows{name}/{key}": value for name in ROW_BINS if (bins == name).any()
            for key, value in quality(frame[bins == name], seed=seed).items() if key.startswith(OF_BINS)}


def timings(frame: pd.DataFrame) -> dict[str, float]:
    """Reduce wall seconds over matrices.

    Args:
        frame: columns nnz, read_seconds, rank_seconds and draw_seconds, in the order of the runs.

    Returns:
        `_median`, `_max` and, over the `large_matrices` from a million nonzeros on, `_max_large` of `read_seconds`,
        `rank_seconds`, `after_seconds` (ranking and the picture of the tiling) and `seconds` (all of it);
        `first_seconds`, all of the first run.
    """
    read, rank, draw = (frame[f"{stage}_seconds"] for stage in ("read", "rank", "draw"))
    columns = {"read_seconds": read, "rank_seconds": rank, "after_seconds": rank + draw, "seconds": read + rank + draw}
    large = frame["nnz"] >= LARGE
    found: dict[str, float] = {"large_matrices": int(large.sum())}
    for key, seconds in columns.items():
        found |= {f"{key}_median": float(seconds.median()), f"{key}_max": float(seconds.max())}
        if large.any():
            found[f"{key}_max_large"] = float(seconds[large].max())
    return found | {"first_seconds": float(columns["seconds"].iloc[0])}


def _judged(name: str, ranking: Ranking, study: EvaluationData, static: str) -> dict[str, object]:
    """True seconds of the first choice, the best of the first five, the best of all, the default and a fixed one."""
    truth = study.truth
    row = truth.matrices.index(name)
    seconds = dict(zip(truth.configs, truth.seconds[row].tolist(), strict=True))
    five = [seconds[program] for program in ranking.programs[:TOP_K]]
    return {"config": ranking.programs[0].key, "top1_seconds": five[0], "top5_seconds": min(five),
            "best_seconds": float(truth.best[row]), "baseline_seconds": float(truth.default[row]),
            "static_seconds": next(each for config, each in seconds.items() if config.key == static)}


def _tail(values: np.ndarray) -> float:
    return float(np.quantile(values, 0.9))


def _put(found: dict[str, float], key: str, value: float, bounds: tuple[float, float]) -> None:
    found[key], (found[f"{key}_low"], found[f"{key}_high"]) = value, bounds
