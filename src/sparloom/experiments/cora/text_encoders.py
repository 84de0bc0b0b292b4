"""Encode token ids by several libraries, each in a process of its own.

A method reads a model folder with random weights, and turns lists of token ids into the mean vectors of the last layer,
as embedding services do; all of that is timed. The methods of `_Server` are what a process can be asked for.

Libraries that pad get sequences sorted by length, in micro-batches of the size that was fastest; where memory is
measured, and in training, one batch as long as its longest sequence. Files of ids are .npz with `ids` and `lengths`.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from sparloom.errors import Unsupported
from sparloom.experiments.harness import peak_bytes, seconds_of
from sparloom.files import atomic_path
from sparloom.nn import describe_packing, pack

MICRO_BATCHES = (4, 8, 16, 32, 64)  # sizes that are tried besides the whole batch
TRIALS, LONG_SECONDS = 2, 1.0  # runs of each size after the first; one if that took longer
LEARNING_RATE = 1e-5
SETTINGS: Mapping[str, Mapping[str, str]] = MappingProxyType({  # what lets libraries use AVX-512 on any processor
    "ctranslate2_avx512": {"CT2_FORCE_CPU_ISA": "AVX512", "CT2_USE_MKL": "1"},
})
QUIET = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
SERIES_SECONDS = 0.1  # of runs, of which the median counts: the first one finds caches that were filled by others
ANSWER_SECONDS = 1800.0  # after which a process is ended: threads of some libraries wait for each other for ever
TOUCHED_BYTES = 1 << 30  # of memory, used before a first call: a virtual machine gets it from its host at first use
PAUSE = 0.05  # seconds before a series, in which threads of other processes stop to spin

Sequences = Sequence[Sequence[int]]
Encode = Callable[[Sequences], np.ndarray]
"""Token ids to vectors, (sequences, width) float32."""
Padded = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Token ids and mask, both (batch, length) int64, to the last hidden states, (batch, length, width)."""


class EncoderProcess:
    """A method in a process of its own.

    Args:
        method: a key of `ENCODERS`.
        folder: of the model, as `save_pretrained` writes it.
        cache: folder of compiled kernels, by default that of this process.

    Raises:
        Unsupported: the library is not installed, refuses the model, or stands still; says why. The same from all
            methods.
    """

    def __init__(self, method: str, folder: Path, threads: int, *, cache: Path | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, method, folder, threads), daemon=True)
        before = dict(os.environ)
        os.environ |= {**QUIET, **SETTINGS.get(method, {}), "OMP_NUM_THREADS": str(threads),
                       **({} if cache is None else {"SPARLOOM_CACHE": str(cache)})}
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()
        self._answer()

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of `_Server` in the process, and return its result."""
        if not self._process.is_alive():
            raise Unsupported("the process has ended before")
        self._connection.send((name, arguments))
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _answer(self) -> Any:
        try:
            answer, error = self._connection.recv() if self._connection.poll(ANSWER_SECONDS) else (
                None, f"the process did not answer for {ANSWER_SECONDS:g} s")
        except EOFError:
            self._process.join()
            answer, error = None, f"the process ended with {self._process.exitcode}"
        if error:
            self.close()
            raise Unsupported(error)
        return answer


def load_model(folder: Path) -> Any:
    """Load the encoder of a model folder."""
    import transformers

    kind = transformers.AutoConfig.from_pretrained(folder).model_type
    family = transformers.T5EncoderModel if kind == "t5" else transformers.AutoModel
    return family.from_pretrained(folder).eval()


class _Packed:
    """A packed model, called without padding."""

    def __init__(self, folder: Path, threads: int, *, precision: str = "float32") -> None:
        self.model = load_model(folder)
        self.pack_seconds = seconds_of(lambda: pack(self.model, strict=True, precision=precision))
        self._encoder = self.model.encoder if hasattr(self.model, "shared") else self.model

    def __call__(self, sequences: Sequences) -> np.ndarray:
        with torch.inference_mode():
            tokens, lengths = self._encoder.encode_packed(sequences)
            return torch.segment_reduce(tokens, "mean", lengths=lengths).numpy()


def _padded(change: Callable[[Any], Any]) -> Callable[[Path, int], Encode]:
    """Load a model of transformers and change it; it is called with padded batches and masks."""
    return lambda folder, threads: _micro_batched(_by_torch(change(load_model(folder))))


def _by_torch(model: Any) -> Padded:
    def call(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)
                         ).last_hidden_state.float().numpy()

    return call


def _sentences(folder: Path, threads: int, *, packed: bool = False) -> Encode:
    """sentence-transformers as it ships: it reads texts."""
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    if packed:
        pack(model, strict=True)
    return lambda sequences: model.encode([text_of(each) for each in sequences])


def text_of(ids: Sequence[int]) -> str:
    """Write a text whose words are these tokens."""
    return " ".join(f"w{number}" for number in ids)


def _ctranslate2(folder: Path, threads: int, *, compute_type: str = "float32") -> Encode:
    ctranslate2 = importlib.import_module("ctranslate2")
    converted = folder / "ctranslate2"
    if not converted.exists():
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted))
    encoder = ctranslate2.Encoder(str(converted), device="cpu", intra_threads=threads, compute_type=compute_type)

    def encode(sequences: Sequences) -> np.ndarray:
        states = np.asarray(encoder.forward_batch([list(each) for each in sequences]).last_hidden_state)
        return _means(states, _mask_of(sequences))

    return _MicroBatches(encode)


def _onnxruntime(folder: Path, threads: int, *, int8: bool = False) -> Encode:
    runtime = importlib.import_module("onnxruntime")
    file = folder / "model.onnx"
    if not file.exists():
        model, example = load_model(folder), torch.ones(2, 8, dtype=torch.int64)
        names = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"},
                 "states": {0: "batch", 1: "length"}}
        torch.onnx.export(_LastState(model), (example, example), file, input_names=["input_ids", "attention_mask"],
                          output_names=["states"], dynamic_axes=names, dynamo=False)
    if int8:
        quantization = importlib.import_module("onnxruntime.quantization")
        exported, file = file, folder / "model.int8.onnx"
        if not file.exists():
            quantization.quantize_dynamic(exported, file, per_channel=True)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return _micro_batched(lambda ids, mask: session.run(None, {"input_ids": ids, "attention_mask": mask})[0])


def _openvino(folder: Path, threads: int, *, hint: str = "f32") -> Encode:
    openvino = importlib.import_module("openvino")
    example = torch.ones(2, 8, dtype=torch.int64)
    model = openvino.convert_model(_LastState(load_model(folder)), example_input=(example, example))
    compiled = openvino.Core().compile_model(model, "CPU", {
        "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": hint})
    return _micro_batched(lambda ids, mask: compiled((ids, mask))[0])


class _LastState(torch.nn.Module):
    """A model whose only result is the last hidden state."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


