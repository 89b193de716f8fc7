#include "costmodel/calculon/validation/sequence_parallelism.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "costmodel/calculon/llm/evaluation.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::costmodel {
namespace {

namespace fs = std::filesystem;

constexpr double kGiB = 1024.0 * 1024 * 1024;

struct Published {
  std::string_view model;
  std::string_view mode;
  double value;
};

constexpr std::array<Published, 8> kStates = {{
    {"megatron-22B", "none", 45.5625},
    {"megatron-22B", "seqsel", 45.5625},
    {"gpt3-175B", "none", 45.5625},
    {"gpt3-175B", "seqsel", 45.5625},
    {"turing-530B", "none", 31.640625},
    {"turing-530B", "seqsel", 31.640625},
    {"megatron-1T", "none", 32.958984375},
    {"megatron-1T", "seqsel", 32.958984375},
}};

constexpr std::array<Published, 8> kActivations = {{
    {"megatron-22B", "none", 59.25},
    {"megatron-22B", "seqsel", 9.5625},
    {"gpt3-175B", "none", 66.84375},
    {"gpt3-175B", "seqsel", 12.3515625},
    {"turing-530B", "none", 114.0234375},
    {"turing-530B", "seqsel", 23.076171875},
    {"megatron-1T", "none", 131.25},
    {"megatron-1T", "seqsel", 26.5625},
}};

constexpr std::array<Published, 20> kShares = {{
    {"megatron-22B", "none", 100.00}, {"megatron-22B", "seq", 66.84},
    {"megatron-22B", "sel", 49.42},   {"megatron-22B", "seqsel", 16.18},
    {"megatron-22B", "full", 7.64},   {"gpt3-175B", "none", 100.00},
    {"gpt3-175B", "seq", 62.04},      {"gpt3-175B", "sel", 56.53},
    {"gpt3-175B", "seqsel", 18.49},   {"gpt3-175B", "full", 8.71},
    {"turing-530B", "none", 100.00},  {"turing-530B", "seq", 58.31},
    {"turing-530B", "sel", 62.04},    {"turing-530B", "seqsel", 20.27},
    {"turing-530B", "full", 9.42},    {"megatron-1T", "none", 100.00},
    {"megatron-1T", "seq", 58.31},    {"megatron-1T", "sel", 62.04},
    {"megatron-1T", "seqsel", 20.27}, {"megatron-1T", "full", 9.42},
}};

constexpr std::array<Published, 8> kSeconds = {{
    {"megatron-22B", "full", 1.42},
    {"megatron-22B", "seqsel", 1.10},
    {"gpt3-175B", "full", 18.13},
    {"gpt3-175B", "seqsel", 13.75},
    {"turing-530B", "full", 49.05},
    {"turing-530B", "seqsel", 37.83},
    {"megatron-1T", "full", 94.42},
    {"megatron-1T", "seqsel", 71.49},
}};

struct Source {
  fs::path data;
  std::string figure;
  std::string system;
};

Evaluation Run(const Source& source, const Published& published) {
  const Model model = ReadModel(source.data / "models" /
                                fmt::format("{}.json", published.model));
  const fs::path path =
      source.data / "validation" / "seqsel" / source.figure /
      fmt::format("{}_{}.json", published.model, published.mode);
  const Execution execution = ReadExecution(path);
  System system =
      ReadSystem(source.data / "systems" / (source.system + ".json"));
  system.mem1.capacity = std::numeric_limits<double>::infinity();
  system.mem2.capacity = std::numeric_limits<double>::infinity();
  Evaluation evaluation = Evaluate(model, system, execution);
  const Verdict& verdict = evaluation.verdict;
  if (!verdict.Fits()) {
    throw InputError(fmt::format(
        "{}: expected a feasible execution, found: {}",
        graph::OneLine(path.string(), 400),
        verdict.IsInfeasible()
            ? DescribeInfeasible(verdict)
            : DescribeContradiction(verdict, model, system, execution)));
  }
  return evaluation;
}

template <size_t kCount, typename Value>
ComparisonTable Compare(const Source& source,
                        const std::array<Published, kCount>& published,
                        Value value) {
  ComparisonTable table;
  for (const Published& one : published) {
    const Evaluation evaluation = Run(source, one);
    table.push_back({one.model, one.mode, one.value, value(evaluation),
                     evaluation.memory.tier1});
  }
  return table;
}

}  // namespace

double AverageError(const ComparisonTable& table) {
  double sum = 0;
  for (const Comparison& comparison : table) {
    sum += std::abs(comparison.Delta());
  }
  return sum / static_cast<double>(table.size());
}

double MaximumError(const ComparisonTable& table) {
  double most = 0;
  for (const Comparison& comparison : table) {
    most = std::max(most, std::abs(comparison.Delta()));
  }
  return most;
}

Figure1 CompareFigure1(const fs::path& data) {
  const Source source{data, "fig1", "a100_80e"};
  return {Compare(source, kStates,
                  [](const Evaluation& evaluation) {
                    const MemoryNeeds& memory = evaluation.memory;
                    return (memory.weights.all + memory.weight_grads.all +
                            memory.optimizer.all) /
                           kGiB;
                  }),
          Compare(source, kActivations, [](const Evaluation& evaluation) {
            return evaluation.memory.activations.all / kGiB;
          })};
}

ComparisonTable CompareFigure7(const fs::path& data) {
  const Source source{data, "fig7", "a100_80e"};
  ComparisonTable table =
      Compare(source, kShares, [](const Evaluation& evaluation) {
        return evaluation.memory.activations.all +
               evaluation.memory.checkpoints.all;
      });
  double whole = 0;
  for (Comparison& comparison : table) {
    if (comparison.mode == "none") whole = comparison.computed;
    comparison.computed = comparison.computed / whole * 100;
  }
  return table;
}

ComparisonTable CompareTable5(const fs::path& data) {
  const Source source{data, "tab5", "a100_80g"};
  return Compare(source, kSeconds, [](const Evaluation& evaluation) {
    return evaluation.times.total;
  });
}

}  // namespace acplan::costmodel
