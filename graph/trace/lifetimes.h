#pragma once

#include <cstdint>
#include <vector>

#include "graph/trace/frames.h"
#include "graph/trace/moved_storages.h"
#include "graph/trace/prepared_trace.h"
#include "graph/trace/step_layout.h"

namespace acplan::graph {

// A storage is in use during the steps [begin, end). Where end <= begin, it is
// so during the step that creates it only.
struct Life {
  StorageId storage = {};
  StepId begin = {};
  StepId end = {};
};
enum class LifeId : int32_t {};  // in the list that FindLives returns
using LifeList = IndexedVector<LifeId, Life>;

// Returns the life of a storage as the trace has it.
constexpr LifeId OriginalLife(StorageId storage) {
  return LifeId{IndexOf(storage)};
}

// Returns the lives of all storages of a planned step: first those of the storages as
// the trace has them, in their order, then those of what comes back from the
// host, in the order of `moves`, then those of what runs again.
LifeList FindLives(const PreparedTrace& prepared, const Frames& frames,
                   const StepLayout& layout, const MovedStorages& moves);

}  // namespace acplan::graph
