"""Evaluate what ragged programs save and what raggedness costs: computation, memory, preludes, schedules, kernels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from sparloom import ragged
from sparloom.experiments.cora.bench_ragged import method_rows, ragged_frame
from sparloom.experiments.cora.layer_variants import breakdown_arms, pad_fusion_arms, prelude_arms, prelude_bytes
from sparloom.experiments.cora.operator_variants import hoisting_arms, splitting_arms, storage_arms, storage_bytes
from sparloom.experiments.harness import finish, run_folder
from sparloom.measure import TimingProtocol
from sparloom.platforms import interleaved
from sparloom.report import RAGGED_PARTS

Row = dict[str, Any]
BULK = 64  # tokens of the paper's padding sequence
ELEMENT_BYTES = 4
KERNEL_NESTS: Mapping[str, tuple[str, ...]] = MappingProxyType({  # kernel of the paper -> loop nests of our program
    "qkv": ("qkv",), "scores": ("scores",), "softmax": ("peak", "weights", "total"), "values": ("mixed",),
    "projection": ("attended",), "norm1": ("mean_1", "spread_1", "norm_1"), "ff1": ("active",), "ff2": ("fed",),
    "norm2": ("mean_2", "spread_2", "norm_2")})
STORED: Mapping[str, str] = MappingProxyType({  # tensor of our program -> tensor of the paper
    "qkv": "qkv", "mixed": "attention", "attended": "projection", "norm_1": "norm1", "active": "ff1", "fed": "ff2",
    "norm_2": "norm2", **dict.fromkeys(ragged.KEPT, "statistics")})
Call = Callable[[], object]
COUNTED = ("computation", "activations")


def computation_rows(batches: Sequence[np.ndarray]) -> list[Row]:
    """Count the operations of all batches.

    Returns:
        A row for each kernel ("operator") and method: "dense" (padded to the longest sequence of a batch), "partial"
        (the paper's padding), "ideal", "own" (iterations of our schedule). For masked attention, kernel "causal", the
        scores of all heads by methods "dense" (no masking), "own" and "ideal".
    """
    sizes, defined = ragged.EncoderSizes(), ragged.encoder_layer(ragged.EncoderShape())
    scheduled = ragged.scheduled_encoder_layer(ragged.EncoderShape(), ragged.EncoderSchedule())
    masked = ragged.scheduled_mixing(ragged.EncoderShape(causal=True), ragged.EncoderSchedule())
    total: dict[tuple[str, str], int] = {}

    def add(method: str, counted: Mapping[str, int]) -> None:
        for kernel, count in counted.items():
            total[kernel, method] = total.get((kernel, method), 0) + count

    for lengths in batches:
        structure, ideal = ragged.Structure({ragged.LENGTHS: lengths}), ragged.ragged_flops(lengths, sizes)
        add("dense", ragged.dense_flops(lengths, sizes))
        add("partial", ragged.partial_flops(ragged.with_bulk_sequence(lengths, BULK), sizes, ragged.LoopPadding()))
        add("ideal", ideal)
        computed, wanted = ragged.iterations(scheduled, structure), ragged.iterations(defined, structure)
        add("own", {kernel: round(count * _over(computed, KERNEL_NESTS[kernel]) / _over(wanted, KERNEL_NESTS[kernel]))
                    for kernel, count in ideal.items()})
        add("dense", {"causal": sizes.heads * int((lengths**2).sum())})
        add("ideal", {"causal": sizes.heads * int((lengths * (lengths + 1) // 2).sum())})
        add("own", {"causal": ragged.iterations(masked, structure)["weights"]})
    return [{"operator": kernel, "method": method, "flops": count} for (kernel, method), count in total.items()]


def activation_rows(batches: Sequence[np.ndarray]) -> list[Row]:
    """Count the bytes of activations that the forward pass keeps, for all batches.

    Returns:
        A row for each tensor ("operator") and method: "dense", "partial" (the paper's padding of storage), "ragged" (no
        padding), all with scores and probabilities; "own" (what our layer stores for its gradients, with the
        "statistics" of rows of scores and of tokens).
    """
    sizes, shape = ragged.EncoderSizes(), ragged.EncoderShape()
    program = ragged.scheduled_encoder_layer(shape, ragged.EncoderSchedule(), kept=ragged.KEPT)
    total: dict[tuple[str, str], int] = {}
    for lengths in batches:
        structure, tensors = ragged.Structure({ragged.LENGTHS: lengths}), program.tensors()
        stored: dict[str, int] = {}
        for name, tensor in tensors.items():
            if name not in program.inputs() and tensor.local is None:
                stored[STORED[name]] = stored.get(STORED[name], 0) + structure.size(tensor)
        for method, counted in {
                "dense": ragged.dense_activations(lengths, sizes),
                "partial": ragged.ragged_activations(lengths, sizes, ragged.StoragePadding()),
                "ragged": ragged.ragged_activations(lengths, sizes, ragged.StoragePadding(1, 1, 1)),
                "own": stored}.items():
            for tensor, elements in counted.items():
                total[tensor, method] = total.get((tensor, method), 0) + elements
    return [{"operator": tensor, "method": method, "bytes": ELEMENT_BYTES * count}
            for (tensor, method), count in total.items()]


def _over(counts: Mapping[str, int], nests: Sequence[str]) -> int:
    return sum(counts[nest] for nest in nests)


@dataclass(frozen=True)
class Case:
    """One count or one comparison.

    Args:
        part: a key of `RAGGED_PARTS`, or "activations".
        data: data set of the sequence lengths, or "".
        operator: operator of the attention, or "".
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
        """Expected cost in timed cases; counting is almost free."""
        return 0.02 if self.part in COUNTED else 1.0


@dataclass(frozen=True)
class EvalRagged:
    """Count what ragged programs compute and keep, and time their parts beside alternatives.

    Results of all timed programs are checked first. Methods of one comparison run in turn. An interrupted run continues
    with the next case if commit and settings are unchanged.

    Args:
        parts: "computation" (Figures 2, 22, and memory), "prelude", "hoisting" (Figure 23), "storage" (access as in
            sparse storage), "splitting" (Figure 14), "pad_fusion" (Figure 12), "breakdown" (Figures 13, 24).
        sizes: sequences in a batch, for computation.
        kept: sequences in a batch, for memory.
        count: batches of a data set that are counted, for computation, memory and bytes of preludes; one is timed.
        prelude, storage, splitting, pad_fusion, breakdown: pairs of a data set and the sequences in a batch.
        equal: sequences in a batch of hoisting.
    """

    lengths: ragged.LengthCorpus
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
        """Write per_case.parquet and figures; return the metrics of every part, see its `..._metrics` in `report`."""
        folder = run_folder(self)
        frame = ragged_frame(self._case, self._planned(), folder, threads=self.threads)
        metrics = {key: value for part in self.parts for key, value in RAGGED_PARTS[part].metrics(frame).items()}

        def draw(folder: Path) -> None:
            for part in self.parts:
                for name, figure in RAGGED_PARTS[part].figures.items():
                    figure(frame, folder / name)

        return finish(out, folder, metrics, draw, per_case=frame)

    def _planned(self) -> Iterator[Case]:
        for part in self.parts:
            if part not in RAGGED_PARTS:
                raise ValueError(f"part {part!r} of eval_ragged: there are {', '.join(RAGGED_PARTS)}")
            if part == "computation":
                for name in self.lengths.names:
                    yield from (Case(part, name, size) for size in self.sizes)
                    yield Case("activations", name, self.kept)
            elif part == "hoisting":
                yield from (Case(part, "", self.equal, operator) for operator in ragged.ATTENTION_OPERATORS)
            else:
                operators = {"splitting": ragged.SPLIT_OPERATORS, "storage": ragged.ATTENTION_LOOPS}.get(part, ("",))
                yield from (Case(part, name, size, operator) for name, size in getattr(self, part)
                            for operator in operators)

    def _case(self, case: Case) -> list[Row]:
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
