"""Refuse options of a run that would be ignored, and choose those that its prerequisites inherit."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparloom.cli.messages import UsageError

__all__ = [
    "RunOptions", "at", "key_of", "merge_overrides", "reached", "refuse_beside_shape", "refuse_other_machines",
    "refuse_unseen_width", "unused_overrides",
]

ALWAYS_USED = ("task", "experiment", "hparams", "paths", "logger", "objective", "prepare", "debug", "recommends",
               "seed", "sweep", "local", "hydra")  # by run.py itself, or without effect on results
ANY_MACHINE = (  # tasks that need no stored seconds
    "sparloom.experiments.Autoencode", "sparloom.experiments.ExploreDesigns")
MATRIX_OPTIONS = ("op", "target", "recommender", "width")  # ignored by recommendations for a shape
PLATFORMS = ("source", "target")
SAME_MACHINE = ("preset", "width", "readings", "orders", "space")  # settings that do not change seconds
INHERITED_GROUPS = ("paths", "op", "corpus", "samples", "encoder", "predictor", "selection@pretraining", "model",
                    "trainer", "logger")
INHERITED_VALUES = ("paths.", "op.", "corpus.", "samples.", "encoder.", "predictor.", "pretraining.", "model.net.",
                    "space=", "width=", "seed=", "debug=", "backend=")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def unused_overrides(tree: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """List the overrides that the configuration of the task does not refer to.

    Args:
        tree: configuration with unresolved interpolations.
        overrides: of the command line.
    """
    found = reached(tree)
    return [text for text in overrides if not _reads(found, _path(text))]


def refuse_unseen_width(tree: Mapping[str, Any], resolved: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse a width that the task, or one of its platforms, does not read.

    Raises:
        UsageError: names the platform with a width of its own, and the option that sets it.
    """
    given = next((text for text in overrides if _path(text) == "width"), None)
    if given is None:
        return
    found = reached(tree)
    if not _reads(found, "width"):
        raise UsageError(f"{given} would change nothing: this experiment does not read width")
    own = [name for name in PLATFORMS if _reads(found, name) and isinstance(resolved.get(name), Mapping)
           and resolved[name].get("width", resolved["width"]) != resolved["width"]]
    if own and not any(_path(text) == f"{name}.width" for name in own for text in overrides):
        raise UsageError(f"{given} does not reach the {own[0]} platform, which has a width of its own, "
                         f"{resolved[own[0]]['width']}: give {own[0]}.width={resolved['width']}")


def refuse_beside_shape(tree: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse options of recommendations for a matrix where one for the shape of a GEMM is requested.

    Raises:
        UsageError: names the option and what to give instead.
    """
    if tree.get("shape") is None or tree.get("matrix", "") is not None:
        return
    for text in overrides:
        if _path(text).partition(".")[0] in MATRIX_OPTIONS and text != "op=gemm":
            raise UsageError(f"{text} would change nothing beside shape=: a shape is that of a GEMM, m, n and k, on "
                             "the platform named single; leave it out, or give matrix=<path> in place of shape")


def refuse_other_machines(tree: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse changed settings of a platform whose stored samples were taken with its preset.

    Raises:
        UsageError: names the preset and the remedy.
    """
    task = tree["task"]
    if not {"samples", "recommender"} & set(task) or task.get("_target_") in ANY_MACHINE:
        return
    for text in overrides:
        name, _, setting = _path(text).partition(".")
        platform = tree.get(name) if name in PLATFORMS else None
        if not isinstance(platform, Mapping) or "preset" not in platform or not setting or setting in SAME_MACHINE:
            continue
        if setting in platform and f"{name}.preset" not in map(_path, overrides):
            raise UsageError(f"{text} changes the machine, but the samples of preset {platform['preset']} belong to "
                             f"the unchanged one: name the new machine with {name}.preset=<name>, and collect its "
                             "samples")


def _path(override: str) -> str:
    """Return the dotted path in the configuration that an override changes; platform@target is target."""
    return key_of(override).rpartition("@")[2].replace("/", ".")


def _reads(reached: set[str], path: str) -> bool:
    if path.partition(".")[0] in ALWAYS_USED:
        return True
    return any(path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.") for other in reached)


def reached(tree: Mapping[str, Any]) -> set[str]:
    """Collect the paths to which the task refers, directly or through other references."""
    found: set[str] = set()
    waiting = [tree.get("task")]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
        elif isinstance(node, str):
            for path in _REFERENCE.findall(node):
                if path not in found:
                    found.add(path)
                    waiting.append(at(tree, path))
    return found


def at(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


@dataclass(frozen=True)
class RunOptions:
    """Options of a run, from which those of its prerequisites follow.

    Args:
        overrides: of the command line.
        chosen: group -> option, chosen by the command line or by the experiment.
        tree: composed configuration; its nodes `source` and `target` are platforms.
    """

    overrides: Sequence[str]
    chosen: Mapping[str, str]
    tree: Mapping[str, Any]

    def inherited(self) -> list[str]:
        """List the overrides of every prerequisite: data, operation, network and folders are those of this run."""
        groups = [f"{group}={self.chosen[group]}" for group in INHERITED_GROUPS if self.chosen.get(group)]
        return [*groups, *(text for text in self.overrides if text.lstrip("+~").startswith(INHERITED_VALUES))]

    def platforms(self, other: Mapping[str, Any]) -> list[str]:
        """List the overrides that give a prerequisite the platforms of this run, if its settings of them differ.

        The prerequisite may use a platform in the other role: the source of fine-tuning is the target of
        autoencode_cpu. A prerequisite that already has the same platform, in any role, keeps its own: collect_spade
        collects two presets.

        Args:
            other: configuration of the prerequisite, composed without these overrides.
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


def merge_overrides(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Join overrides; where both set a key, the second wins."""
    set_again = {key_of(text) for text in second}
    return [*second, *(text for text in first if key_of(text) not in set_again)]


def key_of(override: str) -> str:
    """Return the key that an override sets, adds or deletes."""
    return override.lstrip("+~").partition("=")[0]
