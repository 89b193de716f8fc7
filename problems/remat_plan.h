#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_simulation.h"
#include "problems/remat/remat_search.h"
#include "solver/search.h"

namespace acplan::problems {

// From a joint graph and a budget to a checked answer: the file `acplan.remat`,
// version 1, which docs/file_formats.md describes.

// A budget that every plan meets.
inline constexpr int64_t kAnyPeak = int64_t{1} << 62;
// How near least budgets are looked for, as a share.
inline constexpr double kLeastTolerance = 1e-3;

struct RematPlan {
  int64_t budget_bytes = 0;
  int64_t kept_budget_bytes = std::numeric_limits<int64_t>::max();
  solver::SearchStatus status = solver::SearchStatus::kNoSolution;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
  bool is_given = false;  // evaluated, not searched: there is no bound
  // What the plan does; nothing where there is none.
  std::optional<graph::JointRun> run = {};
  double bound_ms = 0;
  // What keeping all that backward reads does.
  int64_t baseline_peak_bytes = 0;
  double forward_ms = 0;
  double backward_ms = 0;
  // Where nothing fits, or where the least budget was asked for.
  std::optional<LeastRematBudget> least = {};
  int64_t labels = 0;
  int64_t cuts = 0;
  double seconds = 0;
};

// The peak of keeping all that backward reads. Throws InputError that names the node where
// rules of the graph forbid it: what is needed may not be kept, and may not run again.
int64_t RematBaseline(const graph::JointGraph& graph);

// The best plan of a question. Where nothing fits, the least budget that a plan fits is
// looked for in what is left of the time, ten seconds at most. Throws
// std::logic_error where the plan fails its check (check/remat_check.h).
RematPlan PlanRemat(const graph::JointGraph& graph,
                    const RematQuestion& question);

// The best plans at `points` budgets, from the least one that a plan fits to the peak of
// keeping all, evenly spaced, ascending; each begins with the plan before it, so that a
// larger budget never has a worse plan. Every budget may take an even share of what is
// left of the time. Empty where no plan keeps the rules.
std::vector<RematPlan> RematFrontier(const graph::JointGraph& graph, int points,
                                     const solver::SearchLimits& limits);

// What keeping these buffers does. Throws InputError for what the rules forbid.
RematPlan EvaluateRemat(const graph::JointGraph& graph,
                        const std::vector<char>& kept);

// Reads the names of what is kept from a file with `saved`, of any format: a buffer of
// the graph, 1 where it is kept. Throws InputError for names that are no buffers.
std::vector<char> ReadKept(const std::filesystem::path& path,
                           const graph::JointGraph& graph);

// The file `acplan.remat_frontier`, version 1: of each point what RematToJson says but for
// the names.
std::string RematFrontierToJson(const std::vector<RematPlan>& plans,
                                const graph::JointGraph& graph);

// `has_memory`: with the bytes at every step.
std::string RematToJson(const RematPlan& plan, const graph::JointGraph& graph,
                        bool has_memory);

}  // namespace acplan::problems
