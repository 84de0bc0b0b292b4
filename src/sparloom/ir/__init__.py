"""The loop IR: kernels of loops over flat buffers, which other compilers of this package generate.

    nodes          the grammar of kernels, a walk over nodes, and kernels as text for people
    verify         types, and whether a kernel is well formed
    transform      rewrites nodes, simplifies kernels, lowers products of tiles
    interpret      the meaning of kernels, in NumPy
    c_family       what C and CUDA have in common; codegen_c and codegen_cuda print the source text
"""

from sparloom.ir.codegen_c import render_c
from sparloom.ir.codegen_cuda import render_cuda
from sparloom.ir.interpret import InterpretedLibrary, interpret, rounded, widened
from sparloom.ir.nodes import (
    BF16,
    BOOL,
    DTYPES,
    F32,
    F64,
    I8,
    I32,
    I64,
    PRODUCTS,
    U8,
    Accumulate,
    Alloc,
    Assign,
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Multiply,
    Param,
    Prefetch,
    Ref,
    Select,
    Stmt,
    Store,
    Sum,
    Type,
    Unary,
    View,
    interleaved_rows,
    pretty,
    pretty_expr,
    walk,
)
from sparloom.ir.transform import declared_names, fresh, rebuild, replace_refs, simplify, simplify_expr
from sparloom.ir.verify import is_name, verify

__all__ = [
    "BF16", "BOOL", "DTYPES", "F32", "F64", "I8", "I32", "I64", "PRODUCTS", "U8", "Accumulate", "Alloc", "Assign",
    "Binary", "Broadcast", "Call", "Cast", "Const", "Declare", "Expr", "For", "If", "InterpretedLibrary", "Kernel",
    "Let", "Load", "Multiply", "Param", "Prefetch", "Ref", "Select", "Stmt", "Store", "Sum", "Type", "Unary", "View",
    "declared_names", "fresh", "interleaved_rows", "interpret", "is_name", "pretty", "pretty_expr", "rebuild",
    "render_c", "render_cuda", "replace_refs", "rounded", "simplify", "simplify_expr", "verify", "walk", "widened",
]
