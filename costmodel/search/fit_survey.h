#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/application/model.h"
#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"
#include "costmodel/planning/strategy_plan.h"
#include "costmodel/search/execution_filter.h"

namespace acplan::costmodel {

// Does a model fit, and what must be recomputed for it: for each way to divide
// the processors, a division. All corrections are on.
struct FitProblem {
  Model model;
  System system;
  int64_t num_procs = 1;
  int64_t batch_size = 1;
  int64_t microbatch_size = 1;
  Datatype datatype = Datatype::kFloat16;
  std::vector<KeyFilter> filters = {};  // on degrees
};

// A division needs, to fit, the first of these that does.
enum class FitStatus : uint8_t { kKeepsAll, kRecomputes, kChanges, kNone };

// An operator that runs again, and in how many blocks.
struct RecomputedOperator {
  std::string name;  // "AttnBlock_QKV_AG gather" where it is a gathering alone
  int64_t blocks = 0;

  bool operator==(const RecomputedOperator&) const = default;
};

// Bytes above the capacity of a processor.
struct MissingBytes {
  double tier1 = 0;
  double tier2 = 0;

  double Sum() const { return tier1 + tier2; }
};

// A division. The strategy that it begins with: fused activations, sequence
// parallelism (rs_ag) where tensor_par > 1 splits a microbatch's sequences, a
// sharded optimizer where
// data_par > 1, else the defaults of Execution. Tiers of the network are the
// fastest of those that CheckFit allows.
struct FitRow {
  FitStatus status = FitStatus::kNone;
  // kNone: no tiers hold the degrees, or the memory that lacks.
  Verdict verdict = {};
  Execution execution = {};               // changes made
  std::vector<std::string> changes = {};  // "offload optimizer"
  StrategyPlan plan = {};
  // By stage of the plan.
  std::vector<std::vector<RecomputedOperator>> recomputed = {};
  // Without changes and with memory without end, so that all that the backward
  // pass reads is kept: what each stage takes then, and a batch.
  std::vector<MemoryNeeds> all_kept = {};
  double all_kept_seconds = 0;
  // kNone by memory: of all strategies tried, what the one that lacks least
  // lacks where it keeps least; `execution`, `changes` and `plan` are of it.
  MissingBytes missing = {};

  bool Fits() const { return status != FitStatus::kNone; }
};

// The divisions that fit come first, by descending sample rate, then the others
// by what is missing.
struct FitSurvey {
  std::vector<FitRow> rows;
  int64_t divisions = 0;  // rows, if it was not interrupted
  int64_t left_out = 0;   // whose data_par * microbatch_size splits no batch
  bool was_interrupted = false;
};

// The strategy that each division begins with, on the first tiers, in the order
// of a search (search/space.h); whatever the batch.
std::vector<Execution> ListDivisions(const FitProblem& problem);

// Where even the plan that keeps least does not fit, activations, weights and
// the optimizer are offloaded, and microbatches get smaller, by divisors of
// their size: in every combination of which no part would do, and the fastest
// of these is the answer. Other interleavings hold more, not less
// (StageMicrobatches). Runs on all cores; the result does not depend on them.
FitSurvey SurveyFit(const FitProblem& problem,
                    const std::atomic<bool>* interrupt = nullptr);

// The least doubling of processors, and of the batch, with which a division
// fits; none up to 1,024 times as many.
std::optional<int64_t> FindEnoughProcessors(FitProblem problem);

}  // namespace acplan::costmodel
