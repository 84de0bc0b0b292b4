"""docs/claims.yaml: numbers on the pages are those of the committed runs, and none is without a run or a source."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
CLAIMS = yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text(encoding="utf-8"))
PAGES = sorted(str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
BRACED = re.compile(r"\{([^{}]*)\}")
INTERVAL = re.compile(r"(\S+) \((\S+)–(\S+)\)")
VERSION = re.compile(rf"\b(?:{'|'.join(CLAIMS['versions_of'])})[ -](\d+(?:\.\d+)+)|\b(\d+\.\d+\.\d+)\b")
DECIMAL = re.compile(r"(?<![\w.§])\d+\.\d+(?:\.\d+)*(?![\w.]*\w)")
UNREAD = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|§[\d.]+\d", re.MULTILINE | re.DOTALL)  # code, links, sections
TAKE = {"count": len, "distinct": lambda found: len(set(found)), "min": np.min, "max": np.max, "mean": np.mean,
        "median": np.median, "geomean": lambda found: np.exp(np.mean(np.log(found)))}
KEYS = {"run", "file", "key", "keys", "where", "column", "over", "take", "times", "tolerance"}


@cache
def metrics(run: str, file: str) -> dict:
    return json.loads((RESULTS / run / file).read_text(encoding="utf-8"))


@cache
def table(run: str, file: str) -> pd.DataFrame:
    if file.endswith(".csv"):  # the table behind a picture, which test_documentation.py compares with its run
        return pd.read_csv(ROOT / "docs" / "results" / "images" / file)
    return pd.read_parquet(RESULTS / run / file).reset_index()


def selected(value: dict, run: str) -> np.ndarray:
    """Return a column of a table, or its ratio to another, for the rows that `where` selects."""
    frame = table(run, value["file"])
    for column, wanted in value.get("where", {}).items():
        frame = frame[frame[column].isin(wanted if isinstance(wanted, list) else [wanted])]
    found = frame[value["column"]].dropna()
    return (found / frame[value["over"]] if "over" in value else found).to_numpy()


def computed(value: str | dict, run: str, suffix: str = "") -> float:
    """Return the number of a run that a value of claims.yaml describes; `suffix` asks for a bound of it."""
    value = {"key": value} if isinstance(value, str) else value
    assert set(value) <= KEYS, f"claims.yaml: {sorted(set(value) - KEYS)} is no part of a value: {sorted(KEYS)}"
    run, file = value.get("run", run), value.get("file", "metrics.json")
    if "column" in value:
        found = TAKE[value["take"]](selected(value, run))
    elif "keys" in value:
        found = TAKE[value["take"]]([metrics(run, file)[key + suffix] for key in value["keys"]])
    else:
        found = metrics(run, file)[value["key"] + suffix]
    return float(found) * value.get("times", 1)


def printed(number: str) -> tuple[float, float]:
    """Return a printed number and half a unit of its last digit."""
    assert NUMBER.fullmatch(number), f"claims.yaml: {number!r} is no number"
    digits = number.partition(".")[2]
    return float(number.replace(",", "")), 0.5 * 10.0 ** -len(digits)


def faults(braced: str, value: str | dict, run: str) -> Iterator[str]:
    """Compare the number in one pair of braces, and its interval if it has one, with its value."""
    interval = INTERVAL.fullmatch(braced)
    parts = zip(interval.groups(), ("", "_low", "_high"), strict=True) if interval else [(braced, "")]
    for number, suffix in parts:
        told, half = printed(number)
        found = computed(value, run, suffix)
        tolerance = value.get("tolerance", half) if isinstance(value, dict) else half
        if not abs(told - found) <= tolerance * (1 + 1e-9):
            yield f"{number} is quoted, but the value of {value} in results/{run} is {found:.6g}"


def claims(page: str) -> list[tuple[str, str, list]]:
    """Return run, quote and values of a page's claims."""
    return [(group["run"], claim["quote"], claim["values"])
            for group in CLAIMS["pages"].get(page, []) for claim in group["claims"]]


@cache
def text(page: str) -> str:
    """Return a page, or the first cell of a notebook, in single spaces.

    Digits of code, link targets and numbers of sections, which claim nothing, are hidden.
    """
    whole = (ROOT / page).read_text(encoding="utf-8")
    if page.endswith(".ipynb"):
        whole = "".join(json.loads(whole)["cells"][0]["source"])
    return " ".join(UNREAD.sub(lambda found: re.sub(r"\d", "#", found[0]), whole).split())


def plain(quote: str) -> str:
    """Return a quote as it stands on its page, in single spaces."""
    return " ".join(UNREAD.sub(lambda found: re.sub(r"\d", "#", found[0]), BRACED.sub(r"\1", quote)).split())


def spans(quote: str, page: str) -> Iterator[tuple[int, int]]:
    """Find the braced numbers of a quote at every place where the page has it."""
    quote = " ".join(quote.split())
    places = [found.start(1) - 2 * number - 1 for number, found in enumerate(BRACED.finditer(quote))]
    lengths = [len(found[1]) for found in BRACED.finditer(quote)]
    for match in re.finditer(re.escape(plain(quote)), text(page)):
        yield from ((match.start() + place, match.start() + place + length)
                    for place, length in zip(places, lengths, strict=True))


