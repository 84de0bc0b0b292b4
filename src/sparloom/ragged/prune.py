"""Leave out what a kernel does not use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sparloom.ir import For, If, Kernel, Let, Ref, Stmt, walk

__all__ = ["prune"]


def prune(kernel: Kernel, tables: Collection[str]) -> Kernel:
    """Drop values and tables that are never read.

    `let a = S; T  ->  T` where T does not read a. So the prelude does not build the maps of a fused loop where all
    accesses are at the fused variable. Always legal: expressions change nothing.

    Args:
        tables: names of the parameters that are tables.
    """
    while True:
        used = {node.name for node in walk(kernel) if isinstance(node, Ref)}
        body = _kept(kernel.body, used)
        if body == kernel.body:
            break
        kernel = replace(kernel, body=body)
    read = used | {node.buffer for node in walk(kernel) if hasattr(node, "buffer")}
    params = tuple(param for param in kernel.params if param.name in read or param.name not in tables)
    return replace(kernel, params=params)


def _kept(body: tuple[Stmt, ...], used: set[str]) -> tuple[Stmt, ...]:
    kept: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Let) and stmt.name not in used:
            continue
        if isinstance(stmt, For):
            stmt = replace(stmt, body=_kept(stmt.body, used))
        elif isinstance(stmt, If):
            stmt = replace(stmt, body=_kept(stmt.body, used), orelse=_kept(stmt.orelse, used))
        kept.append(stmt)
    return tuple(kept)
