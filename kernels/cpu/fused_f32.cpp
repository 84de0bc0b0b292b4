#define ELEMENT float
#include "fused_symbols.hpp"
