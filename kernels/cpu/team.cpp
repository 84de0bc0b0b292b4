// The number of threads for loops of OpenMP in rendered C, see openmp.hpp.

#include "openmp.hpp"

extern "C" {

int32_t sparloom_team(int32_t wanted) { return sparloom::team(wanted); }

}  // extern "C"
