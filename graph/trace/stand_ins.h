#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/trace/frames.h"
#include "graph/trace/prepared_trace.h"
#include "graph/trace/simulation.h"

namespace acplan::graph {

// What a policy comes to whose skipped operators hand on stand-ins.
struct StandIns {
  // The views that the policy does not skip, of stand-ins: nothing runs for
  // them.
  std::vector<int32_t> hollow_views = {};
  // Why a stand-in would be computed with: one line that begins with the
  // module. The rules are those of Simulate.
  std::optional<std::string> refusal = std::nullopt;
};

// Finds the stand-ins of frames, one after the other. Refers to its arguments.
class StandInFinder {
 public:
  StandInFinder(const Frames& frames, const PreparedTrace& prepared);

  // Frame `f` has stand-ins and runs again.
  StandIns Of(int32_t f);

 private:
  class Rerun;

  // An operator, and until when the program holds a stand-in that it made.
  struct HiddenView {
    int32_t op = -1;
    int32_t until = -1;
  };

  const Frames& frames_;
  const Trace& trace_;
  // Of the frame at hand. By storage and by tensor: the operator that lost it, -1
  // where it is there.
  std::vector<int32_t> lost_, stand_ins_;
  std::vector<char> is_kept_;  // a tensor: is a result that the policy keeps
  std::vector<HiddenView> hidden_;  // a storage
};

}  // namespace acplan::graph
