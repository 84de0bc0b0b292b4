"""Write the reference pages of the documentation while it is built: one for each package, from its docstrings.

A hook of mkdocs (`hooks` in mkdocs.yml). A name that several packages export is described once, on the page of the
package that defines it; the others link to it.
"""

import ast
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = "sparloom"
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s:]+)\)")
OPTIONS = """    options:
      heading_level: 2
"""


def public_names() -> dict[str, list[str]]:
    """Return the public names of the package, its subpackages and its top modules, in the order of their paths."""
    top = importlib.import_module(ROOT)
    names = {ROOT: sorted(top._FUNCTIONS)}
    for found in pkgutil.walk_packages(top.__path__, f"{ROOT}."):
        if found.ispkg or found.name.count(".") == 1:
            exported = getattr(importlib.import_module(found.name), "__all__", ())
            if exported:
                names[found.name] = sorted(exported, key=str.lower)
    return dict(sorted(names.items()))


@cache
def home(module: str, name: str) -> str:
    """Return the full name of a public object where it is defined.

    Raises:
        LookupError: the module neither defines nor imports it.
    """
    defined, imported = _names_of(module)
    if name in defined:
        return f"{module}.{name}"
    if name in imported:
        return home(*imported[name])
    loaded = importlib.import_module(module)
    places = getattr(getattr(loaded, "__dir__", None), "homes", {})
    if name in places:
        return home(places[name], name)
    if module == ROOT:
        return home(f"{ROOT}.{loaded._FUNCTIONS[name]}", name)
    raise LookupError(f"{module} exports {name}, but neither defines nor imports it")


@cache
def _names_of(module: str) -> tuple[frozenset[str], dict[str, tuple[str, str]]]:
    """Return what a module defines at its top, and what it imports from others: (module, name) by name."""
    defined, imported = set(), {}
    for node in _statements(ast.parse(_source(module)).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported |= {each.asname or each.name: (node.module, each.name) for each in node.names
                         if node.module.split(".")[0] == ROOT}
        else:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            defined |= {each.id for target in targets if target for each in ast.walk(target)
                        if isinstance(each, ast.Name)}
    return frozenset(defined), imported


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in ("body", "orelse", "handlers"):
            if isinstance(node, ast.If | ast.Try):
                yield from _statements(getattr(node, part, ()))


@cache
def _source(module: str) -> str:
    return Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")


def described() -> dict[str, dict[str, str]]:
    """Return for each page, named like its package, the public names and the full names of what they refer to."""
    return {package: {name: home(package, name) for name in names} for package, names in public_names().items()}


def owners(pages: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the page that describes each object: that of the innermost package which exports and contains it."""
    found: dict[str, str] = {}
    for page, names in pages.items():
        for path in names.values():
            if path not in found or path.startswith(f"{page}."):
                found[path] = page  # pages come in the order of their names: inner packages after outer ones
    return found


def page(package: str, pages: dict[str, dict[str, str]], owner: dict[str, str]) -> str:
    """Return the Markdown of the reference page of a package."""
    summary, _, rest = (inspect.getdoc(importlib.import_module(package)) or "").partition("\n")
    lines = [f"# {package}", "", summary, ""]
    if rest.strip():
        lines += ["```text", rest.strip("\n"), "```", ""]
    elsewhere = {name: path for name, path in pages[package].items() if owner[path] != package}
    if elsewhere:
        lines += ["Names that are described with the package that defines them:", ""]
        lines += [f"- [`{name}`][{path}]" for name, path in elsewhere.items()] + [""]
    for path in pages[package].values():
        if owner[path] == package:
            lines += [f"::: {path}", OPTIONS]
    return "\n".join(lines)


def index(pages: dict[str, dict[str, str]]) -> str:
    """Return the Markdown of the list of packages."""
    lines = ["# Reference", "",
             "Every public name, from its docstring. Import names from the package that heads the page.", "",
             "| package | what it is for |", "|---|---|"]
    for package in pages:
        summary = (inspect.getdoc(importlib.import_module(package)) or "").partition("\n")[0]
        lines.append(f"| [`{package}`]({package}.md) | {summary} |")
    return "\n".join([*lines, ""])


def docstring(path: str) -> str:
    """Return the docstring of an object as the reference pages show it; empty if it has none."""
    module, _, name = path.rpartition(".")
    return _docstrings(module).get(name, "")


@cache
def _docstrings(module: str) -> dict[str, str]:
    body, found = list(_statements(ast.parse(_source(module)).body)), {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and isinstance(after.value, ast.Constant):
                    found[target.id] = str(after.value.value)
    return found


def on_config(config: Any) -> Any:
    """List the reference pages in the navigation (called by mkdocs)."""
    for section in config.nav:
        if "Reference" in section:
            section["Reference"] = ["reference/index.md",
                                    *({name: f"reference/{name}.md"} for name in public_names())]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the reference pages to the files of the site (called by mkdocs)."""
    from mkdocs.structure.files import File

    pages = described()
    owner = owners(pages)
    files.append(File.generated(config, "reference/index.md", content=index(pages)))
    for package in pages:
        files.append(File.generated(config, f"reference/{package}.md", content=page(package, pages, owner)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Name files of the repository that are not in docs/ instead of linking them (called by mkdocs)."""
    folder = Path(page.file.src_uri).parent

    def named(found: re.Match) -> str:
        inside = os.path.normpath(folder / found["target"].partition("#")[0])
        if not inside.startswith(".."):
            return found[0]
        path = inside.removeprefix("../")
        return f"`{path}`" if found["text"].strip("`") == path else f"{found['text']} (`{path}`)"

    return LINK.sub(named, markdown)
