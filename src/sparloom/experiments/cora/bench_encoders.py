"""Time whole encoders of texts beside the libraries that people use on CPUs."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from sparloom.errors import Unsupported
from sparloom.experiments.cora.text_encoders import (
    ENCODERS,
    TRAINERS,
    EncoderProcess,
    load_model,
    text_of,
    write_batch,
)
from sparloom.experiments.harness import finish, note_failure, run_folder, timed_cases
from sparloom.files import atomic_folder
from sparloom.platforms import measure_roof
from sparloom.ragged import DATASETS, LengthCorpus
from sparloom.report import encoder_metrics, precision_of

OWN = "sparloom"
TOLERANCES = {"float32": 1e-4, "bfloat16": 3e-2, "int8": 0.15}  # of vectors, relative to the largest exact element
CHECKED = 4  # sequences whose vectors are compared with float64
VOCABULARY = 1000  # tokens; for libraries that read texts each is a word, see text_of
ROOF_ROUNDS = 5
PRODUCTS = "products"
MEASURED = ("median", "seconds", "peak_bytes", "packed_bytes", "cosine", "products_seconds",
            "pack_seconds", "uncached_seconds")
SIZES: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "minilm_l6": {"kind": "bert", "width": 384, "layers": 6, "heads": 12, "hidden": 1536},
    "bert_base": {"kind": "bert", "width": 768, "layers": 12, "heads": 12, "hidden": 3072},
    "xlm_r_base": {"kind": "xlm-roberta", "width": 768, "layers": 12, "heads": 12, "hidden": 3072},
    "modernbert_base": {"kind": "modernbert", "width": 768, "layers": 22, "heads": 12, "hidden": 1152},
    "t5_base": {"kind": "t5", "width": 768, "layers": 12, "heads": 12, "hidden": 3072},
    "cora_layer": {"kind": "bert", "width": 512, "layers": 1, "heads": 8, "hidden": 2048},
})
"""Models with the sizes of published ones and random weights; the last is the layer of Fegade et al. 2022 with GELU."""
GATED = ("modernbert",)


class EncoderCase(NamedTuple):
    """One batch of one model.

    Args:
        part: what is measured: "inference", "memory", "training" or "start".
        data: data set of the lengths.
        size: sequences of the batch.
    """

    part: str
    model: str
    data: str
    size: int


@dataclass(frozen=True)
class BenchEncoders:
    """Encode batches of token ids into mean vectors, each method in a process of its own, in turn.

    The vectors of each method are compared with those of transformers in float64 before anything is timed; a method
    that differs is left out, as is one whose library is not installed or refuses the model. A run that was interrupted
    continues with the next case if commit and settings are unchanged.

    Args:
        models: of SIZES.
        lengths, data: data sets of lengths.
        batches: sequences of a batch.
        methods: of ENCODERS.
        memory: data set -> sequences of a batch that methods of `TRAINERS` encode at once, to measure their memory.
        training: data set -> sequences of a batch on which these train.
        start: data set -> sequences of the first batch that sparloom encodes in a new process.
        repetitions: of each method, in turn.
    """

    models: Sequence[str]
    lengths: LengthCorpus
    data: Sequence[str]
    batches: Sequence[int]
    methods: Sequence[str]
    memory: Mapping[str, int]
    training: Mapping[str, int]
    start: Mapping[str, int]
    repetitions: int
    threads: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet and a table; return speedups with bounds.

        Raises:
            ValueError: a model, a method or a data set is unknown.
        """
        for names, known, option in ((self.models, SIZES, "models"), (self.methods, ENCODERS, "methods"),
                                     (self.data, DATASETS, "data"), (self.memory, DATASETS, "memory"),
                                     (self.training, DATASETS, "training"),
                                     (self.start, DATASETS, "start")):
            unknown = [name for name in names if name not in known]
            if unknown:
                raise ValueError(f"task.{option}: {', '.join(unknown)}: there are {', '.join(known)}")
        torch.set_num_threads(self.threads)
        planned = {" ".join(map(str, case)): case for case in self._cases()}
        frame = timed_cases(self._case, planned, self._folder, threads=None,
                            costs={key: self._flops(case) for key, case in planned.items()})
        self._close()
        return finish(out, self._folder, encoder_metrics(frame, seed=self.seed), per_case=frame)

    def _cases(self) -> Iterator[EncoderCase]:
        for model in self.models:
            for data in self.data:
                yield from (EncoderCase("inference", model, data, size) for size in self.batches)
            trains = bool(set(self.methods) & set(TRAINERS))
            parts = {"memory": self.memory if trains else {}, "training": self.training if trains else {},
                     "start": self.start if OWN in self.methods else {}}
            for part, batches in parts.items():
                yield from (EncoderCase(part, model, data, size) for data, size in batches.items())

    def _case(self, case: EncoderCase) -> list[dict[str, Any]]:
        lengths, failed = self._lengths(case), dict(self._refused(case.model))
        write_batch(lengths, VOCABULARY, self._batch, seed=self.seed)
        measure = {"inference": self._infer, "memory": self._measure_memory, "training": self._train,
                   "start": self._start}[case.part]
        measured = measure(case, lengths, failed)
        if not measured:
            raise Unsupported(f"no method runs {case.model}: {failed}")
        about = {**case._asdict(), "tokens": int(lengths.sum()), "padded": int(lengths.max()) * case.size}
        found = [{"method": name, "failure": "", **values} for name, values in measured.items()]
        return [{**about, **dict.fromkeys(MEASURED), **row}
                for row in (*found, *({"method": name, "failure": reason} for name, reason in failed.items()))]

    def _infer(self, case: EncoderCase, lengths: np.ndarray, failed: dict[str, str]) -> dict[str, dict[str, Any]]:
        """Time encoding by all methods whose vectors are right, and in turn with them the peak rate of products."""
        ready, cosines = {}, {}
        for name, process in self._processes(case.model).items():
            with note_failure(name, failed):
                cosines[name] = self._check(case, process, lengths, TOLERANCES[precision_of(name)])
                process.ask("bind", self._batch)
                ready[name] = process
        seconds = self._in_turn({**{name: partial(process.ask, "run") for name, process in ready.items()},
                                 PRODUCTS: partial(self._products_seconds, case)})
        products = float(np.median(seconds.pop(PRODUCTS)))
        return {name: {**_times(taken), "cosine": cosines[name], "products_seconds": products}
                for name, taken in seconds.items()}

    def _measure_memory(self, case: EncoderCase, lengths: np.ndarray, failed: dict[str, str]
                        ) -> dict[str, dict[str, Any]]:
        found = {}
        for name, process in self._processes(case.model).items():
            if name in TRAINERS:
                with note_failure(name, failed):
                    peak = process.ask("peak", self._batch)
                    found[name] = {"peak_bytes": peak["bytes"], "packed_bytes": peak["packed_bytes"]}
        return found

    def _train(self, case: EncoderCase, lengths: np.ndarray, failed: dict[str, str]) -> dict[str, dict[str, Any]]:
        """Time steps of training by methods whose losses before the first one agree."""
        ready, losses = {}, {}
        for name, process in self._processes(case.model).items():
            if name in TRAINERS:
                with note_failure(name, failed):
                    losses[name] = process.ask("train", self._batch)["loss"]
                    ready[name] = process
        apart = max(losses.values(), default=0.0) - min(losses.values(), default=0.0)
        if not apart <= TOLERANCES["float32"] * max(losses.values(), default=1.0):  # also if one is no number
            raise AssertionError(f"losses differ: {losses}")
        seconds = self._in_turn({name: partial(_step_seconds, process, self._batch) for name, process in ready.items()})
        return {name: _times(taken) for name, taken in seconds.items()}

    def _start(self, case: EncoderCase, lengths: np.ndarray, failed: dict[str, str]) -> dict[str, dict[str, Any]]:
        """Time packing and first calls in new processes: the first process compiles kernels, the others load them.

        Seconds of a first call are beyond those of a later one. Memory is used before, see `TOUCHED_BYTES`.
        """
        cache = self._folder / "first_calls"
        shutil.rmtree(cache, ignore_errors=True)
        with note_failure(OWN, failed):
            starts = []
            for _ in range(1 + self.repetitions):
                process = EncoderProcess(OWN, self._stored(case.model), self.threads, cache=cache)
                starts.append(process.ask("start", self._batch))
                process.close()
            uncached, *cached = [each["first_seconds"] - each["later_seconds"] for each in starts]
            return {OWN: {**_times(cached), "uncached_seconds": uncached,
                          "pack_seconds": float(np.median([each["pack_seconds"] for each in starts]))}}
        return {}

    def _in_turn(self, calls: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
        """Repeat calls that return seconds, each method first in its turn."""
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(self.repetitions):
            first = turn % max(len(calls), 1)
            for name in [*calls][first:] + [*calls][:first]:
                seconds[name].append(calls[name]())
        return seconds

    def _check(self, case: EncoderCase, process: EncoderProcess, lengths: np.ndarray, tolerance: float) -> float:
        """Compare the vectors of some sequences with those of transformers in float64; return the least cosine."""
        few, file = lengths[:CHECKED], self._folder / "checked.npz"
        write_batch(few, VOCABULARY, file, seed=self.seed)
        process.ask("bind", file)
        process.ask("run")
        key = (case.model, *few.tolist())
        if key not in self._expected:
            self._expected[key] = self._reference(case.model, file)
        expected = self._expected[key]
        vectors = process.ask("vectors").astype(np.float64)
        apart = np.abs(vectors - expected).max() / np.abs(expected).max()
        if not apart <= tolerance:
            raise AssertionError(f"vectors differ by {apart:.1e} of the largest element from float64")
        sizes = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
        return float(((vectors * expected).sum(axis=1) / sizes).min())

    def _reference(self, model: str, file: Path) -> np.ndarray:
        exact = load_model(self._stored(model)).double()
        with np.load(file) as stored, torch.inference_mode():
            parts = np.split(stored["ids"], np.cumsum(stored["lengths"])[:-1])
            return np.stack([exact(input_ids=torch.from_numpy(part)[None]).last_hidden_state[0].mean(0).numpy()
                             for part in parts])

    def _lengths(self, case: EncoderCase) -> np.ndarray:
        """Return the lengths of the first batch of a data set."""
        return self.lengths.load(case.data).values[: case.size]

    def _flops(self, case: EncoderCase) -> float:
        """Count the operations of all products of matrices, a multiplication and an addition as two."""
        sizes, lengths = SIZES[case.model], self._lengths(case).astype(float)
        width, hidden = sizes["width"], sizes["hidden"] * (1.5 if sizes["kind"] in GATED else 1.0)
        linear = lengths.sum() * (4 * width * width + 2 * width * hidden)
        return 2 * sizes["layers"] * (linear + 2 * width * float((lengths**2).sum()))

    def _products_seconds(self, case: EncoderCase) -> float:
        """Return the seconds that the products of a case would take at the peak rate, as it is now."""
        return self._flops(case) / measure_roof(self.threads, rounds=ROOF_ROUNDS).flops

    @cached_property
    def _expected(self) -> dict[tuple[Any, ...], np.ndarray]:
        return {}

    @cached_property
    def _running(self) -> dict[str, tuple[dict[str, EncoderProcess], dict[str, str]]]:
        return {}

    def _processes(self, model: str) -> Mapping[str, EncoderProcess]:
        """Start the processes of a model and end those of another one."""
        if model not in self._running:
            self._close()
            ready, failed = {}, {}
            for name in self.methods:
                with note_failure(name, failed):
                    ready[name] = EncoderProcess(name, self._stored(model), self.threads)
            self._running[model] = ready, failed
        return self._running[model][0]

    def _refused(self, model: str) -> Mapping[str, str]:
        """Return the methods that could not load a model, and why."""
        self._processes(model)
        return self._running[model][1]

    def _close(self) -> None:
        for ready, _ in self._running.values():
            for process in ready.values():
                process.close()
        self._running.clear()

    def _stored(self, model: str) -> Path:
        """Store a model with random weights, and a tokenizer whose words are those of `text_of`."""
        folder = self._folder / model
        if not folder.exists():
            with atomic_folder(folder) as path:
                torch.manual_seed(self.seed)
                make_model(SIZES[model]).save_pretrained(path)
                make_tokenizer(VOCABULARY).save_pretrained(path)
        return folder

    @property
    def _batch(self) -> Path:
        return self._folder / "batch.npz"

    @cached_property
    def _folder(self) -> Path:
        return run_folder(self)


def _times(seconds: list[float]) -> dict[str, Any]:
    return {"median": float(np.median(seconds)), "seconds": seconds}


def _step_seconds(process: EncoderProcess, batch: Path) -> float:
    return process.ask("train", batch)["seconds"]


def make_model(sizes: Mapping[str, Any]) -> Any:
    """Make a model of transformers with random weights.

    Args:
        sizes: kind, width, layers, heads and hidden columns.
    """
    import transformers

    kind, width, heads = sizes["kind"], sizes["width"], sizes["heads"]
    if kind == "t5":
        return transformers.T5EncoderModel(transformers.T5Config(
            vocab_size=VOCABULARY, d_model=width, d_kv=width // heads, num_heads=heads, d_ff=sizes["hidden"],
            num_layers=sizes["layers"]))
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=sizes["layers"], num_attention_heads=heads,
        intermediate_size=sizes["hidden"], max_position_embeddings=1024, **(special if kind in GATED else {}))
    config.position_embedding_type = "absolute"  # the only one there is, for which CTranslate2 asks
    return transformers.AutoModel.from_config(config)


def make_tokenizer(vocabulary: int) -> Any:
    """Make a tokenizer that splits at spaces and knows the words of `text_of`."""
    import tokenizers
    import transformers

    words = {text_of([number]): number for number in range(vocabulary)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=text_of([1])))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=text_of([0]),
                                                unk_token=text_of([1]), model_max_length=1024)
