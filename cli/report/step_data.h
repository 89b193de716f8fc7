#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/model/memory_model.h"
#include "problems/plan/plan.h"

namespace acplan::cli {

// The memory of a step as report pages draw it.

// The kinds of bytes, from the bottom of a stack to its top.
nlohmann::ordered_json KindNames();

// So many samples of a step, at most, are drawn: more than a wide screen has
// columns to tell them apart.
inline constexpr size_t kMostSamples = 1600;

// The steps that stand for all: of as many parts of the step in a row as there
// are samples, alike in length, the first step with the most bytes of each. So
// no peak is lost, what is drawn is never below what was in use, and each sample
// is a step as it was.
std::vector<size_t> SampleSteps(const std::vector<int64_t>& live_bytes,
                                size_t most = kMostSamples);

// A step, without a plan or with one, as a rank sees it.
struct SampledRun {
  std::string name;
  const graph::Trace* trace = nullptr;
  graph::DetailedSimulation detail;
};

// Adds what a rank has more or less of each kind than one device that has
// everything (problems/plan/trace_memory.h).
graph::DetailedSimulation DetailOnRank(graph::DetailedSimulation detail,
                                       const graph::Trace& trace,
                                       const problems::MemoryOptions& memory);

// The run's peak, where it is, what it consists of, and its samples.
nlohmann::ordered_json RunJson(const SampledRun& run);

// What a plan file says of the answer: status, bound, gap, seconds, budget.
nlohmann::ordered_json AnswerJson(const problems::Plan& plan);

}  // namespace acplan::cli
