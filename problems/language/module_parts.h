#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/trace/trace.h"

namespace acplan::problems {

// The parts of a block that a trainer checkpoints by a fixed list of names, Megatron-Core's
// recompute_modules, and the modules of a trace that stand for them.

struct ModulePart {
  std::string_view name;
  // The result is discarded in the forward pass, too, and made again before backward reads
  // it.
  bool discards_output = false;
  // A module of a PyTorch model can stand for the part; otherwise it is a function.
  bool is_module = true;
};

// Returns all parts, in the order of Megatron-Core's documentation.
const std::vector<ModulePart>& ModuleParts();

// Returns the modules of the named parts that are called with gradients, ascending. Modules
// of Megatron-Core and of transformers' models are known by their names in a block.
std::vector<graph::ModuleId> ModulesOfParts(
    const graph::Trace& trace, const std::vector<graph::ModuleId>& blocks,
    const std::vector<std::string>& names);

// Returns the names of the parts that a trace has modules for, ascending.
std::vector<std::string> PartsOf(const graph::Trace& trace,
                                 const std::vector<graph::ModuleId>& blocks);

}  // namespace acplan::problems
