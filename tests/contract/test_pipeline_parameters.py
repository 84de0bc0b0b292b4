"""dvc.yaml lists for every stage exactly the options of conf/ whose values reach its tasks; stages are connected."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
WRITTEN = OmegaConf.load(ROOT / "dvc.yaml")
CHOICES = OmegaConf.merge(OmegaConf.load(ROOT / WRITTEN.vars[0]), *WRITTEN.vars[1:])
PIPELINE = OmegaConf.to_container(OmegaConf.merge(WRITTEN, CHOICES), resolve=True)["stages"]
TABLES = {str(path.relative_to(ROOT)): OmegaConf.to_container(OmegaConf.load(path), resolve=False)
          for path in sorted((CONF / "options").glob("*.yaml"))}
NEUTRAL = ("paths", "logger")  # change no result


@pytest.fixture(scope="module", autouse=True)
def _hydra() -> Iterator[None]:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def commands(stage: str) -> list[list[str]]:
    """Overrides of every command of a stage."""
    listed = PIPELINE[stage]["cmd"]
    words = [shlex.split(command) for command in (listed if isinstance(listed, list) else [listed])]
    assert all(word[:2] == ["python", "run.py"] for word in words)
    return [word[2:] for word in words]


def parameters(stage: str) -> dict[str, list[str] | None]:
    """File -> its keys, None for all."""
    return {_filled(name): keys for entry in PIPELINE[stage]["params"] for name, keys in entry.items()}


def listed(stage: str) -> set[str]:
    """Files and options of tables that a stage lists."""
    return {found for name, keys in parameters(stage).items() if name != "conf/config.yaml"
            for found in ([f"{name}:{key.removesuffix('._target_')}" for key in keys] if keys else [name])}


def _filled(name: str) -> str:
    """Resolve the choices in a key, which OmegaConf does not."""
    return OmegaConf.to_container(OmegaConf.merge(CHOICES, {"name": name}), resolve=True)["name"]


def needed(overrides: list[str]) -> Iterator[str]:
    """List the experiments and options with a value that reaches the task: chosen ones and those that they extend."""
    whole = hydra.compose("config", [text for text in overrides if not text.startswith("hydra.")],
                          return_hydra_config=True)
    cfg = OmegaConf.masked_copy(whole, [key for key in whole if key != "hydra"])
    for place, option in whole.hydra.runtime.choices.items():
        group, _, package = place.partition("@")
        if option is None or group.startswith("hydra/") or group in NEUTRAL:
            continue
        if group in ("experiment", "task") or reaches(cfg, package or group):
            yield from files(group, option)


def reaches(cfg: DictConfig, key: str) -> bool:
    """Return whether the task changes without this node of the configuration."""
    other = OmegaConf.create(OmegaConf.to_container(cfg))
    other[key] = "another"
    try:
        return task_of(other) != task_of(cfg)
    except OmegaConfBaseException:
        return True


def task_of(cfg: DictConfig) -> Any:
    return OmegaConf.to_container(cfg.task, resolve=True)


def files(group: str, option: str) -> Iterator[str]:
    """The file of an experiment, or an option and those of the same group that it extends."""
    if group == "experiment":
        yield f"conf/experiment/{option}.yaml"
        return
    path, table = next((path, table) for path, table in TABLES.items() if group in table)
    yield f"{path}:{group}.{option}"
    for base in table[group][option].get("defaults", ()):
        if base != "_self_":
            yield from files(group, base.partition("@")[0])  # without its package


@pytest.mark.parametrize("stage", PIPELINE)
def test_parameters_are_the_files_that_reach_the_tasks(stage):
    found = {name for overrides in commands(stage) for name in needed(overrides)}
    assert listed(stage) == found


def value_at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values[name]
    return values


@pytest.mark.parametrize("stage", PIPELINE)
def test_lock_holds_the_values_of_the_parameters(stage):
    locked = OmegaConf.to_container(OmegaConf.load(ROOT / "dvc.lock"), resolve=False)["stages"][stage]["params"]
    now = {}
    for entry in PIPELINE[stage]["params"]:
        for name, keys in entry.items():
            values = OmegaConf.to_container(OmegaConf.load(ROOT / _filled(name)), resolve=False)
            now.setdefault(_filled(name), {}).update({key: value_at(values, key) for key in keys or values})
    assert locked == now, "write the values of conf/ to dvc.lock: dvc commit"


@pytest.mark.parametrize("stage", PIPELINE)
def test_values_of_the_root_that_reach_a_task_are_parameters(stage):
    known = set(parameters(stage).get("conf/config.yaml", ()))
    for overrides in commands(stage):
        set_here = {text.partition("=")[0] for text in overrides}
        cfg = hydra.compose("config", [text for text in overrides if not text.startswith("hydra.")])
        values = {key for key in cfg if not isinstance(cfg[key], DictConfig) and key not in set_here}
        assert {key for key in values if reaches(cfg, key)} <= known


@pytest.mark.parametrize(("earlier", "later"), [
    ("collect", "pretrain"), ("collect", "finetune"), ("pretrain", "finetune"), ("finetune", "evaluate"),
    ("evaluate", "tables")])
def test_a_stage_reads_what_an_earlier_one_leaves(earlier, later):
    left = {*PIPELINE[earlier]["outs"], *PIPELINE[earlier].get("metrics", ())}
    assert left & set(PIPELINE[later]["deps"])


def test_no_stage_but_the_first_reads_the_data_store():
    for stage in list(PIPELINE)[1:]:
        assert all(name.startswith("artifacts/") for name in PIPELINE[stage]["deps"])
        overrides = {text for command in commands(stage) for text in command}
        assert "paths.data=data" not in overrides
