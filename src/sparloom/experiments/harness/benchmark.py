"""Run a benchmark: store each case as soon as it is measured, continue interrupted runs, write what a run found.

A benchmark names its cases, measures one, and reduces the rows of all to metrics. `timed_cases` measures in this
process, `CaseSteps` in several steps, each in a fresh process; `finish` writes tables, metrics and figures.
"""

import logging
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd

from sparloom import log
from sparloom.data import write_frame
from sparloom.errors import SparloomError
from sparloom.experiments.harness.journal import CaseJournal, journal_folder
from sparloom.experiments.harness.process_pool import exclusive_timing, run_in_subprocess, run_jobs
from sparloom.files import write_json
from sparloom.fusion import pinned
from sparloom.models import retain_memory
from sparloom.ragged import LengthCorpus
from sparloom.report import metrics_tables
from sparloom.sparse import Corpus

logger = logging.getLogger(__name__)

Case = TypeVar("Case")
Rows = Sequence[Mapping[str, Any]]


def run_folder(
    bench: Any, *conditions: object, corpora: Sequence[Corpus] = (), without: Collection[str] = (),
) -> Path:
    """Return the folder of an unfinished run, named by all settings of a benchmark and what `journal_folder` adds.

    Args:
        bench: a dataclass with `journals`, the folder of all unfinished runs of this benchmark.
        conditions: on which rows depend besides.
        corpora: of the matrices, which count by their content.
        without: fields on which rows do not depend, or that other arguments describe.
    """
    settings = {field.name: getattr(bench, field.name) for field in fields(bench)
                if field.name not in {"journals", *without}}
    lengths = next((value for value in settings.values() if isinstance(value, LengthCorpus)), None)
    counted = {name: value for name, value in settings.items()
               if value is not lengths and not any(value is corpus for corpus in corpora)}
    return journal_folder(bench.journals, counted, *conditions, corpora=corpora, lengths=lengths)


def timed_cases(
    measure: Callable[[Case], Rows], planned: Mapping[str, Case], folder: Path, *, costs: Mapping[str, float],
    threads: int | None,
) -> pd.DataFrame:
    """Measure the cases that an unfinished run lacks; return the rows of all cases in the planned order.

    Args:
        folder: of the unfinished run, which `finish` removes.
        costs: expected cost of each case in any unit.
        threads: of this process, which stay on their processors; None: do not pin, because child processes would
            inherit the pinned processor.
    """
    retain_memory()
    journal = CaseJournal(folder / "cases.jsonl")
    done = journal.rows()
    waiting = {key: case for key, case in planned.items() if key not in done}
    finished = planned.keys() - waiting.keys()
    logger.info("%d of %d cases to do, %d found finished", len(waiting), len(planned), len(finished))
    with exclusive_timing(), nullcontext() if threads is None else pinned(threads):
        for key, rows in run_jobs(measure, waiting, weights={key: costs[key] for key in waiting}, processes=1,
                                  description="timing", unit="cases", finished=finished):
            journal.append(key, rows)
    done = journal.rows()
    return pd.DataFrame([row for key in planned for row in done[key]])


@dataclass(frozen=True)
class CaseSteps(Generic[Case]):
    """Cases of several matrices that are measured in steps, each step in a fresh process.

    Args:
        folder: of the unfinished run.
        planned: step -> matrix -> key -> case.
        load: case -> its matrix; cases whose matrix cannot be read have no rows.
        measure: step, case and matrix -> rows.
        costs: matrix -> expected cost in any unit.
    """

    folder: Path
    planned: Mapping[str, Mapping[str, Mapping[str, Case]]]
    load: Callable[[Case], Any]
    measure: Callable[[str, Case, Any], Rows]
    costs: Mapping[str, float]

    def run(self) -> None:
        """Do what is missing, while this machine is locked for timing."""
        with exclusive_timing():
            for step, jobs in self.planned.items():
                done = self.done(step)
                waiting = {job: job for job, cases in jobs.items() if any(key not in done for key in cases)}
                finished = jobs.keys() - waiting.keys()
                logger.info("%s: %d to do, %d found finished", step, len(waiting), len(finished))
                weights = {job: self.costs[job] for job in waiting}
                for job, reason in run_in_subprocess(partial(self.do, step), waiting, weights=weights, description=step,
                                                     unit="matrices", finished=finished):
                    if reason:
                        logger.warning("%s is left out: %s", job, reason)

    def rows(self, step: str) -> Iterator[tuple[Case, dict[str, Any]]]:
        """Yield the rows of a step, each with its case, in the planned order."""
        done = self.done(step)
        for cases in self.planned[step].values():
            for key, case in cases.items():
                for row in done.get(key, ()):
                    yield case, row

    def done(self, step: str) -> dict[str, list[dict[str, Any]]]:
        """Read the rows of a step by the keys of their cases."""
        return self._journal(step).rows()

    def do(self, step: str, job: str) -> str:
        """Measure the missing cases of a matrix; return the reason why that is impossible, or ""."""
        done, journal = self.done(step), self._journal(step)
        missing = {key: case for key, case in self.planned[step][job].items() if key not in done}
        try:
            matrix = self.load(next(iter(missing.values())))
        except (OSError, ValueError, SparloomError) as error:
            for key in missing:
                journal.append(key, [])
            return str(error)
        for key, case in missing.items():
            journal.append(key, self.measure(step, case, matrix))
        return ""

    def _journal(self, step: str) -> CaseJournal:
        return CaseJournal(self.folder / f"{step}.jsonl")


def finish(
    out: Path, folder: Path | None, metrics: Mapping[str, float], draw: Callable[[Path], None] | None = None, *,
    facts: Mapping[str, object] | None = None, **tables: pd.DataFrame,
) -> Mapping[str, float]:
    """Write the tables of a finished benchmark, print its metrics, draw its figures; remove the unfinished run.

    Args:
        folder: of the unfinished run; None: there is none.
        draw: draws all figures into a folder.
        facts: name of a JSON file -> its content.
        tables: name of a Parquet file -> its rows.
    """
    for name, rows in tables.items():
        write_frame(out / f"{name}.parquet", rows)
    for name, content in (facts or {}).items():
        write_json(out / f"{name}.json", content)
    for table in metrics_tables(metrics):
        log.console.print(table)
    if draw is not None:
        draw(out)
    if folder is not None:
        shutil.rmtree(folder)
    return metrics
