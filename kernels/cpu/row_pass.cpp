// The passes of row_pass.hpp in float and double.

#include "row_pass.hpp"

extern "C" {

// Elements of `RowPass::packed`.
int64_t sparloom_row_pass_packed_f32(int64_t width, int64_t out) { return sparloom::gemm::packed_size<float>(width, out); }
int64_t sparloom_row_pass_packed_f64(int64_t width, int64_t out) { return sparloom::gemm::packed_size<double>(width, out); }

void sparloom_row_pass_f32(const void* p) { sparloom::row_pass::run<float>(*static_cast<const RowPass*>(p)); }
void sparloom_row_pass_f64(const void* p) { sparloom::row_pass::run<double>(*static_cast<const RowPass*>(p)); }

}  // extern "C"
