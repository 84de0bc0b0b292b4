"""Schedule where an operation is computed: inside the loops of another one.

`compute_at` needs bounds inference, the range of coordinates that an index takes while inner loops run:

    index        range while f runs from f1 to f2
    outer(f)     outer(f1) .. outer(f2)
    inner(f)     from (o = outer(f1) ? inner(f1) : 0) to (o = outer(f2) ? inner(f2) : l(o) - 1), o being the range's own

Sums, minima, products with constants and these maps are monotonic, so their ends are those of their parts; differences
fall in the subtrahend. If f runs through the whole fused loop, the ranges are whole dimensions.

Source: CoRa §5.2, Figure 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparloom.errors import IllegalSchedule
from sparloom.ir import Binary, Const, Expr, Ref, Select, fresh, rebuild, simplify_expr
from sparloom.ragged.dimensions import Dim, constant_bound, free_names, min_of_sums, substitute, without_inner
from sparloom.ragged.nests import Launch, Loop, Nest, Program, Read, text
from sparloom.ragged.schedule.loops import check_order, taken_names
from sparloom.ragged.tensor import At, FusedInner, FusedOuter, Tensor


def compute_at(program: Program, producer: str, consumer: str, loop: str, *, local: bool = False) -> Program:
    """Compute a producer in every iteration of a consumer's loop, as far as the inner loops read it.

    `for i: y[i] = f(i); for j: for k: z[j, k] = g(y[j], k)`, at j  ->
    `for j: y[j] = f(j); for k: z[j, k] = g(y[j], k)`

    A dimension of the producer that is read at one coordinate per iteration gets no loop; one along which inner loops
    run gets a loop over the range that they read. Nests attached later run earlier, so attach the last producer of a
    chain first.

    Legal if all reads of the producer are inside the loop and have the same range, or one that is the whole dimension,
    the producer is unscheduled and not an output, every surrounding loop changes what is computed (nothing is computed
    twice, unless it is local), the loop is not in a reduction, and the consumer's dimensions have their names in the
    producer too. Extents of a local array may vary with surrounding loops or with each other, not both.

    Args:
        local: do not store the whole producer: every iteration has an array of what it reads.

    Source: CoRa §5.2 (bounds inference, named dimensions).
    """
    source, target = program.nest(producer), program.nest(consumer)
    _check_producer(program, source, target)
    if local and source.operation.output.changes:
        raise IllegalSchedule(f"{producer} cannot be made local to a loop, since its storage is rearranged: compute_at "
                              f"first, then rearrange it")
    position = target.position(loop)
    around = [each.name for each in target.loops[: position + 1]]
    if target.loop(loop).kind == "simd" or any(each.reduces for each in target.loops[: position + 1]):
        raise IllegalSchedule(f"{producer} cannot be computed at loop {loop} of {consumer}, which is vectorised or in "
                              f"a reduction: use a loop outside of it")
    _check_padding(source, target)
    sites = [_ranges(source, site, around) for site in _read_sites(program, source, target, loop)]
    ranges = _common_ranges(source, sites)
    if ranges is None:
        raise IllegalSchedule(f"{producer} cannot be computed at loop {loop} of {consumer}: reads there differ in "
                              f"their ranges: use a loop further outside")
    decided = {name for each in ranges.values() for end in (each.first, each.last)
               for name in free_names(target.expanded(end))}
    idle = [name for name in around if name not in decided]
    if idle and not local:
        raise IllegalSchedule(f"{producer} cannot be computed at loop {loop} of {consumer}: loop {idle[0]} around does "
                              f"not change what is read, so it would be computed again: move {idle[0]} inside, use a "
                              f"loop outside of it, or make it local")
    attached = _attach(source, target, ranges, around=set(around), taken=taken_names(program, consumer))
    launches = tuple(launch for launch in program.launches if launch != Launch((source,)))
    changed = replace(target, attached=((loop, attached), *target.attached))
    check_order(changed)
    result = replace(program, launches=launches).with_nest(changed)
    return result.with_tensor(_local(attached)) if local else result


@dataclass(frozen=True)
class _ReadSite:
    """One read of the producer, with the loops that run inside the chosen one."""

    read: Read
    nests: tuple[Nest, ...]  # nests around it, innermost first
    inside: tuple[Loop, ...]  # outermost first
    known: Mapping[Expr, Expr]  # definition -> name

    def expanded(self, expr: Expr) -> Expr:
        for nest in self.nests:
            expr = nest.expanded(expr)
        return expr


def _check_producer(program: Program, source: Nest, target: Nest) -> None:
    name = source.operation.output.name
    plain = [(dim.name, "serial") for dim, _ in source.axes]
    whole = source.name == name and [(loop.name, loop.kind) for loop in source.loops] == plain and not source.attached
    if not whole or source.padded or Launch((source,)) not in program.launches:
        raise IllegalSchedule(f"{source.name} cannot be computed at a loop, since it is scheduled, or in parts: "
                              f"compute_at first, then schedule it there")
    if name in program.outputs:
        raise IllegalSchedule(f"{source.name} cannot be computed at a loop, since it is an output of {program.name}")
    if Launch((target,)) not in program.launches:
        raise IllegalSchedule(f"{source.name} cannot be computed at a loop of {target.name}, which is attached to "
                              f"another, or fused with another: use a loop of a separate launch")


def _check_padding(source: Nest, target: Nest) -> None:
    """Check that no padded loop runs where the producer has no elements."""
    for name, _ in target.padded:
        for nest in target.tree():
            for read in nest.operation.reads:
                reads_it = read.tensor.name == source.operation.output.name
                if reads_it and any(name in free_names(index) for index in read.indices):
                    raise IllegalSchedule(f"{source.name} cannot be computed at a loop of {target.name}, whose loop "
                                          f"{name} is padded: keep it apart")


def _read_sites(program: Program, source: Nest, target: Nest, loop: str) -> list[_ReadSite]:
    """Return all reads of a producer; they must be in the consumer and inside the loop."""
    name, position = source.operation.output.name, target.position(loop)
    around = {each.name for each in target.loops[: position + 1]}
    known = {target.expanded(Ref(each)): Ref(each) for each, _ in target.defined
             if free_names(target.expanded(Ref(each))) <= around}
    simplified = {simplify_expr(definition): name for definition, name in known.items()}  # such as o // 1
    known |= {definition: name for definition, name in simplified.items() if free_names(definition)}
    tree = list(target.tree())
    for nest in program.nests():
        if nest not in tree and any(read.tensor.name == name for read in nest.operation.reads):
            raise IllegalSchedule(f"{source.name} cannot be computed at a loop of {target.name}, since {nest.name} "
                                  f"reads it too: keep it apart")

    def find(nest: Nest, nests: tuple[Nest, ...], inside: tuple[Loop, ...], *, open_: bool) -> Iterator[_ReadSite]:
        loops = nest.loops[position + 1:] if nest is target else nest.loops
        for read in nest.operation.reads:
            if read.tensor.name == name:
                if not open_:
                    raise IllegalSchedule(f"{source.name} cannot be computed at loop {loop} of {target.name}, since "
                                          f"{nest.name} reads it outside of that loop: use a loop further outside")
                yield _ReadSite(read, (nest, *nests), (*inside, *loops), known)
        for at, each in nest.attached:
            deep = open_ if nest is not target else target.position(at) >= position
            before = loops[: [other.name for other in loops].index(at) + 1] if at in [
                other.name for other in loops] else ()
            yield from find(each, (nest, *nests), (*inside, *before), open_=deep)

    sites = list(find(target, (), (), open_=True))
    if not sites:
        raise IllegalSchedule(f"{target.name} does not read {source.name}")
    return sites


def _ranges(source: Nest, site: _ReadSite, around: list[str]) -> dict[str, Range]:
    """Return what a site reads of each dimension of the producer while the inner loops run."""
    extents: dict[str, Expr] = {}
    for loop in site.inside:
        extent = site.expanded(loop.extent)
        for other, size in extents.items():
            limit = constant_bound(size)
            extent = extent if limit is None else without_inner(extent, other, limit)
        extents[loop.name] = extent
    own: dict[FusedOuter, Expr] = {}
    found: dict[str, Range] = {}
    for (dim, extent), index in zip(source.operation.output.axes, site.read.indices, strict=True):
        expanded = site.expanded(index)
        if not free_names(expanded) & set(extents):
            found[dim.name] = Range(expanded, expanded)
            continue
        values = index_range(expanded, extents, own)
        if values is None or free_names(values.first) & set(extents) or free_names(values.last) & set(extents):
            raise IllegalSchedule(f"{source.name} cannot be computed at loop {around[-1]}: the range of its dimension "
                                  f"{dim.name}, read at {text(expanded)}, is not understood: use a "
                                  f"loop further outside or inside")
        if isinstance(expanded, At) and isinstance(expanded.table, FusedOuter):
            own[expanded.table] = dim
        last = _fold_names(values.last, site.known)
        within = _constant_over(extent, found)
        if simplify_expr(last + 1) != within and last != simplify_expr(within - 1):
            last = Binary("min", last, within - 1)
        else:
            last = within - 1
        found[dim.name] = Range(_fold_names(values.first, site.known), min_of_sums(simplify_expr(last)))
    return found


def _common_ranges(source: Nest, sites: list[dict[str, Range]]) -> dict[str, Range] | None:
    """Return the ranges of all sites: that of a dimension which one of them reads whole is whole.

    None: ranges differ otherwise.
    """
    found: dict[str, Range] = {}
    for dim, extent in source.operation.output.axes:
        values = [each[dim.name] for each in sites]
        whole = Range(Const(0), min_of_sums(simplify_expr(_constant_over(extent, found) - 1)))
        if any(each != values[0] for each in values) and whole not in values:
            return None
        found[dim.name] = whole if whole in values else values[0]
    return found


def _constant_over(extent: Expr, ranges: Mapping[str, Range]) -> Expr:
    """Write an extent without the dimensions it reads, if it is the same over their ranges."""
    for name in sorted(free_names(extent) & ranges.keys()):
        first, last = ranges[name].first, ranges[name].last
        limit = 1 if first == last else constant_bound(min_of_sums(simplify_expr(last + 1 - first)))
        if first != last and limit is not None:
            inside = simplify_expr(first + Ref(f"{name}_at"))
            shorter = without_inner(substitute(extent, {name: inside}), f"{name}_at", limit)
            extent = extent if f"{name}_at" in free_names(shorter) else shorter
    return extent


def _fold_names(expr: Expr, known: Mapping[Expr, Expr]) -> Expr:
    """Replace definitions by the names they define."""
    if expr in known:
        return known[expr]
    return rebuild(expr, expr=lambda part: _fold_names(part, known))


def _local(attached: Nest) -> Tensor:
    """Return the tensor stored for one iteration of the loop at which the producer was attached."""
    defined = dict(attached.defined)
    axes: list[tuple[Dim, Expr, Expr]] = []
    for dim, _ in attached.operation.output.axes:
        loop = next((each for each in attached.loops if each.name == dim.name), None)
        if loop is not None:
            axes.append((dim, Const(0), loop.extent))
            continue
        inside = [each for each in attached.loops if dim.name in defined and each.name in free_names(defined[dim.name])]
        if inside:
            axes.append((dim, substitute(defined[dim.name], {inside[0].name: Const(0)}), inside[0].extent))
    dims = {dim.name for dim, *_ in axes}
    for dim, _, extent in axes:
        around = {name for _, _, each in axes for name in free_names(each)} - dims
        if free_names(extent) & dims and around:
            raise IllegalSchedule(f"{attached.name} cannot be local: the extent of {dim.name} varies with "
                                  f"{min(free_names(extent) & dims)} inside of the array, and the array with "
                                  f"{min(around)}: store it whole, or use a loop further inside")
    return replace(attached.operation.output, local=tuple((dim, simplify_expr(first), extent)
                                                          for dim, first, extent in axes))


def _attach(source: Nest, target: Nest, ranges: dict[str, Range], *, around: set[str], taken: set[str]) -> Nest:
    """Give the producer loops over ranges, and names for single coordinates."""
    known = around | {name for name, expr in target.defined if free_names(target.expanded(expr)) <= around}
    used = {name for nest in target.tree() for name in nest.names()}
    loops: list[Loop] = []
    defined: list[tuple[str, Expr]] = []
    for loop in source.loops:
        values = None if loop.reduces else ranges[loop.name]
        single = values is not None and values.first == values.last
        if single and loop.name in known and values.first == target.expanded(Ref(loop.name)):
            continue
        if single and values.first == Const(0) and loop.name in used - known:
            single = False  # a dimension of extent 1: a loop may share its name with a loop further inside
        if loop.name in (known | used if single else known):
            raise IllegalSchedule(f"{source.name} cannot be computed at a loop of {target.name}: its dimension "
                                  f"{loop.name} has another meaning there: give it another name in compute()")
        if values is None:
            loops.append(loop)
        elif single:
            defined.append((loop.name, values.first))
        elif values.first == Const(0):
            loops.append(replace(loop, extent=min_of_sums(simplify_expr(values.last + 1))))
        else:
            at = fresh(f"{loop.name}_at", taken)
            loops.append(Loop(at, min_of_sums(simplify_expr(values.last + 1 - values.first))))
            defined.append((loop.name, simplify_expr(values.first + Ref(at))))
    return replace(source, loops=tuple(loops), defined=tuple(defined))


def compute_with(program: Program, nest: str, into: str, loop: str) -> Program:
    """Run a nest in the loops of another one, down to one of them; the rest of it runs before what is inside.

    `for i: for j: S; for i: for k: T`, S with T at i  ->  `for i: (for j: S; for k: T)`

    A producer of both can then be computed once, at a loop of T. The shared loops of S take the names of those of T;
    other loops of S whose names occur in T are renamed, `j` to `j_at`. A reduction loop of S may be shared with a loop
    of T that does not reduce: then S accumulates over its iterations, one after the other.

    Legal if the launches are neighbours; the outer loops of both have the same extents in the same order, and define
    the same dimensions where both have them; neither reads what the other writes; and S adds to what is stored if a
    shared loop is in its reduction: see `decompose_reduction`.

    Source: Halide's compute_with; CoRa §7.2 needs it for no operator.
    """
    moved, target = program.nest(nest), program.nest(into)
    _check_launches(program, moved, target)
    depth = target.position(loop) + 1
    outer = target.loops[:depth]
    if any(each.reduces for each in outer) or target.loop(loop).kind == "simd":
        raise IllegalSchedule(f"{nest} cannot be computed with {into} at loop {loop}, which is vectorised or in a "
                              f"reduction: use a loop outside of it")
    attached = _with_unique_loops(_renamed(moved, target, outer), target, taken_names(program, into))
    _check_reduction(attached, moved.loops[:depth], target, loop=loop)
    _check_elements(attached, target, outer)
    launches = tuple(launch for launch in program.launches if launch != Launch((moved,)))
    changed = replace(target, attached=(*target.attached, (loop, attached)))
    check_order(changed)
    return replace(program, launches=launches).with_nest(changed)


def _check_launches(program: Program, moved: Nest, target: Nest) -> None:
    both = (Launch((moved,)), Launch((target,)))
    positions = [program.launches.index(each) if each in program.launches else -1 for each in both]
    if -1 in positions or abs(positions[0] - positions[1]) != 1:
        raise IllegalSchedule(f"{moved.name} cannot be computed with {target.name}: they are not separate launches "
                              f"that follow each other in {', '.join(launch.name for launch in program.launches)}")
    if moved.attached:
        raise IllegalSchedule(f"{moved.name} cannot be computed with {target.name}, since something is computed in its "
                              f"loops: compute_with first, then compute_at")
    for first, second in ((moved, target), (target, moved)):
        written = {each.operation.output.name for each in first.tree()}
        read = {each.tensor.name for other in second.tree() for each in other.operation.reads}
        if written & read:
            raise IllegalSchedule(f"{moved.name} cannot be computed with {target.name}: {second.name} reads "
                                  f"{min(written & read)}: use compute_at")


def _renamed(moved: Nest, target: Nest, outer: tuple[Loop, ...]) -> Nest:
    """Return the remaining loops of a nest, with the names of the other nest's loops."""
    names: dict[str, Expr] = {}
    for number, theirs in enumerate(outer):
        ours = moved.loops[number] if number < len(moved.loops) else None
        if ours is None or ours.kind not in ("serial", theirs.kind) or (
                substitute(moved.expanded(ours.extent), names) != target.expanded(theirs.extent)):
            raise IllegalSchedule(f"{moved.name} cannot be computed with {target.name}: its loop "
                                  f"{'(none)' if ours is None else ours.name} is not the loop {theirs.name} of "
                                  f"{target.name}: split, fuse and reorder both in the same way")
        names[ours.name] = Ref(theirs.name)
    shared, known = {loop.name for loop in outer}, dict(target.defined)
    defined: list[tuple[str, Expr]] = [
        (name, theirs) for name, theirs in names.items() if theirs != Ref(name) and name in _used(moved)]
    for name, expr in moved.defined:
        here = substitute(expr, names)
        if name in known and free_names(target.expanded(Ref(name))) <= shared:
            if substitute(moved.expanded(Ref(name)), names) != target.expanded(Ref(name)):
                raise IllegalSchedule(f"{moved.name} cannot be computed with {target.name}: {name} has another "
                                      "meaning there: give it another name in compute()")
            continue
        defined.append((name, here))
    loops = tuple(replace(each, extent=substitute(each.extent, names)) for each in moved.loops[len(outer):])
    taken = shared | {name for name in known if free_names(target.expanded(Ref(name))) <= shared}
    both = sorted(({each.name for each in loops} | {name for name, _ in defined}) & taken)
    if both:
        raise IllegalSchedule(f"{moved.name} cannot be computed with {target.name}: {both[0]} has another meaning "
                              "there: give it another name in compute()")
    return replace(moved, loops=loops, defined=tuple(defined))


