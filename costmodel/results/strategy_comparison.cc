#include "costmodel/results/strategy_comparison.h"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>
#include <variant>

#include "costmodel/execution/execution_fields.h"
#include "costmodel/llm/records.h"
#include "costmodel/llm/schedule.h"
#include "costmodel/planning/plan_check.h"
#include "costmodel/planning/strategy_plan.h"

namespace acplan::costmodel {

namespace {

using nlohmann::ordered_json;

void AddMemory(StrategyFigures& figures, const Execution& execution,
               const System& system, const MemoryNeeds& memory) {
  const auto in_tier1 = [](const StateSize& size, bool is_offloaded) {
    return is_offloaded ? size.resident : size.all;
  };
  figures.weights = in_tier1(memory.weights, execution.weight_offload);
  figures.checkpoints =
      in_tier1(memory.checkpoints, execution.activations_offload);
  figures.activations =
      in_tier1(memory.activations, execution.activations_offload) +
      figures.checkpoints;
  figures.activation_grads = memory.activation_grads;
  figures.weight_grads =
      in_tier1(memory.weight_grads, execution.optimizer_offload);
  figures.optimizer = in_tier1(memory.optimizer, execution.optimizer_offload);
  figures.tier1 = memory.tier1;
  figures.tier1_left = system.mem1.capacity - memory.tier1;
  figures.tier2 = memory.tier2;
  figures.tier2_left = system.mem2.capacity - memory.tier2;
}

void AddTimes(StrategyFigures& figures, const BatchTimes& times) {
  figures.forward = times.forward;
  figures.backward = times.backward;
  figures.optimizer_step = times.optimizer;
  figures.recompute = times.recompute;
  figures.bubble = times.bubble;
  figures.tensor_comm = times.tensor_comm_exposed;
  figures.repeated_comm = times.repeated_comm_exposed;
  figures.pipeline_comm = times.pipeline_comm;
  figures.data_comm = times.data_parallel.exposed;
  figures.offload =
      times.forward_offload_exposed + times.backward_offload_exposed;
  figures.total = times.total;
}

void AddRates(StrategyFigures& figures, const Model& model,
              const System& system, const Execution& execution,
              const Evaluation& evaluation) {
  const BlockCosts& block = evaluation.block;
  figures.sample_rate = SampleRate(execution, evaluation.times);
  figures.token_rate =
      figures.sample_rate * static_cast<double>(model.seq_size);
  const double blocks = static_cast<double>(model.num_blocks) /
                        static_cast<double>(execution.pipeline_par);
  const double runs = blocks * static_cast<double>(execution.NumMicrobatches());
  const double peak =
      system.matrix.Engine(execution.datatype).peak() * evaluation.times.total;
  const double useful = block.forward.flops + block.activation_grad.flops +
                        block.weight_grad.flops;
  figures.model_utilisation = runs * useful / peak;
  figures.hardware_utilisation = runs * (useful + block.recompute.flops) / peak;
}

// A block of the average processor, as the plan has it.
BlockCosts MeanBlock(const Model& model, const System& system,
                     const Execution& execution, const StrategyPlan& plan) {
  const PlannedBlock block = PlanBlock(model, system, execution);
  BlockCosts mean = block.costs;
  for (const StagePlan& stage : plan.stages) {
    for (const PolicyShare& policy : stage.policies) {
      mean.recompute.flops +=
          CostsWith(block.costs, block.operators, policy.kept).recompute.flops *
          static_cast<double>(policy.blocks) /
          static_cast<double>(model.num_blocks);
    }
  }
  return mean;
}

ComparedStrategy ComparePlan(const Model& model, System system,
                             const NamedExecution& strategy) {
  const Execution& execution = strategy.execution;
  system.mem1.capacity = *strategy.plan_budget;
  const StrategyPlan plan = PlanStrategy(model, system, execution);
  ComparedStrategy compared{strategy, plan.verdict, {}};
  if (plan.stages.empty()) return compared;
  AddMemory(compared.figures, execution, system, FullestMemory(plan));
  if (!plan.verdict.Fits()) return compared;
  if (const auto error = FindPlanError(model, system, execution, plan)) {
    throw std::runtime_error("the plan failed its check: " + *error);
  }
  AddTimes(compared.figures, plan.times);
  Evaluation evaluation;
  evaluation.times = plan.times;
  evaluation.block = MeanBlock(model, system, execution, plan);
  AddRates(compared.figures, model, system, execution, evaluation);
  return compared;
}

ComparedStrategy Compare(const Model& model, const System& system,
                         const NamedExecution& strategy,
                         const Corrections& corrections) {
  if (strategy.plan_budget) return ComparePlan(model, system, strategy);
  const Execution& execution = strategy.execution;
  const Evaluation evaluation = Evaluate(model, system, execution, corrections);
  ComparedStrategy compared{strategy, evaluation.verdict, {}};
  const Rule rule = evaluation.verdict.rule;
  if (rule == Rule::kFits || rule == Rule::kMem1 || rule == Rule::kMem2) {
    AddMemory(compared.figures, execution, system, evaluation.memory);
  }
  if (rule == Rule::kFits) {
    AddTimes(compared.figures, evaluation.times);
    AddRates(compared.figures, model, system, execution, evaluation);
  }
  return compared;
}

template <size_t kCount>
ordered_json FiguresJson(const std::array<StrategyFigure, kCount>& fields,
                         const StrategyFigures& figures) {
  ordered_json json;
  for (const StrategyFigure& field : fields) {
    json[std::string(field.key)] = NumberJson(figures.*field.value);
  }
  return json;
}

// The figures over those of another.
StrategyFigures Ratios(const StrategyFigures& figures,
                       const StrategyFigures& base) {
  StrategyFigures ratios;
  const auto add = [&](const auto& fields) {
    for (const StrategyFigure& field : fields) {
      ratios.*field.value = Ratio(figures.*field.value, base.*field.value);
    }
  };
  add(kMemoryFigures);
  add(kTimeFigures);
  add(kRateFigures);
  return ratios;
}

ordered_json SharesJson(const StrategyFigures& figures) {
  ordered_json json;
  for (const StrategyFigure& field : kTimeFigures) {
    std::string key(field.key.substr(0, field.key.size() - 2));
    json[std::move(key)] =
        NumberJson(Ratio(figures.*field.value, figures.total));
  }
  return json;
}

// RFC 4180.
std::string CsvText(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    return std::string(text);
  }
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string CsvFieldOf(const ExecutionField& field) {
  if (const bool* flag = std::get_if<bool>(&field)) {
    return *flag ? "true" : "false";
  }
  if (const int64_t* number = std::get_if<int64_t>(&field)) {
    return fmt::to_string(*number);
  }
  return std::string(std::get<std::string_view>(field));
}

}  // namespace

std::vector<ComparedStrategy> CompareStrategies(
    const Model& model, const System& system,
    std::span<const NamedExecution> strategies,
    const Corrections& corrections) {
  std::vector<ComparedStrategy> all;
  for (const NamedExecution& strategy : strategies) {
    all.push_back(Compare(model, system, strategy, corrections));
  }
  return all;
}

double Ratio(double value, double base) {
  return base == 0 ? StrategyFigures::kNone : value / base;
}

std::string_view StatusOf(const Verdict& verdict) {
  switch (verdict.rule) {
    case Rule::kFits:
      return "fits";
    case Rule::kNetworkTooSmall:
      return "network_too_small";
    case Rule::kNetworkNotFilled:
      return "network_not_filled";
    case Rule::kInterleavingTooLarge:
    case Rule::kInterleavingNoFactor:
      return "interleaving_no_divisor";
    case Rule::kTooFewBlocksToOffload:
      return "too_few_blocks_to_offload";
    case Rule::kMem1:
      return "tier1_too_small";
    case Rule::kMem2:
      return "tier2_too_small";
    default:
      return "";
  }
}

std::string ReasonOf(const ComparedStrategy& compared, const Model& model,
                     const System& system) {
  const StrategyFigures& figures = compared.figures;
  const auto missing = [](int tier, double needed, double left) {
    return fmt::format(
        "tier {} of a processor's memory has {:.0f} bytes, needed are {:.0f}: "
        "{:.0f} bytes are missing",
        tier, needed + left, needed, -left);
  };
  switch (compared.verdict.rule) {
    case Rule::kFits:
      return "";
    case Rule::kMem1:
      return missing(1, figures.tier1, figures.tier1_left);
    case Rule::kMem2:
      return missing(2, figures.tier2, figures.tier2_left);
    default:
      return DescribeNumbers(compared.verdict, model, system,
                             compared.strategy.execution);
  }
}

ordered_json ComparisonJson(std::span<const ComparedStrategy> all,
                            const Model& model, const System& system,
                            const Corrections& corrections) {
  ordered_json json = {{"format", "acplan.llm_comparison"}, {"version", 1}};
  json["corrections"] = ordered_json::array();
  for (const Correction& correction : kCorrections) {
    if (corrections.*correction.is_on) {
      json["corrections"].push_back(correction.name);
    }
  }
  json["strategies"] = ordered_json::array();
  for (const ComparedStrategy& one : all) {
    const std::string reason = ReasonOf(one, model, system);
    const StrategyFigures ratios = Ratios(one.figures, all.front().figures);
    json["strategies"].push_back(
        {{"name", one.strategy.name},
         {"status", StatusOf(one.verdict)},
         {"reason", reason.empty() ? ordered_json() : ordered_json(reason)},
         {"execution", ToJson(one.strategy.execution)},
         {"plan_budget_bytes", one.strategy.plan_budget
                                   ? NumberJson(*one.strategy.plan_budget)
                                   : ordered_json()},
         {"memory", FiguresJson(kMemoryFigures, one.figures)},
         {"time", FiguresJson(kTimeFigures, one.figures)},
         {"time_shares", SharesJson(one.figures)},
         {"rates", FiguresJson(kRateFigures, one.figures)},
         {"ratios",
          {{"memory", FiguresJson(kMemoryFigures, ratios)},
           {"time", FiguresJson(kTimeFigures, ratios)},
           {"rates", FiguresJson(kRateFigures, ratios)}}}});
  }
  return json;
}

std::string ComparisonCsv(std::span<const ComparedStrategy> all,
                          const Model& model, const System& system) {
  std::string csv = "name,status,reason,plan_budget_bytes";
  for (const std::string_view key : kExecutionKeys) {
    csv += fmt::format(",{}", key);
  }
  const auto for_figures = [](auto call) {
    for (const StrategyFigure& field : kMemoryFigures) call(field);
    for (const StrategyFigure& field : kTimeFigures) call(field);
    for (const StrategyFigure& field : kRateFigures) call(field);
  };
  for_figures([&](const StrategyFigure& field) {
    csv += fmt::format(",{}", field.key);
  });
  csv += '\n';
  for (const ComparedStrategy& one : all) {
    csv += fmt::format(
        "{},{},{},{}", CsvText(one.strategy.name), StatusOf(one.verdict),
        CsvText(ReasonOf(one, model, system)),
        one.strategy.plan_budget ? NumberJson(*one.strategy.plan_budget).dump()
                                 : "");
    for (const ExecutionField& field : FieldsOf(one.strategy.execution)) {
      csv += "," + CsvFieldOf(field);
    }
    for_figures([&](const StrategyFigure& field) {
      const double value = one.figures.*field.value;
      csv += std::isnan(value) ? "," : fmt::format(",{}", value);
    });
    csv += '\n';
  }
  return csv;
}

}  // namespace acplan::costmodel
