"""Measure what a searched schedule of a ragged operator gains over the default schedule."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sparloom import ragged, tuning
from sparloom.baselines import PackedInputs, attention_module, encoder_layer, reference
from sparloom.experiments.cora.bench_ragged import RaggedCase, method_rows, ragged_frame
from sparloom.experiments.cora.modules import OWN_MODULES, CandidateModules
from sparloom.experiments.cora.products import ProductSizes, check_product
from sparloom.experiments.harness import finish, run_folder
from sparloom.measure import Measurement, TimingProtocol
from sparloom.platforms import interleaved
from sparloom.report import schedule_metrics
from sparloom.space import Config

Call = Callable[[], object]
Choose = Callable[[tuning.RaggedOperator, ragged.Structure], tuning.RaggedChoice]

MODULES: Mapping[str, str] = {"encoder": "encoder", "attention": "mha"}
"""Operator on sequences -> its module in `OWN_MODULES`."""

PRODUCTS = ("vgemm", "trmm")
TOKENS = ("softmax", "norm")
"""Operators on packed tokens of any width."""

WIDTH = 512  # of a token, as in the modules


def module_arms(operator: str, lengths: np.ndarray, choose: Choose, *, seed: int) -> tuple[
        dict[str, Call], tuning.RaggedChoice]:
    """Bind the encoder layer, or its attention, on one batch.

    Returns:
        "default", and "chosen" unless it is equal; and the choice.
    """
    module = encoder_layer(seed=seed) if operator == "encoder" else attention_module(seed=seed)
    inputs = PackedInputs.drawn(module, [int(length) for length in lengths], seed=seed)
    shape = ragged.EncoderShape(inputs.width, inputs.heads)
    if isinstance(module, nn.TransformerEncoderLayer):
        shape = replace(shape, hidden=module.linear1.out_features)
    agreed = CandidateModules(reference(inputs))
    found = tuning.encoder_operators(shape)[operator]
    choice = choose(found, ragged.Structure({ragged.LENGTHS: lengths}))
    arms: dict[str, Call] = {}
    for name, config in _configs(found, choice).items():
        schedule = ragged.EncoderSchedule(**{parameter: int(value) for parameter, value in config.values})
        bound = OWN_MODULES[MODULES[operator]](inputs, schedule)
        agreed.check(name, bound)
        arms[name] = bound.run
    return arms, choice


def product_arms(operator: str, size: int, choose: Choose, *, threads: int, seed: int) -> tuple[
        dict[str, Call], tuning.RaggedChoice]:
    """Bind vgemm with `size` products, or trmm with `size` rows; see `module_arms`."""
    if operator == "vgemm":
        sizes = ProductSizes.drawn(size, seed=seed)
        structure = ragged.vgemm_structure(sizes.rows, sizes.cols, sizes.inners)
    else:
        structure = ragged.trmm_structure(size)
    return _program_arms(tuning.product_operators()[operator], structure, choose, threads=threads, seed=seed)


def token_arms(operator: str, lengths: np.ndarray, choose: Choose, *, threads: int, seed: int) -> tuple[
        dict[str, Call], tuning.RaggedChoice]:
    """Bind softmax along the tokens of each sequence, or layer norm, on one batch; see `product_arms`."""
    structure = ragged.Structure({ragged.LENGTHS: lengths})
    return _program_arms(tuning.token_operators(WIDTH)[operator], structure, choose, threads=threads, seed=seed)


def _program_arms(
    found: tuning.RaggedOperator, structure: ragged.Structure, choose: Choose, *, threads: int, seed: int,
) -> tuple[dict[str, Call], tuning.RaggedChoice]:
    choice = choose(found, structure)
    arms: dict[str, Call] = {}
    results: dict[str, np.ndarray] = {}
    for name, config in _configs(found, choice).items():
        run = ragged.Executable(found.program(config), threads=threads)
        tensors, rng = run.program.tensors(), np.random.default_rng(seed)
        inputs = {each: rng.standard_normal(structure.size(tensors[each]), dtype=np.float32)
                 for each in run.program.inputs()}
        arms[name], bound = run.bind(structure, **inputs)
        arms[name]()
        results[name] = bound[run.program.outputs[0]]
    if "chosen" in results:
        check_product("chosen", results["chosen"], results["default"])
    return arms, choice


def _configs(operator: tuning.RaggedOperator, choice: tuning.RaggedChoice) -> dict[str, Config]:
    default = operator.space.default()
    return {"default": default} | ({"chosen": choice.config} if choice.config != default else {})


@dataclass(frozen=True)
class BenchRaggedSchedules:
    """Choose a schedule for each batch as `schedule="auto"` does, and time it and the default in turn.

    If the default is chosen, it is timed alone. Every run starts without choices; similar batches share one. An
    interrupted run continues with the next case if commit and settings are unchanged.

    Args:
        operators: "encoder", "attention", "softmax", "norm" on batches of sequences; "vgemm", "trmm".
        batches: numbers of sequences of a batch; the first batch of each data set is taken.
        products: batch sizes of vgemm.
        triangles: rows of the matrices of trmm.
        product_timing: protocol for other operators, whose calls are short.
    """

    lengths: ragged.LengthCorpus
    operators: Sequence[str]
    batches: Sequence[int]
    products: Sequence[int]
    triangles: Sequence[int]
    effort: tuning.RaggedBudget
    timing: TimingProtocol
    product_timing: TimingProtocol
    threads: int
    journals: str
    seed: int

    def run(self, out: Path) -> Mapping[str, float]:
        """Write per_case.parquet; return ratios of seconds with bounds, see `schedule_metrics`."""
        frame = ragged_frame(self._case, self._planned(), self._folder, threads=self.threads)
        return finish(out, self._folder, schedule_metrics(frame, seed=self.seed), per_case=frame)

    def _planned(self) -> Iterator[RaggedCase]:
        sizes = {**dict.fromkeys((*MODULES, *TOKENS), self.batches), "vgemm": self.products, "trmm": self.triangles}
        for operator in self.operators:
            if operator not in sizes:
                raise ValueError(f"operator {operator!r} of bench_ragged_schedules: there are {', '.join(sizes)}")
            names = [""] if operator in PRODUCTS else self.lengths.names
            yield from (RaggedCase(operator, name, size) for name in names for size in sizes[operator])

    def _case(self, case: RaggedCase) -> list[dict[str, Any]]:
        """Choose and time one case; return a row for each schedule, and one for the search."""
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

    def _chosen(self, operator: tuning.RaggedOperator, structure: ragged.Structure) -> tuning.RaggedChoice:
        return tuning.choose_schedule(operator, structure, threads=self.threads, effort=self.effort,
                                      plans=tuning.PlanCache(self._folder / "plans"))

    def _timed(self, arms: Mapping[str, Callable[[], object]], timing: TimingProtocol) -> dict[str, Measurement]:
        with torch.inference_mode():
            return interleaved(arms, timing, threads=self.threads)

    @cached_property
    def _folder(self) -> Path:
        return run_folder(self)
