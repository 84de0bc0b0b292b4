"""Check the command line: names and paths before Hydra reads it; afterwards, options that would be ignored.

Options that prerequisites of the run inherit are chosen here too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparloom.cli.messages import UsageError, print_experiments, suggestion
from sparloom.measure import checked_threads

__all__ = [
    "RunOptions", "check_paths", "check_threads", "config_folders", "group_choices", "key_of", "merge_overrides",
    "prepare", "refuse_beside_shape", "refuse_other_machines", "refuse_unseen_width", "unused_overrides",
]

PATH_KEYS = ("matrix", "mirror", "folder", "file", "path", "checkpoint", "cache", "table", "pretrained", "manifest")
PATH_GROUPS = ("paths.", "samples.files.")
REQUIRED_PATHS = ("paths.root", "paths.data", "paths.artifacts", "paths.outputs", "paths.matrices")
FLAGS_WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir",
                    "-cd", "--info", "-i", "--experimental-rerun")
MAX_JOINED = 9  # comma-separated pieces that are tried as one name
_OVERRIDE = re.compile(r"^(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@-]*)=(?P<value>.*)$", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9_./@+$-]*")  # what Hydra's grammar takes without quotes, all else is quoted
_INTERPOLATION = re.compile(r"\$\{[\w.:/,-]+\}")
_ELEMENT = re.compile(r"""'(?:[^'\\]|\\.)*'(?=,|$)|"(?:[^"\\]|\\.)*"(?=,|$)|[^,]+""")  # of a list of paths
ALWAYS_USED = ("task", "experiment", "hparams", "paths", "logger", "objective", "prepare", "debug", "recommends",
               "seed", "sweep", "local", "hydra")  # by run.py itself, or without effect on results
ANY_MACHINE = (  # tasks that need no stored seconds
    "sparloom.experiments.Autoencode", "sparloom.experiments.ExploreDesigns")
MATRIX_OPTIONS = ("op", "target", "adviser", "width")  # ignored by recommendations for a shape
PLATFORMS = ("source", "target")
SAME_MACHINE = ("preset", "width", "readings", "level", "orders", "space")  # settings that do not change seconds
INHERITED_GROUPS = ("paths", "op", "corpus", "samples", "encoder", "predictor", "selection@pretraining", "model",
                    "trainer", "logger")
INHERITED_VALUES = ("paths.", "op.", "corpus.", "samples.", "encoder.", "predictor.", "pretraining.", "model.net.",
                    "width=", "seed=", "debug=")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def prepare(argv: Sequence[str], conf: Path) -> list[str]:
    """Check names against the files under `conf` and quote paths, before Hydra reads the command line.

    Without arguments, or with --help alone, prints the experiments and exits. In a sweep, paths joined by
    commas are separate values; a comma in a name is kept where such a file exists.

    Raises:
        UsageError: an option or experiment does not exist, no experiment is chosen, or a path is ambiguous.
    """
    arguments = list(argv[1:])
    for argument in arguments:
        _check_text(argument, "argument")
    overrides = _overrides(arguments)
    asks_help = any(argument in ("-h", "--help") for argument in arguments)
    chosen = any(argument.startswith(("experiment=", "+experiment=", "task=", "+task=")) for argument in overrides)
    if not arguments or (asks_help and not chosen):
        print_experiments(conf)
        raise SystemExit(0)
    swept = any(argument in ("-m", "--multirun", "hydra.mode=MULTIRUN")
                or (argument.startswith("hparams=") and argument != "hparams=null") for argument in arguments)
    for argument in overrides:
        _check(argument, config_folders(arguments, conf), swept=swept)
    if not chosen and not any(argument.startswith(("--version", "-sc", "--shell")) for argument in arguments):
        names = ", ".join(path.stem for path in sorted((conf / "experiment").glob("*.yaml")))
        raise UsageError(f"no experiment chosen: give experiment=<name>, one of {names}")
    return [argv[0], *(_quoted(argument, swept=swept) if argument in overrides else argument
                       for argument in arguments)]


