"""Make the golden vectors with MinkowskiEngine itself: `python tests/golden/minkowski/make.py`.

Uses MinkowskiEngine's own modules, not this project's adapter, and stores float32. Needs MinkowskiEngine 0.5.4 (see
docs/howto/minkowski.md) and nothing of sparloom. Files: layer_<pattern>.npz with input, output in the
order of the coordinates and gradients; network_<pattern>_<plain|biased>.npz with the output and all gradients.
"""

import collections
import collections.abc
from pathlib import Path

import numpy as np
import torch

collections.Sequence = collections.abc.Sequence  # MinkowskiEngine 0.5.4 predates Python 3.10
import MinkowskiEngine as ME  # noqa: E402, N817
from cases import BIASED, CHANNELS, LAYER, PATTERNS, draw_weights  # noqa: E402

HERE = Path(__file__).parent


def main() -> None:
    torch.set_num_threads(1)
    for name, coords in PATTERNS.items():
        np.savez_compressed(HERE / f"layer_{name}.npz", **layer(coords))
        for biased in BIASED:
            path = HERE / f"network_{name}_{'biased' if biased else 'plain'}.npz"
            np.savez_compressed(path, **network(coords, biased))


def layer(coords: np.ndarray) -> dict[str, np.ndarray]:
    """One 3x3 convolution on random features, with gradients of sum(output * cotangent)."""
    rng = np.random.default_rng(7)
    inputs, outputs = LAYER
    x = torch.tensor(rng.standard_normal((len(coords), inputs)), dtype=torch.float32, requires_grad=True)
    weight = rng.standard_normal((9, inputs, outputs)).astype(np.float32) * 0.2
    cotangent = torch.tensor(rng.standard_normal((len(coords), outputs)), dtype=torch.float32)
    convolution = ME.MinkowskiConvolution(inputs, outputs, kernel_size=3, dimension=2)
    convolution.kernel.data.copy_(engine_order(torch.tensor(weight)))
    out = convolution(sparse(x, coords))
    places = rows_of(out, coords)
    (out.F[places] * cotangent).sum().backward()
    return {
        "x": x.detach().numpy(), "weight": weight, "cotangent": cotangent.numpy(),
        "out": out.F[places].detach().numpy(), "x_grad": x.grad.numpy(),
        "weight_grad": own_order(convolution.kernel.grad).numpy(),
    }


def network(coords: np.ndarray, biased: bool) -> dict[str, np.ndarray]:
    """Twelve layers of the engine's modules, with gradients of the sum of squared outputs."""
    weights, biases = draw_weights(11, biased)
    x = sparse(torch.ones(len(coords), 1), coords)
    relu, pool = ME.MinkowskiReLU(), ME.MinkowskiMaxPooling(kernel_size=2, stride=2, dimension=2)
    layers, inputs = [], 1
    for place, outputs in enumerate(CHANNELS):
        convolution = ME.MinkowskiConvolution(
            inputs, outputs, kernel_size=3 if place else 5, bias=biased, dimension=2)
        convolution.kernel.data.copy_(engine_order(weights[place].detach()))
        if biased:
            convolution.bias.data.copy_(biases[place].detach()[None])
        x = relu(convolution(x))
        if place in (2, 5, 8):
            x = pool(x)
        layers.append(convolution)
        inputs = outputs
    out = ME.MinkowskiGlobalAvgPooling()(x).F
    (out**2).sum().backward()
    found = {"out": out.detach().numpy()}
    for place, convolution in enumerate(layers):
        found[f"weight_grad{place}"] = own_order(convolution.kernel.grad).numpy()
        if biased:
            found[f"bias_grad{place}"] = convolution.bias.grad[0].numpy()
    return found


def sparse(x: torch.Tensor, coords: np.ndarray) -> "ME.SparseTensor":
    batched = np.column_stack([np.zeros(len(coords)), coords]).astype(np.int32)
    return ME.SparseTensor(x, torch.from_numpy(batched))


def rows_of(tensor: "ME.SparseTensor", coords: np.ndarray) -> list[int]:
    """Return the row of each coordinate in a tensor of the engine."""
    places = {tuple(site): row for row, site in enumerate(tensor.C[:, 1:].tolist())}
    return [places[tuple(site)] for site in coords.tolist()]


def engine_order(weight: torch.Tensor) -> torch.Tensor:
    """Row-major offsets -> the engine's, where the row offset runs fastest."""
    size = round(len(weight) ** 0.5)
    return weight.unflatten(0, (size, size)).transpose(0, 1).flatten(0, 1)


own_order = engine_order  # a transposition undoes itself


if __name__ == "__main__":
    main()
