"""How fast ragged programs are beside the ways in which others handle sequences and matrices of several sizes."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from sparloom import log
from sparloom.experiments.case_journal import journal_folder
from sparloom.experiments.encoder_peers import (
    COMPARED,
    PADDED_PEERS,
    RAGGED_PEERS,
    RISING,
    micro_batch_peers,
    module_peer_versions,
)
from sparloom.experiments.packed_inputs import PackedInputs, attention_module, encoder_layer
from sparloom.experiments.ragged_case import RaggedCase, method_rows, planned_cases, ragged_frame
from sparloom.experiments.ragged_compilation import compile_seconds
from sparloom.experiments.ragged_modules import OWN_MODULES, attention_kernels, prelude_seconds
from sparloom.experiments.ragged_peers import prepare_peers
from sparloom.experiments.ragged_products import ProductSizes, triangular_methods, variable_methods
from sparloom.files import write_json
from sparloom.measure import Measurement, TimingProtocol
from sparloom.platforms import interleaved
from sparloom.ragged import LengthCorpus
from sparloom.report import INTERNAL_PEERS, draw_ragged, ragged_metrics, ragged_tables

__all__ = ["BenchRagged"]

BLAS_SPINS = 0.15  # seconds that idle threads of SciPy's OpenBLAS keep a processor busy, and a little more
Row = dict[str, Any]


@dataclass(frozen=True)
class BenchRagged:
    """Time an encoder layer, its attention, masked attention, vgemm and trmm, each beside its peers, and the compiler.

    Every method has its inputs in the layout that it likes best, made before; results are compared with PyTorch's,
    sequence after sequence. Peers of which there are many forms (the padded batch; sizes of micro-batches) take part
    with the one that is fastest in a run or two; of the others those that are not far behind. All of these run in turn.
    Nobody is left out for being far behind a peer that calls what PyTorch does not document (`INTERNAL_PEERS`).

    A run that is killed goes on at the case where it was, as long as commit and settings are the same; parts may be
    timed one after the other.

    Args:
        lengths: of sequences.
        parts: that are compared.
        batches: sequences in one.
        count: batches of a data set; the paper takes 10.
        products: batch sizes of vgemm.
        triangles: rows of the matrices of trmm.
        causal: data sets for masked attention.
        layers: of a model that shares one prelude.
        product_timing: of vgemm and trmm, whose calls are short.
        schedule: of own modules: None for the default, "auto" for one that is searched before.
        journals: folder of what is under way; emptied when it is complete.
        seed: of weights, tokens and matrices, and of the bootstrap.
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
        """Write per_case.parquet, peers.json and figures; returns ratios of seconds with bounds."""
        frame = ragged_frame(self._case, self._planned(), self._folder, out, threads=self.threads)
        write_json(out / "peers.json", module_peer_versions())
        metrics = ragged_metrics(frame, layers=self.layers, seed=self.seed)
        for table in ragged_tables(frame, metrics):
            log.console.print(table)
        draw_ragged(frame, out)
        shutil.rmtree(self._folder)
        return metrics

    def _planned(self) -> Iterator[RaggedCase]:
        return planned_cases(self.parts, {
            **dict.fromkeys(("encoder", "mha"), (self.lengths.names, self.batches, self.count)),
            "causal": (self.causal, self.batches, self.count), "vgemm": ([""], self.products, 1),
            "trmm": ([""], self.triangles, 1), "compile": ([""], [0], 1)})

    def _case(self, case: RaggedCase) -> list[Row]:
        """Time one case: a row for each method."""
        torch.set_num_threads(self.threads)
        about: Row = {"part": case.part, "data": case.data, "size": case.size, "number": case.number}
        if case.part == "vgemm":
            sizes = ProductSizes.drawn(case.size, seed=self.seed)
            about |= {"flops": sizes.flops}
            return self._products(about, variable_methods(sizes, threads=self.threads, seed=self.seed))
        if case.part == "trmm":
            about |= {"flops": case.size**3}
            return self._products(about, triangular_methods(case.size, threads=self.threads, seed=self.seed))
        if case.part == "compile":
            return [about | {"method": name, "median": float(np.median(seconds)), "seconds": seconds}
                    for name, seconds in compile_seconds(self.timing.repetitions).items()]
        lengths = self.lengths.load(case.data)
        batch = lengths.batches(case.size, count=case.number + 1)[case.number]
        about |= {"real": lengths.real, "tokens": int(batch.sum()), "longest": int(batch.max())}
        if case.part == "causal":
            return method_rows(about, self._timed(attention_kernels(batch, threads=self.threads, seed=self.seed)))
        return self._modules(case.part, batch, about)

    def _modules(self, part: str, batch: np.ndarray, about: Row) -> list[Row]:
        module = encoder_layer(seed=self.seed) if part == "encoder" else attention_module(seed=self.seed)
        inputs = PackedInputs.drawn(module, batch.tolist(), seed=self.seed)
        found = prepare_peers(inputs, self._groups(len(batch)), always=COMPARED, rising=RISING, apart=INTERNAL_PEERS)
        own = OWN_MODULES[part](inputs, self.schedule)
        found.check("sparloom", own)
        calls: dict[str, Callable[[], object]] = {"sparloom": own.run, **found.calls()}
        rows = method_rows(about, self._timed(calls))
        torch.compiler.reset()
        rows += [about | {"method": name, "probe": seconds} for name, seconds in found.left_out.items()]
        if part == "encoder":
            seconds = prelude_seconds(batch, repetitions=self.timing.repetitions)
            rows.append(about | {"method": "prelude", "median": float(np.median(seconds)), "seconds": seconds})
        return rows

    def _groups(self, sequences: int) -> Mapping[str, Mapping[str, Callable[[PackedInputs], Any]]]:
        """Peers by what they are called in the end: the fastest of each group takes part."""
        return {"padded": PADDED_PEERS, "micro_batches": micro_batch_peers(sequences),
                **{name: {name: prepare} for name, prepare in RAGGED_PEERS.items()}}

    def _timed(self, calls: Mapping[str, Callable[[], object]]) -> dict[str, Measurement]:
        with torch.inference_mode():
            return interleaved(calls, self.timing, threads=self.threads)

    def _products(self, about: Row, calls: Mapping[str, Callable[[], object]]) -> list[Row]:
        return method_rows(about, interleaved(calls, self.product_timing, threads=self.threads, settle=BLAS_SPINS))

    @cached_property
    def _folder(self) -> Path:
        """Where this run is under way: another commit or other settings begin anew."""
        return journal_folder(self.journals, self.schedule, self.layers, self.timing, self.product_timing, self.threads,
                              self.seed, lengths=self.lengths)
