"""Fit the latent encoder of a platform (COGNATE §3.3) and pre-train the cost model on the source platform (§4.1)."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sparloom.data import SampleSource, Split, draw_labels, matrix_samples
from sparloom.experiments.cognate.evaluation_data import EvaluationData
from sparloom.experiments.cognate.training import Recipe, Reports, ends, train, with_anchors, write_curves
from sparloom.experiments.harness import Checkpoints, labels_with_noise, samples_name, samples_of
from sparloom.models import load_encoder, save_encoder, swapped_accuracy
from sparloom.ops import Op

if TYPE_CHECKING:
    from sparloom.platforms import Platform

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Autoencode:
    """Learn latent vectors of the hardware-specific parameters from all their values; nothing is measured.

    Args:
        platform: platform whose space is encoded.
        samples: sample source whose checkpoint folder is used.
    """

    op: Op
    platform: "Platform"
    samples: SampleSource
    checkpoints: Checkpoints

    def run(self, out: Path) -> Mapping[str, float]:
        """Fit and save the encoder; return the least distance of two latent vectors."""
        began = time.monotonic()
        space = self.platform.space(self.op)
        codes = space.heterogeneous_codes()
        seed = self.checkpoints.seed
        encoder = self.checkpoints.encoder.fit(codes, platform=self.platform.name, seed=seed)
        path = self.checkpoints.path(self.checkpoints.latent(self.platform, self.op), self.samples)
        save_encoder(path, encoder, space, notes={"seed": seed, "names": list(space.heterogeneous_names)})
        with torch.no_grad():
            points = encoder(torch.as_tensor(codes, dtype=torch.float32))
        apart = torch.pdist(points).min() if len(points) > 1 else torch.tensor(float("inf"))
        logger.info("%s: %d codes of %d numbers to %d", path, *codes.shape, encoder.width)
        return {"codes": len(codes), "least_distance": float(apart), "seconds": time.monotonic() - began}


@dataclass(frozen=True)
class Pretrain:
    """Train on matrices of the source; keep the epoch with the least loss on validation matrices.

    Args:
        checkpoints: also select the training matrices, at most those that are labelled.
        validation_matrices: largest number of validation matrices.
    """

    op: Op
    platform: "Platform"
    samples: SampleSource
    recipe: Recipe
    checkpoints: Checkpoints
    validation_matrices: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Train, save checkpoint and curves; return last and best losses, and accuracies with swapped matrices."""
        space = self.platform.space(self.op)
        named = f"{self.platform.name}_{self.op.name}"
        EvaluationData(self.platform, self.op, self.samples, "validation").refuse_other_widths()
        latent = self.checkpoints.find(self.checkpoints.latent(self.platform, self.op), self.samples,
                                       experiment=f"autoencode_{self.platform.name}",
                                       overrides=self.checkpoints.overrides(self.platform, self.op, "target"))
        encoder = load_encoder(latent, space)
        table = samples_of(self.samples, self.platform, self.op)
        labels = labels_with_noise(table, space.default().key)
        split, inputs = self.samples.split(), self.samples.inputs()
        roles = {role: sorted(name for name in split if split[name] == role) for role in ("train", "validation")}
        labelled = set(labels["matrix"])
        candidates = [name for name in roles["train"] if name in labelled]
        wanted, seed = self.checkpoints.pretraining, self.checkpoints.seed
        selection = replace(wanted, matrices=min(wanted.matrices, len(candidates)))
        chosen = draw_labels(selection, labels, statistics=self.samples.statistics(), candidates=candidates,
                             seed=seed)
        watched = [name for name in roles["validation"] if name in labelled][:self.validation_matrices]
        items = matrix_samples(chosen, inputs, space)
        held = matrix_samples(labels[labels["matrix"].isin(watched)], inputs, space)
        names = [item.input.name for item in items]
        Split({name: split[name] for name in [*names, *watched]}, self.samples.families()).write(out / "split.json")
        logger.info("%s: %d matrices, %d labels; validation on %d", named, len(items), len(chosen), len(held))
        trained = train(self.recipe, start=None, encoder=encoder, train=items, validation=held,
                        keep="best", seed=seed, out=out / "training", reports=Reports(out, self.recipe.reported))
        path = self.checkpoints.path(
            self.checkpoints.source(self.platform, self.op, self.recipe.module.net), self.samples)
        notes = {"matrices": names, "labels": len(chosen), "seed": seed, "samples": samples_name(self.samples),
                 "epochs": int(trained.curves["epoch"].max())}
        with_anchors(trained.module.net, space, [item.input for item in items]).save(
            path, notes=notes, precision="float16")
        write_curves(out, [trained.curves.assign(method="pretrain", seed=seed)])
        logger.info("%s after %.0f s", path, trained.seconds)
        probe = swapped_accuracy(trained.module.net, held) if held else {}
        return {"matrices": len(items), "labels": len(chosen), "seconds": trained.seconds, **ends(trained.curves),
                **{f"kept/validation_{name}": value for name, value in probe.items()}}
