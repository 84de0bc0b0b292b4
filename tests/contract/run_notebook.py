"""Run the code cells of a notebook in this process, as a kernel does.

    python run_notebook.py NOTEBOOK OUT [sketched]

OUT is the notebook with new outputs. A kernel of its own would need seconds to start, a fork of a loaded one does not.
With `sketched`, pictures are coarse and have no SVG, which takes less time.
"""

import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
import nbformat
import pandas as pd
from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell
from matplotlib.figure import Figure
from nbformat import NotebookNode
from nbformat.v4 import new_output
from traitlets.config import Config

outputs: list[NotebookNode] = []


class Results(ZMQShellDisplayHook):
    """Keeps the result of a cell instead of sending it."""

    def start_displayhook(self) -> None:
        pass

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        outputs.append(new_output("execute_result", format_dict, metadata=md_dict or {},
                                  execution_count=self.prompt_count))

    def finish_displayhook(self) -> None:
        pass


class Displays(ZMQDisplayPublisher):
    """Keeps what a cell displays instead of sending it."""

    def publish(self, data: dict[str, Any], metadata: dict[str, Any] | None = None, *_: Any, **__: Any) -> None:
        outputs.append(new_output("display_data", data, metadata=metadata or {}))


def run(notebook: NotebookNode) -> None:
    """Replace the outputs of all cells; raises what a cell raises."""
    shell = ZMQInteractiveShell.instance(
        displayhook_class=Results, display_pub_class=Displays, config=Config(HistoryManager={"enabled": False}))
    matplotlib.use("module://matplotlib_inline.backend_inline")
    pd.set_option("display.max_columns", 20)  # what pandas sets if a kernel loads it
    for cell in notebook.cells:
        if cell.cell_type == "code":
            with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()) as errors:
                done = shell.run_cell(cell.source, store_history=True)
            done.raise_error()
            streams = {"stdout": printed.getvalue(), "stderr": errors.getvalue()}
            cell.execution_count = done.execution_count
            cell.outputs = [*(new_output("stream", name=name, text=text) for name, text in streams.items() if text),
                            *outputs]
            outputs.clear()


def sketch_pictures() -> None:
    """Draw all pictures with few pixels and write no SVG."""
    drawn = Figure.savefig

    def savefig(figure: Figure, to: Any, **options: Any) -> None:
        if options.get("format") == "svg":
            Path(to).touch()
        else:
            drawn(figure, to, **options | {"dpi": 30})

    Figure.savefig = savefig


if __name__ == "__main__":
    if "sketched" in sys.argv[3:]:
        sketch_pictures()
    given = nbformat.read(sys.argv[1], as_version=4)
    run(given)
    nbformat.write(given, sys.argv[2])
