"""Run a campaign: time the configurations that a `Campaign` asks for, by a command, by a platform, or by hand."""

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
from sparloom.data import table_rows, to_json_values, write_frame, write_t4
from sparloom.experiments.cognate.campaign_files import (
    MATRIX,
    PROBLEM,
    matrix_files,
    read_problems,
    read_results,
    read_source,
    write_proposals,
)
from sparloom.experiments.cognate.evaluation_data import estimator_of
from sparloom.experiments.cognate.trial_commands import EXECUTORS, POLL_SECONDS, CommandRunner
from sparloom.experiments.harness import DEFAULT_WIDTH, FAILURES, conditions_of, exclusive_timing, operands_for
from sparloom.files import locked, write_text
from sparloom.measure import TimingProtocol, geomean
from sparloom.models import MatrixFeatures
from sparloom.ops import Op
from sparloom.report import draw_campaign, draw_trusts, report_table
from sparloom.space import MAX_LISTED, Config, ConfigSpace, SearchSpace, read_description, read_space
from sparloom.sparse import SparseMatrix, read_matrix
from sparloom.tuning import Campaign, ProblemSummary, Proposal
from sparloom.tuning.engine import ONLY

if TYPE_CHECKING:
    from sparloom.platforms import Platform

logger = logging.getLogger(__name__)
FILE = "file"  # in a command
FIRST_FAILURES = 5  # trials; if all of the first ones fail, the command or the platform is likely wrong


