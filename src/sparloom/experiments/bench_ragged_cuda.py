"""How fast ragged programs are on a GPU, beside PyTorch's ways to handle sequences of several lengths and cuBLAS.

Nothing of this has run on a GPU; see docs/gpu_status.md.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparloom import log
from sparloom.experiments.case_journal import journal_folder
from sparloom.experiments.encoder_peers import (
    COMPARED,
    DEVICE_PEERS,
    PADDED_PEERS,
    RISING,
    micro_batch_peers,
    module_peer_versions,
)
from sparloom.experiments.packed_inputs import PackedInputs, attention_module, encoder_layer
from sparloom.experiments.ragged_case import RaggedCase, method_rows, planned_cases, ragged_frame
from sparloom.experiments.ragged_device import device_module, triangular_on_device, variable_on_device
from sparloom.experiments.ragged_peers import prepare_peers
from sparloom.experiments.ragged_products import ProductSizes
from sparloom.files import write_json
from sparloom.measure import TimingProtocol
from sparloom.platforms import CupyGpu, Gpu, interleaved_on_device
from sparloom.ragged import LengthCorpus
from sparloom.report import draw_ragged, ragged_metrics, ragged_tables

__all__ = ["BenchRaggedCuda"]


@dataclass(frozen=True)
class BenchRaggedCuda:
    """Time an encoder layer, its attention, vgemm and trmm on a GPU, each beside its peers, by events of the device.

    Peers are chosen and checked as by `BenchRagged`. All compute in float32 without TF32, but varlen attention, which
    PyTorch has in bfloat16 only. A run that is killed goes on at the case where it was.

    Args:
        lengths: of sequences.
        parts: "encoder", "mha", "vgemm", "trmm".
        batches: sequences in one.
        count: batches of a data set.
        products: batch sizes of vgemm.
        triangles: rows of the matrices of trmm.
        device: of PyTorch's tensors.
        journals: folder of what is under way; emptied when it is complete.
        seed: of weights, tokens and matrices, and of the bootstrap.
        gpu: where our kernels run; None: the current device of CuPy.
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
        """Write per_case.parquet, peers.json, device.json and figures; returns ratios of seconds with bounds.

        Raises:
            Unsupported: there is no GPU, or CuPy is missing; names the remedy.
        """
        gpu = self.gpu or CupyGpu.current()
        planned = planned_cases(self.parts, {
            **dict.fromkeys(("encoder", "mha"), (self.lengths.names, self.batches, self.count)),
            "vgemm": ([""], self.products, 1), "trmm": ([""], self.triangles, 1)})
        folder = journal_folder(self.journals, self.timing, self.device, dict(gpu.signature()), self.seed,
                                lengths=self.lengths)
        frame = ragged_frame(partial(self._case, gpu), planned, folder, out, threads=1)
        write_json(out / "peers.json", module_peer_versions())
        write_json(out / "device.json", dict(gpu.signature()))
        metrics = ragged_metrics(frame, layers=1, seed=self.seed)
        for table in ragged_tables(frame, metrics):
            log.console.print(table)
        draw_ragged(frame, out)
        shutil.rmtree(folder)
        return metrics

    def _case(self, gpu: Gpu, case: RaggedCase) -> list[dict[str, Any]]:
        """Time one case: a row for each method."""
        about: dict[str, Any] = {"part": case.part, "data": case.data, "size": case.size, "number": case.number}
        device = torch.device(self.device)
        if case.part == "vgemm":
            sizes = ProductSizes.drawn(case.size, seed=self.seed)
            return self._timed(gpu, about | {"flops": sizes.flops},
                               variable_on_device(sizes, gpu, device, seed=self.seed))
        if case.part == "trmm":
            return self._timed(gpu, about | {"flops": case.size**3},
                               triangular_on_device(case.size, gpu, device, seed=self.seed))
        lengths = self.lengths.load(case.data)
        batch = lengths.batches(case.size, count=case.number + 1)[case.number]
        about |= {"real": lengths.real, "tokens": int(batch.sum()), "longest": int(batch.max())}
        return self._modules(gpu, case.part, batch, about)

    def _modules(self, gpu: Gpu, part: str, batch: np.ndarray, about: dict[str, Any]) -> list[dict[str, Any]]:
        device = torch.device(self.device)
        module = encoder_layer(seed=self.seed) if part == "encoder" else attention_module(seed=self.seed)
        inputs = PackedInputs.drawn(module, batch.tolist(), seed=self.seed)
        groups = {"padded": PADDED_PEERS, "micro_batches": micro_batch_peers(len(batch)),
                  **{name: {name: prepare} for name, prepare in DEVICE_PEERS.items()}}
        found = prepare_peers(inputs.to(device), groups, always=COMPARED, rising=RISING,
                              wait=torch.cuda.synchronize if device.type == "cuda" else lambda: None)
        own = device_module(part, inputs, gpu, device)
        found.check("sparloom", own)
        rows = self._timed(gpu, about, {"sparloom": own.run, **found.calls()})
        torch.compiler.reset()
        return rows + [about | {"method": name, "probe": seconds} for name, seconds in found.left_out.items()]

    def _timed(
        self, gpu: Gpu, about: Mapping[str, Any], calls: Mapping[str, Callable[[], object]],
    ) -> list[dict[str, Any]]:
        with torch.inference_mode():
            return method_rows(about, interleaved_on_device(calls, self.timing, gpu.repeat))
