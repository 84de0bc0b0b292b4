"""The documentation: it builds without a warning, describes every public name, and its links name files that exist."""

import importlib.util
import io
import logging
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def script(name: str) -> ModuleType:
    """Import a script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference():
    """The hook that writes the reference pages."""
    return script("reference_pages")


@pytest.fixture(scope="module")
def plots():
    """The script that draws the pictures of docs/results."""
    return script("plots")


@pytest.fixture(scope="module")
def described(reference):
    return reference.described()


def test_every_public_name_has_a_docstring(reference, described):
    found = {path for names in described.values() for path in names.values()}
    assert len(found) > 1000
    assert sorted(path for path in found if not reference.docstring(path).strip()) == []


def test_every_public_name_is_on_a_reference_page(reference, described):
    owner = reference.owners(described)
    pages = {package: reference.page(package, described, owner) for package in described}
    lines = {package: set(text.splitlines()) for package, text in pages.items()}
    missing = [f"{package}.{name}" for package, names in described.items() for name, path in names.items()
               if f"::: {path}" not in lines[package] and f"- [`{name}`][{path}]" not in lines[package]]
    assert missing == []
    assert set(owner) == {line[4:] for each in lines.values() for line in each if line.startswith("::: ")}


def test_pages_know_all_functions_of_the_package(reference):
    import sparloom

    names = reference.public_names()
    assert {"csr_attention", "prepare", "sddmm", "spmm"} <= set(names["sparloom"])
    assert {f"sparloom.{name}" for name in sparloom._PACKAGES} <= set(names)


def test_links_out_of_the_documentation_become_names_of_files(reference):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="results/tile_fusion.md"))
    text = "[the run](../../results/a/metrics.json), [`notebooks/b.ipynb`](../../notebooks/b.ipynb), [c](../index.md)"
    assert reference.on_page_markdown(text, page=page) == (
        "the run (`results/a/metrics.json`), `notebooks/b.ipynb`, [c](../index.md)")


def test_a_name_that_a_module_does_not_have_is_an_error(reference):
    with pytest.raises(LookupError, match=r"sparloom\.nn exports nothing, but neither defines nor imports it"):
        reference.home("sparloom.nn", "nothing")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_name_files_that_exist(page):
    targets = (target.partition("#")[0] for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))))
    files = [target for target in targets if target and ":" not in target and not target.startswith("reference/")
             and "/reference/" not in target]
    assert [target for target in files if not (page.parent / target).exists()] == []


@pytest.mark.slow
def test_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path, caplog, monkeypatch):
    pytest.importorskip("mkdocs", reason='the generator is not installed: pip install -e ".[docs]"')
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setitem(sys.modules, "ruff.__main__", None)  # else it is started for each of a thousand signatures
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("ignore")  # of the generator's own code
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))
    assert [record.getMessage() for record in caplog.records if record.name.startswith("mkdocs")] == []
    loaded = {source for path in tmp_path.rglob("*.html")
              for source in re.findall(r'(?:src|rel="stylesheet" href)="((?:https?:)?//[^"]*)"',
                                       path.read_text(encoding="utf-8"))}
    assert loaded == set()
    assert (tmp_path / "reference" / "sparloom.nn.html").exists()


def test_every_picture_of_results_shows_the_committed_runs(plots):
    """Compares tables with a tolerance: the last digits of means depend on NumPy. After a change run docs/plots.py."""
    for picture in plots.PICTURES:
        stored = (plots.FOLDER / f"{picture.name}.csv").read_text(encoding="utf-8")
        drawn = (plots.FOLDER / f"{picture.name}.svg").read_text(encoding="utf-8")
        assert plots.digest(stored) in drawn, f"python docs/plots.py {picture.name}"
        pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(stored)), pd.read_csv(io.StringIO(picture.csv())),
                                      rtol=1e-3, obj=f"docs/results/images/{picture.name}.csv")


def test_every_picture_is_shown_on_a_page_and_drawn_by_the_script(plots):
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    names = {picture.name for picture in plots.PICTURES}
    assert {path.stem for path in plots.FOLDER.iterdir()} == names
    assert [name for name in sorted(names) if f"images/{name}.svg" not in text] == []
