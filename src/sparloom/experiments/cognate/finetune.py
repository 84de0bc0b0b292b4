"""Learn from few labels of the target platform and judge every method on the same matrices (COGNATE §4).

`Finetune` trains networks, `Fit` models without a network; `Comparison` collects their choices and writes the results.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sparloom import log, report
from sparloom.data import SampleSource, Selection, write_frame
from sparloom.experiments.cognate.evaluation_data import EvaluationData
from sparloom.experiments.cognate.probes import permutation_importance
from sparloom.experiments.cognate.training import Recipe, Trained, train, with_anchors, write_curves
from sparloom.experiments.cognate.transfer import LearnerConfig, TransferInit, load_transfer
from sparloom.experiments.harness import Checkpoints, samples_name
from sparloom.files import read_json, sha256, write_json
from sparloom.measure import DCE_COST, dce
from sparloom.models import CognateModel, CostModel, Learner, Network, Static, Trees
from sparloom.ops import Op
from sparloom.sparse import Role

if TYPE_CHECKING:
    from sparloom.platforms import Platform

WITHOUT_TARGET = ("random", "vendor", "estimate", "zero_shot")  # all others read the drawn labels
WITHOUT_SOURCE = ("random", "vendor", "estimate", "static", "trees", "no_transfer")
METHODS = ("static", "trees", "trees_source", "zero_shot", "no_transfer", "cognate")
NEED_SOURCE = METHODS[2:]  # need the network of the source or the encoder of the target
logger = logging.getLogger(__name__)


@dataclass
class Comparison:
    """Collect choices and curves of all methods and seeds, and write the results.

    Args:
        source: notes of the pre-trained network; empty if none was loaded.
        drawn: seed -> target labels that were read.
        lengths: method -> epochs and steps of its trainings, one by seed.
        probes: what `probe_network` finds in the fine-tuned network, by seed.
    """

    study: EvaluationData
    source: Mapping[str, Any]
    drawn: dict[int, pd.DataFrame] = field(default_factory=dict)
    choices: list[report.Choices] = field(default_factory=list)
    curves: list[pd.DataFrame] = field(default_factory=list)
    lengths: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    probes: list[Mapping[str, float]] = field(default_factory=list)

    def add(self, choices: report.Choices, trained: Trained | None = None) -> None:
        self.choices.append(choices)
        if trained is not None:
            self.curves.append(trained.curves.assign(method=choices.method, seed=choices.seed))
            self.lengths.setdefault(choices.method, []).append(
                {"epochs": int(trained.curves["epoch"].max()), "steps": trained.steps})

    def write(self, out: Path) -> Mapping[str, float]:
        """Write per_matrix.parquet, split.json, labels.parquet, the figures; print the table; return the metrics."""
        study = self.study
        frame = report.per_matrix(study.truth, self.choices, study.about(study.truth.matrices))
        write_frame(out / "per_matrix.parquet", frame)
        self._write_inputs(out)
        methods = [choice.method for choice in self.choices if choice.method != "optimum"]
        headline = "cognate" if "cognate" in methods else None
        metrics = report.summary(frame, headline=headline, prefix=study.role, seed=0) | self._costs()
        metrics |= {f"{study.role}/probes/{name}": float(np.mean([found[name] for found in self.probes]))
                    for name in (self.probes[0] if self.probes else ())}
        title = f"{report.op_title(study.op.name)} on {study.platform.name} {study.platform.preset}"
        log.console.print(self._headline(title))
        log.console.print(report.results_table(metrics, prefix=study.role), soft_wrap=False)
        report.draw_methods(metrics, out / "speedups", prefix=study.role, title=f"{title}, geometric mean")
        report.draw_matrices(frame, out / "matrices", title=f"{title}, each matrix", method=headline or methods[-1])
        if self.curves:
            write_curves(out, self.curves)
        return metrics

    def _headline(self, title: str) -> str:
        truth = self.study.truth
        labels = {len(rows) for rows in self.drawn.values()}
        return (f"{title}: speedup over the default on {len(truth.matrices)} {self.study.role} matrices, "
                f"{'/'.join(map(str, sorted(labels)))} target labels, {len(self.drawn)} seeds")

    def _write_inputs(self, out: Path) -> None:
        """Write the roles of the matrices, the labels that were read, and hashes of their files."""
        write_json(out / "split.json", {
            "fine_tuning": {str(seed): sorted(set(rows["matrix"])) for seed, rows in self.drawn.items()},
            "judged": list(self.study.truth.matrices),
            **{role: self.study.names(role) for role in ("train", "validation", "test")},
        })
        write_frame(out / "labels.parquet", pd.concat([rows.assign(seed=seed) for seed, rows in self.drawn.items()]))
        read = self.study.samples.origins(self.study.platform.name, self.study.op.name)
        if read:  # so that a finished run is not reused for other samples
            path = out / "made_from.json"
            known = read_json(path) if path.exists() else {}
            write_json(path, known | {str(file): sha256(file) for file in read})

    def _costs(self) -> dict[str, float]:
        """Return labels and matrices that each method read per seed, its data cost, and mean training lengths."""
        labels = max(len(rows) for rows in self.drawn.values())
        matrices = max(rows["matrix"].nunique() for rows in self.drawn.values())
        source = {"labels": int(self.source.get("labels", 0)), "matrices": len(self.source.get("matrices", ())),
                  "epochs": int(self.source.get("epochs", 0))}
        found = {"labels_per_seed": labels, "source_labels": source["labels"],
                 **self._dce(labels, source["labels"])}
        for method in dict.fromkeys(choice.method for choice in self.choices if choice.method != "optimum"):
            none = method in WITHOUT_TARGET
            target = {"labels": 0 if none else labels, "matrices": 0 if none else matrices}
            read = dict.fromkeys(source, 0) if method in WITHOUT_SOURCE else source
            costs = {f"target_{key}": value for key, value in target.items()}
            costs |= {f"source_{key}": value for key, value in read.items()}
            costs |= self._dce(target["labels"], read["labels"])
            costs |= {key: float(np.mean([length[key] for length in self.lengths[method]]))
                      for key in ("epochs", "steps") if method in self.lengths}
            found |= {f"{method}_{key}": value for key, value in costs.items()}
        return {f"{self.study.role}/{key}": value for key, value in found.items()}

    def _dce(self, target: int, source: int) -> dict[str, float]:
        """Return the data collection cost of the labels; empty if labels of a platform have no price."""
        read = {str(self.source.get("platform", "cpu")): source}
        name = self.study.platform.name
        read[name] = read.get(name, 0) + target
        return {"dce": dce(read)} if set(read) <= set(DCE_COST) else {}


@dataclass(frozen=True)
class Finetune:
    """COGNATE's main experiment: few target labels, judged on matrices that no method has seen.

    For every seed a few training matrices and configurations are drawn; all methods learn from exactly these labels.
    On a GPU cuSPARSE is judged too, as method vendor, if the samples have it. Networks keep their last epoch, because
    choosing an epoch by validation on the target would need more labels.

    Args:
        trees: the baseline without deep learning.
        seeds: seeds of the drawn labels and of training.
        methods: any of static, trees, trees_source (trees with the source score as a feature), zero_shot, no_transfer,
            cognate.
        eval_role: role of the matrices that judge; "validation" while anything is being chosen by the result.
        watched: number of validation matrices in the training curves; nothing is chosen by them.
        pretrained: path of a pre-trained network of any samples; None: the network of these samples.
        recommends: save the first fine-tuned network for recommendations.
    """

    op: Op
    source: "Platform"
    target: "Platform"
    samples: SampleSource
    selection: Selection
    recipe: Recipe
    trees: Trees
    checkpoints: Checkpoints
    seeds: Sequence[int]
    methods: Sequence[str]
    eval_role: Role
    watched: int
    pretrained: str | None
    recommends: bool

    def run(self, out: Path) -> Mapping[str, float]:
        """Train all methods, print and draw the comparison, save the fine-tuned networks.

        Headline metrics, whose keys name no method, are those of the method cognate; without it there are none.
        """
        began = time.monotonic()
        unknown = sorted(set(self.methods) - set(METHODS))
        if unknown:
            raise ValueError(f"no method {', '.join(unknown)}: task.methods knows {', '.join(METHODS)}")
        if not self.methods:
            raise ValueError(f"task.methods is empty: choose from {', '.join(METHODS)}")
        study = EvaluationData(self.target, self.op, self.samples, self.eval_role)
        study.refuse_other_widths()
        beginning = None
        if set(self.methods) & set(NEED_SOURCE):
            beginning = load_transfer(study, source=self.source, net=self.recipe.module.net,
                                      checkpoints=self.checkpoints, pretrained=self.pretrained)
        logger.info("%s on %s %s: %d %s matrices, seeds %s", self.op.name, self.target.name, self.target.preset,
                    len(study.truth.matrices), self.eval_role, ", ".join(map(str, self.seeds)))
        if beginning is not None:
            beginning.write(out, self.checkpoints, self.samples)
        comparison = Comparison(study, beginning.notes if beginning else {})
        comparison.add(report.random_choice(study.truth))
        if study.vendor is not None:
            comparison.add(report.baseline_choice("vendor", study.vendor))
        if "zero_shot" in self.methods:
            comparison.add(_judged("zero_shot", 0, study, beginning.zero_shot(self.recipe.module.net, study.space)))
        for seed in self.seeds:
            labels = study.draw(self.selection, seed)
            comparison.drawn[seed] = labels
            for method, model in self._simple(study, labels, seed, beginning):
                comparison.add(_judged(method, seed, study, model))
            for method in ("no_transfer", "cognate"):
                if method in self.methods:
                    model, trained = self._trained(method, study, labels, seed=seed, beginning=beginning,
                                                   out=out)
                    comparison.add(_judged(method, seed, study, model), trained)
                    if method == "cognate":
                        comparison.probes.append(permutation_importance(model, study, seed=seed))
        comparison.add(report.optimum(study.truth))
        return comparison.write(out) | {"seconds": time.monotonic() - began}

    def _simple(
        self, study: EvaluationData, labels: pd.DataFrame, seed: int, beginning: TransferInit | None
    ) -> Iterator[tuple[str, CostModel]]:
        """Yield the models of methods that train no network."""
        if "static" in self.methods:
            yield "static", Static().fit(labels, space=study.space)
        if "trees" in self.methods:
            yield "trees", self.trees.with_seed(seed).fit(labels, space=study.space, matrices=study.views)
        if "trees_source" in self.methods:
            prior = beginning.zero_shot(self.recipe.module.net, study.space)
            yield "trees_source", self.trees.with_prior(prior).with_seed(seed).fit(labels, space=study.space,
                                                                                 matrices=study.views)

    def _trained(
        self, method: str, study: EvaluationData, labels: pd.DataFrame, *, seed: int, beginning: TransferInit,
        out: Path,
    ) -> tuple[CognateModel, Trained]:
        """Train a network from the weights of the source or from scratch, and save it."""
        items = study.items(labels)
        watched = study.items(study.labels[study.labels["matrix"].isin(study.names("validation")[:self.watched])])
        transfer = method == "cognate"
        trained = train(self.recipe, start=beginning.source if transfer else None, encoder=beginning.encoder,
                        train=items, validation=watched, keep="last", seed=seed,
                        out=out / "training" / f"{method}_{seed}")
        logger.info("%s, seed %d: %.0f s on %d labels of %d matrices", method, seed, trained.seconds, len(labels),
                    len(items))
        known = beginning.notes.get("matrices", ()) if transfer else ()
        anchors = [item.input for item in items] + [study.inputs[name] for name in known if name in study.inputs]
        model = with_anchors(trained.module.net, study.space, anchors)
        notes = {"method": method, "seed": seed, "matrices": [item.input.name for item in items], "labels": len(labels),
                 "preset": self.target.preset, "samples": samples_name(self.samples),
                 "width": getattr(self.target, "width", None)}
        model.save(out / "checkpoints" / f"{method}_{seed}.pt", notes=notes, precision="float16")
        if transfer and self.recommends and seed == self.seeds[0]:
            name = self.checkpoints.finetuned(self.target, self.op, self.recipe.module.net)
            model.save(self.checkpoints.path(name, self.samples), notes=notes, precision="float16")
        return model, trained


def _judged(method: str, seed: int, study: EvaluationData, model: CostModel) -> report.Choices:
    return report.judge(method, seed, study.truth, study.score(model))


@dataclass(frozen=True)
class Fit:
    """Fit a cost model without a network to few labels of the target, once per seed.

    Args:
        name: name of the method in tables and metrics.
        model, source, net, source_votes, estimate: see `LearnerConfig`.
        seeds: seeds of the drawn labels and of fitting.
        eval_role: role of the matrices that judge; "validation" while anything is being chosen by the result.
    """

    op: Op
    target: "Platform"
    samples: SampleSource
    selection: Selection
    model: Learner
    name: str
    source: "Platform"
    net: Network
    checkpoints: Checkpoints
    source_votes: float
    estimate: bool
    seeds: Sequence[int]
    eval_role: Role

    def run(self, out: Path) -> Mapping[str, float]:
        """Fit, then print and draw the quality of the choices."""
        began = time.monotonic()
        study = EvaluationData(self.target, self.op, self.samples, self.eval_role)
        learning = LearnerConfig(self.selection, self.model, self.source, self.net, self.checkpoints,
                                 self.source_votes, self.estimate)
        learner, beginning = learning.begin(study)
        if beginning is not None:
            beginning.write(out, self.checkpoints, self.samples)
        comparison = Comparison(study, beginning.notes if beginning else {})
        comparison.add(report.random_choice(study.truth))
        for seed in self.seeds:
            start = time.monotonic()
            labels, model = learning.learn(study, learner, seed)
            comparison.drawn[seed] = labels
            comparison.add(report.judge(self.name, seed, study.truth, study.score(model)))
            logger.info("%s, seed %d: %.1f s on %d labels of %d matrices", self.name, seed, time.monotonic() - start,
                        len(labels), labels["matrix"].nunique())
        comparison.add(report.optimum(study.truth))
        return comparison.write(out) | {"seconds": time.monotonic() - began}
