"""Time ragged programs beside the ways in which others handle sequences and matrices of several sizes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import pandas as pd
import torch

from sparloom.baselines import (
    COMPARED,
    DEVICE_BASELINES,
    PADDED_BASELINES,
    RAGGED_BASELINES,
    RISING,
    BoundModule,
    PackedInputs,
    attention_module,
    encoder_layer,
    encoder_versions,
    micro_batch_baselines,
)
from sparloom.experiments.cora.modules import (
    OWN_MODULES,
    CandidateModules,
    Prepare,
    attention_kernels,
    compile_seconds,
    prelude_seconds,
    prepare_baselines,
)
from sparloom.experiments.cora.products import (
    ProductSizes,
    device_module,
    triangular_methods,
    triangular_on_device,
    variable_methods,
    variable_on_device,
)
from sparloom.experiments.harness import finish, run_folder, statistics_of, timed_cases
from sparloom.measure import Measurement, TimingProtocol
from sparloom.platforms import CupyGpu, Gpu, interleaved, interleaved_on_device
from sparloom.ragged import DATASETS, LengthCorpus
from sparloom.report import INTERNAL_PEERS, draw_ragged, ragged_metrics

PREPARING = 6_000.0  # tokens that take as long as preparing and compiling the baselines of a batch
BLAS_SPINS = 0.15  # seconds; idle threads of SciPy's OpenBLAS spin a little less
Row = dict[str, Any]


class PricedCase(Protocol):
    """A case with a name in journals and an expected cost in any unit."""

    @property
    def key(self) -> str: ...

    @property
    def cost(self) -> float: ...


Case = TypeVar("Case", bound=PricedCase)


@dataclass(frozen=True)
class RaggedCase:
    """One comparison.

    Args:
        part: "encoder", "mha", "causal", "vgemm", "trmm" or "compile".
        data: data set of the sequence lengths, or "".
        size: number of sequences or products, or rows of a matrix.
    """

    part: str
    data: str
    size: int
    number: int = 0

    @property
    def key(self) -> str:
        return f"{self.part} {self.data} {self.size} {self.number}"

    @property
    def cost(self) -> float:
        """Expected cost in tokens; matrix products have no tokens and little to prepare."""
        return PREPARING + self.size * DATASETS[self.data].statistics.mean if self.data else PREPARING / 10


def planned_cases(
    parts: Sequence[str], known: Mapping[str, tuple[Sequence[str], Sequence[int], int]],
) -> Iterator[RaggedCase]:
    """List cases by part.

    Args:
        known: part -> names of data sets, sizes, and number of batches of each.

    Raises:
        ValueError: a part is unknown.
    """
    for part in parts:
        if part not in known:
            raise ValueError(f"part {part!r} of bench_ragged: there are {', '.join(known)}")
        names, sizes, count = known[part]
        yield from (RaggedCase(part, name, size, number) for name in names for size in sizes for number in range(count))


def ragged_frame(
    rows_of: Callable[[Case], Sequence[Mapping[str, Any]]], planned: Iterable[Case], folder: Path, *, threads: int,
) -> pd.DataFrame:
    """Run cases by `timed_cases`.

    Args:
        folder: folder of the unfinished run; the caller removes it at the end.
    """
    cases = {case.key: case for case in planned}
    return timed_cases(rows_of, cases, folder, threads=threads, costs={key: case.cost for key, case in cases.items()})


def method_rows(about: Mapping[str, Any], measured: Mapping[str, Measurement]) -> list[dict[str, Any]]:
    return [{**about, "method": method, **statistics_of(taken)} for method, taken in measured.items()]


def _batch(lengths: LengthCorpus, case: RaggedCase) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the sequence lengths of a case, and their columns in the results."""
    data = lengths.load(case.data)
    batch = data.batches(case.size, count=case.number + 1)[case.number]
    return batch, {"real": data.real, "tokens": int(batch.sum()), "longest": int(batch.max())}


