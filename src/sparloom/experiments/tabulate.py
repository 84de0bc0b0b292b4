"""Write the tables of a finished comparison as Markdown and LaTeX."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from sparloom.files import write_text
from sparloom.report import latex_table, markdown_table, op_title, read_compared, rows_cells

__all__ = ["Tabulate"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tabulate:
    """One table per group of rows, with everything that was said of the rows below it.

    Args:
        comparison: folder of a finished run of Compare.
        columns: statistics that the tables show besides speedups and shares of the optimum.
        bold: row to set in bold.
    """

    comparison: str
    columns: Sequence[str]
    bold: str

    def run(self, out: Path) -> Mapping[str, float]:
        """Write <group>.md and <group>.tex; returns counts.

        Raises:
            FileNotFoundError: there is no finished comparison.
        """
        folder = Path(self.comparison)
        if not (folder / "rows.parquet").exists():
            raise FileNotFoundError(f"{folder} holds no finished comparison: run an experiment eval_... first, and "
                                    "give its folder as task.comparison")
        compared = read_compared(folder)
        groups = {str(group): rows for group, rows in compared.rows.groupby("group", sort=False)}
        for group, rows in groups.items():
            headings, cells = rows_cells(rows, columns=self.columns)
            named = rows["row"].tolist()
            bold = named.index(self.bold) if self.bold in named else None
            about = [f"{op_title(group)}: speedup over the default on {rows['matrices'].max():.0f} matrices.",
                     *_remarks(rows)]
            write_text(out / f"{group}.md", "\n\n".join([about[0], markdown_table(headings, cells, bold=bold).rstrip(),
                                                         *about[1:]]) + "\n")
            comments = "".join(f"% {line}\n" for line in about)
            write_text(out / f"{group}.tex", comments + latex_table(headings, cells, bold=bold))
            logger.info("%s", out / f"{group}.md")
        return {"tables": len(groups), "rows": len(compared.rows)}


def _remarks(rows: pd.DataFrame) -> list[str]:
    """Notes and failures, each with the rows it is said of."""
    return [f"{', '.join(told['label'])}: {text}" for kind in ("note", "failure")
            for text, told in rows[rows[kind] != ""].groupby(kind, sort=False)]
