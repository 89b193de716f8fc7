#pragma once

#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The part that storages of the trace play in every iteration.
struct StoragePlaces {
  // In the order in which they are put on the device.
  std::vector<StorageId> model, inputs, state, scaler, of_libraries;
  // The operators before which the first update makes the state, and the first
  // step the tensors of a GradScaler; kNone: there is none.
  OperatorId first_of_state = kNone;
  OperatorId first_of_scaler = kNone;
  // The one that lives before the step and whose place it takes, or kNone.
  IndexedVector<StorageId, StorageId> takes_place_of;
  // The gradient that it becomes where there is none, or kNone.
  IndexedVector<StorageId, StorageId> becomes_gradient;
};

// Finds the part of every storage, from what the trace says about it alone.
StoragePlaces FindPlaces(const Trace& trace);

// Returns whether an operator asks cuBLAS for its handle, and so for its memory.
bool IsMatrixProduct(const Trace& trace, OperatorId op);

}  // namespace acplan::graph
