"""Every option of conf/ composes, and every _target_ accepts the arguments in it; all faults are reported together."""

from itertools import zip_longest
from pathlib import Path

import hydra
import pytest
from binding import faults
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf

from hydra_plugins.sparloom.options import read_tables
from sparloom import cli

CONF = Path(__file__).parents[2] / "conf"
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
PACKAGED = {"platform": "platform@target", "model": "model@trees"}
OWN = {"recommender": "recommend", "growth": "fit_trees"}  # groups of some experiments only
OTHER_GROUPS = ("task", "hydra/launcher", "hydra/sweeper")
TABLES = read_tables(CONF)
MOST_FILES = 8  # that one experiment composes


def choices() -> list[tuple[str, ...]]:
    """Overrides that together choose every option of every group once, as many at a time as there are groups."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name, options in TABLES.items():
        if name not in OTHER_GROUPS:
            groups.setdefault(OWN.get(name, "collect_spade"), {})[name] = [
                f"{PACKAGED.get(name, name)}={option}" for option in options]
    return [(f"experiment={experiment}", *filter(None, chosen)) for experiment, options in groups.items()
            for chosen in zip_longest(*options.values())]


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    GlobalHydra.instance().clear()
    for name in ("SPARLOOM_DATA", "SPARLOOM_ARTIFACTS", "SPARLOOM_OUTPUTS", "SPARLOOM_MIRROR", "SPARLOOM_SEQLENS"):
        monkeypatch.setenv(name, str(tmp_path))
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def composed(*overrides: str) -> dict:
    return OmegaConf.to_container(hydra.compose("config", list(overrides)), resolve=True)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_composes_and_binds(name):
    assert list(faults(composed(f"experiment={name}"))) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_read_in_few_files(name):
    chosen = hydra.compose("config", [f"experiment={name}"], return_hydra_config=True).hydra.runtime.choices
    tables = {path for path in (CONF / "options").glob("*.yaml")
              if {place.partition("@")[0] for place in chosen} & set(OmegaConf.load(path))}
    parents, waiting = set(), [CONF / "experiment" / f"{name}.yaml"]
    while waiting:
        path = waiting.pop()
        parents.add(path)
        listed = [text for text in OmegaConf.load(path).get("defaults", ()) if isinstance(text, str)]
        files = [(CONF / text[1:] if text[0] == "/" else path.parent / text).with_suffix(".yaml") for text in listed]
        waiting += [file for file in files if file.is_file()]
    assert len({CONF / "config.yaml", *tables, *parents}) <= MOST_FILES


@pytest.mark.parametrize("choice", choices(), ids=" ".join)
def test_every_option_binds(choice):
    assert list(faults(composed(*choice))) == []


@pytest.mark.parametrize("model", ["cognate", "cognate_waco_featurizer", "waconet"])
def test_backend_of_convolutions_is_chosen_by_one_option(model):
    targets = {"torch": "sparloom.models.TorchBackend", "minkowski": "sparloom.models.MinkowskiBackend"}
    for name, target in targets.items():
        tree = composed("experiment=finetune_spade", f"model={model}", f"backend={name}")
        assert list(faults(tree)) == []
        net = tree["task"]["recipe"]["module"]["net"]
        assert net.get("instead", {}).get("featurizer", net["featurizer"])["backend"] == {"_target_": target}


@pytest.mark.parametrize("path", sorted(CONF.glob("hparams/*.yaml")), ids=lambda path: path.stem)
def test_search_space_composes(path):
    assert composed("experiment=finetune_spade", f"hparams={path.stem}")


@pytest.mark.parametrize("name", TABLES["hydra/launcher"])
def test_launcher_composes_and_binds(name):
    try:
        whole = hydra.compose("config", ["experiment=collect_spade", f"hydra/launcher={name}"],
                              return_hydra_config=True)
    except MissingConfigException as missing:
        pytest.skip(f"no {missing.missing_cfg_file}: it is in the extra scale")
    assert list(faults(OmegaConf.to_container(whole.hydra.launcher))) == []


def test_sweeper_composes_and_binds():
    whole = hydra.compose("config", ["experiment=collect_spade", "hydra/sweeper=sparloom_optuna"],
                          return_hydra_config=True)
    assert list(faults(OmegaConf.to_container(whole.hydra.sweeper) | {"sampler": None})) == []


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_headers_have_a_title_and_a_time(name):
    entry = next(entry for entry in cli.experiments(CONF) if entry.name == name)
    assert entry.title
    assert entry.time, f"{name}: the header needs a sentence 'Takes ...'"


def test_every_option_names_a_target_or_what_it_extends():
    wrong = [f"{group}={name}" for group, options in TABLES.items() for name, node in options.items()
             if node and not {"_target_", "defaults"} & set(node)]
    assert wrong == []


def test_environment_variables_are_read_in_paths_only():
    files = [str(path.relative_to(CONF)) for path in CONF.rglob("*.yaml") if "oc.env" in path.read_text()]
    assert files == ["config.yaml"]
    tree = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    assert "oc.env" not in str({key: value for key, value in tree.items() if key != "paths"})


def test_tasks_of_one_experiment_are_in_its_file():
    texts = [path.read_text() for path in CONF.glob("experiment/*.yaml")]
    for name in TABLES["task"]:
        assert sum(f"override /task: {name}\n" in text for text in texts) > 1, name


def test_wrong_keys_are_found_at_any_depth():
    tree = {"_target_": "sparloom.ops.SpMM", "nam": 1,
            "part": [{"_target_": "sparloom.nothing.There"}, {"_target_": "sparloom.data.Random", "matrices": 5}]}
    found = list(faults(tree))
    assert len(found) == 3
    assert found[0].startswith("part[0]: sparloom.nothing.There cannot be imported")
    assert "missing a required argument: 'configs_per_matrix'" in found[1]
    assert "got an unexpected keyword argument" in found[2]
