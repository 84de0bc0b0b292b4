"""Parse each YAML text once per process: parsing takes most of the time of composing a configuration."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader


@cache
def _parsed(text: str) -> Any:
    return yaml.load(text, Loader=get_yaml_loader())


def _load(file: Any) -> Any:
    text = file.read() if hasattr(file, "read") else Path(file).read_text(encoding="utf-8")
    found = _parsed(text)
    return OmegaConf.create({} if found is None else found)  # a copy


OmegaConf.load = staticmethod(_load)
