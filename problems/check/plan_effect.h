#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/profile/profile.h"
#include "graph/trace/trace.h"
#include "problems/model/memory_model.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// Computes the effect of a plan on a model, from the profile and the plan
// alone.

struct RecordUse {
  std::string module;  // FQN, or "optimizer step"
  Phase phase = Phase::kBackward;
  double base_bytes = 0;  // without checkpointing
  // The bytes that units which ended before this record discard, net of the
  // bytes that frames hold.
  double discarded_bytes = 0;
  double Bytes() const { return base_bytes - discarded_bytes; }
};

struct PlanEffect {
  std::vector<RecordUse> records;  // in forward post-order
  int64_t peak_bytes = 0;          // largest record, whole bytes
  std::string peak_module;
  Phase peak_phase = Phase::kBackward;
  // These two add up to the peak: the first has parameters, gradients,
  // optimizer state, buffers and inputs as the memory model counts them, the
  // second the rest.
  double persistent_bytes = 0;
  double activation_bytes = 0;
  double recompute_ms = 0;
};

// Computes the effect of a plan's units. A unit with operator decisions
// discards min(IA, sum of the SAC memory) - saved bytes and recomputes the
// operators that it does not save. A unit with only a ratio follows the
// trade-off: "profile" (the profile's fit), "fit" (graph::FitTradeoff) or
// "pareto" (graph::ParetoHull). Throws InputError if the plan names a module
// that the profile lacks ("plan for another model"), one whose effect cannot be
// computed (no statistics, no fit, KnownOnTracesOnly), or operators that differ
// from the profile's.
//
// Under kTrace the effect is the simulated step of the trace that the profile
// is derived from: one record, the peak. Throws InputError under kTrace if
// there is no trace.
PlanEffect ComputeEffect(const graph::Profile& profile,
                         const std::vector<PlannedModule>& modules,
                         const MemoryOptions& memory,
                         std::string_view tradeoff = "profile",
                         const graph::Trace* trace = nullptr);

// Returns the run-time of a step without checkpointing: the sum over the root
// modules.
double StepMs(const graph::Profile& profile);

}  // namespace acplan::problems
