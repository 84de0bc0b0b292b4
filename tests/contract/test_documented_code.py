"""Every block of Python in README and docs/ runs: those of a page one after the other, as a reader pastes them.

docs/sparse_layers.md and the files of docs/extending.md have tests of their own.
"""

import linecache
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OWN_TESTS = {"docs/sparse_layers.md"}
FILE = re.compile(r"^`[^`\n]+`:\n\n```python\n.*?^```$", re.MULTILINE | re.DOTALL)  # of docs/extending.md
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS_CHECKOUT = {"docs/tutorials/reproduce_cognate.md", "docs/howto/benchmark_set.md"}  # read results/


def blocks_of(page: str) -> list[str]:
    return BLOCK.findall(FILE.sub("", (ROOT / page).read_text(encoding="utf-8")))


PAGES = [page for page in ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
         if page not in OWN_TESTS and blocks_of(page)]


def test_pages_with_code_are_found():
    assert {"README.md", "docs/index.md", "docs/tutorials/graph_network.md", "docs/howto/caches.md"} <= set(PAGES)


@pytest.mark.cc
@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*nested tensors:UserWarning")  # torch says that they are in beta
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # PyTorch Geometric calls it
@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page, monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOSAGE_CACHE_DIR", str(tmp_path / "plans"))
    monkeypatch.chdir(ROOT if page in NEEDS_CHECKOUT else tmp_path)
    known: dict[str, object] = {"__name__": page}
    for number, block in enumerate(blocks_of(page)):
        file = f"{page} block {number}"
        linecache.cache[file] = (len(block), None, block.splitlines(keepends=True), file)  # `fuse` reads its source
        exec(compile(block, file, "exec"), known)
