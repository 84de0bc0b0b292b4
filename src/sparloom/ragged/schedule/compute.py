"""Bounds inference: which coordinates an index takes while inner loops run.

    index        range while f runs from f1 to f2
    outer(f)     outer(f1) .. outer(f2)
    inner(f)     from (o = outer(f1) ? inner(f1) : 0) to (o = outer(f2) ? inner(f2) : l(o) - 1), o the range's own o

Sums, products with constants and the maps above rise, so their ends are those of their parts; differences fall in what
is taken away. Where f runs through the
whole fused loop, the ranges are whole dimensions.

Source: CoRa §5.2, Figure 7.

Compute a producer inside a loop of its consumer.

Run one operation in the loops of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, Select, fresh, pretty_expr, rebuild, simplify_expr
from sparloom.ragged.dimensions import Dim, constant_limit, free, normal, replaced, without_inner
from sparloom.ragged.program import Launch, Loop, Nest, Program, Read, printable
from sparloom.ragged.schedule.loops import check_order, taken_names
from sparloom.ragged.tensor import At, FusedInner, FusedOuter, Tensor

__all__ = ["Range", "compute_at", "compute_with", "index_range"]


@dataclass(frozen=True)
class Range:
    """First and last value, both included."""

    first: Expr
    last: Expr


def index_range(index: Expr, extents: Mapping[str, Expr], own: Mapping[FusedOuter, Expr]) -> Range | None:
    """Find the values of an index; None where they are not understood.

    Args:
        index: over loops.
        extents: of the loops that run, over loops; inner ones later.
        own: by map, the name under which the range of its o runs.
    """
    match index:
        case _ if not free(index) & extents.keys():
            return Range(index, index)
        case Ref(name):
            last = index_range(simplify_expr(extents[name] - 1), extents, own)
            return None if last is None else Range(Const(0), last.last)
        case Binary("+", a, b):
            return _joined("+", index_range(a, extents, own), index_range(b, extents, own))
        case Binary("min", a, b):
            return _joined("min", index_range(a, extents, own), index_range(b, extents, own))
        case Binary("*" | "//" as op, a, Const(value) as b) if value > 0:
            return _joined(op, index_range(a, extents, own), Range(b, b))
        case Binary("-", a, b):
            less = index_range(b, extents, own)
            return None if less is None else _joined("-", index_range(a, extents, own), Range(less.last, less.first))
        case At(FusedOuter() | FusedInner() as table, (f,)):
            inside = index_range(f, extents, own)
            return None if inside is None else _mapped(table, inside, own)
    return None


def _joined(op: str, a: Range | None, b: Range | None) -> Range | None:
    if a is None or b is None:
        return None
    return Range(simplify_expr(Binary(op, a.first, b.first)), simplify_expr(Binary(op, a.last, b.last)))


def _mapped(table: FusedOuter | FusedInner, f: Range, own: Mapping[FusedOuter, Expr]) -> Range | None:
    outers = FusedOuter(table.extent, table.inner, table.multiple)
    inners = FusedInner(table.extent, table.inner, table.multiple)
    whole = f == Range(Const(0), simplify_expr(table.total - 1))
    if isinstance(table, FusedOuter):
        if whole:
            return Range(Const(0), simplify_expr(table.extent - 1))
        return Range(At(outers, (f.first,)), At(outers, (f.last,)))
    if outers not in own:
        return None
    o = own[outers]
    end = simplify_expr(replaced(table.inner, {"x0": o}) - 1)
    if whole:
        return Range(Const(0), end)
    first = Select(Binary("==", o, At(outers, (f.first,))), At(inners, (f.first,)), Const(0))
    return Range(first, Select(Binary("==", o, At(outers, (f.last,))), At(inners, (f.last,)), end))


def compute_at(program: Program, producer: str, consumer: str, loop: str, *, local: bool = False) -> Program:
    """Compute in every iteration of a loop of the consumer what the loops inside of it read of the producer.

    `for i: y[i] = f(i); for j: for k: z[j, k] = g(y[j], k)`, at j  ->
    `for j: y[j] = f(j); for k: z[j, k] = g(y[j], k)`

    A dimension of the producer that is read at one place per iteration has no loop; one that the inner loops run along
    has a loop over the range that they read. What is computed at a loop later is run earlier, so of a chain the last
    producer goes first.

    Legal when all reads of the producer are inside of the loop and agree on the range, the producer is unscheduled and
    not kept, every loop around decides what is computed (nothing is computed twice, unless it is local), the loop is
    not in a reduction, and the consumer's dimensions have their names in the producer too. A local array's extents
    may vary with loops around it, or with each other, not both.

    Args:
        local: do not store the producer as a whole: every iteration has an array of what it reads.

    Raises:
        IllegalSchedule: names what is in the way, and the remedy.

    Source: CoRa §5.2 (bounds inference, named dimensions).
    """
    made, into = program.nest(producer), program.nest(consumer)
    _check_producer(program, made, into)
    if local and made.operation.output.changes:
        raise IllegalSchedule(f"{producer} cannot be made local to a loop, since its storage is rearranged: compute_at "
                              f"first, then rearrange it")
    place = into.position(loop)
    around = [each.name for each in into.loops[: place + 1]]
    if into.loop(loop).kind == "simd" or any(each.reduces for each in into.loops[: place + 1]):
        raise IllegalSchedule(f"{producer} cannot be computed at loop {loop} of {consumer}, which is vectorised or in "
                              f"a reduction: take a loop outside of it")
    _check_padding(made, into)
    sites = [_ranges(made, site, around) for site in _sites(program, made, into, loop)]
    if any(each != sites[0] for each in sites):
        raise IllegalSchedule(f"{producer} cannot be computed at loop {loop} of {consumer}: reads there differ in "
                              f"their ranges: take a loop further outside")
    decided = {name for each in sites[0].values() for end in (each.first, each.last)
               for name in free(into.expanded(end))}
    idle = [name for name in around if name not in decided]
    if idle and not local:
        raise IllegalSchedule(f"{producer} cannot be computed at loop {loop} of {consumer}: loop {idle[0]} around does "
                              f"not change what is read, so it would be computed again: move {idle[0]} inside, take a "
                              f"loop outside of it, or make it local")
    attached = _placed(made, into, sites[0], around=set(around), taken=taken_names(program, consumer))
    launches = tuple(launch for launch in program.launches if launch != Launch((made,)))
    changed = replace(into, attached=((loop, attached), *into.attached))
    check_order(changed)
    result = replace(program, launches=launches).with_nest(changed)
    return result.with_tensor(_local(attached)) if local else result


@dataclass(frozen=True)
class _Site:
    """One read of the producer, with the loops that run inside of the chosen one."""

    read: Read
    nests: tuple[Nest, ...]  # that it is in, innermost first
    inside: tuple[Loop, ...]  # outermost first
    known: Mapping[Expr, Expr]  # names by what they stand for

    def expanded(self, expr: Expr) -> Expr:
        for nest in self.nests:
            expr = nest.expanded(expr)
        return expr


def _check_producer(program: Program, made: Nest, into: Nest) -> None:
    name = made.operation.output.name
    plain = [(dim.name, "serial") for dim, _ in made.axes]
    whole = made.name == name and [(loop.name, loop.kind) for loop in made.loops] == plain and not made.attached
    if not whole or made.padded or Launch((made,)) not in program.launches:
        raise IllegalSchedule(f"{made.name} cannot be computed at a loop, since it is scheduled, or in parts: "
                              f"compute_at first, then schedule it there")
    if name in program.outputs:
        raise IllegalSchedule(f"{made.name} cannot be computed at a loop, since it is an output of {program.name}")
    if Launch((into,)) not in program.launches or into.bulk:
        raise IllegalSchedule(f"{made.name} cannot be computed at a loop of {into.name}, which is attached to another, "
                              f"at once with another, or padded in bulk: take a loop of a launch of its own")


def _check_padding(made: Nest, into: Nest) -> None:
    """A padded loop runs where the producer has no elements."""
    for name, _ in into.padded:
        for nest in into.tree():
            for read in nest.operation.reads:
                reads_it = read.tensor.name == made.operation.output.name
                if reads_it and any(name in free(index) for index in read.indices):
                    raise IllegalSchedule(f"{made.name} cannot be computed at a loop of {into.name}, whose loop {name} "
                                          f"is padded: keep it apart")


def _sites(program: Program, made: Nest, into: Nest, loop: str) -> list[_Site]:
    """All reads of a producer, which are in the consumer and inside of the loop."""
    name, place = made.operation.output.name, into.position(loop)
    around = {each.name for each in into.loops[: place + 1]}
    known = {into.expanded(Ref(each)): Ref(each) for each, _ in into.defined
             if free(into.expanded(Ref(each))) <= around}
    tree = list(into.tree())
    for nest in program.nests():
        if nest not in tree and any(read.tensor.name == name for read in nest.operation.reads):
            raise IllegalSchedule(f"{made.name} cannot be computed at a loop of {into.name}, since {nest.name} reads "
                                  f"it too: keep it apart")

    def find(nest: Nest, nests: tuple[Nest, ...], inside: tuple[Loop, ...], *, open_: bool) -> Iterator[_Site]:
        loops = nest.loops[place + 1:] if nest is into else nest.loops
        for read in nest.operation.reads:
            if read.tensor.name == name:
                if not open_:
                    raise IllegalSchedule(f"{made.name} cannot be computed at loop {loop} of {into.name}, since "
                                          f"{nest.name} reads it outside of that loop: take a loop further outside")
                yield _Site(read, (nest, *nests), (*inside, *loops), known)
        for at, each in nest.attached:
            deep = open_ if nest is not into else into.position(at) >= place
            before = loops[: [other.name for other in loops].index(at) + 1] if at in [
                other.name for other in loops] else ()
            yield from find(each, (nest, *nests), (*inside, *before), open_=deep)

    sites = list(find(into, (), (), open_=True))
    if not sites:
        raise IllegalSchedule(f"{into.name} does not read {made.name}")
    return sites


def _ranges(made: Nest, site: _Site, around: list[str]) -> dict[str, Range]:
    """By dimension of the producer, what a site reads while the loops inside run."""
    extents: dict[str, Expr] = {}
    for loop in site.inside:
        extent = site.expanded(loop.extent)
        for other, size in extents.items():
            limit = constant_limit(size)
            extent = extent if limit is None else without_inner(extent, other, limit)
        extents[loop.name] = extent
    own: dict[FusedOuter, Expr] = {}
    found: dict[str, Range] = {}
    for (dim, extent), index in zip(made.operation.output.axes, site.read.indices, strict=True):
        expanded = site.expanded(index)
        if not free(expanded) & set(extents):
            found[dim.name] = Range(expanded, expanded)
            continue
        values = index_range(expanded, extents, own)
        if values is None or free(values.first) & set(extents) or free(values.last) & set(extents):
            raise IllegalSchedule(f"{made.name} cannot be computed at loop {around[-1]}: the range of its dimension "
                                  f"{dim.name}, read at {pretty_expr(printable(expanded))}, is not understood: take a "
                                  f"loop further outside or inside")
        if isinstance(expanded, At) and isinstance(expanded.table, FusedOuter):
            own[expanded.table] = dim
        last = _contracted(values.last, site.known)
        within = _same_throughout(extent, found)
        if simplify_expr(last + 1) != within and last != simplify_expr(within - 1):
            last = Binary("min", last, within - 1)
        else:
            last = within - 1
        found[dim.name] = Range(_contracted(values.first, site.known), normal(simplify_expr(last)))
    return found


def _same_throughout(extent: Expr, ranges: Mapping[str, Range]) -> Expr:
    """An extent without dimensions that it reads, where it is the same for all that is read of them."""
    for name in sorted(free(extent) & ranges.keys()):
        first, last = ranges[name].first, ranges[name].last
        limit = 1 if first == last else constant_limit(normal(simplify_expr(last + 1 - first)))
        if first != last and limit is not None:
            inside = simplify_expr(first + Ref(f"{name}_at"))
            shorter = without_inner(replaced(extent, {name: inside}), f"{name}_at", limit)
            extent = extent if f"{name}_at" in free(shorter) else shorter
    return extent


def _contracted(expr: Expr, known: Mapping[Expr, Expr]) -> Expr:
    """Put names back in place of what they stand for."""
    if expr in known:
        return known[expr]
    return rebuild(expr, expr=lambda part: _contracted(part, known), body=lambda body: body)


def _local(attached: Nest) -> Tensor:
    """The tensor stored for one iteration of the loop that the producer was just placed at."""
    defined = dict(attached.defined)
    axes: list[tuple[Dim, Expr, Expr]] = []
    for dim, _ in attached.operation.output.axes:
        loop = next((each for each in attached.loops if each.name == dim.name), None)
        if loop is not None:
            axes.append((dim, Const(0), loop.extent))
            continue
        inside = [each for each in attached.loops if dim.name in defined and each.name in free(defined[dim.name])]
        if inside:
            axes.append((dim, replaced(defined[dim.name], {inside[0].name: Const(0)}), inside[0].extent))
    dims = {dim.name for dim, *_ in axes}
    for dim, _, extent in axes:
        around = {name for _, _, each in axes for name in free(each)} - dims
        if free(extent) & dims and around:
            raise IllegalSchedule(f"{attached.name} cannot be local: the extent of {dim.name} varies with "
                                  f"{min(free(extent) & dims)} inside of the array, and the array with {min(around)}: "
                                  f"store it whole, or take a loop further inside")
    return replace(attached.operation.output, local=tuple((dim, simplify_expr(first), extent)
                                                          for dim, first, extent in axes))


def _placed(made: Nest, into: Nest, ranges: dict[str, Range], *, around: set[str], taken: set[str]) -> Nest:
    """The producer with loops over ranges, and names for single places."""
    known = around | {name for name, expr in into.defined if free(into.expanded(expr)) <= around}
    used = {name for nest in into.tree() for name in nest.names()}
    loops: list[Loop] = []
    defined: list[tuple[str, Expr]] = []
    for loop in made.loops:
        values = None if loop.reduces else ranges[loop.name]
        single = values is not None and values.first == values.last
        if single and loop.name in known and values.first == into.expanded(Ref(loop.name)):
            continue
        if single and values.first == Const(0) and loop.name in used - known:
            single = False  # a dimension of extent 1: a loop may share its name with a loop further inside
        if loop.name in (known | used if single else known):
            raise IllegalSchedule(f"{made.name} cannot be computed at a loop of {into.name}: its dimension {loop.name} "
                                  f"stands for something else there: give it another name in compute()")
        if values is None:
            loops.append(loop)
        elif single:
            defined.append((loop.name, values.first))
        elif values.first == Const(0):
            loops.append(replace(loop, extent=normal(simplify_expr(values.last + 1))))
        else:
            at = fresh(f"{loop.name}_at", taken)
            loops.append(Loop(at, normal(simplify_expr(values.last + 1 - values.first))))
            defined.append((loop.name, simplify_expr(values.first + Ref(at))))
    return replace(made, loops=tuple(loops), defined=tuple(defined))


def compute_with(program: Program, nest: str, into: str, loop: str) -> Program:
    """Run a nest in the loops of another, up to one of them; the rest of it runs before what is inside.

    `for i: for j: S; for i: for k: T`, S with T at i  ->  `for i: (for j: S; for k: T)`

    So what both read can be computed once, at a loop of T. The loops of S up to there take the names of those of T;
    others that are called as something in T are renamed, `j` to `j_at`. A loop of S that reduces may stand beside one
    of T that does not: then S adds up over its iterations, one after the other.

    Legal when the launches are neighbours; the outer loops of both have the same extents in the same order, and define
    the same dimensions where both have them; neither reads what the other writes; and S adds on top of what is stored
    if a loop that they share is in its reduction: see `decompose_reduction`.

    Raises:
        IllegalSchedule: names what is in the way, and the remedy.

    Source: Halide's compute_with; CoRa §7.2 needs it for no operator.
    """
    moved, onto = program.nest(nest), program.nest(into)
    _check_launches(program, moved, onto)
    place = onto.position(loop) + 1
    outer = onto.loops[:place]
    if any(each.reduces for each in outer) or onto.loop(loop).kind == "simd":
        raise IllegalSchedule(f"{nest} cannot be computed with {into} at loop {loop}, which is vectorised or in a "
                              f"reduction: take a loop outside of it")
    attached = _apart(_renamed(moved, onto, outer), onto, taken_names(program, into))
    _check_reduction(attached, moved.loops[:place], onto, loop=loop)
    _check_elements(attached, onto, outer)
    launches = tuple(launch for launch in program.launches if launch != Launch((moved,)))
    changed = replace(onto, attached=(*onto.attached, (loop, attached)))
    check_order(changed)
    return replace(program, launches=launches).with_nest(changed)


def _check_launches(program: Program, moved: Nest, onto: Nest) -> None:
    both = (Launch((moved,)), Launch((onto,)))
    places = [program.launches.index(each) if each in program.launches else -1 for each in both]
    if -1 in places or abs(places[0] - places[1]) != 1:
        raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}: they are not launches of their own "
                              f"that follow each other in {', '.join(launch.name for launch in program.launches)}")
    if moved.attached or moved.bulk or onto.bulk:
        raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}, since something is computed in its "
                              f"loops, or one of both is padded in bulk: compute_with first, then compute_at")
    for first, second in ((moved, onto), (onto, moved)):
        written = {each.operation.output.name for each in first.tree()}
        read = {each.tensor.name for other in second.tree() for each in other.operation.reads}
        if written & read:
            raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}: {second.name} reads "
                                  f"{min(written & read)}: use compute_at")


def _renamed(moved: Nest, onto: Nest, outer: tuple[Loop, ...]) -> Nest:
    """What is left of a nest in the loops of another, with their names."""
    names: dict[str, Expr] = {}
    for number, theirs in enumerate(outer):
        ours = moved.loops[number] if number < len(moved.loops) else None
        if ours is None or ours.kind not in ("serial", theirs.kind) or (
                replaced(moved.expanded(ours.extent), names) != onto.expanded(theirs.extent)):
            raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}: its loop "
                                  f"{'(none)' if ours is None else ours.name} is not the loop {theirs.name} of "
                                  f"{onto.name}: split, fuse and reorder both alike")
        names[ours.name] = Ref(theirs.name)
    shared, known = {loop.name for loop in outer}, dict(onto.defined)
    defined: list[tuple[str, Expr]] = [
        (name, theirs) for name, theirs in names.items() if theirs != Ref(name) and name in _used(moved)]
    for name, expr in moved.defined:
        here = replaced(expr, names)
        if name in known and free(onto.expanded(Ref(name))) <= shared:
            if replaced(moved.expanded(Ref(name)), names) != onto.expanded(Ref(name)):
                raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}: {name} stands for something "
                                      f"else there: give it another name in compute()")
            continue
        defined.append((name, here))
    loops = tuple(replace(each, extent=replaced(each.extent, names)) for each in moved.loops[len(outer):])
    taken = shared | {name for name in known if free(onto.expanded(Ref(name))) <= shared}
    both = sorted(({each.name for each in loops} | {name for name, _ in defined}) & taken)
    if both:
        raise IllegalSchedule(f"{moved.name} cannot be computed with {onto.name}: {both[0]} stands for something else "
                              f"there: give it another name in compute()")
    return replace(moved, loops=loops, defined=tuple(defined))


def _apart(attached: Nest, onto: Nest, taken: set[str]) -> Nest:
    """Give loops names of their own."""
    both = [loop.name for loop in attached.loops if loop.name in onto.names()]
    names: dict[str, Expr] = {name: Ref(fresh(f"{name}_at", taken)) for name in both}
    loops = tuple(replace(each, name=names.get(each.name, Ref(each.name)).name, extent=replaced(each.extent, names))
                  for each in attached.loops)
    defined = tuple((name, replaced(expr, names)) for name, expr in attached.defined)
    return replace(attached, loops=loops, defined=(*defined, *names.items()))


def _used(nest: Nest) -> set[str]:
    """Names that loops stand for themselves, since nothing defines them: whole dimensions."""
    return {dim.name for dim, _ in nest.axes}


def _check_reduction(attached: Nest, shared: tuple[Loop, ...], onto: Nest, *, loop: str) -> None:
    reduces = [each.name for each in shared if each.reduces]
    if reduces and (attached.begins or attached.operation.value != attached.operation.reduction):
        raise IllegalSchedule(f"{attached.name} cannot be computed with {onto.name} at loop {loop}: its loop "
                              f"{reduces[0]} is of its reduction, which begins in it, or is not all of its value: "
                              f"decompose_reduction first")


def _check_elements(attached: Nest, onto: Nest, outer: tuple[Loop, ...]) -> None:
    """Let parts of one reduction follow each other for every element."""
    for at, other in (*onto.attached, (outer[-1].name, onto)):
        both = (other, attached)
        same = other.operation.output == attached.operation.output and other.operation.at == attached.operation.at
        if not same or all(each.begins and each.ends for each in both):
            continue
        first = onto.position(at) + 1 if other is not onto else 0
        around = {loop.name for loop in outer[:first]} if first <= len(outer) else set()
        if not around or not other.begins or attached.begins or not _alike(onto, both, around):
            raise IllegalSchedule(f"{attached.name} cannot be computed with {onto.name}: it goes on with the reduction "
                                  f"of {other.name}: compute that with {onto.name} first, at a loop outside of the "
                                  f"reduction, which decides about the same elements in both")


def _alike(onto: Nest, both: tuple[Nest, Nest], around: set[str]) -> bool:
    """Whether loops decide about the same coordinates of the result in two nests, and about nothing else."""
    decided: set[str] = set()
    for dim, _ in both[0].operation.axes:
        first, second = (onto.expanded(each.expanded(dim)) for each in both)
        touched = (free(first) | free(second)) & around
        if touched and (first != second or not free(first) <= around):
            return False
        decided |= touched
    reduced = {name for each in both for dim, _ in each.operation.reduced for name in free(each.expanded(dim))}
    return decided == around and not reduced & around
