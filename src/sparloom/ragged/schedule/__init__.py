"""Scheduling primitives: functions that change a program and keep its meaning.

    loops          order, tiles, fusion, parallel and vector loops
    compute        where an operation is computed: in the loops of another
    operations     split, merge, inline and offload whole operations
    storage        padding and stored dimensions of tensors
"""
