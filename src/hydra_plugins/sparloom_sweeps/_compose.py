"""Configurations of a sweep: of one trial, without what Hydra adds, flat for comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

__all__ = ["Composed", "Composer", "flat", "plain"]


@dataclass(frozen=True)
class Composed:
    """A configuration without Hydra's own node, interpolations kept, and the option that every group has."""

    config: DictConfig
    choices: Mapping[str, str | None]


@dataclass(frozen=True)
class Composer:
    """Composes what a run with some overrides would get, whatever the sweep says of Hydra itself."""

    loader: ConfigLoader
    name: str

    def __call__(self, overrides: Sequence[str]) -> Composed:
        """Compose with these overrides.

        Raises:
            HydraException: an override does not fit.
        """
        whole = self.loader.load_configuration(self.name, list(overrides), run_mode=RunMode.RUN)
        return Composed(plain(whole), OmegaConf.to_container(whole.hydra.runtime.choices))


def plain(whole: DictConfig) -> DictConfig:
    """Leave out Hydra's own node."""
    return OmegaConf.masked_copy(whole, [key for key in whole if key != "hydra"])


def flat(config: DictConfig) -> dict[str, Any]:
    """Dotted keys of the leaves, with interpolations as they are written; lists and empty nodes are leaves."""
    return dict(_leaves(OmegaConf.to_container(config, resolve=False), ""))


def _leaves(tree: Mapping[str, Any], prefix: str) -> Any:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