def _with_unique_loops(attached: Nest, target: Nest, taken: set[str]) -> Nest:
    """Give loops unique names."""
    both = [loop.name for loop in attached.loops if loop.name in target.names()]
    names: dict[str, Expr] = {name: Ref(fresh(f"{name}_at", taken)) for name in both}
    loops = tuple(replace(each, name=names.get(each.name, Ref(each.name)).name, extent=substitute(each.extent, names))
                  for each in attached.loops)
    defined = tuple((name, substitute(expr, names)) for name, expr in attached.defined)
    return replace(attached, loops=loops, defined=(*defined, *names.items()))


def _used(nest: Nest) -> set[str]:
    """Return the names of whole dimensions, for which loops stand without a definition."""
    return {dim.name for dim, _ in nest.axes}


def _check_reduction(attached: Nest, shared: tuple[Loop, ...], target: Nest, *, loop: str) -> None:
    reduces = [each.name for each in shared if each.reduces]
    if reduces and (attached.begins or attached.operation.value != attached.operation.reduction):
        raise IllegalSchedule(f"{attached.name} cannot be computed with {target.name} at loop {loop}: its loop "
                              f"{reduces[0]} is of its reduction, which begins in it, or is not all of its value: "
                              f"decompose_reduction first")


def _check_elements(attached: Nest, target: Nest, outer: tuple[Loop, ...]) -> None:
    """Check that parts of one reduction follow each other for every element."""
    for at, other in (*target.attached, (outer[-1].name, target)):
        both = (other, attached)
        same = other.operation.output == attached.operation.output and other.operation.at == attached.operation.at
        if not same or all(each.begins and each.ends for each in both):
            continue
        first = target.position(at) + 1 if other is not target else 0
        around = {loop.name for loop in outer[:first]} if first <= len(outer) else set()
        if not around or not other.begins or attached.begins or not _same_coordinates(target, both, around):
            raise IllegalSchedule(f"{attached.name} cannot be computed with {target.name}: it continues the "
                                  f"reduction of {other.name}: compute that with {target.name} first, at a loop "
                                  f"outside of the reduction, which decides about the same elements in both")


