// The products of fused.hpp and fused_baselines.hpp under names that C knows, in one element type.
// Expects the macro ELEMENT, float or double. Included once per library.

#include "fused_baselines.hpp"

#define SPARLOOM_RUN(name, Arguments) \
    void sparloom_##name(const void* f) { sparloom::fused::name<ELEMENT>(*static_cast<const Arguments*>(f)); }

extern "C" {

// Elements of `Fused::packed`.
int64_t sparloom_fused_packed(const Fused* f) { return sparloom::gemm::packed_size<ELEMENT>(f->inner, f->width); }

// Elements of `Fused::buffers` for each thread, D1 having `lead` columns.
int64_t sparloom_fused_buffer(const Fused* f, int64_t lead) { return sparloom::fused::buffer_size<ELEMENT>(*f, lead); }

SPARLOOM_RUN(gemm_spmm, Fused)
SPARLOOM_RUN(spmm_spmm, Fused)
SPARLOOM_RUN(spmm_gemm, Fused)
SPARLOOM_RUN(gemm_spmm_atomic, Atomic)
SPARLOOM_RUN(spmm_spmm_atomic, Atomic)
SPARLOOM_RUN(gemm_spmm_listing, Fused)
SPARLOOM_RUN(gemm_spmm_gemv, Fused)
SPARLOOM_RUN(gemm_spmm_blas_gemv, Fused)

}  // extern "C"
