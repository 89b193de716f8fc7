#pragma once

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/application/model.h"
#include "costmodel/execution/corrections.h"
#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"
#include "costmodel/llm/evaluation.h"

namespace acplan::costmodel {

// A strategy and what it is called.
struct NamedExecution {
  std::string name;
  Execution execution;
  // With the best plan (planning/strategy_plan.h) for this capacity of the
  // first tier of memory, in bytes.
  std::optional<double> plan_budget = {};
};

// The figures that strategies are compared by; NaN where one has no such
// figure.
struct StrategyFigures {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  // Bytes of the fullest processor of the pipeline, in the first tier of its
  // memory, which add up to tier1.
  double weights = kNone;
  double activations = kNone;  // with checkpoints
  double activation_grads = kNone;
  double weight_grads = kNone;
  double optimizer = kNone;
  double tier1 = kNone;
  double checkpoints = kNone;  // of the activations
  // The bytes that remain of the tiers; those that are missing, negative.
  double tier1_left = kNone;
  double tier2 = kNone;
  double tier2_left = kNone;

  // Seconds of a batch, which add up to total.
  double forward = kNone;
  double backward = kNone;
  double optimizer_step = kNone;
  double recompute = kNone;
  double bubble = kNone;
  double tensor_comm = kNone;  // communication and offload: what is exposed
  double repeated_comm = kNone;
  double pipeline_comm = kNone;
  double data_comm = kNone;
  double offload = kNone;
  double total = kNone;

  double sample_rate = kNone;  // samples a second
  double token_rate = kNone;   // sample_rate times seq_size
  // FLOPs of forward and backward pass, of all layers and of the average
  // processor, over what its matrix engine could do in the datatype in the
  // time of the batch; without the optimizer's step. The hardware's
  // utilisation counts recomputed FLOPs too. Korthikanti et al., "Reducing
  // activation recomputation in large transformer models" (2022).
  double model_utilisation = kNone;
  double hardware_utilisation = kNone;
};

// A figure by the key that files have it under.
struct StrategyFigure {
  std::string_view key;
  double StrategyFigures::*value;
};

inline constexpr std::array<StrategyFigure, 10> kMemoryFigures = {{
    {"weights_bytes", &StrategyFigures::weights},
    {"activations_bytes", &StrategyFigures::activations},
    {"activation_grads_bytes", &StrategyFigures::activation_grads},
    {"weight_grads_bytes", &StrategyFigures::weight_grads},
    {"optimizer_bytes", &StrategyFigures::optimizer},
    {"tier1_bytes", &StrategyFigures::tier1},
    {"checkpoints_bytes", &StrategyFigures::checkpoints},
    {"tier1_left_bytes", &StrategyFigures::tier1_left},
    {"tier2_bytes", &StrategyFigures::tier2},
    {"tier2_left_bytes", &StrategyFigures::tier2_left},
}};

inline constexpr std::array<StrategyFigure, 11> kTimeFigures = {{
    {"forward_s", &StrategyFigures::forward},
    {"backward_s", &StrategyFigures::backward},
    {"optimizer_s", &StrategyFigures::optimizer_step},
    {"recompute_s", &StrategyFigures::recompute},
    {"bubble_s", &StrategyFigures::bubble},
    {"tensor_comm_s", &StrategyFigures::tensor_comm},
    {"repeated_comm_s", &StrategyFigures::repeated_comm},
    {"pipeline_comm_s", &StrategyFigures::pipeline_comm},
    {"data_comm_s", &StrategyFigures::data_comm},
    {"offload_s", &StrategyFigures::offload},
    {"total_s", &StrategyFigures::total},
}};

inline constexpr std::array<StrategyFigure, 4> kRateFigures = {{
    {"samples_per_s", &StrategyFigures::sample_rate},
    {"tokens_per_s", &StrategyFigures::token_rate},
    {"model_flops_utilisation", &StrategyFigures::model_utilisation},
    {"hardware_flops_utilisation", &StrategyFigures::hardware_utilisation},
}};

struct ComparedStrategy {
  NamedExecution strategy;
  Verdict verdict;
  // A strategy that does not fit in memory has those of memory alone; one that
  // breaks another rule has none.
  StrategyFigures figures;
};

// A strategy that contradicts model or system has no figures either, and its
// verdict says so. Plans need all corrections; throws std::runtime_error where
// one fails its check (FindPlanError).
std::vector<ComparedStrategy> CompareStrategies(
    const Model& model, const System& system,
    std::span<const NamedExecution> strategies, const Corrections& corrections);

// NaN where either is, and where `base` is 0.
double Ratio(double value, double base);

// "fits", "tier1_too_small": of all verdicts but contradictions.
std::string_view StatusOf(const Verdict& verdict);

// Why a strategy is infeasible, in numbers.
std::string ReasonOf(const ComparedStrategy& compared, const Model& model,
                     const System& system);

// docs/file_formats.md, "Comparison of strategies"; ratios are to the first
// one.
nlohmann::ordered_json ComparisonJson(std::span<const ComparedStrategy> all,
                                      const Model& model, const System& system,
                                      const Corrections& corrections);
// A line a strategy, below a heading.
std::string ComparisonCsv(std::span<const ComparedStrategy> all,
                          const Model& model, const System& system);

}  // namespace acplan::costmodel
