"""Compare what tile sizes do to seconds on two platforms."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sparloom.data import SampleSource
from sparloom.errors import MissingArtifact
from sparloom.experiments.harness import finish, samples_of
from sparloom.ops import Op

if TYPE_CHECKING:
    from sparloom.platforms import Platform

logger = logging.getLogger(__name__)
EXTENTS = {"rows": "I", "columns": "J", "dense": "K"}
"""Slope -> extent of a shared tile that it is relative to."""


@dataclass(frozen=True)
class CompareSlopes:
    """Correlate, over matrices, what tile sizes do to seconds on source platforms and on the target.

    A network that was pre-trained on a source can only transfer what both platforms have in common. Where their slopes
    do not correlate, it has learned nothing about which matrices want large tiles on the target.

    Args:
        sources: platforms, each with a preset; those without samples are left out.
    """

    op: Op
    sources: Sequence["Platform"]
    target: "Platform"
    samples: SampleSource

    def run(self, out: Path) -> Mapping[str, float]:
        """Write slopes.parquet and print the table; return Spearman's correlation and median slopes by source.

        Raises:
            MissingArtifact: the target has no samples.
        """
        found = {_preset(self.target): slopes(self.samples, self.target, self.op)}
        for source in self.sources:
            try:
                found[_preset(source)] = slopes(self.samples, source, self.op)
            except MissingArtifact as missing:
                logger.warning("%s is left out: %s", _preset(source), missing)
        frames = [frame.assign(platform=name).reset_index() for name, frame in found.items()]
        reference, metrics = found.pop(_preset(self.target)), {}
        for name, frame in found.items():
            for slope in EXTENTS:
                both = pd.DataFrame({"source": frame[slope], "target": reference[slope]}).dropna()
                metrics[f"{name}/{slope}/spearman"] = float(both["source"].corr(both["target"], method="spearman"))
                metrics[f"{name}/{slope}/median"] = float(both["source"].median())
                metrics[f"{name}/{slope}/target_median"] = float(both["target"].median())
                metrics[f"{name}/{slope}/matrices"] = len(both)
        return finish(out, None, metrics, slopes=pd.concat(frames, ignore_index=True))


def slopes(samples: SampleSource, platform: "Platform", op: Op) -> pd.DataFrame:
    """Fit, for every matrix, the logarithm of seconds to those of the extents of the shared tile.

    The fit is linear, by least squares, and has the hardware-specific codes of a configuration beside the extents, so
    that the slope of one is what remains with all others equal.

    Returns:
        A row per matrix with the columns rows, columns and dense; NaN where an extent does not vary.
    """
    space, inputs = platform.space(op), samples.inputs()
    labels, found = samples_of(samples, platform, op).labels(), {}
    for name, rows in labels.groupby("matrix"):
        bound = space.bind(inputs[str(name)].shape)
        configs = [bound.parse(key) for key in rows["config"]]
        extents = np.log([[getattr(shared, letter) for letter in EXTENTS.values()]
                          for shared in map(bound.shared, configs)])
        terms = np.column_stack([extents, bound.vectors(configs)[1], np.ones(len(rows))])
        fitted = np.linalg.lstsq(terms, np.log(rows["seconds"].to_numpy()), rcond=None)[0][:len(EXTENTS)]
        found[str(name)] = np.where(np.ptp(extents, axis=0) > 0, fitted, np.nan)
    return pd.DataFrame.from_dict(found, orient="index", columns=list(EXTENTS)).rename_axis("matrix")


def _preset(platform: "Platform") -> str:
    return f"{platform.name}_{platform.preset}"
