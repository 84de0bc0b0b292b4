"""Ragged operators by their default schedule and by the one that is chosen for a batch, on the same operands."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from torch import nn

from sparloom.experiments.packed_inputs import PackedInputs, attention_module, encoder_layer, reference
from sparloom.experiments.ragged_modules import OWN_MODULES
from sparloom.experiments.ragged_peers import Contenders
from sparloom.experiments.ragged_products import ProductSizes, check_product
from sparloom.ragged import (
    LENGTHS,
    EncoderSchedule,
    EncoderShape,
    Executable,
    Structure,
    trmm_structure,
    vgemm_structure,
)
from sparloom.space import Config
from sparloom.tuning import RaggedChoice, RaggedOperator, encoder_operators, product_operators, token_operators

__all__ = ["MODULES", "PRODUCTS", "TOKENS", "module_arms", "product_arms", "token_arms"]

Call = Callable[[], object]
Choose = Callable[[RaggedOperator, Structure], RaggedChoice]

MODULES: Mapping[str, str] = {"encoder": "encoder", "attention": "mha"}
"""Operators on sequences, by what `OWN_MODULES` calls their modules."""

PRODUCTS = ("vgemm", "trmm")
TOKENS = ("softmax", "norm")
"""Operators on packed tokens of any width."""

WIDTH = 512  # of a token, that of the modules


def module_arms(operator: str, lengths: np.ndarray, choose: Choose, *, seed: int) -> tuple[
        dict[str, Call], RaggedChoice]:
    """Bind the encoder layer, or its attention, on one batch.

    Returns:
        "default", and "chosen" unless it is the same; and the choice.

    Raises:
        AssertionError: one computes something else than PyTorch.
    """
    module = encoder_layer(seed=seed) if operator == "encoder" else attention_module(seed=seed)
    inputs = PackedInputs.drawn(module, [int(length) for length in lengths], seed=seed)
    shape = EncoderShape(inputs.width, inputs.heads)
    if isinstance(module, nn.TransformerEncoderLayer):
        shape = replace(shape, hidden=module.linear1.out_features)
    agreed = Contenders(reference(inputs))
    found = encoder_operators(shape)[operator]
    choice = choose(found, Structure({LENGTHS: lengths}))
    arms: dict[str, Call] = {}
    for name, config in _configs(found, choice).items():
        schedule = EncoderSchedule(**{parameter: int(value) for parameter, value in config.values})
        peer = OWN_MODULES[MODULES[operator]](inputs, schedule)
        agreed.check(name, peer)
        arms[name] = peer.run
    return arms, choice


def product_arms(operator: str, size: int, choose: Choose, *, threads: int, seed: int) -> tuple[
        dict[str, Call], RaggedChoice]:
    """Bind vgemm on a batch of so many products, or trmm of so many rows; results as of `module_arms`.

    Raises:
        AssertionError: the schedules compute different things.
    """
    if operator == "vgemm":
        sizes = ProductSizes.drawn(size, seed=seed)
        structure = vgemm_structure(sizes.rows, sizes.cols, sizes.inners)
    else:
        structure = trmm_structure(size)
    return _program_arms(product_operators()[operator], structure, choose, threads=threads, seed=seed)


def token_arms(operator: str, lengths: np.ndarray, choose: Choose, *, threads: int, seed: int) -> tuple[
        dict[str, Call], RaggedChoice]:
    """Bind softmax along the tokens of each sequence, or layer norm, on one batch; results as of `product_arms`."""
    return _program_arms(token_operators(WIDTH)[operator], Structure({LENGTHS: lengths}), choose, threads=threads,
                         seed=seed)


def _program_arms(found: RaggedOperator, structure: Structure, choose: Choose, *, threads: int, seed: int) -> tuple[
        dict[str, Call], RaggedChoice]:
    choice = choose(found, structure)
    arms: dict[str, Call] = {}
    results: dict[str, np.ndarray] = {}
    for name, config in _configs(found, choice).items():
        run = Executable(found.program(config), threads=threads)
        tensors, rng = run.program.tensors(), np.random.default_rng(seed)
        given = {each: rng.standard_normal(structure.size(tensors[each]), dtype=np.float32)
                 for each in run.program.inputs()}
        arms[name], bound = run.bind(structure, **given)
        arms[name]()
        results[name] = bound[run.program.outputs[0]]
    if "chosen" in results:
        check_product("chosen", results["chosen"], results["default"])
    return arms, choice


def _configs(operator: RaggedOperator, choice: RaggedChoice) -> dict[str, Config]:
    default = operator.space.default()
    return {"default": default} | ({"chosen": choice.config} if choice.config != default else {})
