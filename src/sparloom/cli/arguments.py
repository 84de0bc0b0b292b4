"""Checks and repairs of the command line that need only the names of the files in conf/."""

import re
from collections.abc import Sequence
from pathlib import Path

from sparloom.cli.listing import show
from sparloom.cli.nearest import suggestion

__all__ = ["UsageError", "choices", "folders", "prepare"]

PATH_KEYS = ("matrix", "mirror", "folder", "file", "path", "checkpoint", "cache", "table", "pretrained", "manifest")
PATH_GROUPS = ("paths.", "samples.files.")
FLAGS_WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir",
                    "-cd", "--info", "-i", "--experimental-rerun")
_OVERRIDE = re.compile(r"^(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@-]*)=(?P<value>.*)$", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9_./@+$-]*")  # what Hydra's grammar takes without quotes, all else is quoted


class UsageError(ValueError):
    """The command line names something that does not exist; the message names the nearest that does."""


def prepare(argv: Sequence[str], conf: Path) -> list[str]:
    """Check names against the files under `conf` and quote paths, before Hydra reads the command line.

    Without any argument, or with --help alone, prints what can be run and exits.

    Raises:
        UsageError: an option or experiment does not exist, or no experiment is chosen.
    """
    arguments = list(argv[1:])
    overrides = _overrides(arguments)
    asks_help = any(argument in ("-h", "--help") for argument in arguments)
    chosen = any(argument.startswith(("experiment=", "+experiment=", "task=", "+task=")) for argument in overrides)
    if not arguments or (asks_help and not chosen):
        show(conf)
        raise SystemExit(0)
    swept = any(argument in ("-m", "--multirun") for argument in arguments)
    for argument in overrides:
        _check(argument, folders(arguments, conf), swept=swept)
    if not chosen and not any(argument.startswith(("--version", "-sc", "--shell")) for argument in arguments):
        names = ", ".join(path.stem for path in sorted((conf / "experiment").glob("*.yaml")))
        raise UsageError(f"no experiment chosen: give experiment=<name>, one of {names}")
    return [argv[0], *(_quoted(argument) if argument in overrides else argument for argument in arguments)]


def folders(arguments: Sequence[str], conf: Path) -> list[Path]:
    """List the folders with option files: `conf`, then those that --config-dir names."""
    flags = ("--config-dir", "-cd")
    apart = [word for word, flag in zip(arguments, ["", *arguments], strict=False) if flag in flags]
    joined = [word.partition("=")[2] for word in arguments if word.startswith("--config-dir=")]
    return [conf, *(Path(name) for name in (*apart, *joined))]


def choices(arguments: Sequence[str], option_folders: Sequence[Path]) -> list[str]:
    """Keep the overrides that choose one option file of these folders, or none."""
    found = []
    for argument in arguments:
        match = _OVERRIDE.match(argument)
        groups = [folder / match["key"].partition("@")[0] for folder in option_folders] if match else []
        if any((group / f"{match['value']}.yaml").is_file() or (match["value"] == "null" and group.is_dir())
               for group in groups):
            found.append(argument)
    return found


def _overrides(arguments: Sequence[str]) -> list[str]:
    """Leave out flags and the words that belong to them."""
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


def _quoted(argument: str) -> str:
    """Quote the value of an override that is a path with characters of Hydra's grammar; expand a leading ~."""
    match = _OVERRIDE.match(argument)
    if match is None:
        return argument
    key, value = match["key"], match["value"]
    is_path = key.startswith(PATH_GROUPS) or key.rpartition(".")[2] in PATH_KEYS
    if not is_path or not value or (value[0] in "'\"" and value[-1] == value[0] and len(value) > 1):
        return argument
    if value.startswith("~/"):
        value = str(Path(value).expanduser())
    if not _PLAIN.fullmatch(value) and not _is_interpolation(value):
        value = _escape(value)
    return f"{match['sign'] or ''}{key}={value}"


def _is_interpolation(value: str) -> bool:
    return value.startswith("${") and value.endswith("}")


def _escape(value: str) -> str:
    """Write a string in single quotes: within them a backslash is special only in front of a quote."""
    escaped = re.sub(r"(\\*)'", lambda match: match[1] * 2 + r"\'", value)
    escaped = re.sub(r"(\\+)$", lambda match: match[1] * 2, escaped)
    return f"'{escaped.replace('${', chr(92) + '${')}'"