@dataclass(frozen=True)
class BenchRagged:
    """Time an encoder layer, its attention, masked attention, vgemm and trmm beside baselines, and the compiler.

    Every method gets its inputs in its preferred layout, prepared beforehand; results are compared with PyTorch's,
    sequence after sequence. Of baselines with several forms (padded batches, sizes of micro-batches) the fastest form
    in one or two runs is timed; other baselines are timed if they are not far behind. Undocumented calls of PyTorch
    (`INTERNAL_PEERS`) exclude no other baseline. All methods run in turn.

    An interrupted run continues with the next case if commit and settings are unchanged.

    Args:
        batches: numbers of sequences of a batch.
        count: batches of a data set; the paper takes 10.
        products: batch sizes of vgemm.
        triangles: rows of the matrices of trmm.
        causal: data sets of masked attention.
        layers: layers of a model that share one prelude.
        product_timing: protocol for vgemm and trmm, whose calls are short.
        schedule: schedule of our modules: None for the default, "auto" for a searched one.
    """

    lengths: LengthCorpus
    parts: Sequence[str]
    batches: Sequence[int]
    count: int
    products: Sequence[int]
    triangles: Sequence[int]
    causal: Sequence[str]
    layers: int
    schedule: Literal["auto"] | None
    timing: TimingProtocol
    product_timing: TimingProtocol
    threads: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet, peers.json and figures; return ratios of seconds with bounds."""
        folder = run_folder(self)
        frame = ragged_frame(self._case, self._planned(), folder, threads=self.threads)
        return finish(out, folder, ragged_metrics(frame, layers=self.layers, seed=self.seed),
                      lambda out: draw_ragged(frame, out), facts={"peers": encoder_versions()}, per_case=frame)

    def _planned(self) -> Iterator[RaggedCase]:
        return planned_cases(self.parts, {
            **dict.fromkeys(("encoder", "mha"), (self.lengths.names, self.batches, self.count)),
            "causal": (self.causal, self.batches, self.count), "vgemm": ([""], self.products, 1),
            "trmm": ([""], self.triangles, 1), "compile": ([""], [0], 1)})

    def _case(self, case: RaggedCase) -> list[Row]:
        torch.set_num_threads(self.threads)
        if case.part == "compile":
            return [_about(case) | {"method": name, "median": float(np.median(seconds)), "seconds": seconds}
                    for name, seconds in compile_seconds(self.timing.repetitions).items()]
        if case.part == "vgemm":
            sizes = ProductSizes.drawn(case.size, seed=self.seed)
            return self._products(_about(case, flops=sizes.flops),
                                  variable_methods(sizes, threads=self.threads, seed=self.seed))
        if case.part == "trmm":
            return self._products(_about(case, flops=case.size**3),
                                  triangular_methods(case.size, threads=self.threads, seed=self.seed))
        batch, facts = _batch(self.lengths, case)
        about = _about(case, **facts)
        if case.part == "causal":
            return method_rows(about, self._timed(attention_kernels(batch, threads=self.threads, seed=self.seed)))
        inputs = _inputs(case.part, batch, self.seed)
        found = prepare_baselines(inputs, _groups(len(batch), RAGGED_BASELINES), always=COMPARED, rising=RISING,
                                  apart=INTERNAL_PEERS)
        rows = _module_rows(about, OWN_MODULES[case.part](inputs, self.schedule), found, self._timed)
        if case.part == "encoder":
            seconds = prelude_seconds(batch, repetitions=self.timing.repetitions)
            rows.append(about | {"method": "prelude", "median": float(np.median(seconds)), "seconds": seconds})
        return rows

    def _timed(self, calls: Mapping[str, Callable[[], object]]) -> dict[str, Measurement]:
        with torch.inference_mode():
            return interleaved(calls, self.timing, threads=self.threads)

    def _products(self, about: Row, calls: Mapping[str, Callable[[], object]]) -> list[Row]:
        return method_rows(about, interleaved(calls, self.product_timing, threads=self.threads, settle=BLAS_SPINS))


def _about(case: RaggedCase, **facts: Any) -> Row:
    return {"part": case.part, "data": case.data, "size": case.size, "number": case.number, **facts}


def _inputs(part: str, batch: np.ndarray, seed: int) -> PackedInputs:
    module = encoder_layer(seed=seed) if part == "encoder" else attention_module(seed=seed)
    return PackedInputs.drawn(module, batch.tolist(), seed=seed)


def _groups(sequences: int, packed: Mapping[str, Prepare]) -> Mapping[str, Mapping[str, Prepare]]:
    """Group baselines by their name in the results; the fastest form of each group is timed."""
    return {"padded": PADDED_BASELINES, "micro_batches": micro_batch_baselines(sequences),
            **{name: {name: prepare} for name, prepare in packed.items()}}


def _module_rows(
    about: Row, own: BoundModule, found: CandidateModules,
    timed: Callable[[Mapping[str, Callable[[], object]]], dict[str, Measurement]],
) -> list[Row]:
    """Check our module, time it in turn with the chosen baselines, and list those that were left out."""
    found.check("sparloom", own)
    rows = method_rows(about, timed({"sparloom": own.run, **found.calls()}))
    torch.compiler.reset()
    return rows + [about | {"method": name, "probe": seconds} for name, seconds in found.left_out.items()]


@dataclass(frozen=True)
class BenchRaggedCuda:
    """Time an encoder layer, its attention, vgemm and trmm on a GPU beside baselines, by events of the device.

    Baselines are chosen and checked as by `BenchRagged`. All compute in float32 without TF32, except varlen attention,
    which PyTorch has in bfloat16 only. An interrupted run continues with the next case.

    Args:
        lengths, batches, count, products, triangles, journals, seed: see `BenchRagged`.
        parts: "encoder", "mha", "vgemm", "trmm".
        device: device of PyTorch's tensors.
        gpu: device of our kernels; None: the current device of CuPy.
    """

    lengths: LengthCorpus
    parts: Sequence[str]
    batches: Sequence[int]
    count: int
    products: Sequence[int]
    triangles: Sequence[int]
    timing: TimingProtocol
    device: str
    journals: str
    seed: int
    gpu: Gpu | None = None

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet, peers.json, device.json and figures; return ratios of seconds with bounds.

        Raises:
            Unsupported: there is no GPU, or CuPy is not installed; names the remedy.
        """
        gpu = self.gpu or CupyGpu.current()
        planned = planned_cases(self.parts, {
            **dict.fromkeys(("encoder", "mha"), (self.lengths.names, self.batches, self.count)),
            "vgemm": ([""], self.products, 1), "trmm": ([""], self.triangles, 1)})
        signature = dict(gpu.signature())
        folder = run_folder(self, signature, without=("gpu",))
        frame = ragged_frame(partial(self._case, gpu), planned, folder, threads=1)
        return finish(out, folder, ragged_metrics(frame, layers=1, seed=self.seed), lambda out: draw_ragged(frame, out),
                      facts={"device": signature, "peers": encoder_versions()}, per_case=frame)

    def _case(self, gpu: Gpu, case: RaggedCase) -> list[Row]:
        device, timed = torch.device(self.device), partial(self._timed, gpu)
        if case.part == "vgemm":
            sizes = ProductSizes.drawn(case.size, seed=self.seed)
            return method_rows(_about(case, flops=sizes.flops),
                               timed(variable_on_device(sizes, gpu, device, seed=self.seed)))
        if case.part == "trmm":
            return method_rows(_about(case, flops=case.size**3),
                               timed(triangular_on_device(case.size, gpu, device, seed=self.seed)))
        batch, facts = _batch(self.lengths, case)
        inputs = _inputs(case.part, batch, self.seed)
        found = prepare_baselines(inputs.to(device), _groups(len(batch), DEVICE_BASELINES), always=COMPARED,
                                  rising=RISING,
                                  wait=torch.cuda.synchronize if device.type == "cuda" else lambda: None)
        return _module_rows(_about(case, **facts), device_module(case.part, inputs, gpu, device), found, timed)

    def _timed(self, gpu: Gpu, calls: Mapping[str, Callable[[], object]]) -> dict[str, Measurement]:
        with torch.inference_mode():
            return interleaved_on_device(calls, self.timing, gpu.repeat)
