// The threads of parallel loops in rendered C, see team.hpp.

#include "team.hpp"

extern "C" int32_t sparloom_team(int32_t wanted) { return sparloom::team(wanted); }
