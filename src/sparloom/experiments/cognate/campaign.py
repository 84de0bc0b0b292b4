"""Run a campaign: time the configurations that a `Campaign` asks for, by a command, by a platform, or by hand."""

import csv
import logging
import math
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom import log
from sparloom.data import write_frame
from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.files import write_text
from sparloom.measure import TimingProtocol, geomean
from sparloom.models import MatrixFeatures
from sparloom.ops import Op
from sparloom.report import draw_campaign, report_table
from sparloom.sparse import MATRIX_ENDINGS, SparseMatrix, matrix_stem, read_matrix
from sparloom.tuning import Campaign, Outlook, Proposal

if TYPE_CHECKING:
    from sparloom.platforms import Platform

logger = logging.getLogger(__name__)
MATRIX = "matrix"
SECONDS: Mapping[str, float] = {"seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "cycles": 1.0}
SHOWN_ERROR = 300  # characters of what a command that failed has printed


@dataclass(frozen=True)
class RunCampaign:
    """Spend a budget of trials on a folder of matrices, and say which configuration each should have.

    Args:
        matrices: folder of matrix files, or a CSV with the column `path` and, if wanted, `matrix`.
        budget: trials at most, with those that the folder of the campaign holds already.
        batch: trials that are proposed at once where results come by hand.
        jobs: commands that run at once.
        command: runs one trial and prints its seconds as the last word: {file}, {matrix} and {parameter} are replaced,
            quoted for the shell. None: the platform runs it, or results come by hand.
        results: CSV of results, with the columns of proposals.csv and seconds, ms, us, ns or cycles; told before
            anything is asked, without rows that are known. An empty time was not run, any other word is a failure.
        tolerance: end when one more trial of each matrix is expected to gain less than this share of the time.
        folder: of the campaign, where it goes on.
    """

    op: Op
    platform: "Platform"
    matrices: str | None
    budget: int
    batch: int
    jobs: int
    command: str | None
    results: str | None
    tolerance: float
    folder: str
    timing: TimingProtocol
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write best.csv, progress.parquet and a plot, and proposals.csv if results come by hand."""
        self._check()
        if self.results is not None:
            self._tell_results(Path(self.results))
        by_hand = self.command is None and not getattr(self.platform, "runnable", True)
        if by_hand:
            self._propose(out / "proposals.csv")
        else:
            self._spend()
        return self._report(out)

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """Path of every matrix, by name."""
        place = Path(str(self.matrices)).expanduser()
        if place.is_dir():
            paths = {path.relative_to(place).as_posix(): path for path in sorted(place.rglob("*"))
                     if path.name.endswith(MATRIX_ENDINGS) and not path.name.startswith("._")}
            return {name.removesuffix(path.name) + matrix_stem(path): path for name, path in paths.items()}
        with place.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if not rows or "path" not in rows[0]:
            raise SchemaError(f"{place} has no column path: give a folder of matrix files, or a CSV with that column")
        return {row.get(MATRIX) or matrix_stem(Path(row["path"])): place.parent / row["path"] for row in rows}

    @cached_property
    def campaign(self) -> Campaign:
        if not self.files:
            raise ValueError(f"{self.matrices} holds no matrix file, whose names end in {', '.join(MATRIX_ENDINGS)}")
        views = {name: MatrixFeatures.from_pattern(read_matrix(path).pattern, name)
                 for name, path in self.files.items()}
        estimate = getattr(self.platform, "estimate", None)
        return Campaign(self.folder, self.platform.space(self.op), views, seed=self.seed,
                        estimator=None if estimate is None else partial(estimate, self.op))

    def _check(self) -> None:
        if not self.matrices or not Path(self.matrices).expanduser().exists():
            raise ValueError(f"matrices={self.matrices}: give the folder of your matrix files, or a CSV of their paths")
        for name in ("budget", "batch", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.{name}={getattr(self, name)}: it must be at least 1")

    def _spend(self) -> None:
        """Keep `jobs` trials running until the budget is spent or little is to be gained."""
        campaign, jobs = self.campaign, self.jobs if self.command else 1
        left, running = self.budget - campaign.count(), {}
        again = campaign.pending()  # of a run that was killed
        with ThreadPoolExecutor(jobs) as pool:
            while left > 0 or running:
                while left > 0 and len(running) < jobs:
                    asked = [again.pop(0)] if again else campaign.ask(1)
                    if not asked or (not again and self._is_over()):
                        left = 0
                        break
                    running[pool.submit(self._time, asked[0])] = asked[0]
                    left -= 1
                for done in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    self._tell(running.pop(done), done)

    def _is_over(self) -> bool:
        gains = [each.gain for each in self.campaign.outlook()]
        return bool(np.isfinite(gains).all()) and float(np.mean(gains)) < self.tolerance

    def _tell(self, proposal: Proposal, done: "Future[float | str]") -> None:
        found = done.result()
        failed = isinstance(found, str)
        self.campaign.tell(proposal.matrix, proposal.config, seconds=None if failed else found,
                           failure=found if failed else None)
        logger.info("%s, %s: %s", proposal.matrix, proposal.config, found if failed else f"{found:.6g} s")

    def _time(self, proposal: Proposal) -> float | str:
        """Return seconds, or why there are none."""
        if self.command is not None:
            return self._run_command(proposal)
        operands = self.op.operands(self._matrix(proposal.matrix), getattr(self.platform, "width", 256), self.seed)
        measurement = self.platform.measure(self.op, operands, proposal.config, self.timing)
        return measurement.best if measurement.failure is None else measurement.failure

    def _matrix(self, name: str) -> SparseMatrix:
        return read_matrix(self.files[name]).astype(np.float32)

    def _run_command(self, proposal: Proposal) -> float | str:
        values = {"file": self.files[proposal.matrix], MATRIX: proposal.matrix, **dict(proposal.config.values)}
        try:
            line = self.command.format(**{name: shlex.quote(str(value)) for name, value in values.items()})
        except (KeyError, IndexError) as error:
            raise ValueError(f"task.command has {{{error.args[0]}}}: there are {', '.join(values)}") from None
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
        words = done.stdout.split()
        if done.returncode or not words:
            return f"exit status {done.returncode}: {(done.stderr or done.stdout).strip()[-SHOWN_ERROR:]}"
        try:
            seconds = float(words[-1])
        except ValueError:
            seconds = math.nan
        return seconds if math.isfinite(seconds) and seconds > 0 else f"printed {words[-1]!r}, not seconds"

    def _propose(self, path: Path) -> None:
        """Write the next trials, those that are pending first."""
        waiting = self.campaign.pending()
        left = min(self.batch, self.budget - self.campaign.count()) - len(waiting)
        asked = [*waiting, *(self.campaign.ask(left) if left > 0 and not self._is_over() else [])]
        names = [parameter.name for parameter in self.campaign.space.parameters]
        lines = [",".join([MATRIX, *names, "seconds"])]
        lines += [",".join([each.matrix, *(str(each.config[name]) for name in names), ""]) for each in asked]
        write_text(path, "\n".join(lines) + "\n")
        log.console.print(f"{len(asked)} trials to run are in {path}: fill in seconds, and start again with "
                          f"task.results={path}", soft_wrap=True)

    def _tell_results(self, path: Path) -> None:
        """Tell what is new in a CSV of results, once all of it has been read."""
        known = {(row.matrix, row.config, row.failure if np.isnan(row.seconds) else row.seconds)
                 for row in self.campaign.history().itertuples()}
        fresh = [each for each in self._results(path)
                 if (each[0].matrix, each[0].config.key, each[2] or each[1]) not in known]
        for proposal, seconds, failure in fresh:
            self.campaign.tell(proposal.matrix, proposal.config, seconds=seconds, failure=failure)
        logger.info("%d new results in %s", len(fresh), path)

    def _results(self, path: Path) -> Iterator[tuple[Proposal, float | None, str | None]]:
        """Read results; raises SchemaError that names the line of the first fault."""
        space = self.campaign.space
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            units = [name for name in reader.fieldnames or () if name in SECONDS]
            missing = {MATRIX, *(each.name for each in space.parameters)} - set(reader.fieldnames or ())
            if missing or len(units) != 1:
                raise SchemaError(f"{path} has columns {', '.join(reader.fieldnames or ())}: it needs matrix, every "
                                  f"parameter, and one of {', '.join(SECONDS)}")
            for row in reader:
                text = (row[units[0]] or "").strip()
                if not text:
                    continue
                where = f"{path}, line {reader.line_num}"
                try:
                    config = space.parse(",".join(f"{each.name}={row[each.name]}" for each in space.parameters))
                except (ValueError, IllegalSchedule) as error:
                    raise SchemaError(f"{where}: {error}") from None
                if row[MATRIX] not in self.files:
                    raise SchemaError(f"{where}: matrix {row[MATRIX]!r} is not among those of {self.matrices}")
                try:
                    seconds = float(text) * SECONDS[units[0]]
                except ValueError:
                    seconds = math.nan
                good = math.isfinite(seconds) and seconds > 0
                yield Proposal(row[MATRIX], config), seconds if good else None, None if good else text

    def _report(self, out: Path) -> Mapping[str, float]:
        outlook, progress = self.campaign.outlook(), self.campaign.history()
        write_frame(out / "progress.parquet", progress)
        names = [parameter.name for parameter in self.campaign.space.parameters]
        best = pd.DataFrame([{MATRIX: each.matrix, **({} if each.config is None else dict(each.config.values)),
                              "seconds": each.seconds, "trials": each.trials, "expected_regret": each.regret}
                             for each in outlook], columns=[MATRIX, *names, "seconds", "trials", "expected_regret"])
        write_text(out / "best.csv", best.to_csv(index=False))
        log.console.print(_table(outlook, names), soft_wrap=False)
        draw_campaign(progress, out / "progress")
        begun = [each for each in outlook if each.config is not None]
        found = {"trials": float(self.campaign.count()), "matrices": float(len(outlook)), "begun": float(len(begun)),
                 "failures": float(progress["seconds"].isna().sum())}
        if begun:
            found |= {"expected_regret": geomean(np.array([1 + each.regret for each in begun])) - 1,
                      "expected_gain": float(np.mean([each.gain for each in begun]))}
        return found


def _table(outlook: Sequence[Outlook], names: Sequence[str]) -> Table:
    table = report_table((MATRIX, *names, "seconds", "trials", "expected regret"), text=(MATRIX,))
    for each in outlook:
        values = ["" if each.config is None else str(each.config[name]) for name in names]
        table.add_row(each.matrix, *values, "" if each.seconds is None else f"{each.seconds:.4g}", str(each.trials),
                      "" if each.seconds is None else f"{each.regret:.1%}")
    return table
