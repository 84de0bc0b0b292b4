#define ELEMENT double
#include "fused_symbols.hpp"