ENCODERS: Mapping[str, Callable[[Path, int], Encode]] = MappingProxyType({
    "sparloom": _Packed, "sparloom_bfloat16": partial(_Packed, precision="bfloat16"),
    "sparloom_int8": partial(_Packed, precision="int8"),
    "sparloom_padded": _padded(lambda model: pack(model, strict=True)),
    "torch": _padded(lambda model: model), "torch_bfloat16": _padded(lambda model: model.bfloat16()),
    "torch_int8": _padded(lambda model: torch.ao.quantization.quantize_dynamic(
        model, {torch.nn.Linear}, dtype=torch.qint8)),
    "torch_compiled": _padded(lambda model: torch.compile(model, dynamic=True)),
    "sentence_transformers": _sentences, "sentence_transformers_packed": partial(_sentences, packed=True),
    "ctranslate2": _ctranslate2, "ctranslate2_avx512": _ctranslate2,
    "ctranslate2_int8": partial(_ctranslate2, compute_type="int8_float32"),
    "onnxruntime": _onnxruntime, "onnxruntime_int8": partial(_onnxruntime, int8=True),
    "openvino": _openvino, "openvino_bfloat16": partial(_openvino, hint="bf16")})
"""Name -> loads a model folder and returns how it encodes."""


def _micro_batched(call: Padded) -> Encode:
    """Pad sequences, and try sizes of micro-batches."""
    def encode(sequences: Sequences) -> np.ndarray:
        ids, mask = _pad(sequences)
        return _means(call(ids, mask), mask)

    return _MicroBatches(encode)


def _pad(sequences: Sequences) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids and mask of a padded batch."""
    mask = _mask_of(sequences)
    ids = np.zeros(mask.shape, np.int64)
    ids[mask.astype(bool)] = np.concatenate([np.asarray(each, np.int64) for each in sequences])
    return ids, mask


class _MicroBatches:
    """Sorts sequences by length, and encodes them in micro-batches of the size that `choose` found."""

    def __init__(self, encode: Encode) -> None:
        self._encode, self._size = encode, 0

    def choose(self, sequences: Sequences) -> None:
        """Find the fastest size for a batch."""
        sizes = [*(size for size in MICRO_BATCHES if size < len(sequences)), len(sequences)]
        seconds = {}
        for size in sizes:
            self._size = size
            first = seconds_of(lambda: self(sequences))  # may compile
            again = 1 if first >= LONG_SECONDS else TRIALS
            seconds[size] = min(seconds_of(lambda: self(sequences)) for _ in range(again))
        self._size = min(seconds, key=seconds.__getitem__)

    def whole(self, sequences: Sequences) -> np.ndarray:
        """Encode a batch at once, whatever its size."""
        return self._encode(sequences)

    def __call__(self, sequences: Sequences) -> np.ndarray:
        order = sorted(range(len(sequences)), key=lambda number: -len(sequences[number]))
        parts = [order[begin : begin + self._size] for begin in range(0, len(order), self._size)]
        found = [self._encode([sequences[number] for number in part]) for part in parts]
        result = np.empty((len(order), found[0].shape[1]), np.float32)
        result[order] = np.concatenate(found)
        return result


class _Trainer:
    """Trains a model, called with padded batches: squares of mean vectors, the dropout of the model, AdamW."""

    def __init__(self, folder: Path, *, packed: bool) -> None:
        model = load_model(folder)
        self._model = pack(model, strict=True) if packed else model
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE)

    def loss(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch, (batch, length)."""
        states, weights = self._model(input_ids=ids, attention_mask=mask).last_hidden_state, mask.float()
        return (torch.einsum("blw,bl->bw", states, weights) / weights.sum(1, keepdim=True)).square().mean()

    def loss_of_evaluation(self, ids: torch.Tensor, mask: torch.Tensor) -> float:
        """Return the loss without dropout."""
        self._model.eval()
        with torch.no_grad():
            return float(self.loss(ids, mask))

    def step(self, ids: torch.Tensor, mask: torch.Tensor) -> None:
        """Update the weights once."""
        self._model.train()
        self.loss(ids, mask).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


