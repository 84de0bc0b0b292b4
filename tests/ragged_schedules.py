"""Random legal schedules: refused steps are skipped."""

from collections.abc import Callable
from functools import partial

from hypothesis import strategies as st

from sparloom.errors import IllegalSchedule
from sparloom.ragged import (
    Program,
    bind_threads,
    compute_at,
    compute_with,
    decompose_reduction,
    fuse,
    hfuse,
    inline,
    narrow,
    offload,
    pad_loop,
    pad_storage,
    parallel,
    remap,
    reorder,
    reorder_dimensions,
    split,
    split_dimension,
    split_operation,
    stored_dims,
    unroll,
    vectorise,
)

__all__ = ["STEPS", "scheduled"]


@st.composite
def scheduled(draw: st.DrawFn, program: Program, steps: int = 7) -> tuple[Program, tuple[str, ...]]:
    """Apply up to `steps` random changes; also returns their names."""
    done: list[str] = []
    together = ["compute_at", "inline"] if len(program.launches) > 1 else []  # legal before others only
    together += ["compute_with", "decompose_reduction", "narrow"] if together else []
    first = draw(st.lists(st.sampled_from(together), max_size=3)) if together else []
    for number in range(steps):
        name = first[number] if number < len(first) else draw(st.sampled_from(sorted(STEPS)))
        try:
            program = STEPS[name](draw, program)
        except IllegalSchedule:
            continue
        done.append(name)
    return program, tuple(done)


def _one(draw, choices):
    if not choices:
        raise IllegalSchedule("nothing to choose from")
    return draw(st.sampled_from(choices))


def _loop(draw, program, where=lambda loop: True):
    pairs = [(nest.name, loop.name) for nest in program.nests() for loop in nest.loops if where(loop)]
    return _one(draw, pairs)


def _dim(draw, program):
    """A loop along a whole dimension."""
    pairs = [(nest.name, dim) for nest in program.nests() for dim, extent in nest.axes
             if any(loop.name == dim.name and loop.extent == extent for loop in nest.loops)]
    return _one(draw, pairs)


def _of_any_loop(step):
    """A step for one loop, of those for which it is legal."""
    return lambda draw, program: _possible(draw, program, step, [
        (nest.name, loop.name) for nest in program.nests() for loop in nest.loops])


def _split(draw, program):
    return split(program, *_loop(draw, program), draw(st.integers(1, 4)))


def _reorder(draw, program):
    nest = program.nest(_one(draw, [nest.name for nest in program.nests() if nest.loops]))
    return reorder(program, nest.name, draw(st.permutations([loop.name for loop in nest.loops])))


def _fuse(draw, program):
    pairs = [(nest.name, one.name, other.name) for nest in program.nests()
             for one, other in zip(nest.loops, nest.loops[1:], strict=False)]
    return fuse(program, *_one(draw, pairs))


def _bind_threads(draw, program):
    """A block per iteration of the outermost loop, a thread per iteration of the next."""
    def step(program, nest, outer, inner):
        if program.nest(nest).loop(outer).kind == "serial":
            program = parallel(program, nest, outer)
        return bind_threads(program, nest, inner)

    return _possible(draw, program, step, [
        (nest.name, nest.loops[0].name, nest.loops[1].name) for nest in program.nests() if len(nest.loops) > 1])


def _pad(draw, program):
    """Pad a loop, and all storage of the same extents."""
    nest, loop = _dim(draw, program)
    multiple = draw(st.integers(2, 4))
    for name, tensor in program.tensors().items():
        named = [dim for dim, _ in tensor.axes if dim.name in ("row", "col", loop.name)]
        chosen = {dim: multiple * draw(st.integers(1, 2)) for dim in named}
        if chosen:
            program = pad_storage(program, name, chosen)
    return pad_loop(program, nest, loop, multiple)


def _full(draw, program):
    name = draw(st.sampled_from(sorted(program.tensors())))
    dim = draw(st.sampled_from([dim for dim, _ in program.tensors()[name].axes]))
    return pad_storage(program, name, full=(dim,))


def _split_operation(draw, program):
    nest, loop = _dim(draw, program)
    if draw(st.booleans()):
        return split_operation(program, nest, loop, multiple=draw(st.integers(1, 4)))
    return split_operation(program, nest, loop, point=draw(st.integers(0, 4)))


