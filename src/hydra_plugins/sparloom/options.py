"""Offer the tables of conf/options as option groups, so that one file holds all options of several groups."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf


class OptionTables(SearchPathPlugin):
    """Makes `group: {option: {...}}` in a table the same as a file group/option.yaml."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Register the tables beside the main configuration."""
        for element in search_path.get_path():
            if element.provider == "main":
                for group, options in read_tables(Path(element.path.removeprefix("file://"))).items():
                    for name, node in options.items():
                        ConfigStore.instance().store(name, node, group, provider="options")


def read_tables(conf: Path) -> dict[str, Mapping[str, Any]]:
    """Read the tables of a folder of configurations: group -> option -> its values."""
    tables: dict[str, Mapping[str, Any]] = {}
    for path in sorted((conf / "options").glob("*.yaml")):
        tables |= _read(path, path.stat().st_mtime_ns)
    return tables


@cache
def _read(path: Path, modified: int) -> dict[str, Mapping[str, Any]]:
    return OmegaConf.to_container(OmegaConf.load(path))
