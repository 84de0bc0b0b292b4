#define ELEMENT double
#include "graph_attention_pass.hpp"
