"""Train random models beside accelerated or packed twins, and compare results, gradients and losses.

    python tests/accelerated_models.py [KIND ...] [--cases 1000] [--seed 0]

Kinds: plain (models and stacks of layers of PyTorch Geometric), hetero (`to_hetero`, accelerated before or after),
encoders (packed encoders of transformers and torch), lightning (a Lightning module is fitted), processes
(DistributedDataParallel in two processes by gloo), both with graphs and with texts; by default all. Case n of a kind is
the same in every run with the same seed. Prints the cases that differ, and fails if there are any.
"""

import argparse
import copy
import functools
import itertools
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning
import torch
import torch_geometric.nn as geometric
from encoder_models import CONFIGS, make
from torch.nn.parallel import DistributedDataParallel
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from sparloom.nn import accelerate, pack

STEPS, TOLERANCE = 4, 2e-3
WIDTH, HIDDEN, CLASSES = 5, 8, 3
# Gradients of maxima go to one of several equal senders, as nodes without edges are after a layer: they have own tests.
MODELS = ("GCN", "GraphSAGE", "GIN", "GAT")
LAYERS: dict[str, Callable[[random.Random, Any], torch.nn.Module]] = {
    "SAGEConv": lambda rng, ins: geometric.SAGEConv(
        ins, HIDDEN, rng.choice(["mean", "sum"]), normalize=rng.random() < 0.3, root_weight=rng.random() < 0.7),
    "GraphConv": lambda rng, ins: geometric.GraphConv(ins, HIDDEN, rng.choice(["add", "mean"])),
    "GATConv": lambda rng, ins: geometric.GATConv(ins, HIDDEN // 2, heads=2, add_self_loops=not isinstance(ins, tuple)),
    "GATv2Conv": lambda rng, ins: geometric.GATv2Conv(
        ins, HIDDEN, add_self_loops=not isinstance(ins, tuple), residual=rng.random() < 0.5),
    "TransformerConv": lambda rng, ins: geometric.TransformerConv(
        ins, HIDDEN // 2, heads=2, beta=rng.random() < 0.5, root_weight=rng.random() < 0.8),
}
CHANGES: tuple[Callable[[torch.nn.Module], Any], ...] = (
    lambda layer: layer.register_forward_hook(lambda module, given, result: result * 1.5),
    lambda layer: layer.register_message_forward_hook(lambda module, given, result: result * 0.5),
    lambda layer: setattr(layer, "bias", None) if "bias" in layer._parameters else None,
    lambda layer: setattr(layer, "flow", "target_to_source"),
    lambda layer: setattr(layer, "normalize", False) if hasattr(layer, "normalize") else None,
    lambda layer: setattr(layer, "message", functools.wraps(layer.message)(
        lambda *given, message=layer.message, **named: 2 * message(*given, **named))),
    lambda layer: [setattr(layer, name, torch.nn.Sequential(child, torch.nn.Tanh()))
                   for name, child in list(layer.named_children()) if isinstance(child, geometric.Linear)],
)


class Stack(torch.nn.Module):
    """Layers of several kinds with activations in place."""

    def __init__(self, layers: list[torch.nn.Module], activation: torch.nn.Module) -> None:
        super().__init__()
        self.layers, self.activation = torch.nn.ModuleList(layers), activation

    def forward(self, x: torch.Tensor, edge_index: Any) -> torch.Tensor:
        for layer in self.layers:
            x = self.activation(layer(x, edge_index))
        return x


class Fitted(lightning.LightningModule):
    """A model that is fitted to batches of small graphs, or of texts; keeps its losses."""

    def __init__(self, model: torch.nn.Module, narrow: bool) -> None:
        super().__init__()
        self.model, self.losses, self.narrow = model, [], narrow

    def training_step(self, batch: Data | list[torch.Tensor], _: int) -> torch.Tensor:
        if isinstance(batch, list):
            result = encoded(self.model, *batch)
        else:
            result = self.model(batch.x, batch.edge_index.int() if self.narrow else batch.edge_index)
        loss = result.tanh().square().mean()
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05)


def model_of(rng: random.Random, *, lazy: bool = True) -> torch.nn.Module:
    """Draw a model, whose widths the first call may tell."""
    width = rng.choice([WIDTH, -1]) if lazy else WIDTH
    if rng.random() < 0.5:
        options = {"jk": rng.choice([None, "cat", "last"]),
                   "norm": rng.choice([None, "layer"]), "act": rng.choice(["tanh", "elu"])}
        name = rng.choice(MODELS)
        options["dropout"] = 0.0 if name == "GAT" else rng.choice([0.0, 0.3])  # that of attention draws other masks
        more = {"GCN": {"improved": rng.random() < 0.3}, "GAT": {"v2": rng.random() < 0.5, "heads": 2}}.get(name, {})
        return getattr(geometric, name)(WIDTH if name == "GIN" else width, HIDDEN, 2, CLASSES, **options, **more)
    kinds, widths = [rng.choice(list(LAYERS)) for _ in range(2)], (width, HIDDEN)
    activation = rng.choice([torch.nn.ELU(inplace=True), torch.nn.Tanh(), torch.nn.LeakyReLU(0.3, inplace=True)])
    return Stack([LAYERS[kind](rng, width) for kind, width in zip(kinds, widths, strict=True)], activation)


def graph_of(rng: random.Random, senders: int, receivers: int) -> Any:
    """Draw a graph in one of the forms that layers take."""
    edges = torch.stack([torch.randint(0, count, (rng.randrange(1, 90),)) for count in [senders]] * 2)
    edges[1] = torch.randint(0, receivers, edges[1].shape)
    form = rng.choice(["int64", "int64", "int32", "EdgeIndex", "csr"])
    if form == "csr":
        edges = torch.unique(edges, dim=1)
        return torch.sparse_coo_tensor(edges.flip(0), torch.ones(edges.shape[1]), (receivers, senders)).to_sparse_csr()
    return edges.int() if form == "int32" else EdgeIndex(edges, sparse_size=(senders, receivers)) if (
        form == "EdgeIndex") else edges


def changed(rng: random.Random, *models: torch.nn.Module) -> None:
    """Change a layer of each model alike, sometimes."""
    if rng.random() < 0.3:
        change, number = rng.choice(CHANGES), rng.randrange(10)
        for model in models:
            layers = [layer for layer in model.modules() if isinstance(layer, geometric.MessagePassing)]
            change(layers[number % len(layers)])


def twins(rng: random.Random, model: torch.nn.Module, call: Callable[[torch.nn.Module], Any]) -> list[torch.nn.Module]:
    """Return a model and an accelerated copy; lazy layers have their widths."""
    with torch.no_grad():
        call(model)
    fast = copy.deepcopy(model)
    early = rng.random() < 0.5
    if early:
        changed(rng, model, fast)
    accelerate(fast, check=rng.random() < 0.5)
    if not early:
        changed(rng, model, fast)
    return [model, fast]


def wide(graph: Any, model: torch.nn.Module) -> Any:
    """Return the graph for a model: torch's gradients for indices of int32 are wrong in layers not accelerated."""
    if isinstance(graph, dict):
        return {kind: wide(each, model) for kind, each in graph.items()}
    fast = all("sparloom" in type(each).__module__ for each in model.modules() if isinstance(
        each, geometric.MessagePassing))
    return graph.long() if not fast and graph.dtype == torch.int32 else graph


def trained(model: torch.nn.Module, call: Callable[[torch.nn.Module], Any]) -> Iterator[torch.Tensor]:
    """Train some steps; returns losses, results and gradients."""
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(STEPS):
        torch.manual_seed(step)
        optimiser.zero_grad()
        result = call(model)
        results = [*result.values()] if isinstance(result, dict) else [result]
        loss = sum(each.tanh().square().mean() for each in results)
        loss.backward()
        yield from (loss.detach(), *(each.detach().clone() for each in results))
        yield from (each.grad.clone() for each in model.parameters() if each.grad is not None)
        optimiser.step()


def encoder_twins(rng: random.Random) -> list[torch.nn.Module]:
    """Draw an encoder without dropout, some of whose parameters may be frozen; returns it and a packed copy."""
    if rng.random() < 0.3:
        layer = torch.nn.TransformerEncoderLayer(24, 3, 40, 0.0, rng.choice(["relu", "gelu"]), batch_first=True,
                                                 norm_first=rng.random() < 0.5)
        model = torch.nn.TransformerEncoder(layer, rng.randrange(1, 3), enable_nested_tensor=False)
    else:
        model = make(rng.choice(list(CONFIGS)))
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout"):
            if isinstance(vars(module).get(name), float):
                setattr(module, name, 0.0)
    share = rng.choice([0.0, 0.0, 0.3])
    for parameter in model.parameters():
        parameter.requires_grad_(rng.random() >= share)
    next(model.parameters()).requires_grad_(True)
    if rng.random() < 0.3 and getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    packed = pack(copy.deepcopy(model.train()))
    if rng.random() < 0.2:
        norms = [name for name, part in model.named_modules() if isinstance(part, torch.nn.LayerNorm)]
        path = rng.choice(norms or [""])
        for each in (model, packed):
            part = each.get_submodule(path)
            part.register_forward_hook(lambda module, given, result: result * 1.5 if torch.is_tensor(result) else None)
    return [model, packed]


def batch_of_texts(rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw token ids and a mask, in which every text has a token."""
    shape = rng.randrange(1, 5), rng.randrange(1, 12)
    mask = (torch.arange(shape[1]) < torch.randint(1, shape[1] + 1, (shape[0], 1))).long()
    mask = mask.flip(1) if rng.random() < 0.3 else mask
    return torch.randint(5, 60, shape), mask


def encoded(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the results at real tokens."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    if isinstance(inner, torch.nn.TransformerEncoder):
        tokens = torch.sin(ids[:, :, None] * torch.arange(1, 25))
        return model(tokens, src_key_padding_mask=mask == 0)[mask.bool()]
    return model(ids, attention_mask=mask).last_hidden_state[mask.bool()]


def encoders(rng: random.Random) -> None:
    """Compare two trainings of one encoder."""
    models, batch = encoder_twins(rng), batch_of_texts(rng)
    outcomes(models, lambda model: encoded(model, *batch))


def assert_alike(pairs: list[Iterator[torch.Tensor]]) -> None:
    for plain, fast in zip(*pairs, strict=True):
        torch.testing.assert_close(fast, plain, rtol=TOLERANCE, atol=TOLERANCE * max(1e-3, plain.abs().max().item()))


def outcomes(models: list[torch.nn.Module], call: Callable[[torch.nn.Module], Any]) -> None:
    """Compare what two models compute; where the first one fails, the second one must, too."""
    results = []
    for model in models:
        try:
            results.append(list(trained(model, call)))
        except (AssertionError, AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError,
                KeyError) as error:
            results.append(error)
    plain, fast = results
    if isinstance(plain, Exception):
        assert isinstance(fast, Exception), f"no {plain!r}"
    elif isinstance(fast, Exception):
        raise AssertionError("only the accelerated model fails") from fast
    else:
        assert_alike([iter(plain), iter(fast)])


def plain(rng: random.Random) -> None:
    """Compare two trainings of one model."""
    nodes = rng.randrange(2, 40)
    x, graph = torch.randn(nodes, WIDTH), graph_of(rng, nodes, nodes)
    model = model_of(rng)

    def call(model: torch.nn.Module) -> torch.Tensor:
        return model(x, wide(graph, model))

    try:
        outcomes(twins(rng, model, call), call)
    except NotImplementedError:  # PyTorch Geometric has no such layer of sparse matrices
        return


def hetero(rng: random.Random) -> None:
    """Compare models of several kinds of nodes, accelerated before or after they are made of one kind."""
    counts = {name: rng.randrange(2, 25) for name in ("a", "b", "c")[:rng.randrange(1, 4)]}
    kinds = [(rng.choice(list(counts)), f"r{number}", name) for number, name in enumerate(
        [*counts, *rng.choices(list(counts), k=rng.randrange(3))])]
    x = {name: torch.randn(count, WIDTH) for name, count in counts.items()}
    graphs = {kind: graph_of(rng, counts[kind[0]], counts[kind[2]]) for kind in kinds}
    made = [LAYERS[rng.choice(list(LAYERS))](rng, (-1, -1)) for _ in range(2)]
    stack, aggr = Stack(made, torch.nn.ELU(inplace=True)), rng.choice(["sum", "mean", "max"])
    early = rng.random() < 0.5
    fast = copy.deepcopy(stack)
    if early:
        accelerate(fast, check=rng.random() < 0.5)
    metadata = list(counts), kinds
    models = [geometric.to_hetero(each, metadata, aggr=aggr) for each in (stack, fast)]
    for model in models:
        with torch.no_grad():
            model(x, graphs)
    models[1].load_state_dict(models[0].state_dict())
    if not early:
        accelerate(models[1], check=rng.random() < 0.5)
    changed(rng, *models)
    outcomes(models, lambda model: model(x, wide(graphs, model)))


def fit(rng: random.Random) -> None:
    """Compare losses and weights of Lightning's trainer."""
    if rng.random() < 0.3:
        batches = [batch_of_texts(rng) for _ in range(3)]
        assert_alike([fitted(model, batches, None) for model in encoder_twins(rng)])
        return
    data = []
    for _ in range(6):
        nodes = rng.randrange(2, 20)
        data.append(Data(x=torch.randn(nodes, WIDTH), edge_index=torch.randint(0, nodes, (2, rng.randrange(1, 50)))))
    model, narrow = model_of(rng, lazy=False), rng.random() < 0.3
    models = twins(rng, model, lambda model: model(data[0].x, data[0].edge_index))
    layers = [layer for layer in models[1].modules() if isinstance(layer, geometric.MessagePassing)]
    narrow = narrow and all("sparloom" in type(layer).__module__ for layer in layers)  # torch's own gradients are wrong
    assert_alike([fitted(each, data, 3, narrow=narrow and each is models[1]) for each in models])


def fitted(model: torch.nn.Module, data: list[Any], batch_size: int | None, *, narrow: bool = False
           ) -> Iterator[torch.Tensor]:
    """Fit a model by Lightning's trainer; returns losses and parameters."""
    torch.manual_seed(1)
    module = Fitted(model, narrow)
    loader = DataLoader(data, batch_size) if batch_size else torch.utils.data.DataLoader(
        [list(batch) for batch in data], None)
    lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False, barebones=False).fit(module, loader)
    return iter([*module.losses, *(parameter.detach() for parameter in module.parameters())])


def distributed(rng: random.Random) -> None:
    """Compare two trainings in processes that share gradients."""
    rank = torch.distributed.get_rank()
    if rng.random() < 0.3:
        batches = [batch_of_texts(rng) for _ in range(2)]
        wrapped = [DistributedDataParallel(each, find_unused_parameters=True) for each in encoder_twins(rng)]
        assert_alike([trained(each, lambda model: encoded(model, *batches[rank])) for each in wrapped])
        return
    model = model_of(rng, lazy=False)
    nodes = rng.randrange(2, 40)
    graphs = [(torch.randn(nodes, WIDTH), torch.randint(0, nodes, (2, rng.randrange(1, 90)))) for _ in range(2)]
    models = twins(rng, model, lambda model: model(*graphs[0]))
    wrapped = [DistributedDataParallel(each, find_unused_parameters=True) for each in models]
    assert_alike([trained(each, lambda model: model(*graphs[rank])) for each in wrapped])


KINDS = {"plain": plain, "hetero": hetero, "encoders": encoders, "lightning": fit}


def failures(kind: str, cases: range, seed: int) -> list[str]:
    """Run cases of a kind; returns what differs."""
    differences = []
    for case in cases:
        rng = random.Random(f"{kind} {seed} {case}")
        torch.manual_seed(rng.randrange(2**31))
        try:
            (distributed if kind == "processes" else KINDS[kind])(rng)
        except Exception as error:
            text = " ".join(f"{error} {error.__cause__ or ''}".split())
            differences.append(f"{kind}, case {case}: {type(error).__name__}: {text[:400]}")
    return differences


def in_process(rank: int, address: str, cases: range, seed: int, found: Any) -> None:
    """Run the cases of DistributedDataParallel in one of two processes."""
    quiet()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2)
    differences = failures("processes", cases, seed)
    torch.distributed.destroy_process_group()
    found.put(differences)


def in_processes(cases: range, seed: int) -> list[str]:
    """Run cases of DistributedDataParallel in two processes."""
    context = torch.multiprocessing.get_context("spawn")
    found = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=in_process, args=(rank, str(Path(folder) / "store"), cases, seed, found))
                     for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            return ["a process of DistributedDataParallel crashed"]
        return list(itertools.chain.from_iterable(found.get() for _ in processes))


def quiet() -> None:
    """Suppress the warnings of libraries about random models."""
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        lightning.pytorch.utilities.rank_zero.logging.getLogger(name).setLevel("ERROR")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, "processes", []], help="default: all")
    parser.add_argument("--cases", type=int, default=1000, help="of all kinds together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    quiet()
    kinds, differences = options.kinds or [*KINDS, "processes"], []
    for kind in kinds:
        cases = range(-(-options.cases // len(kinds)))
        differences += in_processes(cases, options.seed) if kind == "processes" else failures(kind, cases, options.seed)
        differing = sum(each.startswith(kind) for each in differences)
        print(f"{kind}: {len(cases)} cases, {differing} differ", flush=True)  # noqa: T201
    print(*differences, sep="\n")  # noqa: T201
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