@dataclass(frozen=True)
class RunCampaign:
    """Spend a budget of trials on one problem or several, and say which configuration each should have.

    Args:
        space: YAML or T1 file that describes the configurations; None: those of the platform.
        matrices: the problems are sparse matrices: folder of matrix files, one such file, or a CSV with the column
            `path` and, if wanted, `matrix`.
        problems: CSV with the column `problem` and a column for each feature. Without it and matrices, there is one
            problem.
        sources: what others have measured, from which the campaign starts: folders of campaigns, T4 files, caches of
            Kernel Tuner, or CSV files of results.
        budget: trials at most, with those that the folder of the campaign holds already.
        batch: trials that are proposed at once where results come by hand.
        jobs: commands that run at once.
        executor: where they run: a key of `EXECUTORS`.
        executor_options: of Slurm's jobs, see `SlurmCommands`.
        command: runs one trial and prints its seconds as the last word: {file} or {matrix}, or {problem} and its
            features, and the names of all parameters in braces are replaced, quoted for the shell. None: the platform
            runs it, or results come by hand.
        timeout_seconds: of a command, which is then killed and has failed; None: no limit.
        retry: ask again for trials that have failed.
        results: T4 file, or CSV of results, with the columns of proposals.csv and seconds, ms, us, ns or cycles; told
            before anything is asked, without rows that are known. An empty time was not run, any other word is a
            failure.
        tolerance: end when one more trial of each problem is expected to gain less than this share of the time.
        folder: of the campaign, where it goes on.
    """

    op: Op
    platform: "Platform"
    space: str | None
    matrices: str | None
    problems: str | None
    sources: Sequence[str]
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
        return self.command is not None or (self.space is None and getattr(self.platform, "runnable", True))

    @property
    def _column(self) -> str:
        """The column of tables that names the problems."""
        return MATRIX if self.matrices else PROBLEM

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """Path of every matrix, by name."""
        return matrix_files(Path(str(self.matrices)).expanduser()) if self.matrices else {}

    @cached_property
    def campaign(self) -> Campaign:
        conditions: dict[str, Any] = {"command": self.command}  # None: of the platform, or by hand
        if self.command is None:
            conditions |= self._platform_conditions()
        if self.results is not None:
            is_cycles = self.results.endswith(".csv") and "cycles" in table_rows(Path(self.results))[0]
            conditions["unit"] = "cycles" if is_cycles else "seconds"
            if conditions["unit"] == "cycles" and self._runs_here:
                raise ValueError(f"{self.results} has cycles, and further trials run here and give seconds: divide "
                                 "cycles by the frequency, in a column named seconds")
        elif self.command is not None:
            conditions["unit"] = "seconds"
        return Campaign(
            self.folder, self._configurations, self._problems, conditions=conditions, seed=self.seed,
            sources=[read_source(Path(each).expanduser()) for each in self.sources],
            estimator=None if self.space is not None else estimator_of(self.platform, self.op))

    @cached_property
    def _configurations(self) -> SearchSpace | ConfigSpace:
        """The space: for matrices, one that says what its tiles and orders do to a pattern, if it is small enough."""
        if self.space is None:
            return self.platform.space(self.op)
        path = Path(self.space).expanduser()
        if not self.matrices or path.suffix == ".json":
            return read_space(path)
        described = read_description(path)
        searched = described.search_space()
        is_small = self.op.name in described.operations and not searched.features and searched.enumerate(MAX_LISTED)
        return described.space(self.op.name) if is_small else searched

    @cached_property
    def _problems(self) -> Mapping[str, Any] | None:
        if self.problems is not None:
            return read_problems(Path(self.problems).expanduser())
        if not self.matrices:
            return None
        return {name: MatrixFeatures.from_pattern(matrix.pattern, name) for name, matrix in self._matrices.items()}

    def _platform_conditions(self) -> Mapping[str, Any]:
        """Name what seconds of the platform depend on; those that come by hand were not measured on this machine."""
        if self.space is not None:
            return {}  # a campaign remembers its space
        if self._runs_here:
            made = to_json_values(conditions_of(self.platform, self.op, self.timing).settings)
            return {"platform": self.platform.name, **made.pop("platform"), **made}
        declared = getattr(self.platform, "conditions", None)
        return {"platform": self.platform.name, **({} if declared is None else declared(self.op))}

    @cached_property
    def _matrices(self) -> Mapping[str, SparseMatrix]:
        return {name: read_matrix(path).astype(np.float32) for name, path in self.files.items()}

    def _check(self) -> None:
        if self.matrices and self.problems:
            raise ValueError(f"matrices={self.matrices} and problems={self.problems}: the problems are the one or the "
                             "other")
        if self.space is None and not self.matrices:
            raise ValueError("what shall be tuned? Give space=<YAML or T1 file>, or matrices=<folder of matrix files> "
                             "for SPADE")
        for name in ("space", "matrices", "problems", "results"):
            path = getattr(self, name)
            if path and not Path(path).expanduser().exists():
                raise ValueError(f"{name}={path}: there is no such file or folder")
        for name in ("budget", "batch", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.{name}={getattr(self, name)}: it must be at least 1")
        if self.executor not in EXECUTORS:
            raise ValueError(f"task.executor={self.executor}: there are {', '.join(EXECUTORS)}")
        if self.command is None and self.executor != "local":
            raise ValueError(f"task.executor={self.executor} runs commands, and there is none: give task.command")
        if self.command is not None:
            self._line(next(iter(self._problems or {ONLY: {}})), self._space.default())
            self._check_names(self.command)
            self._runner  # noqa: B018 - what it needs is missing before anything is asked

    @property
    def _space(self) -> SearchSpace:
        space = self._configurations
        return space if isinstance(space, SearchSpace) else SearchSpace.from_grid(space)

    def _check_names(self, command: str) -> None:
        """Refuse a command that runs the same program for trials that differ.

        Raises:
            ValueError: names the parameters that the command lacks, or {file}.
        """
        named = {re.split(r"[.\[]", name)[0] for _, name, _, _ in string.Formatter().parse(command) if name}
        missing = [name for name in self._space.varied_names if name not in named]
        problems = self._problems or {ONLY: {}}
        if not named & ({FILE, MATRIX} if self.matrices else {PROBLEM}):
            told = [() if self.matrices else tuple(each[name] for name in each if name in named)
                    for each in problems.values()]
            if len(set(told)) < len(problems):
                missing.append(FILE if self.matrices else PROBLEM)
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
                    why = (f"one more trial of each problem is expected to gain less than {self.tolerance:.2%}, or "
                           "none is left: task.tolerance=<less> continues")
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
        self.campaign.tell(proposal.problem, proposal.config, seconds=None if failed else found,
                           failure=found if failed else None)
        logger.info("%s%s: %s", f"{proposal.problem}, " if proposal.problem else "", proposal.config,
                    found if failed else f"{found:.6g} s")

    def _time(self, proposal: Proposal) -> float | str | None:
        """Return seconds, or why there are none; None: the trial was stopped."""
        if self.command is not None:
            line = self._line(proposal.problem, proposal.config)
            found = self._runner.run(line, self.timeout_seconds)
            if not found.started:
                raise ValueError(f"task.command cannot be run: {line}: {found.failure}")
            return found.failure if found.seconds is None else found.seconds
        matrix, width = self._matrices[proposal.problem], getattr(self.platform, "width", DEFAULT_WIDTH)
        operands = operands_for(self.platform, self.op, matrix, width, self.seed)
        try:
            measurement = self.platform.measure(self.op, operands, proposal.config, self.timing)
        except FAILURES as error:
            return f"{type(error).__name__}: {error}"
        return measurement.best if measurement.failure is None else measurement.failure

    def _line(self, problem: str, config: Config) -> str:
        """Fill in the command."""
        assert self.command is not None
        parameters = dict(config.values)
        described = {FILE: self.files[problem], MATRIX: problem} if self.matrices else {
            PROBLEM: problem, **(self._problems or {ONLY: {}})[problem]}
        twice = parameters.keys() & described.keys()
        if twice:
            raise ValueError(f"{self._space.name} has a parameter named {min(twice)}, which task.command replaces by "
                             "what it is of the problem: rename it")
        values = {**described, **parameters}
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
        write_proposals(path, trials, self.campaign.space, self._column)
        if trials:
            log.console.print(f"{len(trials)} trials to run are in {path}: fill in seconds, and start again with "
                              f"task.results={path}", soft_wrap=True)
        else:
            log.console.print("The campaign ends: budget=<more> or task.tolerance=<less> continues", soft_wrap=True)

    def _tell_results(self, path: Path) -> None:
        """Tell what is new in a CSV of results, once all of it has been read."""
        known = Counter((row.problem, row.config, row.failure if np.isnan(row.seconds) else row.seconds)
                        for row in self.campaign.history(forgotten=True).itertuples())
        fresh = []
        for each in read_results(path, self.campaign, self._column):
            key = each[0].problem, each[0].config.key, each[2] or each[1]
            known[key] -= 1
            if known[key] < 0:
                fresh.append(each)
        self.campaign.tell_all(
            {"problem": trial.problem, "config": trial.config, "seconds": seconds, "failure": failure}
            for trial, seconds, failure in fresh)
        logger.info("%d new results in %s", len(fresh), path)

    def _report(self, out: Path) -> Mapping[str, float]:
        summary, progress = self.campaign.summary(), self.campaign.history()
        write_frame(out / "progress.parquet", progress)
        names = self.campaign.space.names
        rows = [{self._column: each.problem, "trials": each.trials} | ({} if each.config is None else {
            **dict(each.config.values), "seconds": each.seconds,
            "expected_regret": each.regret if math.isfinite(each.regret) else None}) for each in summary]
        best = pd.DataFrame(rows, columns=[self._column, *names, "seconds", "trials", "expected_regret"], dtype=object)
        write_text(out / "best.csv", best.to_csv(index=False))
        if len(summary) == 1 and len(progress):
            write_t4(out / "trials_T4.json.gz", self._t4(progress))
        log.console.print(_table(summary, names, self._column), soft_wrap=False)
        draw_campaign(progress, out / "progress")
        if self.sources:
            trusts = self.campaign.trusts()
            write_frame(out / "trusts.parquet", trusts)
            draw_trusts(trusts, out / "trusts")
        begun = [each for each in summary if each.config is not None]
        found = {"trials": float(self.campaign.count()), "problems": float(len(summary)), "begun": float(len(begun)),
                 "failures": float(progress["seconds"].isna().sum())}
        if begun and all(math.isfinite(each.regret) for each in begun):
            found |= {"expected_regret": geomean(np.array([1 + each.regret for each in begun])) - 1,
                      "expected_gain": float(np.mean([each.gain for each in begun]))}
        return found

    def _t4(self, progress: pd.DataFrame) -> pd.DataFrame:
        """Return the trials of the only problem as a table of parameters, seconds and failures."""
        problem = progress["problem"].iloc[0]
        values = [dict(self.campaign.program(problem, key).values) for key in progress["config"]]
        return pd.DataFrame(values).assign(seconds=progress["seconds"], failure=progress["failure"])


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


def _table(summary: Sequence[ProblemSummary], names: Sequence[str], column: str) -> Table:
    table = report_table((column, *names, "seconds", "trials", "expected regret"), text=(column,))
    for each in summary:
        values = ["" if each.config is None else str(each.config[name]) for name in names]
        table.add_row(each.problem, *values, "" if each.seconds is None else f"{each.seconds:.4g}", str(each.trials),
                      "" if each.seconds is None else f"{each.regret:.1%}" if math.isfinite(each.regret) else "unknown")
    return table
