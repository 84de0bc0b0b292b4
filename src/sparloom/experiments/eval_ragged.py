"""What ragged programs save and what raggedness costs: computation, memory, preludes, schedules, every kernel."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from sparloom import log
from sparloom.experiments.case_journal import journal_folder
from sparloom.experiments.ragged_breakdown import breakdown_arms
from sparloom.experiments.ragged_case import method_rows, ragged_frame
from sparloom.experiments.ragged_costs import activation_rows, computation_rows
from sparloom.experiments.ragged_hoisting import hoisting_arms
from sparloom.experiments.ragged_pad_fusion import pad_fusion_arms
from sparloom.experiments.ragged_preludes import prelude_arms, prelude_bytes
from sparloom.experiments.ragged_splitting import splitting_arms
from sparloom.experiments.ragged_storage import storage_arms, storage_bytes
from sparloom.measure import TimingProtocol
from sparloom.platforms import interleaved
from sparloom.ragged import ATTENTION_LOOPS, ATTENTION_OPERATORS, SPLIT_OPERATORS, LengthCorpus
from sparloom.report import RAGGED_PARTS

__all__ = ["EvalRagged"]

Row = dict[str, Any]
Call = Callable[[], object]
COUNTED = ("computation", "activations")


@dataclass(frozen=True)
class Case:
    """What is counted or timed at once.

    Args:
        part: a key of `RAGGED_PARTS`, or "activations".
        data: data set of the sequence lengths, or "".
        size: sequences in a batch.
        operator: of the attention, or "".
    """

    part: str
    data: str
    size: int
    operator: str = ""

    @property
    def key(self) -> str:
        return f"{self.part} {self.data} {self.size} {self.operator}"

    @property
    def cost(self) -> float:
        """Expected cost in timed cases; to count takes next to nothing."""
        return 0.02 if self.part in COUNTED else 1.0


@dataclass(frozen=True)
class EvalRagged:
    """Count what ragged programs compute and keep, and time the parts that make them up, each beside its alternatives.

    Results of all that is timed are compared with plain ones first. What belongs to one comparison runs in turn.

    A run that is killed goes on at the case where it was, as long as commit and settings are the same; parts may be
    done one after the other.

    Args:
        lengths: of sequences.
        parts: "computation" (Figures 2, 22, and memory), "prelude", "hoisting" (Figure 23), "storage" (elements
            found as in sparse storage), "splitting" (Figure 14), "pad_fusion" (Figure 12), "breakdown" (Figures 13,
            24).
        sizes: sequences in a batch, for computation.
        kept: sequences in a batch, for memory.
        count: batches of a data set that are counted, for computation, memory and bytes of preludes; one is timed.
        prelude, storage, splitting, pad_fusion, breakdown: pairs of a data set and the sequences in a batch.
        equal: sequences in a batch of hoisting.
        tokens: of each of those.
        journals: folder of what is under way; emptied when it is complete.
        seed: of weights and tokens.
    """

    lengths: LengthCorpus
    parts: Sequence[str]
    sizes: Sequence[int]
    kept: int
    count: int
    prelude: Sequence[tuple[str, int]]
    storage: Sequence[tuple[str, int]]
    equal: int
    tokens: int
    splitting: Sequence[tuple[str, int]]
    pad_fusion: Sequence[tuple[str, int]]
    breakdown: Sequence[tuple[str, int]]
    timing: TimingProtocol
    threads: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet and figures; returns numbers of every part, see its `..._metrics` in `report`."""
        frame = ragged_frame(self._case, self._planned(), self._folder, out, threads=self.threads)
        metrics: dict[str, float] = {}
        for part in self.parts:
            report = RAGGED_PARTS[part]
            metrics |= report.metrics(frame)
            for table in report.tables(frame):
                log.console.print(table)
            for name, draw in report.figures.items():
                draw(frame, out / name)
        shutil.rmtree(self._folder)
        return metrics

    def _planned(self) -> Iterator[Case]:
        for part in self.parts:
            if part not in RAGGED_PARTS:
                raise ValueError(f"part {part!r} of eval_ragged: there are {', '.join(RAGGED_PARTS)}")
            if part == "computation":
                for name in self.lengths.names:
                    yield from (Case(part, name, size) for size in self.sizes)
                    yield Case("activations", name, self.kept)
            elif part == "hoisting":
                yield from (Case(part, "", self.equal, operator) for operator in ATTENTION_OPERATORS)
            else:
                operators = {"splitting": SPLIT_OPERATORS, "storage": ATTENTION_LOOPS}.get(part, ("",))
                yield from (Case(part, name, size, operator) for name, size in getattr(self, part)
                            for operator in operators)

    def _case(self, case: Case) -> list[Row]:
        """Count or time one case: a row for each operator and method."""
        torch.set_num_threads(self.threads)
        about: Row = {"part": case.part, "data": case.data, "size": case.size, "operator": case.operator}
        if case.part == "hoisting":
            return self._timed(about, hoisting_arms(case.operator, batch=case.size, tokens=self.tokens,
                                                    threads=self.threads, seed=self.seed))
        lengths = self.lengths.load(case.data)
        batches = lengths.batches(case.size, count=self.count)
        about["real"] = lengths.real
        if case.part == "computation":
            return [about | row for row in computation_rows(batches)]
        if case.part == "activations":
            return [about | row for row in activation_rows(batches)]
        if case.part == "prelude":
            taken = prelude_bytes(batches)
            return [row | {f"{purpose}_bytes": count for purpose, count in taken[row["method"]].items()}
                    for row in self._timed(about, prelude_arms(batches[0]), threads=1)]
        if case.part == "storage":
            taken = storage_bytes(case.operator, batches[0])
            arms = storage_arms(case.operator, batches[0], threads=self.threads, seed=self.seed)
            return [row | {"storage_bytes": taken.get(row["method"])} for row in self._timed(about, arms)]
        if case.part == "splitting":
            return self._timed(about, splitting_arms(case.operator, batches[0], threads=self.threads, seed=self.seed))
        if case.part == "pad_fusion":
            return self._timed(about, pad_fusion_arms(batches[0], threads=self.threads, seed=self.seed))
        return [row for operator, arms in breakdown_arms(batches[0], threads=self.threads, seed=self.seed).items()
                for row in self._timed(about | {"operator": operator}, arms)]

    def _timed(self, about: Row, arms: Mapping[str, Call], *, threads: int | None = None) -> list[Row]:
        with torch.inference_mode():
            return method_rows(about, interleaved(arms, self.timing, threads=threads or self.threads))

    @cached_property
    def _folder(self) -> Path:
        """Where this run is under way: another commit or other settings begin anew."""
        return journal_folder(self.journals, self.count, self.tokens, self.equal, self.timing, self.threads, self.seed,
                              lengths=self.lengths)
