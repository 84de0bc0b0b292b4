"""Run a campaign: time the configurations that a `Campaign` asks for, by a command, by a platform, or by hand."""

import csv
import io
import logging
import math
import re
import shlex
import signal
import string
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.table import Table

from sparloom import log
from sparloom.data import check_columns, described_config, table_rows, to_json_values, write_frame
from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.experiments.cognate.evaluation_data import estimator_of
from sparloom.experiments.cognate.trial_commands import EXECUTORS, POLL_SECONDS, CommandRunner
from sparloom.experiments.harness import DEFAULT_WIDTH, FAILURES, conditions_of, exclusive_timing, operands_for
from sparloom.files import locked, write_text
from sparloom.measure import TimingProtocol, geomean
from sparloom.models import MatrixFeatures
from sparloom.ops import Op
from sparloom.report import draw_campaign, report_table
from sparloom.space import TIME_COLUMNS, Config, number_of
from sparloom.sparse import MATRIX_ENDINGS, SparseMatrix, is_matrix_file, matrix_stem, read_matrix
from sparloom.tuning import Campaign, MatrixSummary, Proposal

if TYPE_CHECKING:
    from sparloom.platforms import Platform

logger = logging.getLogger(__name__)
MATRIX = "matrix"
FILE = "file"  # in a command
FIRST_FAILURES = 5  # trials; if all of the first ones fail, the command or the platform is likely wrong