def _possible(draw, program, step, choices):
    """Apply a step with one of the choices that are legal."""
    results = []
    for choice in choices:
        try:
            results.append(step(program, *choice))
        except IllegalSchedule:
            continue
    return _one(draw, results)


def _compute_at(draw, program):
    nests = program.nests()
    step = partial(compute_at, local=draw(st.booleans()))
    return _possible(draw, program, step, [
        (producer.name, consumer.name, loop.name) for producer in nests for consumer in nests for loop in consumer.loops
        if producer is not consumer])


def _compute_with(draw, program):
    nests = [nest for launch in program.launches for nest in launch.nests]
    return _possible(draw, program, compute_with, [
        (nest.name, into.name, loop.name) for nest in nests for into in nests for loop in into.loops])


def _decompose(draw, program):
    return _possible(draw, program, decompose_reduction, [(nest.name,) for nest in program.nests()])


def _narrow(draw, program):
    """Let the reduction run outside of the loop that it narrows."""
    def step(program, nest, dim):
        if nest.begins:
            program = decompose_reduction(program, nest.name)
        name = f"{nest.name}_rest" if nest.begins else nest.name
        loops = program.nest(name).loops
        inside = [loop.name for loop in loops if loop.name == dim.name]
        order = [loop.name for loop in loops if loop.name != dim.name]
        return narrow(reorder(program, name, (*order, *inside)), name, dim)

    return _possible(draw, program, step, [(nest, dim) for nest in program.nests() for dim, _ in nest.operation.axes])


def _inline(draw, program):
    return _possible(draw, program, inline, [(nest.name,) for nest in program.nests()])


def _hfuse(draw, program):
    """Two neighbouring operations, their outermost loops made parallel."""
    def step(program, one, other):
        for nest in (one, other):
            if nest.loops and nest.loops[0].kind == "serial":
                program = parallel(program, nest.name, nest.loops[0].name)
        return hfuse(program, [one.name, other.name])

    return _possible(draw, program, step, [
        (one.nests[0], other.nests[0]) for one, other in zip(program.launches, program.launches[1:], strict=False)])


def _offload(draw, program):
    """The innermost loops of a nest, moved there in any order."""
    def step(program, nest, rows, cols, depth):
        order = [loop.name for loop in nest.loops if loop.name not in (rows, cols, depth)]
        return offload(reorder(program, nest.name, (*order, rows, cols, depth)), nest.name, rows, cols, depth)

    nest, depth = _one(draw, [(nest, loop) for nest in program.nests() for loop in nest.loops if loop.reduces])
    rows = _one(draw, [loop for loop in nest.loops if not loop.reduces])
    return _possible(draw, program, step, [
        (nest, rows.name, cols.name, depth.name) for cols in nest.loops if cols is not rows and not cols.reduces])


def _stored(draw, program):
    """A tensor and dimensions that it is stored in."""
    name = draw(st.sampled_from(sorted(program.tensors())))
    return name, [dim.name for dim, _ in stored_dims(program.tensors()[name]).axes]


def _split_dimension(draw, program):
    name, dims = _stored(draw, program)
    return split_dimension(program, name, _one(draw, dims), draw(st.integers(1, 4)))


def _reorder_dimensions(draw, program):
    name, dims = _stored(draw, program)
    return reorder_dimensions(program, name, draw(st.permutations(dims)))


STEPS: dict[str, Callable[..., Program]] = {
    "split": _split,
    "reorder": _reorder,
    "fuse": _fuse,
    "pad": _pad,
    "full": _full,
    "split_operation": _split_operation,
    "compute_at": _compute_at,
    "compute_with": _compute_with,
    "decompose_reduction": _decompose,
    "narrow": _narrow,
    "offload": _offload,
    "reorder_dimensions": _reorder_dimensions,
    "split_dimension": _split_dimension,
    "inline": _inline,
    "hfuse": _hfuse,
    "remap": _of_any_loop(remap),
    "parallel": _of_any_loop(parallel),
    "bind_threads": _bind_threads,
    "vectorise": _of_any_loop(vectorise),
    "unroll": _of_any_loop(unroll),
}
