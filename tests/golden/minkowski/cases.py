"""The patterns, networks and seeds of the golden vectors; needs NumPy and PyTorch alone."""

import numpy as np
import torch

__all__ = ["BIASED", "CHANNELS", "LAYER", "PATTERNS", "draw_weights", "run_network"]

CHANNELS = (4, 4, 8, 8, 8, 16, 16, 16, 24, 24, 24, 24)
LAYER = (6, 10)  # inputs and outputs of the single 3x3 layer
BIASED = (False, True)


def _banded() -> np.ndarray:
    """A full band of width 7: most sites see identical neighbourhoods, so pooling meets ties."""
    return np.array([(row, col) for row in range(60) for col in range(max(0, row - 3), min(60, row + 4))])


def _scattered() -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.unique(rng.integers(0, (90, 70), (400, 2)), axis=0)


def _clustered() -> np.ndarray:
    """Blocks at odd places, an isolated corner, one long row."""
    rng = np.random.default_rng(4)
    corners = rng.integers(0, 100, (12, 2))
    blocks = [corner + np.indices((5, 3)).reshape(2, -1).T for corner in corners]
    return np.unique(np.concatenate([*blocks, [(0, 0)], [(57, col) for col in range(0, 120, 2)]]), axis=0)


PATTERNS = {"banded": _banded(), "scattered": _scattered(), "clustered": _clustered()}


def draw_weights(seed: int, biased: bool) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Draw the weights (k * k, inputs, outputs) of the network, large enough that activations keep their size."""
    rng = np.random.default_rng(seed)
    weights, biases, inputs = [], [], 1
    for layer, outputs in enumerate(CHANNELS):
        taps = 9 if layer else 25
        weight = rng.standard_normal((taps, inputs, outputs)) * (4 / (taps * inputs)) ** 0.5
        weights.append(torch.tensor(weight, dtype=torch.float32, requires_grad=True))
        bias = torch.tensor(rng.standard_normal(outputs) * 0.1, dtype=torch.float32, requires_grad=True)
        biases.append(bias if biased else None)
        inputs = outputs
    return weights, biases


def run_network(backend, sites, weights, biases) -> torch.Tensor:
    """Twelve layers, pooling after the third, sixth and ninth, global average: (matrices, outputs)."""
    x = backend.input_conv(weights[0], biases[0], sites)
    for layer in range(1, len(weights)):
        level = layer // 3
        x = backend.conv(x, weights[layer], biases[layer], sites, level)
        if layer in (2, 5, 8):
            x = backend.max_pool(x, sites, level)
    return backend.global_mean(x, sites, 3)
