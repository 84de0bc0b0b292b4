"""Check the command line before Hydra reads it: names of experiments and options, paths, numbers of threads."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparloom.cli.experiments import print_experiments
from sparloom.cli.messages import UsageError, suggestion
from sparloom.cli.options import key_of
from sparloom.measure import checked_threads

__all__ = [
    "asks_help", "check_paths", "check_threads", "config_folders", "group_choices", "overrides_of", "prepare",
]

PATH_KEYS = ("matrix", "mirror", "folder", "file", "path", "checkpoint", "cache", "table", "pretrained", "manifest",
             "space")
PATH_GROUPS = ("paths.", "samples.files.")
REQUIRED_PATHS = ("paths.root", "paths.data", "paths.artifacts", "paths.outputs", "paths.matrices")
FLAGS_WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir",
                    "-cd", "--info", "-i", "--experimental-rerun")
MAX_JOINED = 9  # comma-separated pieces that are tried as one name
_OVERRIDE = re.compile(r"^(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@-]*)=(?P<value>.*)$", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9_./@+$-]*")  # what Hydra's grammar takes without quotes, all else is quoted
_INTERPOLATION = re.compile(r"\$\{[\w.:/,-]+\}")
_ELEMENT = re.compile(r"""'(?:[^'\\]|\\.)*'(?=,|$)|"(?:[^"\\]|\\.)*"(?=,|$)|[^,]+""")  # of a list of paths
OF_SPACE = ("platform@target=custom", "samples=csv")  # what space=<file> implies
OTHER_SAMPLES = ("samples=real", "samples=final", "samples=synthetic", "samples=tiny")


def prepare(argv: Sequence[str], conf: Path) -> list[str]:
    """Check names against the files under `conf` and quote paths, before Hydra reads the command line.

    Without arguments, or with --help alone, prints the experiments and exits. `space=<file>` chooses the platform and
    the samples of a described accelerator. In a sweep, paths joined by commas are separate values; a comma in a name is
    kept where such a file exists.

    Raises:
        UsageError: an option or experiment does not exist, no experiment is chosen, or a path is ambiguous.
    """
    arguments = list(argv[1:])
    for argument in arguments:
        _check_text(argument, "argument")
    overrides = overrides_of(arguments)
    chosen = any(argument.startswith(("experiment=", "+experiment=", "task=", "+task=")) for argument in overrides)
    if not arguments or (asks_help(arguments) and not chosen):
        print_experiments(conf)
        raise SystemExit(0)
    swept = any(argument in ("-m", "--multirun", "hydra.mode=MULTIRUN")
                or (argument.startswith("hparams=") and argument != "hparams=null") for argument in arguments)
    for argument in overrides:
        _check(argument, config_folders(arguments, conf), swept=swept)
    if not chosen and not any(argument.startswith(("--version", "-sc", "--shell")) for argument in arguments):
        names = ", ".join(path.stem for path in sorted((conf / "experiment").glob("*.yaml")))
        raise UsageError(f"no experiment chosen: give experiment=<name>, one of {names}")
    implied = _implied(overrides)
    return [argv[0], *(_quoted(argument, swept=swept) if argument in overrides else argument
                       for argument in arguments), *implied]


def _implied(overrides: Sequence[str]) -> list[str]:
    """Return what the description of an accelerator implies: its platform and its samples, unless such are given.

    Raises:
        UsageError: samples are chosen that no described accelerator has.
    """
    given = {key_of(text): text for text in overrides}
    if given.get("space", "space=null") in ("space=", "space=null"):
        return []
    if given.get("samples") in OTHER_SAMPLES:
        raise UsageError(f"{given['samples']} has no seconds of the accelerator that {given['space']} describes: leave "
                         "it out, and give samples.files.spmm=<CSV file>")
    return [text for text in OF_SPACE if key_of(text) not in given]


def asks_help(arguments: Sequence[str]) -> bool:
    """Tell whether the command line asks for help on an experiment."""
    return any(argument in ("-h", "--help") for argument in arguments)


def overrides_of(arguments: Sequence[str]) -> list[str]:
    """Drop flags and their values."""
    return [word for word, flag in zip(arguments, ["", *arguments], strict=False)
            if not word.startswith("-") and flag not in FLAGS_WITH_VALUE]


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
        raise UsageError(f"{key} is empty: give a folder, or leave the option out")
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
