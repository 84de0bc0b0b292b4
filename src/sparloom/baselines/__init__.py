"""Bind the libraries that our programs are compared with: the calls of their users, on arrays that exist already.

mkl; sparse (SpMM, SDDMM, attention and pairs of products by torch, MKL, Numba and SciPy); cuda (cuBLAS, cuSPARSE);
encoder (inputs, and encoder layers that pad) and packed_encoder (encoder layers that do not pad: nested tensors,
FlexAttention, FBGEMM, oneDNN). Names are imported on demand, so that this package costs no import of torch.
"""

from sparloom.ondemand import on_demand

_HOMES = {
    "COMPARED": "packed_encoder",
    "DEVICE_BASELINES": "packed_encoder",
    "GATHERING": "sparse",
    "PADDED_BASELINES": "packed_encoder",
    "VENDOR": "cuda",
    "PackedInputs": "encoder",
    "BoundModule": "encoder",
    "RAGGED_BASELINES": "packed_encoder",
    "RISING": "packed_encoder",
    "SPARSE_BASELINES": "sparse",
    "SPMM_BASELINES": "sparse",
    "attention_module": "encoder",
    "compiled": "encoder",
    "document_mask": "packed_encoder",
    "csr_tensor": "sparse",
    "encoder_layer": "encoder",
    "encoder_baselines": "packed_encoder",
    "fast_path": "encoder",
    "fbgemm": "packed_encoder",
    "flex": "packed_encoder",
    "frozen": "encoder",
    "frozen_flex": "packed_encoder",
    "gathered_attention": "sparse",
    "gathered_bytes": "sparse",
    "micro_batch_baselines": "packed_encoder",
    "micro_batch_sizes": "encoder",
    "mkl_pair": "sparse",
    "mkl_spmm": "mkl",
    "encoder_versions": "packed_encoder",
    "nested": "packed_encoder",
    "padded": "encoder",
    "package_versions": "sparse",
    "reference": "encoder",
    "sampled_attention": "sparse",
    "scipy_pair": "sparse",
    "sdpa": "packed_encoder",
    "vendor_sparse": "cuda",
    "cublas_strmm": "cuda",
    "torch_csr": "sparse",
    "torch_gemm": "sparse",
    "torch_pair": "sparse",
    "varlen": "packed_encoder",
    "vendor_gemms": "cuda",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = on_demand(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
