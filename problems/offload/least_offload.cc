#include "problems/offload/least_offload.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "problems/offload/cover_units.h"

// If the host has room for all that may move, the peak of some units is that of the step
// in which all of it does, or nothing does if that is less: a storage that comes back takes
// the device's memory before it is used. Otherwise a bisection finds the least peak that
// the choice of what moves keeps.

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::Simulation;

namespace {

constexpr int kMostBisections = 16;
// A unit is taken apart so many times at most.
constexpr int kMostParts = 64;

class LeastSearch {
 public:
  explicit LeastSearch(const LeastOffloadQuestion& question)
      : question_(question) {}

  void Try(const std::vector<CheckpointedModule>& units) {
    if (question_.is_stopped()) return;
    const std::optional<Simulation> use = StepWithAllMoved(units);
    const std::optional<Simulation> saved_run =
        SimulatedUse(question_.problem, units);
    if (!use || !saved_run) return;
    // A storage that returns early may need more than one that stays.
    const int64_t bytes =
        std::min(saved_run->peak_bytes, LeastPeak(units, *saved_run, *use));
    if (bytes >= best_.peak_bytes) return;
    best_ = {.units = units, .peak_bytes = bytes};
    use_ = *use;
  }

  // Takes the unit apart that runs again at the peak, as long as that lowers the peak.
  void TakeApart() {
    for (int k = 0; k < kMostParts; ++k) {
      if (best_.units.empty() || question_.is_stopped()) return;
      const graph::CallId redone = use_.steps[use_.peak_step].redone;
      if (redone == graph::kNone) return;
      const int64_t before = best_.peak_bytes;
      const graph::ModuleId module =
          question_.problem.trace->calls[redone].module;
      Try(WithPartsOf(question_.problem, module, best_.units));
      if (best_.peak_bytes == before) return;
    }
  }

  const LeastOffload& best() const { return best_; }

 private:
  // Returns the step in which all moves that may.
  std::optional<Simulation> StepWithAllMoved(
      const std::vector<CheckpointedModule>& units) const {
    const TraceProblem& problem = question_.problem;
    return SimulatedUse(problem, WithAllOffloaded(problem, units));
  }

  int64_t LeastPeak(const std::vector<CheckpointedModule>& units,
                    const Simulation& saved_run,
                    const Simulation& moved_run) const {
    if (moved_run.offload.host_peak_bytes <=
        question_.limits.host_memory_bytes) {
      return moved_run.peak_bytes;
    }
    const TraceProblem& problem = question_.problem;
    const MovableList movables =
        MovablesOf(problem, WithAllOffloaded(problem, units), moved_run);
    int64_t low = moved_run.peak_bytes;
    int64_t high = saved_run.peak_bytes;
    std::vector<CheckpointedModule> moved_units = units;
    for (int k = 0; k < kMostBisections && low < high; ++k) {
      const int64_t middle = low + (high - low) / 2;
      const auto choice = ChooseWhatMoves(
          {.problem = problem,
           .movables = movables,
           .saved_run = saved_run,
           .moved_run = moved_run,
           .budget_bytes = middle,
           .limits = question_.limits,
           .most_stall_ms = std::numeric_limits<double>::infinity()});
      (choice ? high : low) = choice ? middle : middle + 1;
      if (!choice) continue;
      moved_units = units;
      for (const MovableId m : movables.ids()) {
        if (choice->is_chosen[m]) Offload(movables[m], moved_units);
      }
    }
    const std::optional<Simulation> use = SimulatedUse(problem, moved_units);
    const bool keeps_limit = use && use->offload.host_peak_bytes <=
                                        question_.limits.host_memory_bytes;
    return keeps_limit ? use->peak_bytes : saved_run.peak_bytes;
  }

  const LeastOffloadQuestion& question_;
  LeastOffload best_;
  Simulation use_;  // of the best, with all moved
};

}  // namespace

LeastOffload FindLeastOffload(
    const LeastOffloadQuestion& question,
    const std::vector<CheckpointedModule>& known_units) {
  LeastSearch search(question);
  search.Try(known_units);
  for (const bool keeps_results : {false, true}) {
    for (size_t k = 0; k < kCovers; ++k) {
      search.Try(WithCover(question.problem, {},
                           {.max_units = question.max_units,
                            .keeps_results = keeps_results,
                            .skipped_classes = k}));
    }
  }
  search.TakeApart();
  return search.best();
}

}  // namespace acplan::problems
