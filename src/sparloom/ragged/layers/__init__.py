"""Operators and layers as ragged programs, with their schedules.

    tokens         dimensions of token batches, sizes and schedules of layers, projections, dropout
    norms          layer norm and softmax, forward and backward
    precision      products with operands in bfloat16 and int8
    attention      multi-head attention, for CPU and GPU; attention_gradients for CPU
    cross_attention  attention to the tokens of another batch, forward and backward
    encoder        the encoder layer of the transformer, forward and backward, for CPU and GPU
    operators      single operators of attention, in the variants that the paper compares
    products       variable-sized batched GEMM and triangular matrix product
    layer          layers compiled for arrays
"""
