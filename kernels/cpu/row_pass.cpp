// The passes of row_pass.hpp in float and double.

#include "row_pass.hpp"

extern "C" {

// Elements of `RowPass::packed`.
int64_t sparloom_row_pass_packed_f32(int64_t width, int64_t out) { return sparloom::gemm::packed_size<float>(width, out); }
int64_t sparloom_row_pass_packed_f64(int64_t width, int64_t out) { return sparloom::gemm::packed_size<double>(width, out); }

// Elements of `RowPass::buffers` for each thread.
int64_t sparloom_row_pass_buffer_f32(const RowPass* p) { return sparloom::row_pass::Pass<float>::buffer_size(*p); }
int64_t sparloom_row_pass_buffer_f64(const RowPass* p) { return sparloom::row_pass::Pass<double>::buffer_size(*p); }

void sparloom_row_pass_f32(const void* p) { sparloom::row_pass::run<float>(*static_cast<const RowPass*>(p)); }
void sparloom_row_pass_f64(const void* p) { sparloom::row_pass::run<double>(*static_cast<const RowPass*>(p)); }

}  // extern "C"
