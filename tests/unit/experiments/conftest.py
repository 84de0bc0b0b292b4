"""Build tasks from conf/ as run.py does, on generated samples with a small network."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hydra
import pytest
from brief_timing import brief_timing
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from matplotlib.figure import Figure
from small import SMALL

from sparloom.data import TinySamples
from sparloom.files import locked

CONF = Path(__file__).parents[3] / "conf"


@pytest.fixture(autouse=True, scope="module")
def _brief_timing() -> Iterator[None]:
    with brief_timing():
        yield


@pytest.fixture(autouse=True, scope="session")
def _samples_generated_once() -> Iterator[None]:
    """Share equal generated samples between tasks; none changes them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("table", "split", "statistics", "walks", "inputs"):
            patch.setattr(TinySamples, name, cache(getattr(TinySamples, name)))
        yield


@pytest.fixture(autouse=True, scope="module")
def _sketches() -> Iterator[None]:
    """Draw pictures with few pixels; tests of sparloom.report draw them as they are."""
    drawn = Figure.savefig

    def savefig(figure: Figure, to: Any, **options: Any) -> None:
        drawn(figure, to, **options | {"dpi": 30})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        yield


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """Make a task: build("finetune_tiny", "op=sddmm", folder=path)."""

    def made(experiment: str, *overrides: str, folder: Path) -> Any:
        GlobalHydra.instance().clear()
        places = [f"paths.{name}={folder / name}" for name in ("artifacts", "data", "outputs")]
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = hydra.compose("config", [f"experiment={experiment}", *places, *overrides])
        return instantiate(cfg.task)

    return made


@pytest.fixture(scope="session")
def trained(build, tmp_path_factory, request) -> Path:
    """Train encoders, source networks and fine-tuned ones for SpMM, ours and as published; return their folder.

    The outputs and metrics of ours are in the folders of the experiments, of the published ones in <name>_published.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if hasattr(request.config, "workerinput") else base) / "shared_trained"  # by all workers
    with locked(shared.with_suffix(".lock")):
        if not shared.exists():
            partial = shared.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)  # of a worker that failed
            _train(build, partial)
            partial.rename(shared)
    folder = tmp_path_factory.mktemp("trained") / "own"  # which tests change
    shutil.copytree(shared, folder)
    return folder


def _train(build: Callable[..., Any], folder: Path) -> None:
    for experiment, *more in (
            ("autoencode_cpu", "platform@target=cpu_many_single"), ("autoencode_spade",), ("pretrain_cpu",),
            ("finetune_tiny",), ("autoencode_cpu",), ("pretrain_cpu", "model=cognate", "platform@source=cpu"),
            ("finetune_tiny", "hparams=cognate_published", "task.seeds=[0]")):
        out = folder / experiment
        if out.exists():
            out = folder / f"{experiment}_published"
        out.mkdir(parents=True)
        metrics = build(experiment, *SMALL, *more, folder=folder).run(out)
        assert metrics["seconds"] > 0
        (out / "returned.json").write_text(json.dumps(metrics), encoding="utf-8")
