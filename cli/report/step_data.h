#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "graph/trace/peak_account.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/model/memory_model.h"
#include "problems/plan/plan.h"

namespace acplan::cli {

// The memory of a step in the form that report pages draw.

// Returns the kinds of bytes, from the bottom of a stack to its top.
nlohmann::ordered_json KindNames();

// Returns the place in KindNames of a kind of LiveBytes.
size_t KindPlace(size_t place);

// A list of strings that recur, each once.
class Names {
 public:
  // Returns the place of a string, which is added if it is new.
  int Place(const std::string& name) {
    const auto [at, is_new] =
        places_.try_emplace(name, static_cast<int>(list_.size()));
    if (is_new) list_.push_back(name);
    return at->second;
  }
  const nlohmann::ordered_json& list() const { return list_; }

 private:
  std::map<std::string, int> places_;
  nlohmann::ordered_json list_ = nlohmann::ordered_json::array();
};

// The most samples of a step that are drawn: more than a wide screen has
// columns to tell them apart.
inline constexpr size_t kMostSamples = 1600;

// A part of the step, by its first step, and the first of its steps with the
// most bytes, which represents all of them.
struct StepSample {
  size_t first = 0;
  size_t step = 0;
  bool operator==(const StepSample&) const = default;
};

// Cuts the steps into `most` consecutive parts of equal length, or into single
// steps if there are fewer. Drawn from the beginning of its part to that of the
// next one, a sample is never below the bytes in use. So no peak is lost, and
// each sample is an actual step.
std::vector<StepSample> SampleSteps(const std::vector<int64_t>& live_bytes,
                                    size_t most = kMostSamples);

// A step, without a plan or with one, as a rank sees it.
struct SampledRun {
  std::string name;
  const graph::Trace* trace = nullptr;
  graph::DetailedSimulation detail;
};

// Adds the bytes that a rank has more or less of each kind than one device that
// has everything (problems/plan/trace_memory.h).
graph::DetailedSimulation DetailOnRank(graph::DetailedSimulation detail,
                                       const graph::Trace& trace,
                                       const problems::MemoryOptions& memory);

// Returns the run's peak, its place and contents, and the run's samples.
nlohmann::ordered_json RunJson(const SampledRun& run);

// Returns the bytes at a peak by the line of Python that made them, the largest
// first, with the operators that did; "" for bytes that no line made. At most a
// hundred lines.
nlohmann::ordered_json LinesJson(const graph::Trace& trace,
                                 const graph::PeakAccount& peak);

// Returns a plan file's statements about the answer: status, bound, gap,
// seconds, budget.
nlohmann::ordered_json AnswerJson(const problems::Plan& plan);

}  // namespace acplan::cli