def check_paths(paths: Mapping[str, str]) -> None:
    """Refuse folders whose names the configuration cannot represent.

    Args:
        paths: description (an environment variable, the folder of the checkout) -> path.

    Raises:
        UsageError: a path contains ${, or bytes that are not UTF-8.
    """
    for what, path in paths.items():
        _check_text(path, what)
        if "${" in path:
            raise UsageError(f"{what} is {path}: in a path ${{ begins a reference to another option; rename the "
                             "folder, or go through a link with another name")


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


def config_folders(arguments: Sequence[str], conf: Path) -> list[Path]:
    """List the folders of option files: `conf`, then those of --config-dir."""
    flags = ("--config-dir", "-cd")
    separate = [word for word, flag in zip(arguments, ["", *arguments], strict=False) if flag in flags]
    joined = [word.partition("=")[2] for word in arguments if word.startswith("--config-dir=")]
    return [conf, *(Path(name) for name in (*separate, *joined))]


def group_choices(arguments: Sequence[str], option_folders: Sequence[Path]) -> list[str]:
    """Select the overrides that choose an option file of these folders, or null."""
    found = []
    for argument in arguments:
        match = _OVERRIDE.match(argument)
        groups = [folder / match["key"].partition("@")[0] for folder in option_folders] if match else []
        if any((group / f"{match['value']}.yaml").is_file() or (match["value"] == "null" and group.is_dir())
               for group in groups):
            found.append(argument)
    return found


def _overrides(arguments: Sequence[str]) -> list[str]:
    """Drop flags and their values."""
    return [word for word, flag in zip(arguments, ["", *arguments], strict=False)
            if not word.startswith("-") and flag not in FLAGS_WITH_VALUE]


def _check(argument: str, option_folders: Sequence[Path], *, swept: bool) -> None:
    conf = option_folders[0]
    match = _OVERRIDE.match(argument)
    if match is None:
        if argument.startswith("~"):
            return
        near = suggestion(argument, [path.stem for path in (conf / "experiment").glob("*.yaml")])
        raise UsageError(f"argument {argument!r} is not of the form key=value: for an experiment write "
                         f"experiment=<name>; {near}")
    group = match["key"].partition("@")[0]
    if group.startswith("hydra"):
        return
    if not (conf / group).is_dir():
        _check_group(match["key"], conf)
        return
    if match["value"] in ("null", "") or re.search(r"[\[\]{}()$'\"]", match["value"]):
        return
    known = [path.stem for folder in option_folders for path in (folder / group).glob("*.yaml")]
    for value in match["value"].split(",") if swept else [match["value"]]:
        if value.removesuffix(".yaml") not in known:
            raise UsageError(f"{group} {value!r} does not exist: {suggestion(value, known)}")


def _check_group(key: str, conf: Path) -> None:
    """Refuse `platfrm@target=...`: only groups carry a package."""
    group, at, _ = key.partition("@")
    if at:
        known = [folder.name for folder in conf.iterdir() if folder.is_dir()]
        raise UsageError(f"group {group!r} does not exist: {suggestion(group, known)}")


def _quoted(argument: str, *, swept: bool = False) -> str:
    """Quote a path with characters of Hydra's grammar in the value of an override; expand a leading ~."""
    match = _OVERRIDE.match(argument)
    if match is None or match["sign"] == "~":
        return argument
    key, value = match["key"], match["value"]
    if not key.startswith(PATH_GROUPS) and key.rpartition(".")[2] not in PATH_KEYS:
        return argument
    if key in REQUIRED_PATHS and value in ("", "null", "''", '""'):
        raise UsageError(f"{key} is empty: give a folder, or leave it out for {key.partition('.')[2]}/ of the checkout")
    values = _listed(value)
    if not swept and len(values) > 1 and all(Path(name).expanduser().exists() for name in values):
        raise UsageError(f"{key} names {len(values)} files: add -m for a run of each")
    if not swept:
        values = [value]
    if key == "paths.outputs" and len(values) > 1:
        raise UsageError(f"paths.outputs={value}: a sweep has one folder for all its runs; a comma in its name needs "
                         "quotes within quotes, \"paths.outputs='a,b'\"")
    return f"{match['sign'] or ''}{key}={','.join(_quoted_path(key, name) for name in values)}"


