#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/run/step_places.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The storages that live from one step to the next, other than inputs. Traces of one
// model have the same ones in this order, under numbers of their own.
struct LastingStorages {
  // Parameters, buffers, the optimizer's state, accumulated gradients.
  std::vector<StorageId> states;
  // The storages that a step leaves to the next one, such as a loss. Their bytes may
  // depend on the inputs.
  std::vector<StorageId> remnants;
};

LastingStorages FindLasting(const Trace& trace, const StoragePlaces& places);

// Returns the first difference between the models, the optimizer states and the
// microbatches of two traces, or nothing if they can be steps of one run: modules
// are compared by name, their parameters and buffers and the states by bytes.
std::optional<std::string> ModelDifference(const Trace& a, const Trace& b);

}  // namespace acplan::graph
