// The passes of row_pass.hpp in float and double.

#include "row_pass.hpp"

extern "C" {

// Bytes of `RowPass::workspace`.
int64_t sparloom_row_pass_room_f32(const RowPass* p) { return sparloom::row_pass::Plan<float>(*p).room; }
int64_t sparloom_row_pass_room_f64(const RowPass* p) { return sparloom::row_pass::Plan<double>(*p).room; }

void sparloom_row_pass_f32(const RowPass* p) { sparloom::row_pass::run<float>(*p); }
void sparloom_row_pass_f64(const RowPass* p) { sparloom::row_pass::run<double>(*p); }

}  // extern "C"
