"""The guard keeps the faster of two implementations; time is that of a clock that only they move on."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch

from sparloom.nn import guard as module
from sparloom.nn.guard import MAX_SAMPLES, SETTLED_CALLS, Guard, SizeClass, Team, size_class

KEY = SizeClass(5, 4, 3, training=True)
PLAIN = KEY._replace(training=False)


class Passes(torch.autograd.Function):
    """The identity, whose passes take time."""

    @staticmethod
    def forward(ctx, x, weight, clock, forward, backward):
        ctx.clock, ctx.seconds = clock, backward
        clock.now += forward
        return x + weight

    @staticmethod
    def backward(ctx, grad):
        ctx.clock.now += ctx.seconds
        return grad, grad, None, None, None


class Layer:
    """Two implementations, own and original, that cost so many seconds forward and backward."""

    def __init__(self, clock, own=(1.0, 1.0), original=(1.0, 1.0), preparing=0.0, team=None):
        self.clock, self.costs, self.preparing = clock, {"own": own, "original": original}, preparing
        self.guard, self.calls = Guard("layer", team or Team()), []
        self.weight = torch.nn.Parameter(torch.zeros(3))

    def run(self, name, x):
        self.calls.append(name)
        return Passes.apply(x, self.weight, self.clock, *self.costs[name])

    def prepare(self, x):
        self.clock.now += self.preparing
        return (x,)

    def __call__(self, x, key=KEY):
        return self.guard.call(key, self.prepare, lambda x: self.run("own", x), lambda x: self.run("original", x), x,
                               [self.weight])

    def train(self, steps, key=KEY):
        for _ in range(steps):
            x = torch.ones(2, 3, requires_grad=True)
            self(x, key).sum().backward()
            assert torch.equal(x.grad, torch.ones(2, 3))


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "perf_counter", lambda: clock.now)
    return clock


def test_calls_alternate_and_the_faster_one_stays(clock) -> None:
    layer = Layer(clock, own=(1.0, 1.0), original=(1.0, 3.0))
    layer.train(13)
    assert layer.calls == ["own", "original"] * 5 + ["own"] * 3
    assert layer.guard.verdicts[KEY].speedup == 2


def test_the_backward_pass_counts(clock) -> None:
    layer = Layer(clock, own=(0.1, 3.0), original=(1.0, 1.0))
    layer.train(2 * MAX_SAMPLES + 3)
    assert layer.guard.verdicts[KEY].speedup < 1
    assert layer.calls[-3:] == ["original"] * 3


def test_first_calls_that_prepare_do_not_lose(clock) -> None:
    layer = Layer(clock, own=(100.0, 0.0), original=(1.0, 1.0))
    layer.train(12)
    layer.costs["own"] = (0.5, 0.5)
    layer.train(2 * MAX_SAMPLES)
    assert layer.guard.verdicts[KEY].speedup > 1


def test_who_prepares_a_graph_does_not_pay_alone(clock) -> None:
    team = Team()
    first = Layer(clock, own=(0.5, 0.5), original=(1.0, 1.0), preparing=1.5, team=team)
    second = Layer(clock, own=(0.5, 0.5), original=(1.0, 1.0), team=team)
    for _ in range(2 * MAX_SAMPLES):
        first.train(1)
        second.train(1)
    assert all(layer.guard.verdicts[KEY].speedup > 1 for layer in (first, second))


def test_a_layer_that_leaves_lets_the_others_be_timed_again(clock) -> None:
    team = Team()
    first = Layer(clock, own=(5.0, 5.0), original=(1.0, 1.0), preparing=4.0, team=team)
    second = Layer(clock, own=(0.1, 0.1), original=(3.0, 3.0), team=team)
    for _ in range(11):
        first.train(1)
        second.train(1)
    assert second.guard.verdicts[KEY].speedup > 1
    first.train(2 * MAX_SAMPLES)
    assert first.guard.verdicts[KEY].speedup < 1
    assert KEY not in second.guard.verdicts


def test_each_class_of_sizes_has_a_verdict(clock) -> None:
    layer, small = Layer(clock, own=(1.0, 1.0), original=(2.0, 2.0)), KEY._replace(edges=2)
    layer.train(11)
    layer.costs["original"] = (0.1, 0.1)
    layer.train(2 * MAX_SAMPLES + 1, small)
    assert layer.guard.verdicts[KEY].speedup > 1 > layer.guard.verdicts[small].speedup
    layer.train(SETTLED_CALLS)
    assert layer.guard.outcome is None


@pytest.mark.parametrize("faster", [True, False])
def test_the_guard_leaves_when_nothing_new_comes(clock, faster) -> None:
    layer = Layer(clock, original=(2.0, 2.0) if faster else (0.1, 0.1))
    layer.train(2 * MAX_SAMPLES)
    assert layer.guard.outcome is None
    layer.train(SETTLED_CALLS)
    assert layer.guard.outcome is faster


def test_calls_without_a_backward_pass_are_judged_by_the_forward_pass(clock) -> None:
    layer = Layer(clock, own=(1.0, 0.0), original=(2.0, 0.0))
    x = torch.ones(2, 3, requires_grad=True)
    for _ in range(60):
        layer(x)
    assert layer.guard.verdicts[KEY].speedup == 2
    assert not layer.weight._backward_hooks


def test_gradients_of_chosen_tensors_are_timed(clock) -> None:
    layer = Layer(clock, own=(1.0, 0.0), original=(1.0, 3.0))
    for _ in range(11):
        torch.autograd.grad(layer(torch.ones(2, 3)).sum(), layer.weight)
    assert layer.guard.verdicts[KEY].speedup == 4


def test_inference_is_timed_apart(clock) -> None:
    layer = Layer(clock, own=(1.0, 9.0), original=(2.0, 1.0))
    with torch.no_grad():
        for _ in range(12):
            layer(torch.ones(2, 3), PLAIN)
    assert set(layer.guard.verdicts) == {PLAIN}


def test_a_layer_that_is_called_twice_in_a_step_is_timed(clock) -> None:
    layer = Layer(clock, own=(1.0, 1.0), original=(2.0, 2.0))
    for _ in range(30):
        x = torch.ones(2, 3, requires_grad=True)
        layer(layer(x)).sum().backward()
    assert layer.guard.verdicts[KEY].speedup > 1


def test_calls_that_are_not_supported_are_no_samples(clock) -> None:
    layer = Layer(clock)
    layer.prepare = lambda x: None
    layer.train(4)
    assert layer.calls == ["original"] * 4
    assert not layer.guard.verdicts


@pytest.mark.parametrize("way", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_keep_what_is_decided(clock, way) -> None:
    layer = Layer(clock, own=(1.0, 1.0), original=(2.0, 2.0))
    layer.train(11)
    layer.train(4, KEY._replace(edges=2))
    copied = way(layer.guard)
    assert copied.verdicts == layer.guard.verdicts
    assert not copied.trials
    assert copied.team is not layer.guard.team


def test_calls_that_cannot_be_timed_have_no_class() -> None:
    x, edges, found = torch.ones(4, 3, requires_grad=True), torch.zeros(2, 9, dtype=torch.int64), []

    def hook(grad):
        found.append(size_class(x, edges))

    assert size_class(x, edges) == SizeClass(4, 3, 3, training=True)
    y = x * 2
    y.register_hook(hook)
    y.sum().backward()
    torch.func.vmap(lambda z: found.append(size_class(z, edges)) or z)(torch.ones(2, 4, 3))
    with torch.autograd.graph.save_on_cpu():
        found.append(size_class(x, edges))
    assert found == [None] * 3
