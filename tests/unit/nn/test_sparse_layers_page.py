"""docs/sparse_layers.md: every block of Python in it runs alone, and trains."""

import re
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "sparse_layers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.cc, pytest.mark.usefixtures("sparse_cache"),
              pytest.mark.filterwarnings("ignore:Sparse")]  # torch says that they are in beta


def test_the_page_has_its_examples() -> None:
    for name in ("SAGEConv", "GCNConv", "TransformerConv", "GATConv", "GATv2Conv", "csr_attention", "sddmm", "spmm"):
        assert any(name in block for block in BLOCKS), f"no block of docs/sparse_layers.md shows {name}"


@pytest.mark.parametrize("block", BLOCKS, ids=[f"block{place}" for place in range(len(BLOCKS))])
def test_every_block_runs(block) -> None:
    names: dict[str, object] = {}
    exec(compile(block, "docs/sparse_layers.md", "exec"), names)
    if "losses" in names:
        assert names["losses"][-1] < names["losses"][0]
    else:
        assert torch.isfinite(names["result"]).all()