@dataclass(frozen=True)
class RunCampaign:
    """Spend a budget of trials on a folder of matrices, and say which configuration each should have.

    Args:
        matrices: folder of matrix files, one such file, or a CSV with the column `path` and, if wanted, `matrix`.
        budget: trials at most, with those that the folder of the campaign holds already.
        batch: trials that are proposed at once where results come by hand.
        jobs: commands that run at once.
        executor: where they run: a key of `EXECUTORS`.
        executor_options: of Slurm's jobs, see `SlurmCommands`.
        command: runs one trial and prints its seconds as the last word: {file} or {matrix} and the names of all
            parameters in braces are replaced, quoted for the shell. None: the platform runs it, or results come by
            hand.
        timeout_seconds: of a command, which is then killed and has failed; None: no limit.
        retry: ask again for trials that have failed.
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
    executor: str
    executor_options: Mapping[str, Any] | None
    command: str | None
    timeout_seconds: float | None
    retry: bool
    results: str | None
    tolerance: float
    folder: str
    timing: TimingProtocol
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write best.csv, progress.parquet and a plot, and proposals.csv if results come by hand.

        Raises:
            RuntimeError: another process works in the folder, or all of the first trials that run here failed.
        """
        self._check()
        with ExitStack() as held:
            try:
                held.enter_context(locked(Path(self.folder) / "running", wait=False))
            except BlockingIOError:
                raise RuntimeError(f"another process runs the campaign in {self.folder}: give it more task.jobs, or "
                                   "choose another task.folder") from None
            if self.results is not None:
                self._tell_results(Path(self.results))
            if self.retry:
                logger.info("%d failed trials may be asked for again", self.campaign.forget_failures())
            if self._runs_here:
                if self.command is None and self.platform.kind != "simulated":
                    held.enter_context(exclusive_timing())
                self._spend()
            else:
                self._propose(out / "proposals.csv")
        return self._report(out)

    @property
    def _runs_here(self) -> bool:
        """Whether trials run by a command or by the platform; if not, results come by hand."""
        return self.command is not None or getattr(self.platform, "runnable", True)

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """Path of every matrix, by name."""
        place = Path(str(self.matrices)).expanduser()
        if is_matrix_file(place):
            listed = [(matrix_stem(place), place)]
        elif place.is_dir():
            paths = [path for path in sorted(place.rglob("*")) if is_matrix_file(path)]
            listed = [((path.parent.relative_to(place) / matrix_stem(path)).as_posix(), path) for path in paths]
        else:
            header, rows = table_rows(place)
            if "path" not in header:
                raise SchemaError(f"{place} has no column path: give a folder of matrix files, or a CSV with that "
                                  "column")
            listed = [(row.get(MATRIX) or matrix_stem(Path(row["path"])), place.parent / Path(row["path"]).expanduser())
                      for _, row in rows]
        found: dict[str, Path] = {}
        for name, path in listed:
            if name in found:
                raise ValueError(f"{path} and {found[name]} are both named {name}: rename one of them, or give a CSV "
                                 "with the columns matrix and path")
            found[name] = path
        if not found:
            raise ValueError(f"{self.matrices} holds no matrix file, whose names end in {', '.join(MATRIX_ENDINGS)}")
        return found

    @cached_property
    def campaign(self) -> Campaign:
        patterns = {name: matrix.pattern for name, matrix in self._matrices.items()}
        conditions: dict[str, Any] = {"command": self.command}  # None: of the platform, or by hand
        if self.command is None:
            conditions |= {"platform": self.platform.name, **self._platform_conditions()}
        if self.results is not None:
            conditions["unit"] = "cycles" if "cycles" in table_rows(Path(self.results))[0] else "seconds"
            if conditions["unit"] == "cycles" and self._runs_here:
                raise ValueError(f"{self.results} has cycles, and further trials run here and give seconds: divide "
                                 "cycles by the frequency, in a column named seconds")
        elif self.command is not None:
            conditions["unit"] = "seconds"
        return Campaign(
            self.folder, self.platform.space(self.op), {
                name: MatrixFeatures.from_pattern(pattern, name) for name, pattern in patterns.items()},
            estimator=estimator_of(self.platform, self.op), conditions=conditions, seed=self.seed)

    def _platform_conditions(self) -> Mapping[str, Any]:
        """Name what seconds of the platform depend on; those that come by hand were not measured on this machine."""
        if self._runs_here:
            made = to_json_values(conditions_of(self.platform, self.op, self.timing).settings)
            return {**made.pop("platform"), **made}
        declared = getattr(self.platform, "conditions", None)
        return {} if declared is None else declared(self.op)

    @cached_property
    def _matrices(self) -> Mapping[str, SparseMatrix]:
        return {name: read_matrix(path).astype(np.float32) for name, path in self.files.items()}

    def _check(self) -> None:
        if not self.matrices or not Path(self.matrices).expanduser().exists():
            raise ValueError(f"matrices={self.matrices}: give the folder of your matrix files, one file, or a CSV of "
                             "their paths")
        for name in ("budget", "batch", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.{name}={getattr(self, name)}: it must be at least 1")
        if self.executor not in EXECUTORS:
            raise ValueError(f"task.executor={self.executor}: there are {', '.join(EXECUTORS)}")
        if self.command is None and self.executor != "local":
            raise ValueError(f"task.executor={self.executor} runs commands, and there is none: give task.command")
        if self.command is not None:
            self._line(Proposal(next(iter(self.files)), self.platform.space(self.op).default()))
            self._check_names(self.command)
            self._runner  # noqa: B018 - what it needs is missing before anything is asked

    def _check_names(self, command: str) -> None:
        """Refuse a command that runs the same program for trials that differ.

        Raises:
            ValueError: names the parameters that the command lacks, or {file}.
        """
        named = {re.split(r"[.\[]", name)[0] for _, name, _, _ in string.Formatter().parse(command) if name}
        missing = [each.name for each in self.platform.space(self.op).parameters
                   if len(each.values) > 1 and each.name not in named]
        if len(self.files) > 1 and not named & {FILE, MATRIX}:
            missing.append(FILE)
        if missing:
            lacks = ", ".join(f"{{{name}}}" for name in missing)
            raise ValueError(f"task.command {command!r} lacks {lacks}: trials that differ only in these would be the "
                             "same run, so name all of them")

    def _spend(self) -> None:
        """Keep `jobs` trials running until the budget is spent or little is to be gained.

        Commands are killed when this ends early, also by SIGTERM.
        """
        with ThreadPoolExecutor(self.jobs if self.command else 1) as pool, _interrupt_on_sigterm() as terminated:
            try:
                self._keep_running(pool, terminated)
            except BaseException:
                if self.command is not None:
                    self._runner.stop()
                raise

    def _keep_running(self, pool: ThreadPoolExecutor, terminated: threading.Event) -> None:
        campaign, jobs = self.campaign, self.jobs if self.command else 1
        again, running, why = campaign.pending(), set[Future[None]](), ""  # pending: of a run that was killed
        while True:
            while len(running) < jobs:
                if campaign.count() + len(running) >= self.budget:
                    why = f"its budget of {self.budget} trials is spent: budget=<more> continues"
                    break
                trials = [again.pop(0)] if again else campaign.ask(1, tolerance=self.tolerance)
                if not trials:
                    why = (f"one more trial of each matrix is expected to gain less than {self.tolerance:.2%}, or none "
                           "is left: task.tolerance=<less> continues")
                    break
                running.add(pool.submit(self._try, trials[0]))
            if not running:
                break
            done: set[Future[None]] = set()
            while not done:
                if terminated.is_set():  # the exception of its handler was lost
                    raise KeyboardInterrupt
                done, running = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            for each in done:
                each.result()
            self._check_first()
        log.console.print(f"The campaign ends, because {why}", soft_wrap=True)

    def _check_first(self) -> None:
        history = self.campaign.history()
        if len(history) >= FIRST_FAILURES and history["seconds"].isna().all():
            remedy = "remove the cause" if self.command is None else "correct task.command"
            raise RuntimeError(f"all of the {len(history)} trials failed, the last because: "
                               f"{history['failure'].iloc[-1]}: {remedy}, and start again with task.retry=true")

    def _try(self, proposal: Proposal) -> None:
        """Run a trial, and tell what came out as soon as it is known."""
        found = self._time(proposal)
        if found is None:
            return
        failed = isinstance(found, str)
        self.campaign.tell(proposal.matrix, proposal.config, seconds=None if failed else found,
                           failure=found if failed else None)
        logger.info("%s, %s: %s", proposal.matrix, proposal.config, found if failed else f"{found:.6g} s")

    def _time(self, proposal: Proposal) -> float | str | None:
        """Return seconds, or why there are none; None: the trial was stopped."""
        if self.command is not None:
            line = self._line(proposal)
            found = self._runner.run(line, self.timeout_seconds)
            if not found.started:
                raise ValueError(f"task.command cannot be run: {line}: {found.failure}")
            return found.failure if found.seconds is None else found.seconds
        matrix, width = self._matrices[proposal.matrix], getattr(self.platform, "width", DEFAULT_WIDTH)
        operands = operands_for(self.platform, self.op, matrix, width, self.seed)
        try:
            measurement = self.platform.measure(self.op, operands, proposal.config, self.timing)
        except FAILURES as error:
            return f"{type(error).__name__}: {error}"
        return measurement.best if measurement.failure is None else measurement.failure

    def _line(self, proposal: Proposal) -> str:
        """Fill in the command."""
        assert self.command is not None
        parameters = dict(proposal.config.values)
        if FILE in parameters or MATRIX in parameters:
            raise ValueError(f"{self.platform.name} has a parameter named {FILE} or {MATRIX}, which task.command "
                             "replaces by the matrix: rename it")
        values = {FILE: self.files[proposal.matrix], MATRIX: proposal.matrix, **parameters}
        try:
            return self.command.format(**{name: shlex.quote(str(value)) for name, value in values.items()})
        except KeyError as error:
            raise ValueError(f"task.command has {{{error.args[0]}}}: there are {', '.join(values)}; write braces of "
                             "the shell as {{ and }}") from None
        except (ValueError, AttributeError, IndexError, TypeError) as error:
            raise ValueError(f"task.command {self.command!r}: {error}; write braces of the shell as {{{{ and }}}}"
                             ) from None

    @cached_property
    def _runner(self) -> CommandRunner:
        return EXECUTORS[self.executor](Path(self.folder), self.executor_options or {})

    def _propose(self, path: Path) -> None:
        """Write the next trials, those that are pending first."""
        trials, left = self.campaign.pending(), self.budget - self.campaign.count()
        if (more := min(self.batch, left) - len(trials)) > 0:
            trials += self.campaign.ask(more, tolerance=self.tolerance)
        names = [parameter.name for parameter in self.campaign.space.parameters]
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow([MATRIX, *names, "seconds"])
        rows.writerows([each.matrix, *(each.config[name] for name in names), ""] for each in trials)
        write_text(path, text.getvalue())
        if trials:
            log.console.print(f"{len(trials)} trials to run are in {path}: fill in seconds, and start again with "
                              f"task.results={path}", soft_wrap=True)
        else:
            log.console.print("The campaign ends: budget=<more> or task.tolerance=<less> continues", soft_wrap=True)

    def _tell_results(self, path: Path) -> None:
        """Tell what is new in a CSV of results, once all of it has been read."""
        known = Counter((row.matrix, row.config, row.failure if np.isnan(row.seconds) else row.seconds)
                        for row in self.campaign.history(forgotten=True).itertuples())
        fresh = []
        for each in self._results(path):
            key = each[0].matrix, each[0].config.key, each[2] or each[1]
            known[key] -= 1
            if known[key] < 0:
                fresh.append(each)
        self.campaign.tell_all({"matrix": trial.matrix, "config": trial.config, "seconds": seconds, "failure": failure}
                               for trial, seconds, failure in fresh)
        logger.info("%d new results in %s", len(fresh), path)

    def _results(self, path: Path) -> Iterator[tuple[Proposal, float | None, str | None]]:
        """Read results; raises SchemaError that names the line of the first fault."""
        columns, rows = table_rows(path)
        check_columns(path, columns, [each.name for each in self.campaign.space.parameters])
        unit = next(name for name in columns if name in TIME_COLUMNS)
        for line, row in rows:
            where, text = f"{path}, line {line}", row[unit]
            if not text:
                continue
            if row[MATRIX] not in self.files:
                raise SchemaError(f"{where}: matrix {row[MATRIX]!r} is not among those of {self.matrices}")
            trial = Proposal(row[MATRIX], self.campaign.program(row[MATRIX], self._config(row, where)))
            value = number_of(text)
            if value is not None and 0 < value < math.inf:
                yield trial, value * TIME_COLUMNS[unit], None
            elif text[0] in "+-." or text[0].isnumeric():
                raise SchemaError(f"{where}: {unit} is {text!r}: give a positive number such as 0.5, a word such as "
                                  "timeout for a failure, or nothing if it has not run")
            else:
                yield trial, None, text

    def _config(self, row: Mapping[str, str], where: str) -> Config:
        space, description = self.campaign.space, getattr(self.platform, "description", None)
        if description is not None:
            return described_config(row, description, space, where)
        try:
            return space.parse(",".join(f"{each.name}={row[each.name]}" for each in space.parameters))
        except (ValueError, IllegalSchedule) as error:
            raise SchemaError(f"{where}: {error}") from None

    def _report(self, out: Path) -> Mapping[str, float]:
        summary, progress = self.campaign.summary(), self.campaign.history()
        write_frame(out / "progress.parquet", progress)
        names = [parameter.name for parameter in self.campaign.space.parameters]
        rows = [{MATRIX: each.matrix, "trials": each.trials} | ({} if each.config is None else {
            **dict(each.config.values), "seconds": each.seconds,
            "expected_regret": each.regret if math.isfinite(each.regret) else None}) for each in summary]
        best = pd.DataFrame(rows, columns=[MATRIX, *names, "seconds", "trials", "expected_regret"], dtype=object)
        write_text(out / "best.csv", best.to_csv(index=False))
        log.console.print(_table(summary, names), soft_wrap=False)
        draw_campaign(progress, out / "progress")
        begun = [each for each in summary if each.config is not None]
        found = {"trials": float(self.campaign.count()), "matrices": float(len(summary)), "begun": float(len(begun)),
                 "failures": float(progress["seconds"].isna().sum())}
        if begun and all(math.isfinite(each.regret) for each in begun):
            found |= {"expected_regret": geomean(np.array([1 + each.regret for each in begun])) - 1,
                      "expected_gain": float(np.mean([each.gain for each in begun]))}
        return found


@contextmanager
def _interrupt_on_sigterm() -> Iterator[threading.Event]:
    """Let SIGTERM raise KeyboardInterrupt in the main thread, as SIGINT does.

    Yields:
        An event that SIGTERM sets, because exceptions of signal handlers are lost in finalisers and callbacks.
    """
    terminated = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield terminated
        return

    def interrupt(*_: Any) -> None:
        terminated.set()
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, previous)


def _table(summary: Sequence[MatrixSummary], names: Sequence[str]) -> Table:
    table = report_table((MATRIX, *names, "seconds", "trials", "expected regret"), text=(MATRIX,))
    for each in summary:
        values = ["" if each.config is None else str(each.config[name]) for name in names]
        table.add_row(each.matrix, *values, "" if each.seconds is None else f"{each.seconds:.4g}", str(each.trials),
                      "" if each.seconds is None else f"{each.regret:.1%}" if math.isfinite(each.regret) else "unknown")
    return table
