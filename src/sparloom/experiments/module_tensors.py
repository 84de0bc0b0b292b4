"""Parameters of PyTorch's modules as tensors of our programs."""

import numpy as np
import torch
from torch import nn

from sparloom.experiments.packed_inputs import PackedInputs
from sparloom.ragged import Program, RaggedTensor, Structure

__all__ = ["module_tensors", "stored_tensors"]


def module_tensors(inputs: PackedInputs) -> dict[str, np.ndarray]:
    """Give tokens and parameters, by the names that `attention` and `encoder_layer` have for them, packed."""
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


def stored_tensors(program: Program, structure: Structure, inputs: PackedInputs) -> dict[str, np.ndarray]:
    """Give the same, stored as a schedule wants it."""
    tensors = program.tensors()
    return {name: RaggedTensor.from_packed(tensors[name], structure, value).data
            for name, value in module_tensors(inputs).items()}
