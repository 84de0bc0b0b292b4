"""Load what all methods of an evaluation share: labels, inputs, and the matrices that judge them."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom.data import MatrixInputs, MatrixSamples, SampleSource, Selection, draw_labels, matrix_samples
from sparloom.errors import MissingArtifact
from sparloom.experiments.harness import samples_of
from sparloom.models import CostModel, MatrixFeatures
from sparloom.ops import Op
from sparloom.report import RuntimeTable
from sparloom.space import MAX_LISTED, Config, ConfigSpace
from sparloom.sparse import STATISTICS, Role, WalkStatistics

if TYPE_CHECKING:
    from sparloom.platforms import Platform

VENDOR = "vendor"  # preset of the rows of vendor libraries
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationData:
    """Samples of one platform and operation, loaded once for all methods and seeds.

    Args:
        role: role of the matrices that judge the methods; "test" only when nothing is chosen by the result.
    """

    platform: "Platform"
    op: Op
    samples: SampleSource
    role: Role

    @cached_property
    def space(self) -> ConfigSpace:
        return self.platform.space(self.op)

    @cached_property
    def estimator(self) -> "PlatformEstimator | None":
        """The formula of the platform, see `estimator_of`."""
        return estimator_of(self.platform, self.op)

    @cached_property
    def labels(self) -> pd.DataFrame:
        """One row per matrix and configuration, at the platform's width.

        Raises:
            ValueError: there are samples, but of other widths.
        """
        return samples_of(self.samples, self.platform, self.op).labels()

    @cached_property
    def inputs(self) -> MatrixInputs:
        return with_statistics(self.samples.inputs(), self.statistics)

    @cached_property
    def statistics(self) -> pd.DataFrame:
        return self.samples.statistics()

    @cached_property
    def walks(self) -> Mapping[str, WalkStatistics]:
        return self.samples.walks()

    @cached_property
    def roles(self) -> Mapping[str, Role]:
        return self.samples.split()

    def names(self, role: Role) -> list[str]:
        """Labelled matrices with a role, sorted."""
        labelled = set(self.labels["matrix"])
        return sorted(name for name, assigned in self.roles.items() if assigned == role and name in labelled)

    @cached_property
    def views(self) -> Mapping[str, MatrixFeatures]:
        """Model inputs of each matrix, shared by all methods."""
        rows = self.statistics.to_dict(orient="index")
        return {name: MatrixFeatures.from_stored(self.inputs[name], rows[name], partial(self._walks, name))
                for name in self.roles if name in rows}

    @cached_property
    def truth(self) -> RuntimeTable:
        """Seconds of all configurations on the matrices of the role that have them all, see `times`.

        Raises:
            ValueError: there is no such matrix.
        """
        found, count = self.times(self.role), len(self.names(self.role))
        if found is None:
            raise ValueError(f"no {self.role} matrix has seconds for all {len(self.space)} configurations of "
                             f"{self.space.name}, so there is no optimum: collect with task.configs=all, "
                             "or complete the CSV")
        if len(found.matrices) < count:
            logger.warning("%d of %d %s matrices lack configurations and are left out", count - len(found.matrices),
                           count, self.role)
        return found

    def times(self, role: Role) -> RuntimeTable | None:
        """Return the seconds of all configurations on the matrices of a role that have them all; None: there are none.

        A configuration without seconds has those of another one that is the same program on that matrix.
        """
        keys = {config.key for config in self.space}
        rows = self.labels[self.labels["matrix"].isin(self.names(role)) & self.labels["config"].isin(keys)]
        rows = self._with_equal_programs(rows, keys)
        counts = rows.groupby("matrix").size()
        whole = sorted(counts.index[counts == len(keys)])
        return RuntimeTable.of(rows, self.space, {name: self.inputs[name].shape for name in whole}) if whole else None

    def _with_equal_programs(self, rows: pd.DataFrame, keys: Collection[str]) -> pd.DataFrame:
        """Add rows for configurations that have none but are the same program as others; the most similar one counts.

        Tables of other simulators often hold each program once: a panel wider than the matrix only as all columns.
        """
        parts = [rows]
        for name, known in rows.groupby("matrix"):
            if len(known) == len(keys) or len(keys) > MAX_LISTED:
                continue
            bound = self.space.bind(self.inputs[str(name)].shape)
            configs = {config.key: config for config in bound}
            having: dict[Config, list[Config]] = {}
            for key in known["config"]:
                having.setdefault(bound.canonical(configs[key]), []).append(configs[key])
            equal = {}
            for key in sorted(set(configs) - set(known["config"])):
                same = having.get(bound.canonical(configs[key]), ())
                if same:
                    equal[key] = min(same, key=lambda other, key=key: _differences(other, configs[key])).key
            added = known.set_index("config").loc[list(equal.values())].reset_index(drop=True)
            parts.append(added.assign(config=list(equal)))
        return pd.concat(parts, ignore_index=True) if len(parts) > 1 else rows

    @cached_property
    def vendor(self) -> np.ndarray | None:
        """Seconds of the fastest vendor algorithm on each judged matrix; None if they are incomplete."""
        if self.platform.kind != "device":
            return None
        try:
            table = self.samples.table(self.platform.name, VENDOR, self.op.name)
        except MissingArtifact:
            return None
        width = getattr(self.platform, "width", None)
        labels = (table if width is None else table.filter(width=width)).labels()
        labels = labels[labels["config"].str.startswith(f"{VENDOR}=")]
        least = labels.groupby("matrix")["seconds"].min().reindex(list(self.truth.matrices))
        if least.isna().any():
            logger.warning("%d of %d matrices lack seconds of the vendor, which is left out", least.isna().sum(),
                           len(least))
            return None
        return least.to_numpy(np.float64)

    def refuse_other_widths(self) -> None:
        """Fail before any training if the samples have other widths only.

        Raises:
            ValueError: names the existing widths.
        """
        with suppress(MissingArtifact):  # reported where the samples are needed
            _ = self.labels

    def draw(self, selection: Selection, seed: int) -> pd.DataFrame:
        """Choose the labels that every method may learn from, among training matrices."""
        names = self.names("train")
        return draw_labels(selection, self.labels, statistics=self.statistics, candidates=names, seed=seed)

    def items(self, labels: pd.DataFrame) -> list[MatrixSamples]:
        """Join labels with featurizer inputs."""
        return matrix_samples(labels, self.inputs, self.space)

    def score(self, model: CostModel) -> np.ndarray:
        """Score every configuration on every matrix of the truth, (matrices, configs)."""
        configs = self.truth.configs
        return np.stack([model.score(self.views[name], configs) for name in self.truth.matrices])

    def about(self, names: Sequence[str]) -> pd.DataFrame:
        """Family and size by matrix."""
        families = self.samples.families()
        frame = self.statistics.loc[list(names), ["rows", "cols", "nnz"]]
        return frame.assign(family=[families[name] for name in frame.index])

    def _walks(self, name: str) -> WalkStatistics:
        return self.walks[name]


class PlatformEstimator:
    """Estimate seconds by the formula of a platform; the last result is cached for all members of an ensemble.

    Args:
        seconds: of an operation, a matrix and configurations, see `Platform.estimate`.
    """

    def __init__(self, seconds: Callable[[Op, MatrixFeatures, Sequence[Config]], np.ndarray], op: Op) -> None:
        self._seconds, self._op = seconds, op
        self._last: tuple[MatrixFeatures, tuple[Config, ...], np.ndarray] | None = None

    def __call__(self, matrix: MatrixFeatures, configs: Sequence[Config]) -> np.ndarray:
        last, asked = self._last, tuple(configs)
        if last is None or last[0] is not matrix or last[1] != asked:
            last = self._last = matrix, asked, self._seconds(self._op, matrix, configs)
            last[2].flags.writeable = False
        return last[2]


def with_statistics(inputs: MatrixInputs, statistics: pd.DataFrame) -> MatrixInputs:
    """Add the statistics of patterns, one row per matrix, to the inputs of featurizers."""
    frame = statistics[list(STATISTICS)]
    return inputs.with_statistics(dict(zip(frame.index, frame.to_numpy(np.float64), strict=True)))


def estimator_of(platform: "Platform", op: Op) -> PlatformEstimator | None:
    """Return the formula of a platform for seconds; None: it has none for this operation."""
    known = getattr(platform, "has_estimate", lambda op: hasattr(platform, "estimate"))
    return PlatformEstimator(platform.estimate, op) if known(op) else None


def _differences(one: Config, other: Config) -> int:
    return sum(one[name] != value for name, value in other.values)
