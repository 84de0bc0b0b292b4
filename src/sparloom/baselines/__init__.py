"""Bind the libraries that our programs are compared with: their users' calls, on preallocated arrays.

mkl; sparse (SpMM, SDDMM, attention and pairs of products by torch, MKL, Numba and SciPy) and sparse_libraries
(GraphBLAS, sparse_dot_mkl, AOCL-Sparse) and dgl_process; cuda (cuBLAS, cuSPARSE);
encoder (inputs, and encoder layers that pad) and packed_encoder (encoder layers that do not pad: nested tensors,
FlexAttention, FBGEMM, oneDNN). Names are imported on demand, so that this package costs no import of torch.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "mkl": ("mkl_gemm_batch", "mkl_spmm"),
    "dgl_process": ("dgl_sddmm", "dgl_spmm"),
    "sparse_libraries": ("aocl_spmm", "graphblas_sddmm", "graphblas_spmm", "mkl_dot"),
    "sparse": (
        "GATHERING", "SPARSE_BASELINES", "SPMM_BASELINES", "csr_tensor", "gathered_attention", "gathered_bytes",
        "library_versions", "mkl_pair", "sampled_attention", "scipy_pair", "torch_csr", "torch_pair"),
    "cuda": ("VENDOR", "cublas_strmm", "cusparse_spmm", "vendor_gemms", "vendor_sparse"),
    "encoder": (
        "BoundModule", "PackedInputs", "attention_module", "compiled", "encoder_layer", "fast_path",
        "micro_batch_sizes", "padded", "reference"),
    "packed_encoder": (
        "COMPARED", "DEVICE_BASELINES", "PADDED_BASELINES", "RAGGED_BASELINES", "RISING", "document_mask",
        "encoder_baselines", "encoder_versions", "fbgemm", "flex", "micro_batch_baselines", "nested",
        "sdpa", "varlen"),
})
