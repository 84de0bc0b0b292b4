"""Let eight threads share objects of the package, and stop them where one may meet what another has half done.

    python tests/stress_threads.py [SCENARIO ...] [--calls 20000] [--seed 0] [--write]

Scenarios: BertModel, MPNetModel, T5EncoderModel and TransformerEncoder (packed models), ragged (programs and layers),
sparse (products of NumPy arrays), graphs (layers and products of torch), fused (loops and products in a row); by
default all. Objects are made anew every few hundred calls, and each result is compared with that of another library, or
of one thread. --write: one more thread writes the weights of packed models meanwhile; results must be right again when
it has stopped. Prints wrong results and exceptions of each scenario; fails if there are any, or if the process crashes.

A thread waits at random lines of the package, at the first runs of every line, and most of all in `POINTS`: where it
is checked whether an object is there, which is then made and kept for all.
"""

import argparse
import copy
import faulthandler
import importlib
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import scipy.sparse
import torch
from encoder_models import assert_near, make, real

import sparloom
import sparloom.nn
from sparloom import ragged
from sparloom.fusion import Budget, fprange, fuse

PACKAGE = str(Path(sparloom.__file__).parent)
STATELESS = os.path.join(PACKAGE, "ir")  # most of what compiling a program runs through; nothing waits there
THREADS, BATCHES = 8, 20
FIRST_RUNS, SHARE, SHARE_AT_POINTS, LONGEST_WAIT = 2, 3e-4, 0.3, 5e-4  # runs of a line, of lines, of lines, seconds
POINTS = {
    "sparloom.arrays.sparse_array": ("_Products._product",),
    "sparloom.fusion.executor": ("Workspace.array",),
    "sparloom.jit.native": ("IdentityCache.get",),
    "sparloom.nn.content_hash": ("SpanFingerprint.unchanged",),
    "sparloom.nn.pattern_cache": ("PatternCache.get", "PreparedPattern._transposed_values"),
    "sparloom.nn.ragged_programs": ("PackedWeights._packed", "PackedWeights._memory"),
    "sparloom.platforms.cpu_kernels.row_pieces": ("SparseRows.bind",),
    "sparloom.ragged.runtime": ("Executable._for", "Executable._plan", "Executable.prepare"),
    "sparloom.ragged.structure": ("Structure.prepare", "Structure.table", "Structure._build"),
    "sparloom.tuning.sparse.prepared": ("Prepared.plan", "Prepared._check_unchanged"),
}


@dataclass
class Work:
    """Calls on shared objects.

    Args:
        calls: make a call, and compare its result unless weights are being written.
        write: write other weights, or those of the expected results again.
    """

    calls: list[Callable[[bool], None]]
    write: Callable[[bool], None] = lambda original: None


