// The threads of parallel loops, for rendered C and for measurements, see team.hpp.

#include "team.hpp"

extern "C" {

int32_t sparloom_team(int32_t wanted) { return sparloom::team(wanted); }

// Lets idle threads of the team spin for so many nanoseconds before they sleep; 0: as many as usual.
void sparloom_keep_awake(int64_t nanoseconds) {
#if defined(__linux__)
    sparloom::threads::kTeam->keep_awake(nanoseconds);
#endif
}

}  // extern "C"
