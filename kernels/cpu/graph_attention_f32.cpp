#define ELEMENT float
#include "graph_attention_pass.hpp"
