"""Make every row of AutoSAGE's tables on the processor: its graphs, widths and operations, and its ablations.

AutoSAGE's procedure runs as published: features -> shortlist by an estimate -> probe on an induced subgraph ->
guardrail against the vendor's library. Beside it run our own samples and decisions. What this file stores are times;
`sparloom.report.autosage` makes the decisions of all arms and ablations from them.
"""

import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from sparloom.baselines import SPARSE_BASELINES
from sparloom.experiments.autosage.cases import OPERATIONS, DispatchCase, ReferenceRows, check_environment, user_call
from sparloom.experiments.autosage.kernel_choice import induced_subgraph
from sparloom.experiments.harness import finish, run_folder, seconds_of, statistics_of, timed_cases
from sparloom.jit import NativeCall, address, compile_cpp
from sparloom.measure import TimingProtocol
from sparloom.ops import Op, Operands
from sparloom.platforms import SPARSE_FAMILIES, interleaved, keep_threads_awake, reallocated
from sparloom.platforms.cpu_kernels.row_pieces import BoundRows, Pieces, SparseRows, Traversal
from sparloom.report import (
    autosage_decisions,
    autosage_metrics,
    draw_autosage_ablations,
    draw_autosage_speedups,
)
from sparloom.space import Config
from sparloom.sparse import AutosageCorpus, Pattern, SparseMatrix
from sparloom.tuning import PlanCache
from sparloom.tuning.sparse import CpuBackend, prepare, sample_rows, shortlist

VENDOR = {"spmm": "torch", "sddmm": "sampled_addmm", "attention": "composed"}
"""Operation -> the library in the role of AutoSAGE's vendor: torch's product with a CSR tensor, which calls MKL."""

SIZES = {"erdos_renyi": (200_000, 800_000), "hub_skew": (200_000, 220_000), "hub_split": (20_000, 2_270_000),
         "reddit_like": (232_965, 114_600_000), "products_like": (2_449_029, 123_700_000)}
"""Graph -> nodes and edges at full scale, about."""
EDGE_BYTES, ELEMENT_BYTES = 64, 16  # of an edge while a graph is made, of an element of all dense operands together

NARROW = ("-O3", "-march=x86-64", "-fno-math-errno", "-fno-trapping-math", "-fno-loop-interchange",
          "-fno-loop-unroll-and-jam", "-Wno-psabi", "-fopenmp")
"""Flags of kernels whose vectors hold four numbers, as loads of four values do on a GPU."""
AFTERWARDS = 5  # timed calls of a tuned matrix