TRAINERS: Mapping[str, Callable[[Path], _Trainer]] = MappingProxyType({
    "sparloom": partial(_Trainer, packed=True), "torch": partial(_Trainer, packed=False)})
"""Methods that train."""


def _mask_of(sequences: Sequences) -> np.ndarray:
    lengths = np.array([len(each) for each in sequences])
    return (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)


def _means(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Average the hidden states of real tokens, (batch, width)."""
    return np.einsum("blw,bl->bw", states, mask.astype(np.float32)) / mask.sum(1, dtype=np.float32)[:, None]


class _Server:
    """What a process does with one method."""

    def __init__(self, method: str, folder: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self._encode, self._folder, self._method = ENCODERS[method](folder, threads), folder, method
        self._batch: Sequences = ()
        self._vectors = np.zeros((0, 0), np.float32)

    def bind(self, ids: Path) -> None:
        """Prepare for the batch of the following calls; what is compiled or chosen for it is done now."""
        self._batch = _read(ids)
        if isinstance(self._encode, _MicroBatches):
            self._encode.choose(self._batch)
        self._encode(self._batch)

    def run(self) -> float:
        """Encode the batch for a tenth of a second; return the median seconds."""
        def encode() -> None:
            self._vectors = self._encode(self._batch)

        return _median_seconds(encode)

    def vectors(self) -> np.ndarray:
        """Return the vectors of the last run."""
        return self._vectors

    def peak(self, ids: Path) -> dict[str, int]:
        """Encode a batch at once; return the bytes beyond those in use before, and `packed_bytes` of packed weights."""
        batch, encode = _read(ids), self._encode
        model = getattr(encode, "model", None)
        whole = partial(encode.whole if isinstance(encode, _MicroBatches) else encode, batch)
        whole()  # packs weights, and fills caches
        packed = 0 if model is None else describe_packing(model).weight_bytes
        return {"bytes": peak_bytes(whole), "packed_bytes": packed}

    def start(self, ids: Path) -> dict[str, float]:
        """Encode a batch for the first time; return seconds of packing the model, of this call and of later ones."""
        call = partial(self._encode, _read(ids))
        np.ones(TOUCHED_BYTES, np.uint8)
        first = seconds_of(call)
        return {"pack_seconds": self._encode.pack_seconds, "first_seconds": first,
                "later_seconds": _median_seconds(call)}

    def train(self, ids: Path) -> dict[str, float]:
        """Train on a batch for a tenth of a second; return the median `seconds` of a step, and the `loss` before."""
        batch = [torch.from_numpy(each) for each in _pad(_read(ids))]
        trainer = TRAINERS[self._method](self._folder)
        loss = trainer.loss_of_evaluation(*batch)
        trainer.step(*batch)  # compiles, and allocates the state of the optimizer
        return {"loss": loss, "seconds": _median_seconds(partial(trainer.step, *batch))}


def _median_seconds(call: Callable[[], object]) -> float:
    """Time calls for a tenth of a second."""
    time.sleep(PAUSE)
    seconds, begin = [], time.perf_counter()
    while not seconds or time.perf_counter() - begin < SERIES_SECONDS:
        seconds.append(seconds_of(call))
    return median(seconds)


def _serve(connection: Connection, method: str, folder: Path, threads: int) -> None:
    """Answer calls with a result and an error, one of them None, until the other end is closed."""
    silent = os.open(os.devnull, os.O_WRONLY)  # libraries print
    for stream in (1, 2):
        os.dup2(silent, stream)
    try:
        server = _Server(method, folder, threads)
        connection.send((None, None))
        while True:
            name, arguments = connection.recv()
            connection.send((getattr(server, name)(*arguments), None))
    except EOFError:
        return
    except Exception as error:
        connection.send((None, f"{type(error).__name__}: {error}"[:500]))


def _read(file: Path) -> list[list[int]]:
    with np.load(file) as stored:
        return [part.tolist() for part in np.split(stored["ids"], np.cumsum(stored["lengths"])[:-1])]


def write_batch(lengths: np.ndarray, vocabulary: int, file: Path, *, seed: int) -> None:
    """Write random token ids of these lengths."""
    ids = np.random.default_rng(seed).integers(vocabulary // 2, vocabulary, int(lengths.sum()))
    with atomic_path(file) as path, path.open("wb") as out:
        np.savez(out, ids=ids, lengths=lengths)
