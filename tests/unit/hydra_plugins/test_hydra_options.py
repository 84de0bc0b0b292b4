"""Tables of options are the same as files of options."""

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf


@pytest.fixture
def conf(tmp_path):
    for name, text in {
        "config": "defaults: [shape: square, size@outer: large, _self_]\n",
        "options/one": "shape:\n  square: {sides: 4}\n  oblong: {defaults: [square, _self_], long: true}\n",
        "options/two": "size:\n  large: {cm: '${outer.inch}', inch: 3}\n",
        "shape/round": "sides: 0\n",
    }.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(("overrides", "shape"), [
    ([], {"sides": 4}), (["shape=oblong"], {"sides": 4, "long": True}), (["shape=round"], {"sides": 0}),
    (["shape=oblong", "shape.sides=5"], {"sides": 5, "long": True})])
def test_options_of_tables_and_files_are_chosen_alike(conf, overrides, shape):
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf), version_base="1.3"):
        tree = OmegaConf.to_container(hydra.compose("config", overrides), resolve=True)
    assert tree == {"shape": shape, "outer": {"cm": 3, "inch": 3}}
