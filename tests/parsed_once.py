"""Parse each YAML text once per process: parsing takes most of the time of composing a configuration.

A server of `warm_python` that loads this module has parsed all files of conf/, so that the programs that it forks need
not.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

CONF = Path(__file__).parents[1] / "conf"


@cache
def _parsed(text: str) -> Any:
    return yaml.load(text, Loader=get_yaml_loader())


def _load(file: Any) -> Any:
    text = file.read() if hasattr(file, "read") else Path(file).read_text(encoding="utf-8")
    found = _parsed(text)
    return OmegaConf.create({} if found is None else found)  # a copy


OmegaConf.load = staticmethod(_load)
for path in CONF.rglob("*.yaml"):
    _parsed(path.read_text(encoding="utf-8"))