Row = dict[str, Any]
Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class BenchAutosage:
    """Time vendor, default, shortlisted kernels, hub thresholds and narrow vectors, and probe them on samples.

    A graph is halved until what its widest case needs fits into `memory_bytes`; scale, rows and nonzeros are in every
    stored row. Every method is checked against float64 before it is timed. An interrupted run continues if commit and
    settings are unchanged.

    Args:
        corpus: graphs and their largest scale.
        tables: graph -> operation -> widths of the dense operands.
        candidates: number of shortlisted kernels besides the default one.
        shares: of the rows of subgraphs, and of the nonzeros of row samples, in probes.
        least_rows: of a subgraph, and as many rows of mean length of a row sample.
        iterations: of a probe, after one untimed run; the least counts, as in AutoSAGE.
        hub_width: width at which hub thresholds are compared, ...
        hub_graphs: ... on these graphs; hubs are rows above these quantiles of the row lengths:
        hub_quantiles: such as 0.99. "never" and "always" cut no row or any row besides.
        vector_graphs: graphs on which SpMM also runs in kernels with vectors of four numbers.
        cap_seconds: AutoSAGE starts no further candidate after so many seconds of timed runs.
    """

    corpus: AutosageCorpus
    tables: Mapping[str, Mapping[str, Sequence[int]]]
    memory_bytes: float
    candidates: int
    shares: Sequence[float]
    least_rows: int
    iterations: int
    hub_width: int
    hub_graphs: Sequence[str]
    hub_quantiles: Sequence[float]
    vector_graphs: Sequence[str]
    cap_seconds: float
    timing: TimingProtocol
    threads: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write whole.parquet, probes.parquet, tuned.parquet, decisions.parquet and two figures; return metrics.

        Raises:
            ValueError: a graph of the tables does not exist, or variables AUTOSAGE_* that change decisions are set.
            MemoryError: a graph does not fit at any scale.
        """
        unknown = [name for name in self.tables if name not in SIZES]
        if unknown:
            raise ValueError(f"no graph {unknown[0]!r} in task.tables: choose from {', '.join(SIZES)}")
        check_environment("AUTOSAGE_CACHE_DIR")
        torch.set_num_threads(self.threads)
        keep_threads_awake()
        graphs = [name for name in self.tables if self.corpus.graphs is None or name in self.corpus.graphs]
        scales = {name: self._scale(name) for name in graphs}
        planned = {case.key: case for name in graphs for case in self._cases(name)}
        folder = run_folder(self, scales, without=("corpus", "memory_bytes", "cap_seconds"))
        load = lru_cache(1)(lambda name: AutosageCorpus(scales[name], [name]).load(name))
        frame = timed_cases(
            partial(self._rows, load, scales), planned, folder, threads=self.threads,
            costs={key: scales[case.matrix] * SIZES[case.matrix][1] * case.width + 1e6
                   for key, case in planned.items()})
        parts = {name: rows.drop(columns="table").dropna(axis=1, how="all").reset_index(drop=True)
                 for name, rows in frame.groupby("table", sort=False)}
        decided = autosage_decisions(**parts, cap_seconds=self.cap_seconds)
        metrics = autosage_metrics(decided, parts["whole"], seed=self.seed)

        def draw(folder: Path) -> None:
            draw_autosage_speedups(decided, folder / "speedups")
            draw_autosage_ablations(metrics, folder / "ablations")

        return finish(out, folder, metrics, draw, **parts, decisions=decided)

    def _cases(self, graph: str) -> list[DispatchCase]:
        return [DispatchCase(op, graph, width) for op, widths in self.tables[graph].items() for width in widths]

    def _scale(self, graph: str) -> float:
        """Halve a graph until its widest case fits into memory."""
        nodes, edges = SIZES[graph]
        widest = max(width for widths in self.tables[graph].values() for width in widths)
        scale = self.corpus.scale
        while scale * (EDGE_BYTES * edges + ELEMENT_BYTES * nodes * widest) > self.memory_bytes:
            scale /= 2
            if scale * nodes < 2:
                raise MemoryError(f"{graph} does not fit into task.memory_bytes={self.memory_bytes:g} at any scale: "
                                  "raise it")
        return scale

    def _rows(
        self, load: Callable[[str], SparseMatrix], scales: Mapping[str, float], case: DispatchCase,
    ) -> list[Row]:
        """Tune one case, time it on the whole graph, and probe it on samples."""
        matrix = load(case.matrix)
        if case.op == "sddmm":  # the vendor does not multiply by the values
            matrix = SparseMatrix(matrix.pattern, np.ones(matrix.pattern.nnz, np.float32))
        op, backend = OPERATIONS[case.op](1), CpuBackend(self.threads)
        operands = reallocated(op.operands(matrix, case.width, self.seed))
        known = {"op": case.op, "matrix": case.matrix, "width": case.width, "scale": scales[case.matrix],
                 "rows": matrix.pattern.rows, "nnz": matrix.pattern.nnz}
        configs, hubs = self._configs(backend, op, operands), self._hubs(case, matrix.pattern)
        with torch.inference_mode():
            tuned = self._tuned(case.op, operands)
            found = [{"table": "tuned", **tuned}]
            found += self._whole(case, op, operands, configs, hubs, tuned["choice"])
            found += self._probes(op, operands, configs, hubs)
        return [{**known, **row} for row in found]

    def _configs(self, backend: CpuBackend, op: Op, operands: Operands) -> list[Config]:
        """Shortlist by our estimate, since that of AutoSAGE is not published; the default comes first."""
        default, model = backend.default_config(op, operands), backend.model(PlanCache(None))
        listed = shortlist(model, op.name, operands, backend.configs(op, operands, sampled=False),
                           count=self.candidates + 1, kind=backend.kind)
        return [default, *(config for config in listed if config != default)][:self.candidates + 1]

    def _hubs(self, case: DispatchCase, pattern: Pattern) -> dict[str, float]:
        """Map the name of each compared threshold to the least nonzeros of a hub, by the whole graph's rows."""
        if case.matrix not in self.hub_graphs or case.width != self.hub_width:
            return {}
        lengths = pattern.row_lengths()
        quantiles = {f"hub_q{100 * share:g}": float(np.quantile(lengths[lengths > 0], share))
                     for share in self.hub_quantiles}
        return {"hub_never": math.inf, **quantiles, "hub_always": 0.0}

    def _own(
        self, op: Op, operands: Operands, configs: Sequence[Config], hubs: Mapping[str, float],
    ) -> tuple[dict[str, Callable[[], NativeCall]], np.ndarray]:
        """Return what binds our kernels, by name, and the array to which all of them write."""
        family = SPARSE_FAMILIES[op.name](self.threads, operands.width)
        result, shared = family.result(operands), configs[0].replace(balance="nonzeros")
        binders = {config.key: partial(family.bind, operands, config, result) for config in configs}
        for name, least in hubs.items():
            cutting = SPARSE_FAMILIES[op.name](self.threads, operands.width, HubRows(least))
            binders[name] = partial(cutting.bind, operands, shared, result)
        return binders, result

    def _whole(
        self, case: DispatchCase, op: Op, operands: Operands, configs: Sequence[Config], hubs: Mapping[str, float],
        choice: str,
    ) -> list[Row]:
        """Check all methods, then time them in turn."""
        binders, result = self._own(op, operands, configs, hubs)
        if choice not in binders:
            family = SPARSE_FAMILIES[op.name](self.threads, operands.width)
            binders[choice] = partial(family.bind, operands, Config.parse("cpu_kernels", choice), result)
        own = {name: bind() for name, bind in binders.items()}
        if case.op == "spmm" and case.matrix in self.vector_graphs and _narrow_exists():
            own["vectors_4"] = _narrow(own[configs[0].key])
        vendor = SPARSE_BASELINES[case.op][VENDOR[case.op]](operands, self.threads)
        known = ReferenceRows(op, operands, CpuBackend(self.threads))
        known.check(np.asarray(vendor()))
        for name, call in own.items():
            result.fill(np.nan)
            call()
            try:
                known.check(result)
            except AssertionError as error:
                raise AssertionError(f"{name} is wrong: {error}") from error
        calls: Calls = {**own, "vendor": vendor}
        taken = interleaved(calls, self.timing, threads=self.threads, settle=0.0)
        listed = {config.key for config in configs}
        lengths = operands.matrix.pattern.row_lengths()
        return [{"table": "whole", "method": name, "role": _role(name, configs[0].key, listed),
                 **({"hub_rows": int((lengths >= hubs[name]).sum())} if name in hubs else {}),
                 **statistics_of(each)} for name, each in taken.items()]

    def _probes(
        self, op: Op, operands: Operands, configs: Sequence[Config], hubs: Mapping[str, float],
    ) -> Iterator[Row]:
        """Time all candidates on each sample as AutoSAGE does: one run untimed, then the least of some."""
        for sample, share, part, drawing in self._samples(op, operands):
            binders: dict[str, Callable[[], Callable[[], Any]]] = {
                "vendor": partial(SPARSE_BASELINES[op.name][VENDOR[op.name]], part, self.threads),
                **self._own(op, part, configs, hubs)[0]}
            for name, bind in binders.items():
                start = time.perf_counter()
                call = bind()
                call()
                best = min(seconds_of(call) for _ in range(self.iterations))
                yield {"table": "probes", "sample": sample, "share": share, "method": name, "best": best,
                       "iterations": self.iterations, "elapsed": time.perf_counter() - start, "drawing": drawing,
                       "sampled_rows": part.matrix.pattern.rows, "sampled_nnz": part.matrix.pattern.nnz}

    def _samples(self, op: Op, operands: Operands) -> Iterator[tuple[str, float, Operands, float]]:
        """Yield samples: kind, share, operands, and the seconds of drawing them."""
        pattern = operands.matrix.pattern
        for share in self.shares:
            start = time.perf_counter()
            thinned = induced_subgraph(pattern, share, np.random.default_rng(self.seed), least_rows=self.least_rows)
            if thinned is not None and thinned.nnz:
                ones = SparseMatrix(thinned, np.ones(thinned.nnz, np.float32))
                yield "subgraph", share, op.operands(ones, operands.width, self.seed), time.perf_counter() - start
            start = time.perf_counter()
            wanted = math.ceil(max(share, min(1.0, self.least_rows / pattern.rows)) * pattern.nnz)
            rows = sample_rows(pattern, nonzeros=wanted, parts=1, seed=self.seed)[0]
            yield "rows", share, operands.take_rows(rows, op.name), time.perf_counter() - start

    def _tuned(self, op: str, operands: Operands) -> Row:
        """Tune a matrix that was not seen before, as `sparloom.tune` does, and call it."""
        family = SPARSE_FAMILIES[op](self.threads, operands.width)
        out, adjacency = family.result(operands), operands.matrix.to_scipy()
        out.fill(0)
        start = time.perf_counter()
        ready = prepare(adjacency, tune=True, threads=self.threads, libraries={}, cache=PlanCache(None))
        call = user_call(ready, op, operands.dense)
        call(out=out)
        first = time.perf_counter() - start
        usual = median(seconds_of(lambda: call(out=out)) for _ in range(AFTERWARDS))
        return {"choice": ready.plan(op, **operands.dense).choice.name, "first_seconds": first, "call_seconds": usual,
                "beyond_seconds": first - usual}


