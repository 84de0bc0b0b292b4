"""Bind our encoder modules, and check and probe the baselines before they are timed beside them."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from sparloom import ragged
from sparloom.baselines import BoundModule, PackedInputs, reference
from sparloom.errors import Unsupported
from sparloom.files import scratch_folder
from sparloom.nn import MultiheadAttention, TransformerEncoderLayer

Schedule = ragged.EncoderSchedule | Literal["auto"] | None
log = logging.getLogger(__name__)
RETRY_RATIO = 1.2  # forms within this ratio of the fastest in the first run are run again
MAX_RATIO = 1.5  # baselines that are slower than the fastest by more are left out
Prepare = Callable[[PackedInputs], BoundModule]
Wait = Callable[[], object]
PROGRAM = """
import json, time
from sparloom.ragged import EncoderSchedule, EncoderShape, Executable, scheduled_encoder_layer
start = time.perf_counter()
program = scheduled_encoder_layer(EncoderShape(), EncoderSchedule())
scheduled = time.perf_counter()
Executable(program)
print(json.dumps({"schedule": scheduled - start, "compile": time.perf_counter() - scheduled}))
"""


def module_tensors(inputs: PackedInputs) -> dict[str, np.ndarray]:
    """Return tokens and parameters, packed, by their names in `attention` and `encoder_layer`."""
    attention, layer = inputs.attention, inputs.module
    found = {"x": inputs.tokens, "w_qkv": attention.in_proj_weight.T, "b_qkv": attention.in_proj_bias,
             "w_out": attention.out_proj.weight.T, "b_out": attention.out_proj.bias}
    if isinstance(layer, nn.TransformerEncoderLayer):
        found |= {"w_in": layer.linear1.weight.T, "b_in": layer.linear1.bias, "w_back": layer.linear2.weight.T,
                  "b_back": layer.linear2.bias}
        for number, norm in (("1", layer.norm1), ("2", layer.norm2)):
            found |= {f"gain_{number}": norm.weight, f"shift_{number}": norm.bias}
    with torch.no_grad():
        return {name: value.contiguous().numpy() for name, value in found.items()}


def stored_tensors(program: ragged.Program, structure: ragged.Structure, inputs: PackedInputs) -> dict[str, np.ndarray]:
    """Return tokens and parameters in the storage of a scheduled program."""
    tensors = program.tensors()
    return {name: ragged.RaggedTensor.from_packed(tensors[name], structure, value).data
            for name, value in module_tensors(inputs).items()}


def own_encoder(inputs: PackedInputs, schedule: Schedule) -> BoundModule:
    """Bind `sparloom.nn.TransformerEncoderLayer`; schedule="auto" searches in the first call."""
    attention = inputs.attention
    layer = TransformerEncoderLayer(attention.embed_dim, attention.num_heads, inputs.module.linear1.out_features,
                                    dropout=0.0, schedule=schedule).eval()
    layer.load_state_dict(inputs.module.state_dict())
    structure = ragged.Structure({ragged.LENGTHS: inputs.lengths})
    return BoundModule(lambda: layer(inputs.tokens, structure), lambda result: result)


def own_attention(inputs: PackedInputs, schedule: Schedule) -> BoundModule:
    """Bind `sparloom.nn.MultiheadAttention`, see `own_encoder`."""
    attention = inputs.attention
    layer = MultiheadAttention(attention.embed_dim, attention.num_heads, schedule=schedule).eval()
    layer.load_state_dict(attention.state_dict())
    structure = ragged.Structure({ragged.LENGTHS: inputs.lengths})
    return BoundModule(lambda: layer(inputs.tokens, structure), lambda result: result)


OWN_MODULES: Mapping[str, Callable[..., BoundModule]] = MappingProxyType({"encoder": own_encoder, "mha": own_attention})


def attention_kernels(lengths: Sequence[int] | np.ndarray, *, threads: int, seed: int) -> dict[str, Callable[[], None]]:
    """Bind masked attention without its projections.

    Returns:
        "sparloom" (on triangles of tiles), "whole" (computed whole, then masked), and "unmasked".
    """
    plain = ragged.EncoderShape()
    shapes = {"sparloom": replace(plain, causal=True), "unmasked": plain,
              "whole": replace(plain, causal=True, triangles=False)}
    rng = np.random.default_rng(seed)
    structure = ragged.Structure({ragged.LENGTHS: lengths})
    qkv = rng.standard_normal(int(np.sum(lengths)) * 3 * plain.width, dtype=np.float32)
    calls: dict[str, Callable[[], None]] = {}
    results: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        executable = ragged.Executable(ragged.scheduled_mixing(shape, ragged.EncoderSchedule()), threads=threads)
        calls[name], bound = executable.bind(structure, qkv=qkv)
        calls[name]()
        results[name] = bound["mixed"]
    if not np.allclose(results["sparloom"], results["whole"], atol=1e-5):
        raise AssertionError("masked attention on triangles of tiles differs from masking all scores")
    return calls


def prelude_seconds(lengths: Sequence[int] | np.ndarray, *, repetitions: int) -> list[float]:
    """Time building a structure with all tables of the encoder layer, the cost of a batch before its first layer."""
    executable = ragged.Executable(ragged.scheduled_encoder_layer(ragged.EncoderShape(), ragged.EncoderSchedule()))
    taken = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        ragged.Structure({ragged.LENGTHS: lengths}).prepare(executable.prelude)
        taken.append(time.perf_counter() - start)
    return taken[1:]


@dataclass(frozen=True, eq=False)
class CandidateModules:
    """Checked modules that are timed.

    Args:
        expected: (tokens, width), the result of all modules.
        chosen: group -> fastest form and its module.
        left_out: seconds of slower forms ("group form") and of baselines that are far behind.
    """

    expected: torch.Tensor
    wait: Wait = lambda: None  # the CPU is done when a call returns
    chosen: dict[str, tuple[str, BoundModule]] = field(default_factory=dict)
    left_out: dict[str, float] = field(default_factory=dict)

    def calls(self) -> dict[str, Callable[[], Any]]:
        """Return the timed calls by group, or by "group form" if a group has several forms."""
        return {_name(group, form): module.run for group, (form, module) in self.chosen.items()}

    def check(self, name: str, module: BoundModule) -> float:
        """Check a result against the reference; return the seconds of the run."""
        with torch.inference_mode():
            start = time.perf_counter()
            result = module.run()
            self.wait()
            seconds = time.perf_counter() - start
            apart = float((module.unpack(result) - self.expected).abs().max())
        if not apart < module.tolerance:
            raise AssertionError(f"the result of {name} is wrong by {apart:.1e}")
        return seconds


def prepare_baselines(
    inputs: PackedInputs, groups: Mapping[str, Mapping[str, Prepare]], *, always: Collection[str],
    rising: Collection[str] = (), apart: Collection[str] = (), wait: Wait = lambda: None,
) -> CandidateModules:
    """Prepare, check and probe baselines; log and leave out those that do not run here.

    Args:
        groups: group -> forms, of which only the fastest is timed.
        always: groups that are timed however slow they are.
        rising: groups whose forms have rising sizes: two slow forms in a row end the group.
        apart: groups that are ignored when other groups are judged too slow.
        wait: see `CandidateModules`.
    """
    probes: dict[str, float] = {}
    found = CandidateModules(reference(inputs), wait)
    for group, forms in groups.items():
        seconds: dict[str, float] = {}
        modules: dict[str, BoundModule] = {}
        behind = 0
        for form, prepare in forms.items():
            try:
                module = prepare(inputs)
            except Unsupported as error:
                log.warning("%s is left out: %s", form, error)
                continue
            seconds[form] = found.check(form, module)
            if seconds[form] < RETRY_RATIO * min(seconds.values()):
                seconds[form] = min(seconds[form], _seconds(module.run, wait))
            modules[form] = module
            behind = behind + 1 if seconds[form] > RETRY_RATIO * min(seconds.values()) else 0
            if group in rising and behind == 2:
                break
        if modules:
            name = min(seconds, key=seconds.__getitem__)
            found.chosen[group] = (name, modules[name])
            probes[group] = seconds[name]
            found.left_out.update({_name(group, form): taken for form, taken in seconds.items() if form != name})
    for group, (form, _) in list(found.chosen.items()):
        others = [seconds for other, seconds in probes.items() if group in apart or other not in apart]
        if group not in always and probes[group] > MAX_RATIO * min(others):
            found.left_out[_name(group, form)] = probes[group]
            del found.chosen[group]
    return found


def _name(group: str, form: str) -> str:
    return group if group == form else f"{group} {form}"


def _seconds(run: Callable[[], Any], wait: Wait) -> float:
    with torch.inference_mode():
        start = time.perf_counter()
        run()
        wait()
        return time.perf_counter() - start


def compile_seconds(repetitions: int) -> dict[str, list[float]]:
    """Time the compiler in fresh processes, each repetition with a cache of its own.

    Returns:
        "cold": lowering and compiling all kernels; "cached": lowering and loading them in the next process;
        "schedule": defining and scheduling the program, in both.
    """
    taken: dict[str, list[float]] = {"cold": [], "cached": [], "schedule": []}
    for _ in range(repetitions):
        with scratch_folder("cache") as cache:
            for name in ("cold", "cached"):
                found = _fresh_process(cache)
                taken[name].append(found["compile"])
                taken["schedule"].append(found["schedule"])
    return taken


def _fresh_process(cache: Path) -> Mapping[str, float]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "SPARLOOM_CACHE": str(cache)}, check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)
