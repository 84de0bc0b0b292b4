"""Tables of committed comparisons as text."""

from pathlib import Path

RESULTS = Path(__file__).parents[3] / "results"


def test_every_group_has_its_tables_with_the_numbers_of_the_comparison(build, tmp_path):
    task = build("tabulate_comparison", f"task.comparison={RESULTS / 'eval_figure04'}", "task.columns=[kendall_tau]",
                 folder=tmp_path)
    assert task.run(tmp_path)["tables"] == 2
    assert sorted(path.name for path in tmp_path.glob("s*")) == ["sddmm.md", "sddmm.tex", "spmm.md", "spmm.tex"]
    text = (tmp_path / "spmm.md").read_text(encoding="utf-8")
    assert text.startswith("SpMM: speedup over the default on 152 matrices.\n\n|  | labels target+source | top-1 |")
    assert "| tau | equal bins | large | paper |" in text.splitlines()[2]
    assert "| **COGNATE** | **500+6801** |" in text
    assert r"\textbf{COGNATE} & \textbf{500+6801}" in (tmp_path / "spmm.tex").read_text(encoding="utf-8")
