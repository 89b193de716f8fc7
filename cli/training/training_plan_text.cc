#include "cli/training/training_plan_text.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/terminal/human_numbers.h"
#include "cli/terminal/text.h"
#include "cli/training/train_show_text.h"
#include "graph/base/byte_size.h"

namespace acplan::cli {

namespace {

using costmodel::LayerGraph;
using costmodel::LayerShare;
using costmodel::PlannedStage;
using costmodel::TrainingPlan;
using costmodel::TrainingReport;

constexpr size_t kNamesColumns = 34;

std::vector<std::string> NamesThatRun(const LayerGraph& graph,
                                      const LayerShare& share) {
  std::vector<std::string> names;
  for (size_t i = 0; i < graph.operations.size(); ++i) {
    if ((share.policy.sets.runs >> i & 1) != 0) {
      names.push_back(graph.operations[i].name);
    }
  }
  return names;
}

std::vector<std::string> NamesKept(const LayerGraph& graph,
                                   const LayerShare& share) {
  std::vector<std::string> names = {"input"};
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    if ((share.policy.sets.kept_tensors >> i & 1) != 0) {
      names.push_back(NameOfTensor(graph, graph.tensors[i]));
    }
  }
  return names;
}

// Returns the names with semicolons between them, since some have commas, in
// the lines of a column.
std::vector<std::string> LinesOf(const std::vector<std::string>& names) {
  std::vector<std::string> lines = {""};
  for (const std::string& name : names) {
    std::string& line = lines.back();
    if (line.empty()) {
      line = name;
    } else if (line.size() + 2 + name.size() <= kNamesColumns) {
      line += "; " + name;
    } else {
      line += ";";
      lines.push_back(name);
    }
  }
  return lines;
}

bool IsSame(const PlannedStage& a, const PlannedStage& b) {
  if (a.shares.size() != b.shares.size()) return false;
  for (size_t i = 0; i < a.shares.size(); ++i) {
    const LayerShare& x = a.shares[i];
    const LayerShare& y = b.shares[i];
    if (x.is_moe != y.is_moe || x.layers != y.layers ||
        x.policy.sets.kept_tensors != y.policy.sets.kept_tensors) {
      return false;
    }
  }
  return true;
}

double SecondsOf(const LayerShare& share) {
  return std::max(share.policy.gpu, share.policy.host);
}

void AddRows(Table& table, const std::string& stage, const TrainingPlan& plan,
             const PlannedStage& planned_stage) {
  std::string first = stage;
  for (const LayerShare& share : planned_stage.shares) {
    const LayerGraph& graph = plan.graphs[share.is_moe ? 1 : 0];
    std::vector<std::string> names = NamesThatRun(graph, share);
    if (names.empty()) names = {"nothing"};
    std::vector<std::string> row = {first, fmt::to_string(share.layers),
                                    share.is_moe ? "experts" : "dense",
                                    graph::FormatManyBytes(share.policy.bytes),
                                    HumanSeconds(SecondsOf(share))};
    for (const std::string& line : LinesOf(names)) {
      row.push_back(line);
      table.AddRow(std::move(row));
      row = {"", "", "", "", ""};
    }
    first.clear();
  }
}

std::string VerdictText(const TrainingPlan& plan) {
  if (!plan.Fits()) return "no plan fits; this plan keeps the least";
  if (plan.IsOptimal()) return "optimal: no plan is faster (proven)";
  return fmt::format("no plan takes less than {}", HumanSeconds(plan.bound));
}

}  // namespace

std::string PlanText(const TrainingReport& report, const Terminal& terminal) {
  using enum Table::Align;
  const TrainingPlan& plan = *report.plan;
  Table table({kLeft, kRight, kLeft, kRight, kRight, kLeft});
  table.AddRow(
      {"stage", "layers", "", "kept", "recomputed", "recomputed operations"});
  for (size_t i = 0; i < plan.stages.size();) {
    size_t end = i + 1;
    while (end < plan.stages.size() &&
           IsSame(plan.stages[i], plan.stages[end])) {
      ++end;
    }
    AddRows(table,
            end == i + 1 ? fmt::to_string(i) : fmt::format("{}-{}", i, end - 1),
            plan, plan.stages[i]);
    i = end;
  }
  return terminal.Bold("recomputation plan") + ", " + VerdictText(plan) + "\n" +
         table.ToString(terminal) +
         "kept, recomputed: per layer and microbatch\n\n";
}

nlohmann::ordered_json PlanJson(const TrainingReport& report) {
  const TrainingPlan& plan = *report.plan;
  nlohmann::ordered_json json = {{"optimal", plan.IsOptimal()},
                                 {"bound_s", plan.Fits() ? plan.bound : 0}};
  json["stages"] = nlohmann::ordered_json::array();
  for (const PlannedStage& stage : plan.stages) {
    nlohmann::ordered_json policies = nlohmann::ordered_json::array();
    for (const LayerShare& share : stage.shares) {
      const LayerGraph& graph = plan.graphs[share.is_moe ? 1 : 0];
      policies.push_back({{"layers", share.layers},
                          {"experts", share.is_moe},
                          {"kept_bytes", BytesJson(share.policy.bytes)},
                          {"again_s", SecondsOf(share)},
                          {"kept", NamesKept(graph, share)},
                          {"runs_again", NamesThatRun(graph, share)}});
    }
    json["stages"].push_back({{"again_s", stage.recomputation.Total()},
                              {"total_bytes", BytesJson(stage.memory.Total())},
                              {"policies", std::move(policies)}});
  }
  return json;
}

}  // namespace acplan::cli
