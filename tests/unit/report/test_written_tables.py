"""Tables as text: layout, escapes, the row in bold."""

from sparloom.report import latex_table, markdown_table

HEADINGS = ["", "top-1", "DCE/10⁶", "95 %"]
CELLS = [["random", "0.83", "", "0.80–0.86"], ["a|b_c", "1.38", "0.51", ""]]


def test_markdown_aligns_numbers_and_sets_one_row_in_bold():
    assert markdown_table(HEADINGS, CELLS, bold=1).splitlines() == [
        "|  | top-1 | DCE/10⁶ | 95 % |",
        "| --- | ---: | ---: | ---: |",
        "| random | 0.83 |  | 0.80–0.86 |",
        r"| **a\|b_c** | **1.38** | **0.51** |  |",
    ]


def test_latex_escapes_what_is_special_there():
    assert latex_table(HEADINGS, CELLS, bold=1).splitlines() == [
        r"\begin{tabular}{lrrr}",
        r"  \toprule",
        r"   & top-1 & DCE/10$^6$ & 95 \% \\",
        r"  \midrule",
        r"  random & 0.83 &  & 0.80--0.86 \\",
        r"  \textbf{a|b\_c} & \textbf{1.38} & \textbf{0.51} &  \\",
        r"  \bottomrule",
        r"\end{tabular}",
    ]