def packed(kind: str, rng: random.Random) -> Work:
    torch.manual_seed(rng.randrange(1 << 30))
    if kind == "TransformerEncoder":
        layer = torch.nn.TransformerEncoderLayer(24, 3, 40, 0.0, batch_first=True, norm_first=rng.random() < 0.5)
        plain = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(24), enable_nested_tensor=False).eval()
    else:
        plain = make(kind)
    model = sparloom.nn.pack(copy.deepcopy(plain))

    def run(which: torch.nn.Module, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            if kind == "TransformerEncoder":
                found = which(given["x"], src_key_padding_mask=given["attention_mask"] == 0)
            else:
                found = which(**given).last_hidden_state
        return real(found, given)

    def call_of(shape: tuple[int, int]) -> Callable[[bool], None]:
        mask = (torch.rand(shape) < 0.7).long()
        mask[:, rng.randrange(shape[1])] = 1
        given = {"attention_mask": mask, **({"x": torch.randn(*shape, 24)} if kind == "TransformerEncoder" else {
            "input_ids": torch.randint(5, 60, shape)})}
        expected = run(plain, given)

        def call(compare: bool) -> None:
            found = run(model, given)
            assert found.isfinite().all()
            if compare:
                assert_near(found, expected)

        return call

    def write(original: bool) -> None:
        with torch.no_grad():
            for parameter, source in zip(model.parameters(), plain.parameters(), strict=True):
                parameter.copy_(source if original else 0.9 * source)

    return Work([call_of((rng.randint(1, 4), rng.randint(1, 40))) for _ in range(BATCHES)], write)


def ragged_programs(rng: random.Random) -> Work:
    draw = np.random.default_rng(rng.randrange(1 << 30))
    executable = ragged.Executable(ragged.tiled_vgemm(rows=5, cols=32, panel=16, depth=8), threads=1)
    tensors = executable.program.tensors()
    theirs = torch.nn.TransformerEncoderLayer(24, 3, 40, 0.0, batch_first=True)
    ours = sparloom.nn.TransformerEncoderLayer(24, 3, 40)
    ours.load_state_dict(theirs.state_dict())

    def multiply() -> Callable[[bool], None]:
        sizes = [tuple(draw.integers(0, 20, 3)) for _ in range(5)]
        pairs = [(draw.standard_normal((m, k), np.float32), draw.standard_normal((k, n), np.float32))
                 for m, n, k in sizes]
        expected = np.concatenate([(a @ b).reshape(-1) for a, b in pairs])
        structure = ragged.vgemm_structure(*zip(*sizes, strict=True))
        packed_arrays = [np.concatenate([each.reshape(-1) for each in side]) for side in zip(*pairs, strict=True)]

        def call(_: bool) -> None:
            a, b = (ragged.RaggedTensor.from_packed(tensors[name], structure, array).data
                    for name, array in zip("ab", packed_arrays, strict=True))
            out = ragged.RaggedTensor.zeros(tensors["c"], structure)
            executable.run(structure, {"a": a, "b": b, "c": out.data})
            for data in (out.data, executable(structure, a=a, b=b)):
                result = ragged.RaggedTensor(tensors["c"], structure, data).to_packed()[0]
                np.testing.assert_allclose(result.reshape(-1), expected, atol=1e-3)

        return call

    def differentiate() -> Callable[[bool], None]:
        lengths = [rng.randint(1, 9) for _ in range(3)]
        x = torch.randn(sum(lengths), 24)
        expected = torch.cat([theirs(one[None])[0] for one in x.split(lengths)])
        weight = theirs.linear1.weight
        gradient, = torch.autograd.grad(expected.square().sum(), weight)

        def call(_: bool) -> None:
            result = ours(x, lengths)
            assert_near(result, expected)
            assert_near(*torch.autograd.grad(result.square().sum(), ours.linear1.weight), gradient)

        return call

    return Work([rng.choice((multiply, differentiate))() for _ in range(BATCHES)])


def sparse_products(rng: random.Random) -> Work:
    draw = np.random.default_rng(rng.randrange(1 << 30))

    def product() -> Callable[[bool], None]:
        shape = rng.randint(1, 400), rng.randint(1, 400)
        matrix = scipy.sparse.random_array(shape, density=0.05, format="csr", dtype=np.float32, rng=draw)
        dense = draw.standard_normal((shape[1], rng.choice((1, 8, 33))), np.float32)
        left = draw.standard_normal((shape[0], dense.shape[1]), np.float32)
        prepared, array = sparloom.prepare(matrix), sparloom.SparseArray(matrix)
        forward, backward = matrix @ dense, matrix.T @ left
        sampled = matrix.multiply(left @ dense.T).tocsr().data
        square = scipy.sparse.random_array((60, 60), density=0.1, format="csr", rng=draw)
        vector = draw.standard_normal(60)
        powers = [vector, square @ vector, square @ (square @ vector)]

        def call(_: bool) -> None:
            pairs = ((sparloom.spmm(matrix, dense), forward), (prepared.spmm(dense), forward),
                     (array.dot(dense, threads=2), forward), (array.T.dot(left, threads=2), backward),
                     (sparloom.sddmm(matrix, left, dense), sampled), (prepared.sddmm(left, dense), sampled),
                     (sparloom.powers(square, vector, 2), powers))
            for found, expected in pairs:
                np.testing.assert_allclose(found, expected, atol=1e-3)

        return call

    return Work([product() for _ in range(BATCHES // 2)])


def graph_layers(rng: random.Random) -> Work:
    from torch_geometric import nn as theirs

    torch.manual_seed(rng.randrange(1 << 30))
    kinds = [(theirs.GCNConv, sparloom.nn.GCNConv), (theirs.GATConv, sparloom.nn.GATConv),
             (theirs.SAGEConv, sparloom.nn.SAGEConv)]
    pairs = [(original(8, 16), own(8, 16)) for original, own in kinds]
    for original, own in pairs:
        own.load_state_dict(original.state_dict())

    def layer() -> Callable[[bool], None]:
        nodes = rng.randint(2, 200)
        edges, x = torch.randint(nodes, (2, 5 * nodes)), torch.randn(nodes, 8, requires_grad=True)
        graph = sparloom.nn.Graph(edges, nodes)
        original, own = rng.choice(pairs)
        expected = original(x, edges)
        gradient, = torch.autograd.grad(expected.square().sum(), x)
        matrix = torch.rand(nodes, nodes).lt(0.2).float().to_sparse_csr()
        dense = x.detach()
        product = matrix.to_dense() @ dense

        def call(_: bool) -> None:
            torch.testing.assert_close(sparloom.nn.spmm(matrix, dense), product, rtol=0, atol=1e-4)
            for given in (edges, graph):
                result = own(x, given)
                torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
                found, = torch.autograd.grad(result.square().sum(), x)
                torch.testing.assert_close(found, gradient, rtol=1e-3, atol=1e-3)

        return call

    return Work([layer() for _ in range(BATCHES // 2)])


def two_products(A, B, C, n, inner, width):
    first = np.zeros((n, width))
    result = np.zeros((n, width))
    for i in fprange(n):
        for k in range(inner):
            for c in range(width):
                first[i, c] += B[i, k] * C[k, c]
    for i in fprange(n):
        for k in range(A.p[i], A.p[i + 1]):
            for c in range(width):
                result[i, c] += A.x[k] * first[A.i[k], c]
    return result


def fused_products(rng: random.Random) -> Work:
    draw = np.random.default_rng(rng.randrange(1 << 30))
    budget = Budget(threads=2, cache_bytes=1 << 14, ct_size=16)
    functions = [fuse(two_products, budget=budget, bodies=bodies) for bodies in ("recognised", "generated")]

    def product() -> Callable[[bool], None]:
        n, inner, width = rng.randint(1, 300), rng.randint(1, 16), rng.randint(1, 16)
        matrix = scipy.sparse.random_array((n, n), density=0.05, format="csr", rng=draw)
        b, c = draw.standard_normal((n, inner)), draw.standard_normal((inner, width))
        expected = matrix @ (b @ c)

        def call(_: bool) -> None:
            for function in functions:
                np.testing.assert_allclose(function(matrix, b, c, n, inner, width), expected, atol=1e-9)

        return call

    return Work([product() for _ in range(BATCHES // 2)])


SCENARIOS: Mapping[str, Callable[[random.Random], Work]] = {
    **{kind: lambda rng, kind=kind: packed(kind, rng)
       for kind in ("BertModel", "MPNetModel", "T5EncoderModel", "TransformerEncoder")},
    "ragged": ragged_programs, "sparse": sparse_products, "graphs": graph_layers, "fused": fused_products}


class Waits:
    """A trace function that lets its thread wait between lines of the package."""

    def __init__(self, seed: int) -> None:
        self._random, self._runs = random.Random(seed), Counter()
        self._points = set()
        for module, names in POINTS.items():
            for name in names:
                found = importlib.import_module(module)
                for part in name.split("."):
                    found = getattr(found, part)
                self._points.add(getattr(found, "func", found).__code__)

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_filename.startswith(STATELESS):
            return None
        return self._at_point if code in self._points else self._elsewhere

    def _at_point(self, frame, event, argument):
        self._wait(frame, SHARE_AT_POINTS)
        return self._at_point

    def _elsewhere(self, frame, event, argument):
        self._wait(frame, SHARE)
        return self._elsewhere

    def _wait(self, frame, share: float) -> None:
        line = id(frame.f_code), frame.f_lineno
        self._runs[line] += 1
        if self._runs[line] <= FIRST_RUNS or self._random.random() < share:
            time.sleep(LONGEST_WAIT * self._random.random())


def run_threads(work: Work, calls: int, failures: Counter, *, seed: int, waits: Waits, writing: bool = False) -> None:
    """Make each call in all threads at once, then any of them; meanwhile write weights, then make all calls again."""
    start, stopped = threading.Barrier(THREADS), threading.Event()

    def attempt(call: Callable[[bool], None], compare: bool) -> None:
        try:
            call(compare)
        except Exception as error:
            failures[f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"] += 1

    def serve(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        sys.settrace(waits)
        for step in range(calls):
            if step < len(work.calls):
                start.wait()
            attempt(work.calls[step] if step < len(work.calls) else draw.choice(work.calls), not writing)
        sys.settrace(None)

    def write() -> None:
        while not stopped.wait(LONGEST_WAIT):
            work.write(False)
            work.write(True)

    writer = threading.Thread(target=write)
    threads = [threading.Thread(target=serve, args=(number,)) for number in range(THREADS)]
    for each in (*threads, *([writer] if writing else ())):
        each.start()
    for each in threads:
        each.join()
    if writing:
        stopped.set()
        writer.join()
        for call in work.calls:
            attempt(call, True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--calls", type=int, default=20_000, help="of each scenario, of all threads together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="another thread writes the weights of packed models")
    given = parser.parse_args()
    faulthandler.enable()
    sys.setswitchinterval(1e-5)
    torch.set_num_threads(2)
    waits, total = Waits(given.seed), 0
    for name in given.scenarios or SCENARIOS:
        rng, left, failures = random.Random(f"{given.seed} {name}"), given.calls, Counter()
        while left > 0:
            work = SCENARIOS[name](rng)
            count = min(2 * len(work.calls), -(-left // THREADS))
            run_threads(work, count, failures, seed=rng.randrange(1 << 30), waits=waits, writing=given.write)
            left -= THREADS * count
        total += sum(failures.values())
        print(f"{name}: {given.calls} calls, {sum(failures.values())} failed",  # noqa: T201
              *failures.most_common(5), sep="\n  ", flush=True)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