def sources(page: str) -> Iterator[tuple[int, int]]:
    """Find the versions on a page, and the texts that `not_measured` explains."""
    yield from (match.span() for match in VERSION.finditer(text(page)))
    for entry in CLAIMS["not_measured"].get(page, []):
        wanted = ".*" if entry["text"] == "*" else re.escape(" ".join(entry["text"].split()))
        yield from (match.span() for match in re.finditer(wanted, text(page)))


def quoted_anywhere() -> set[str]:
    """Return every printed number, bounds included, that a claim of some page covers."""
    return {number for page in CLAIMS["pages"] for _, quote, _ in claims(page)
            for braced in BRACED.findall(quote) for number in NUMBER.findall(braced.replace("–", " "))}


each_page = pytest.mark.parametrize("page", sorted(CLAIMS["pages"]))


@each_page
def test_quoted_numbers_are_those_of_the_runs(page):
    found = []
    for run, quote, values in claims(page):
        braced = BRACED.findall(quote)
        assert len(braced) == len(values), f"{page}: {len(braced)} numbers, {len(values)} values: {quote}"
        found += [f"{fault} ({quote})" for number, value in zip(braced, values, strict=True)
                  for fault in faults(number, value, run)]
    assert found == []


@each_page
def test_quotes_are_on_their_page(page):
    gone = [quote for _, quote, _ in claims(page) if plain(quote) not in text(page)]
    assert gone == [], f"{page} does not say so any more: mend, move or remove these entries of docs/claims.yaml"


@pytest.mark.parametrize("page", PAGES)
def test_every_decimal_has_a_run_or_a_source(page):
    known = [*sources(page), *(span for _, quote, _ in claims(page) for span in spans(quote, page))]
    repeated = quoted_anywhere() if page in CLAIMS["repeating"] else set()
    unknown = [text(page)[max(0, found.start() - 50):found.end() + 20] for found in DECIMAL.finditer(text(page))
               if found[0] not in repeated
               and not any(start <= found.start() and found.end() <= end for start, end in known)]
    assert unknown == [], f"{page}: add these numbers to docs/claims.yaml, under pages or not_measured"


def test_runs_are_named_with_their_commands():
    used = {value.get("run", run) if isinstance(value, dict) else run
            for page in CLAIMS["pages"] for run, _, values in claims(page) for value in values}
    assert set(CLAIMS["runs"]) == used
    for run, command in CLAIMS["runs"].items():
        assert (RESULTS / run / "command.txt").read_text(encoding="utf-8").strip() == command


def test_explained_numbers_name_existing_pages():
    assert [page for page in (*CLAIMS["not_measured"], *CLAIMS["repeating"]) if not (ROOT / page).is_file()] == []
    assert all(entry["source"].strip() for entries in CLAIMS["not_measured"].values() for entry in entries)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed: commits cannot be looked up")
def test_commits_of_the_runs_exist():
    inside = subprocess.run(["git", "rev-parse", "--is-inside-work-tree", "--is-shallow-repository"], cwd=ROOT,
                            capture_output=True, text=True)
    if inside.stdout.split() != ["true", "false"]:
        pytest.skip("no git history here: the commits of the runs cannot be looked up")
    commits = {path.parent.name: json.loads(path.read_text(encoding="utf-8")).get("commit")
               for path in sorted(RESULTS.glob("*/environment.json"))}
    asked = "".join(f"{commit or 'none'}^{{commit}}\n" for commit in commits.values())
    told = subprocess.run(["git", "cat-file", "--batch-check"], cwd=ROOT, input=asked, capture_output=True, text=True)
    lost = [run for run, line in zip(commits, told.stdout.splitlines(), strict=True) if line.endswith(" missing")]
    assert all(group["why"].strip() for group in CLAIMS["lost_commits"])
    assert lost == sorted(run for group in CLAIMS["lost_commits"] for run in group["runs"])


@pytest.mark.parametrize(("braced", "value", "fault"), [
    ("2.62 (2.45–2.79)", "spmm/over_best", ""), ("2.63", "spmm/over_best", "2.63 is quoted"),
    ("2.62 (2.44–2.79)", "spmm/over_best", "2.44 is quoted"), ("89", {"key": "stable_share", "times": 100}, ""),
    ("90", {"key": "stable_share", "times": 100}, "90 is quoted"),
    ("90", {"key": "stable_share", "times": 100, "tolerance": 2}, ""),
    ("1.41", {"keys": ["sddmm/64/over_best", "sddmm/256/over_best"], "take": "min"}, ""),
    ("48", {"file": "per_case.parquet", "column": "matrix", "take": "distinct"}, ""),
    ("12", {"file": "candidates.parquet", "where": {"op": ["spmm", "sddmm"]}, "column": "matrix", "take": "distinct"},
     ""),
])
def test_values_are_compared_to_half_a_unit_of_the_last_digit(braced, value, fault):
    found = list(faults(braced, value, "bench_dispatch"))
    assert (not found) if not fault else (len(found) == 1 and found[0].startswith(fault))
