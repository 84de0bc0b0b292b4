"""Scheduling primitives: functions that change a program and keep its meaning.

Each raises IllegalSchedule, which names the obstacle and a remedy, unless it is legal; its docstring states when.

    loops          order, tiles, fusion, parallel and vector loops
    compute        where an operation is computed: in the loops of another
    operations     split, merge, inline and offload whole operations; padding and stored dimensions of tensors
"""
