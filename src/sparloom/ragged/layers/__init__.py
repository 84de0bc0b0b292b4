"""Operators and layers as ragged programs, with their schedules.

    tokens         dimensions of token batches, projections, layer norm and softmax, forward and backward
    encoder        attention and the encoder layer of the transformer, forward and backward, for CPU and GPU
    operators      single operators of attention, in the variants that the paper compares
    products       variable-sized batched GEMM and triangular matrix product
    layer          layers compiled for arrays
"""
