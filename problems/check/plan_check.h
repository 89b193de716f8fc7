#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "graph/trace/trace.h"
#include "problems/model/memory_model.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// What a plan does to a model, computed from the profile and the plan alone.
// This file shares no code with the optimisation problems: it reads names and
// orders straight from the profile and states every rule once more.

struct RecordUse {
  std::string module;  // FQN, or "optimizer step"
  Phase phase = Phase::kBackward;
  double base_bytes = 0;  // without checkpointing
  double discarded_bytes =
      0;  // by units that finished before, net of held bytes
  double Bytes() const { return base_bytes - discarded_bytes; }
};

struct PlanEffect {
  std::vector<RecordUse> records;  // in forward post-order
  int64_t peak_bytes = 0;          // largest record, whole bytes
  std::string peak_module;
  Phase peak_phase = Phase::kBackward;
  // Of the peak: parameters, gradients, optimizer state, buffers and inputs as
  // the memory model counts them, and the rest.
  double persistent_bytes = 0;
  double activation_bytes = 0;
  double recompute_ms = 0;
};

// A unit with operator decisions discards min(IA, sum of the SAC memory) -
// saved bytes and recomputes what it does not save; one with a ratio alone
// follows the trade-off: "profile" (the profile's fit), "fit"
// (graph::FitTradeoff) or "pareto" (graph::ParetoHull). Throws InputError where the plan
// names a module that the profile lacks ("plan for another model"), one whose
// effect cannot be computed (no statistics, no fit), or operators that do not
// match the profile's.
// Under kTrace that is the simulated step of the trace that the profile is
// derived from: one record, the peak. Without a trace kTrace is refused.
PlanEffect ComputeEffect(const graph::Profile& profile,
                         const std::vector<PlannedModule>& modules,
                         const MemoryOptions& memory,
                         std::string_view tradeoff = "profile",
                         const graph::Trace* trace = nullptr);

// The first rule that the plan breaks, as one line; nullopt where it keeps all:
// no unit is a leaf or never called; no nested units; no unit above an FSDP
// unit and none outside ac_units, where those are given; every unit of a plan at
// operator granularity decides about its operators; every ratio discards
// between 0 bytes and all of IA, and (but under the torch memory model) no more
// than forced saves allow; every record is within budget_bytes - reserve_bytes;
// what the plan states of itself (peak, where, recomputation, bound, gap,
// overhead, baseline, and for each unit) is true.
struct PlanRules {
  std::vector<std::string> ac_units;  // empty: no restriction
  std::vector<std::string> fsdp_units;
  std::optional<int> max_units;
  graph::OperatorPatterns patterns = {};  // kept by units with operators
};
std::optional<std::string> FirstBrokenRule(const graph::Profile& profile,
                                           const Plan& plan,
                                           const PlanRules& rules = {},
                                           const graph::Trace* trace = nullptr);

// A policy for one module's operators, with what is said of it.
struct StatedPolicy {
  std::vector<char> save;    // an operator: 1 save, 0 recompute
  double memory_budget = 1;  // the share of the memory that may be saved
  int64_t capacity_bytes = 0;
  int64_t saved_bytes = 0;
  double saved_ms = 0;
  double recompute_ms = 0;
};

// The first rule that the policy breaks, as one line; nullopt where it keeps
// all: one decision an operator; PyTorch's rules (graph/profile/sac_statistics.h) and
// the patterns; the capacity is ceil(memory_budget * sum of memory), and no
// more is saved; the sums are true.
std::optional<std::string> FirstBrokenRule(
    const graph::SacStatistics& sac, const StatedPolicy& policy,
    const graph::OperatorPatterns& patterns = {});

}  // namespace acplan::problems