def _quoted_path(key: str, value: str) -> str:
    if not value or (value[0] in "'\"" and value[-1] == value[0] and len(value) > 1):
        return value
    if value.startswith("~/"):
        value = str(Path(value).expanduser())
    if "${" in value and not _refers(value):
        raise UsageError(f"{key}={value}: in a path ${{ begins a reference to another option; rename the file or "
                         "folder, or go through a link with another name")
    free = not key.startswith(PATH_GROUPS) and key != "matrix"  # such keys may take numbers too
    plain = _PLAIN.fullmatch(_without_references(value)) and (free or not _is_number(value))
    return value if plain else _escape(value)


def _refers(value: str) -> bool:
    """Distinguish references to options, which are well formed, from existing files with ${ in their names."""
    named = any("${" in path.name and _exists(str(path)) for path in (Path(value), *Path(value).parents))
    return not named and "${" not in _without_references(value) and "\\${" not in value


def _without_references(value: str) -> str:
    before = None
    while before != value:  # they may be nested
        before, value = value, _INTERPOLATION.sub("", value)
    return value


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return value.lower() in ("true", "false")
    return True


def _listed(value: str) -> list[str]:
    """Split paths at commas; a comma belongs to a name if such a file exists, or if it is in quotes."""
    choice = re.fullmatch(r"choice\((.*)\)", value, re.DOTALL)
    if _exists(value) or not ("," in value or choice):
        return [value]
    parts, found = _ELEMENT.findall(choice[1] if choice else value), []
    while parts:
        size = next((size for size in range(min(len(parts), MAX_JOINED), 1, -1) if _exists(",".join(parts[:size]))), 1)
        name = ",".join(parts[:size])
        found.append(name if _exists(name) else name.strip())
        parts = parts[size:]
    return found


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError):  # a name that is too long; no home
        return False


def _escape(value: str) -> str:
    """Put a string in single quotes, within which a backslash is special only in front of a quote."""
    escaped = re.sub(r"(\\*)'", lambda match: match[1] * 2 + r"\'", value)
    escaped = re.sub(r"(\\+)$", lambda match: match[1] * 2, escaped)
    return f"'{escaped}'"


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} {text!a} holds bytes that are not UTF-8: rename the file or folder") from None


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
    given = next((text for text in overrides if _path(text) == "width"), None)
    if given is None:
        return
    reached = _reached(tree)
    if not _reads(reached, "width"):
        raise UsageError(f"{given} would change nothing: this experiment does not read width")
    own = [name for name in PLATFORMS if _reads(reached, name) and isinstance(resolved.get(name), Mapping)
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
    if not {"samples", "adviser"} & set(task) or task.get("_target_") in ANY_MACHINE:
        return
    for text in overrides:
        name, _, setting = _path(text).partition(".")
        platform = tree.get(name) if name in PLATFORMS else None
        if not isinstance(platform, Mapping) or "preset" not in platform or not setting or setting in SAME_MACHINE:
            continue
        if setting in platform and f"{name}.preset" not in map(_path, overrides):
            raise UsageError(f"{text} makes another machine, but samples of preset {platform['preset']} are those of "
                             f"the machine as it was: give it a preset of its own, {name}.preset=<name>, and collect "
                             "its samples")


def _path(override: str) -> str:
    """Return the dotted path in the configuration that an override changes; platform@target is target."""
    key = override.lstrip("+~").partition("=")[0]
    return key.rpartition("@")[2].replace("/", ".")


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
