#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/application/model.h"
#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"
#include "costmodel/llm/batch_times.h"
#include "costmodel/planning/fixed_policies.h"
#include "costmodel/planning/strategy_plan.h"

namespace acplan::costmodel {

// Larger capacities are recorded as this many bytes, which is as good as none.
inline constexpr double kMostPlanBudget = 1e18;

enum class PlanStatus : uint8_t { kOptimal, kFeasible, kInfeasible };

// Blocks that keep the same, by the names of tensors and operators. Operators
// that cost nothing are not named.
struct PolicyRecord {
  int64_t blocks = 0;
  std::vector<std::string> kept;
  std::vector<std::string> recomputed;
  double kept_bytes = 0;  // of a microbatch, a block

  bool operator==(const PolicyRecord&) const = default;
};

struct StageRecord {
  int64_t stage = 0;
  int64_t blocks = 0;
  double microbatches_in_flight = 0;
  MemoryParts memory;
  double seconds = 0;            // of a microbatch, forward and backward
  double recompute_seconds = 0;  // of those, more than if all were kept
  std::vector<PolicyRecord> policies;

  bool operator==(const StageRecord&) const = default;
};

// A plan with what it answers and what else there is: the file
// docs/file_formats.md, "Plans". Without corrections recomputation is no sum
// over operators: there are no stages, and the plan is the fastest fixed policy
// that fits, with its times.
struct PlanRecord {
  std::string application;  // names
  std::string system;
  bool is_corrected = true;
  Execution execution;
  PlanStatus status = PlanStatus::kInfeasible;
  double budget_bytes = 0;  // capacity of the first tier
  double tier2_bytes = 0;
  BatchTimes times;  // infeasible: none. Read: the sums of kinds alone
  std::optional<double> bound;  // seconds
  // Infeasible: with what keeps least.
  std::vector<StageRecord> stages;
  std::vector<FixedPolicy> fixed;

  double SampleRate() const {
    return static_cast<double>(execution.batch_size) / times.total;
  }
};

// `plan`: PlanStrategy's of these, where the verdict is that it fits or on
// memory.
PlanRecord RecordPlan(const Model& model, const System& system,
                      const Execution& execution, const StrategyPlan& plan);

// Records a choice of an execution that passed CheckFit, without corrections.
PlanRecord RecordFixedChoice(const Model& model, const System& system,
                             const Execution& execution);

nlohmann::ordered_json ToJson(const PlanRecord& record);

// Throws InputError, "FILE: path: ...", where something is missing, of another
// type, or contradicts the rest.
PlanRecord ParsePlanRecord(std::string_view text, std::string_view file);

}  // namespace acplan::costmodel
