#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_simulation.h"
#include "problems/model/link_limits.h"
#include "problems/remat/remat_search.h"
#include "solver/search.h"

namespace acplan::problems {

// From a joint graph and a budget to a checked answer: the file `acplan.remat`,
// version 1, which docs/file_formats.md describes.

// A budget that every plan meets.
inline constexpr int64_t kAnyPeak = int64_t{1} << 62;
// The relative tolerance of searches for the least budget.
inline constexpr double kLeastTolerance = 1e-3;

struct RematPlan {
  int64_t budget_bytes = 0;
  int64_t kept_budget_bytes = std::numeric_limits<int64_t>::max();
  solver::SearchStatus status = solver::SearchStatus::kNoSolution;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
  bool is_given = false;  // evaluated, not searched: there is no bound
  // The simulation of the plan; nothing if there is no plan.
  std::optional<graph::JointRun> run = {};
  double bound_ms = 0;
  // The link on which buffers move, if any may, and how long the step waits for
  // it. Then the bound is one on the sum of both times.
  std::optional<LinkLimits> link = {};
  double stall_ms = 0;
  int64_t moved_bytes = 0;  // the most that the host has at a time
  // The peak if all that backward reads is kept.
  int64_t baseline_peak_bytes = 0;
  double forward_ms = 0;
  double backward_ms = 0;
  // Set if nothing fits, or if the least budget was requested.
  std::optional<LeastRematBudget> least = {};
  int64_t labels = 0;
  int64_t cuts = 0;
  double seconds = 0;

  // Returns what a plan, which there is, adds to the step.
  double CostMs() const { return run->recompute_ms + stall_ms; }
};

// Returns the peak if all that backward reads is kept. Throws InputError that
// names the node if the rules of the graph forbid that: a needed buffer may
// neither be kept nor run again.
int64_t RematBaseline(const graph::JointGraph& graph);

// Returns the best plan for a question. If nothing fits, looks for the least
// budget that a plan fits, in the remaining time but for at most ten seconds.
// Throws std::logic_error if the plan fails its check (check/remat_check.h).
// With a link, kept buffers may move to the host's memory (remat/remat_offload.h).
RematPlan PlanRemat(const graph::JointGraph& graph,
                    const RematQuestion& question,
                    const std::optional<LinkLimits>& link = {});

// Returns the best plans at `points` budgets, evenly spaced and ascending, from
// the least budget that a plan fits to the peak of keeping all. Each search
// begins with the previous plan, so that a larger budget never has a worse
// plan. Each budget may take an even share of the remaining time. Returns no
// plans if none keeps the rules.
std::vector<RematPlan> RematFrontier(const graph::JointGraph& graph, int points,
                                     const solver::SearchLimits& limits);

// The choices that a file names.
struct RematChoices {
  std::vector<char> is_kept = {};  // by buffer
  std::vector<graph::JointMove> moves = {};
  std::optional<LinkLimits> link = {};
};

// Returns the plan that keeps and moves these buffers. Throws InputError if the
// rules forbid it.
RematPlan EvaluateRemat(const graph::JointGraph& graph,
                        const RematChoices& choices);

// Reads the names of the kept buffers from a file of any format with `saved`,
// and of those that move from `moved`, with the link's `bytes_per_second`.
// Throws InputError for names that are no buffers or steps.
RematChoices ReadRematChoices(const std::filesystem::path& path,
                              const graph::JointGraph& graph);

// Returns the file `acplan.remat_frontier`, version 1: for each point the
// fields of RematToJson except the names.
std::string RematFrontierToJson(const std::vector<RematPlan>& plans,
                                const graph::JointGraph& graph);

// Returns the file `acplan.remat`; if `has_memory`, with the bytes at every
// step.
std::string RematToJson(const RematPlan& plan, const graph::JointGraph& graph,
                        bool has_memory);

}  // namespace acplan::problems
