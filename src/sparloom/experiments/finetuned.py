"""Advice of a network that was fine-tuned before."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sparloom.data import SampleSource
from sparloom.experiments.adviser import Advice
from sparloom.experiments.checkpoints import Checkpoints
from sparloom.models import CognateModel, MatrixView, Network, load_checkpoint
from sparloom.ops import Op
from sparloom.space import Config

if TYPE_CHECKING:
    from sparloom.platforms import Platform

__all__ = ["FineTuned"]


@dataclass(frozen=True)
class FineTuned:
    """A network that was fine-tuned on the platform, from its checkpoint.

    Args:
        net: as it was fine-tuned.
        samples: kind of samples the checkpoint is filed under.
    """

    op: Op
    platform: "Platform"
    net: Network
    samples: SampleSource
    checkpoints: Checkpoints

    @property
    def origin(self) -> str:
        return self._checkpoint.name

    @cached_property
    def learned_from(self) -> frozenset[str]:
        """Matrices of the target, and before those of the source."""
        notes = load_checkpoint(self._checkpoint, kind="cognate").notes
        return frozenset((*notes["matrices"], *notes["anchors"]))

    def prepare(self) -> None:
        _ = self._model

    def advise(self, view: MatrixView, configs: Sequence[Config]) -> Advice:
        embedding = self._model.embedding(view)
        return Advice(self._model.score(view, configs, embedding=embedding), self._model.familiarity(embedding))

    @cached_property
    def _checkpoint(self) -> Path:
        return self.checkpoints.find(
            self.checkpoints.finetuned(self.platform, self.op, self.net), self.samples,
            experiment=f"finetune_{self.platform.name}",
            overrides=self.checkpoints.overrides(self.platform, self.op, "target"))

    @cached_property
    def _model(self) -> CognateModel:
        return CognateModel.load(self._checkpoint, net=self.net, space=self.platform.space(self.op))
