"""Tables as text for pages and papers: Markdown, LaTeX."""

from collections.abc import Mapping, Sequence

__all__ = ["latex_table", "markdown_table"]

LATEX: Mapping[str, str] = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "⁶": "$^6$",
}


def markdown_table(headings: Sequence[str], cells: Sequence[Sequence[str]], *, bold: int | None) -> str:
    """Write a table whose first column is text and whose others are numbers.

    Args:
        cells: by row, as many as headings.
        bold: place of the row to set in bold.
    """
    lines = [[text.replace("|", r"\|") for text in row] for row in (headings, *cells)]
    if bold is not None:
        lines[bold + 1] = [f"**{text}**" if text else "" for text in lines[bold + 1]]
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (lines[0], rule, *lines[1:])) + "\n"


def latex_table(headings: Sequence[str], cells: Sequence[Sequence[str]], *, bold: int | None) -> str:
    """Write the table that `markdown_table` writes as a tabular with the rules of the package booktabs."""
    lines = [[_escaped(text) for text in row] for row in (headings, *cells)]
    if bold is not None:
        lines[bold + 1] = [rf"\textbf{{{text}}}" if text else "" for text in lines[bold + 1]]
    first, *others = (f"  {' & '.join(row)} \\\\" for row in lines)
    columns = "l" + "r" * (len(headings) - 1)
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", r"  \toprule", first, r"  \midrule", *others,
                      r"  \bottomrule", r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
