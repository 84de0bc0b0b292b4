"""Kernels written by hand, chosen by their parameters."""
