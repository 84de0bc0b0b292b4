"""Check the command line before a run: options that would be ignored, and those that prerequisites inherit."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparloom.cli.experiments import print_experiments
from sparloom.cli.messages import UsageError, suggestion
from sparloom.measure import checked_threads

FLAGS_WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir",
                    "-cd", "--info", "-i", "--experimental-rerun")
DESCRIBED = ("platform@target=custom", "samples=csv")  # what space=<file> implies
ALWAYS_USED = ("task", "experiment", "hparams", "paths", "logger", "objective", "prepare", "debug", "recommends",
               "seed", "local", "hydra", "space")  # by run.py itself, or without effect on results
ANY_MACHINE = "sparloom.experiments.Autoencode"  # the task that needs no stored seconds
PLATFORMS = ("source", "target")
SAME_MACHINE = ("preset", "width", "readings", "orders", "space")  # settings that do not change seconds
INHERITED_GROUPS = ("paths", "op", "corpus", "samples", "encoder", "predictor", "selection@pretraining", "model",
                    "trainer", "logger")
INHERITED_VALUES = ("paths.", "op.", "corpus.", "samples.", "encoder.", "predictor.", "pretraining.", "model.net.",
                    "space=", "width=", "seed=", "debug=", "backend=")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def prepare(argv: Sequence[str], conf: Path) -> list[str]:
    """Return the command line for Hydra; without arguments, or with --help alone, print the experiments and exit.

    `space=<file>` chooses the platform and the samples of a described accelerator.

    Raises:
        UsageError: no experiment is chosen, or the samples are not those of the described accelerator.
    """
    arguments = list(argv[1:])
    overrides = overrides_of(arguments)
    chosen = any(text.startswith(("experiment=", "+experiment=", "task=", "+task=")) for text in overrides)
    if not arguments or (asks_help(arguments) and not chosen):
        print_experiments(conf)
        raise SystemExit(0)
    if not chosen and not any(text.startswith(("--version", "-sc", "--shell")) for text in arguments):
        names = [path.stem for path in (conf / "experiment").glob("*.yaml")]
        near = next((text for text in overrides if "=" not in text), "")
        raise UsageError(f"no experiment chosen: give experiment=<name>; {suggestion(near, names)}")
    given = {key_of(text): text for text in overrides}
    if given.get("space", "space=null") in ("space=", "space=null"):
        return list(argv)
    if given.get("samples", "samples=csv") != "samples=csv":
        raise UsageError(f"{given['samples']} has no seconds of the accelerator that {given['space']} describes: leave "
                         "it out, and give samples.files.spmm=<CSV file>")
    return [*argv, *(text for text in DESCRIBED if key_of(text) not in given)]


def asks_help(arguments: Sequence[str]) -> bool:
    """Tell whether the command line asks for help on an experiment."""
    return any(argument in ("-h", "--help") for argument in arguments)


def overrides_of(arguments: Sequence[str]) -> list[str]:
    """Drop flags and their values."""
    return [word for word, flag in zip(arguments, ["", *arguments], strict=False)
            if not word.startswith("-") and flag not in FLAGS_WITH_VALUE]


def check_threads(config: Any, path: str = "") -> None:
    """Check all numbers of threads in a configuration before anything starts: too large a number kills the process.

    Args:
        path: of the configuration, for messages.

    Raises:
        TypeError, ValueError: see `checked_threads`; names the key.
    """
    items = config.items() if isinstance(config, Mapping) else enumerate(config) if isinstance(config, list) else ()
    for key, value in items:
        key_path = f"{path}.{key}" if path else str(key)
        if key == "threads":
            for threads in value if isinstance(value, list) else [value]:
                checked_threads(threads, key_path)
        else:
            check_threads(value, key_path)


def unused_overrides(tree: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """List the overrides that the configuration of the task does not refer to.

    Args:
        tree: configuration with unresolved interpolations.
        overrides: of the command line.
    """
    reached = _reached(tree)
    return [text for text in overrides if not _reads(reached, _path(text))]


def refuse_unseen_width(tree: Mapping[str, Any], resolved: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse a width that the task, or one of its platforms, does not read.

    Raises:
        UsageError: names the platform with a width of its own, and the option that sets it.
    """
    paths = {_path(text): text for text in overrides}
    if "width" not in paths:
        return
    reached, width = _reached(tree), resolved["width"]
    if not _reads(reached, "width"):
        raise UsageError(f"{paths['width']} would change nothing: this experiment does not read width")
    for name in PLATFORMS:
        if _reads(reached, name) and resolved[name].get("width", width) != width and f"{name}.width" not in paths:
            raise UsageError(f"{paths['width']} does not reach the {name} platform, which has a width of its own, "
                             f"{resolved[name]['width']}: give {name}.width={width}")


def refuse_other_machines(tree: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse changed settings of a platform whose stored samples were taken with its preset.

    Raises:
        UsageError: names the preset and the remedy.
    """
    task = tree["task"]
    if not {"samples", "recommender"} & set(task) or task.get("_target_") == ANY_MACHINE:
        return
    paths = {_path(text): text for text in overrides}
    for path, text in paths.items():
        name, _, setting = path.partition(".")
        platform = tree.get(name) if name in PLATFORMS else None
        if not isinstance(platform, Mapping) or "preset" not in platform or setting in SAME_MACHINE:
            continue
        if setting in platform and f"{name}.preset" not in paths:
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


def _reached(tree: Mapping[str, Any]) -> set[str]:
    """Collect the paths to which the task refers, directly or through other references."""
    reached: set[str] = set()
    waiting = [tree.get("task")]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
        elif isinstance(node, str):
            for path in _REFERENCE.findall(node):
                if path not in reached:
                    reached.add(path)
                    waiting.append(_at(tree, path))
    return reached


def _at(tree: Any, path: str) -> Any:
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
