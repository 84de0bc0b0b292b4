"""What an experiment that has to run first takes over from the run that needs it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Given", "key_of", "merged"]

GROUPS = ("paths", "op", "corpus", "samples", "encoder", "predictor", "selection@pretraining", "model", "trainer",
          "logger")
VALUES = ("paths.", "op.", "corpus.", "samples.", "encoder.", "predictor.", "pretraining.",
          "model.net.", "width=", "seed=", "debug=")
PLATFORMS = ("source", "target")


@dataclass(frozen=True)
class Given:
    """A run as its prerequisites see it.

    Args:
        overrides: of the command line.
        chosen: group -> option, whether the command line or the experiment chose it.
        tree: the composed configuration; its nodes `source` and `target` are platforms.
    """

    overrides: Sequence[str]
    chosen: Mapping[str, str]
    tree: Mapping[str, Any]

    def inherited(self) -> list[str]:
        """Overrides that hold for every prerequisite: which data, which operation, which network, where files lie."""
        groups = [f"{group}={self.chosen[group]}" for group in GROUPS if self.chosen.get(group)]
        return [*groups, *(text for text in self.overrides if text.lstrip("+~").startswith(VALUES))]

    def platforms(self, other: Mapping[str, Any]) -> list[str]:
        """Overrides that give a prerequisite the platforms of this run, where it has other settings of the same ones.

        It may know a platform under the other name: what is the source of fine-tuning is the target of autoencode_cpu.
        A prerequisite that has a platform as it is here, under whatever name, keeps its own: collect_spade collects
        two presets.

        Args:
            other: the configuration of the prerequisite, composed without these overrides.
        """
        return [override for name in PLATFORMS for override in self._platform(name, other)]

    def _platform(self, name: str, other: Mapping[str, Any]) -> Iterator[str]:
        kind = other[name]["_target_"]
        role = next((role for role in (name, *PLATFORMS) if self.tree[role]["_target_"] == kind), None)
        if role is None or any(node == self.tree[role] for node in other.values()):
            return
        yield f"platform@{name}={self.chosen[f'platform@{role}']}"
        for text in self.overrides:
            key = text.lstrip("+~")
            if key.startswith(f"{role}."):
                yield f"{text[:len(text) - len(key)]}{name}{key.removeprefix(role)}"


def merged(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Join overrides; where both set one key, the second holds."""
    set_again = {key_of(text) for text in second}
    return [*second, *(text for text in first if key_of(text) not in set_again)]


def key_of(override: str) -> str:
    """The key that an override sets, adds or deletes."""
    return override.lstrip("+~").partition("=")[0]