def _same_coordinates(target: Nest, both: tuple[Nest, Nest], around: set[str]) -> bool:
    """Check that loops determine the same coordinates of the result in two nests, and nothing else."""
    decided: set[str] = set()
    for dim, _ in both[0].operation.axes:
        first, second = (target.expanded(each.expanded(dim)) for each in both)
        touched = (free_names(first) | free_names(second)) & around
        if touched and (first != second or not free_names(first) <= around):
            return False
        decided |= touched
    reduced = {name for each in both for dim, _ in each.operation.reduced for name in free_names(each.expanded(dim))}
    return decided == around and not reduced & around


@dataclass(frozen=True)
class Range:
    """First and last value, both included."""

    first: Expr
    last: Expr


def index_range(index: Expr, extents: Mapping[str, Expr], own: Mapping[FusedOuter, Expr]) -> Range | None:
    """Find the values of an index; None if they cannot be bounded.

    Args:
        index: expression over loops.
        extents: extents of the running loops, over loops; inner ones later.
        own: for each map, the name that runs through the range of its o.
    """
    match index:
        case _ if not free_names(index) & extents.keys():
            return Range(index, index)
        case Ref(name):
            last = index_range(simplify_expr(extents[name] - 1), extents, own)
            return None if last is None else Range(Const(0), last.last)
        case Binary("+", a, b):
            return _combine("+", index_range(a, extents, own), index_range(b, extents, own))
        case Binary("min", a, b):
            return _combine("min", index_range(a, extents, own), index_range(b, extents, own))
        case Binary("*" | "//" as op, a, Const(value) as b) if value > 0:
            return _combine(op, index_range(a, extents, own), Range(b, b))
        case Binary("-", a, b):
            less = index_range(b, extents, own)
            return None if less is None else _combine("-", index_range(a, extents, own), Range(less.last, less.first))
        case At(FusedOuter() | FusedInner() as table, (f,)):
            inside = index_range(f, extents, own)
            return None if inside is None else _range_of_map(table, inside, own)
    return None


def _combine(op: str, a: Range | None, b: Range | None) -> Range | None:
    if a is None or b is None:
        return None
    return Range(simplify_expr(Binary(op, a.first, b.first)), simplify_expr(Binary(op, a.last, b.last)))


def _range_of_map(table: FusedOuter | FusedInner, f: Range, own: Mapping[FusedOuter, Expr]) -> Range | None:
    outers, inners = FusedOuter(table.extent, table.inner), FusedInner(table.extent, table.inner)
    whole = f == Range(Const(0), simplify_expr(table.total - 1))
    if isinstance(table, FusedOuter):
        if whole:
            return Range(Const(0), simplify_expr(table.extent - 1))
        return Range(At(outers, (f.first,)), At(outers, (f.last,)))
    if outers not in own:
        return None
    o = own[outers]
    end = simplify_expr(substitute(table.inner, {"x0": o}) - 1)
    if whole:
        return Range(Const(0), end)
    first = Select(Binary("==", o, At(outers, (f.first,))), At(inners, (f.first,)), Const(0))
    return Range(first, Select(Binary("==", o, At(outers, (f.last,))), At(inners, (f.last,)), end))
