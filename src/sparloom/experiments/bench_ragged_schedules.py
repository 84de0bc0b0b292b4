"""What searching the schedule of a ragged operator gains over the default one."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from sparloom import log
from sparloom.experiments.case_journal import journal_folder
from sparloom.experiments.chosen_schedules import MODULES, PRODUCTS, TOKENS, module_arms, product_arms, token_arms
from sparloom.experiments.ragged_case import RaggedCase, method_rows, ragged_frame
from sparloom.measure import Measurement, TimingProtocol
from sparloom.platforms import interleaved
from sparloom.ragged import LengthCorpus, Structure
from sparloom.report import schedule_metrics, schedule_tables
from sparloom.tuning import PlanCache, RaggedChoice, RaggedEffort, RaggedOperator, choose_schedule

__all__ = ["BenchRaggedSchedules"]


@dataclass(frozen=True)
class BenchRaggedSchedules:
    """Choose a schedule for each batch as `schedule="auto"` does, and time it and the default in turn.

    Where the default is chosen it is timed alone. Choices begin anew with every run, and batches that are alike share
    one. A run that is killed goes on at the case where it was, as long as commit and settings are the same.

    Args:
        lengths: of sequences.
        operators: "encoder", "attention", "softmax", "norm" on batches of sequences; "vgemm", "trmm".
        batches: sequences in one; the first of each data set is taken.
        products: batch sizes of vgemm.
        triangles: rows of the matrices of trmm.
        effort: of a choice.
        timing: of modules.
        product_timing: of the others, whose calls are short.
        journals: folder of what is under way; emptied when it is complete.
        seed: of weights, tokens and matrices, and of the bootstrap.
    """

    lengths: LengthCorpus
    operators: Sequence[str]
    batches: Sequence[int]
    products: Sequence[int]
    triangles: Sequence[int]
    effort: RaggedEffort
    timing: TimingProtocol
    product_timing: TimingProtocol
    threads: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet; returns ratios of seconds with bounds, see `schedule_metrics`."""
        frame = ragged_frame(self._case, self._planned(), self._folder, out, threads=self.threads)
        metrics = schedule_metrics(frame, seed=self.seed)
        for table in schedule_tables(frame):
            log.console.print(table)
        shutil.rmtree(self._folder)
        return metrics

    def _planned(self) -> Iterator[RaggedCase]:
        sizes = {**dict.fromkeys((*MODULES, *TOKENS), self.batches), "vgemm": self.products, "trmm": self.triangles}
        for operator in self.operators:
            if operator not in sizes:
                raise ValueError(f"operator {operator!r} of bench_ragged_schedules: there are {', '.join(sizes)}")
            names = [""] if operator in PRODUCTS else self.lengths.names
            yield from (RaggedCase(operator, name, size) for name in names for size in sizes[operator])

    def _case(self, case: RaggedCase) -> list[dict[str, Any]]:
        """Choose and time one case: a row for each schedule, and one for the search."""
        torch.set_num_threads(self.threads)
        about: dict[str, Any] = {"part": case.part, "data": case.data, "size": case.size, "number": case.number}
        if case.part in PRODUCTS:
            arms, choice = product_arms(case.part, case.size, self._chosen, threads=self.threads, seed=self.seed)
            timed = self._timed(arms, self.product_timing)
        else:
            lengths = self.lengths.load(case.data)
            about["real"] = lengths.real
            batch, = lengths.batches(case.size, count=1)
            if case.part in TOKENS:
                arms, choice = token_arms(case.part, batch, self._chosen, threads=self.threads, seed=self.seed)
            else:
                arms, choice = module_arms(case.part, batch, self._chosen, seed=self.seed)
            timed = self._timed(arms, self.product_timing if case.part in TOKENS else self.timing)
        search = {"method": "search", "median": choice.seconds, "seconds": [choice.seconds],
                  "schedule": choice.config.key, "measured": choice.measured, "promised": choice.ratio}
        return [*method_rows(about, timed), about | search]

    def _chosen(self, operator: RaggedOperator, structure: Structure) -> RaggedChoice:
        return choose_schedule(operator, structure, threads=self.threads, effort=self.effort,
                               plans=PlanCache(self._folder / "plans", keep_busy=True))

    def _timed(self, arms: Mapping[str, Callable[[], object]], timing: TimingProtocol) -> dict[str, Measurement]:
        with torch.inference_mode():
            return interleaved(arms, timing, threads=self.threads)

    @cached_property
    def _folder(self) -> Path:
        """Where this run is under way: another commit or other settings begin anew."""
        return journal_folder(self.journals, self.effort, self.timing, self.product_timing, self.threads, self.seed,
                              lengths=self.lengths)