class HubRows:
    """Binds patterns so that threads share the nonzeros of hub rows only; shorter rows stay whole.

    This is what a block of threads per hub row is on a GPU.

    Args:
        least: nonzeros of a hub row; infinity: no row is shared.
    """

    def __init__(self, least: float) -> None:
        self._least = least

    def bind(
        self, pattern: Pattern, *, order: str, balance: str, threads: int, together: bool = False,
    ) -> BoundRows:
        """Fill the struct as `SparseRows` does, then move cuts in shorter rows to the nearer end of the row."""
        bound = SparseRows().bind(pattern, order=order, balance=balance, threads=threads, together=together)
        traversal = bound.kept[0]
        pieces = _whole_below(traversal, bound.pieces, self._least)
        bound.arguments.piece_rows = address(pieces.rows, np.int64)
        bound.arguments.piece_nonzeros = address(pieces.nonzeros, np.int64)
        return BoundRows(bound.arguments, pieces, kept=(traversal, pieces))


def _whole_below(traversal: Traversal, pieces: Pieces, least: float) -> Pieces:
    """Move cuts within rows of fewer nonzeros to an end of the row."""
    indptr, rows, nonzeros = traversal.indptr, pieces.rows.copy(), pieces.nonzeros.copy()
    cut = np.flatnonzero(nonzeros > indptr[rows])
    begins, ends = indptr[rows[cut]], indptr[rows[cut] + 1]
    short = ends - begins < least
    moved = cut[short]
    past_middle = (2 * nonzeros[cut] > begins + ends)[short]
    rows[moved] += past_middle
    nonzeros[moved] = indptr[rows[moved]]
    return Pieces(rows, nonzeros, cut=bool((nonzeros > indptr[rows]).any()), dynamic=pieces.dynamic)


def _role(name: str, default: str, listed: set[str]) -> str:
    if name == default:
        return "default"
    if name in listed:
        return "candidate"
    return name if name == "vendor" else "tuned" if "=" in name else name.partition("_")[0]


def _narrow_exists() -> bool:
    """Tell whether kernels for vectors of four numbers can be compiled: on x86 only, Arm has no wider ones."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def _narrow(call: NativeCall) -> NativeCall:
    """Run a bound product in kernels with vectors of four numbers."""
    return NativeCall(compile_cpp(["cpu/spmm.cpp"], NARROW).sparloom_spmm, call.arguments, kept=(call,))
