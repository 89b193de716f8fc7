#pragma once

#include <random>

#include "graph/trace/trace.h"

namespace acplan::test_support {

// Returns a valid trace of so many operators: a random tree of modules, nested
// calls, storages that are read, changed in place and saved while they live,
// and whose lives end in every phase or not at all. A storage lives as long as
// the forward code or autograd holds it.
graph::Trace RandomTrace(std::mt19937& random, int operators);

}  // namespace acplan::test_support
