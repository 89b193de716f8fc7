#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/base/flag.h"
#include "graph/base/indexed_vector.h"
#include "graph/trace/frames.h"
#include "graph/trace/prepared_trace.h"
#include "graph/trace/simulation.h"

namespace acplan::graph {

// The consequences of a policy whose skipped operators hand on stand-ins.
struct StandIns {
  // The views that the policy does not skip, of stand-ins: nothing runs for
  // them.
  std::vector<OperatorId> hollow_views = {};
  // Why a stand-in would be computed with: one line that begins with the
  // module. The rules are those of Simulate.
  std::optional<std::string> refusal = std::nullopt;
};

// Finds the stand-ins of frames, one after the other. Refers to its arguments.
class StandInFinder {
 public:
  StandInFinder(const Frames& frames, const PreparedTrace& prepared);

  // Finds the stand-ins of a frame, which has some and runs again.
  StandIns Find(FrameId f);

 private:
  class Rerun;

  // An operator, and until when the program holds a stand-in that it made.
  struct HiddenView {
    OperatorId op = kNone;
    Time until = -1;
  };

  const Frames& frames_;
  const Trace& trace_;
  // The operators of the frame at hand that lost a storage, or a tensor; kNone for
  // what is there.
  IndexedVector<StorageId, OperatorId> losers_;
  IndexedVector<TensorId, OperatorId> hiders_;
  IndexedVector<TensorId, Flag> is_kept_;  // is a result that the policy keeps
  IndexedVector<StorageId, HiddenView> hidden_;
};

}  // namespace acplan::graph
