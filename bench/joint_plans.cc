// Units and operators in one problem: time to the proven optimal plan, and how
// much less it recomputes than PyTorch's two stages. Prints Markdown;
// bench/README.md has the command and a record.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bench/commands.h"
#include "graph/base/file_io.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/engines/milp/joint_milp.h"
#include "problems/model/memory_model.h"
#include "problems/planner.h"
#include "tests/support/reference_data.h"
#include "tests/support/synthetic_profile.h"
#include "tests/support/two_stage.h"

namespace acplan::bench {

namespace {

namespace fs = std::filesystem;

using problems::MemoryModel;
using test_support::TwoStageOutcome;

struct Model {
  std::string name;
  fs::path path;
};

struct Case {
  std::string name;
  fs::path path;
  MemoryModel memory = MemoryModel::kTorch;
  int64_t budget_bytes = 0;
};

struct Flags {
  int runs = 5;
  double limit_s = 60;
  double cbc_limit_s = 0;
};

std::vector<Model> BundledModels() {
  std::vector<Model> models;
  for (const auto& baseline : test_support::TorchBaselines()) {
    models.push_back({.name = baseline.profile,
                      .path = test_support::ProfilePath(baseline.profile)});
  }
  return models;
}

std::vector<Model> SyntheticModels(const fs::path& folder, double most_jitter) {
  std::vector<Model> models;
  for (const int layers : {12, 24, 48, 96}) {
    for (const double jitter : {0.0, most_jitter}) {
      models.push_back({.name = fmt::format("GPT {} layers{}", layers,
                                            jitter > 0 ? ", jitter" : ""),
                        .path = folder / fmt::format("gpt{}{}.json", layers,
                                                     jitter > 0 ? "j" : "")});
      graph::WriteFile(
          models.back().path,
          ProfileToJson(test_support::SyntheticGpt(layers, jitter)));
    }
  }
  return models;
}

problems::PlanOptions Options(MemoryModel memory) {
  return {.granularity = problems::Granularity::kOperator,
          .memory = {.model = memory}};
}

std::vector<Case> CasesOf(const Model& model) {
  const graph::Profile profile = graph::ReadProfile(model.path);
  const graph::ModuleTree tree(profile);
  std::vector<MemoryModel> memory_models = {
      problems::DefaultMemoryModel(profile)};
  if (memory_models[0] != MemoryModel::kTorch) {
    memory_models.push_back(MemoryModel::kTorch);
  }
  std::vector<Case> cases;
  for (const MemoryModel memory : memory_models) {
    const problems::PlanningProblem problem =
        BuildPlanningProblem(profile, tree, Options(memory));
    const int64_t least = LeastPlan(problem, {}).budget.bytes;
    const auto range =
        static_cast<double>(problem.unplanned_peak_bytes - least);
    for (const int percent : {90, 50, 20}) {
      cases.push_back(
          {.name = fmt::format("{}, {}%", model.name, percent),
           .path = model.path,
           .memory = memory,
           .budget_bytes = least + std::llround(range * percent / 100)});
    }
  }
  return cases;
}

std::vector<Case> AllCases(const std::vector<Model>& models,
                           const std::string& only) {
  std::vector<Case> cases;
  for (const Model& model : models) {
    if (model.name.find(only) == std::string::npos) continue;
    std::ranges::move(CasesOf(model), std::back_inserter(cases));
  }
  return cases;
}

// Four lines each: name, path, memory model, budget.
void WriteCases(const std::vector<Case>& cases, const fs::path& path) {
  std::string text;
  for (const Case& c : cases) {
    text += fmt::format("{}\n{}\n{}\n{}\n", c.name, c.path.string(),
                        ToString(c.memory), c.budget_bytes);
  }
  graph::WriteFile(path, text);
}

std::vector<Case> ReadCases(const fs::path& path) {
  std::vector<Case> cases;
  std::ifstream in(path);
  Case c;
  std::string model_path, memory, budget;
  while (std::getline(in, c.name) && std::getline(in, model_path) &&
         std::getline(in, memory) && std::getline(in, budget)) {
    c.path = model_path;
    c.memory = problems::ParseMemoryModel(memory).value();
    c.budget_bytes = std::stoll(budget);
    cases.push_back(c);
  }
  return cases;
}

std::vector<std::string> Command(const Case& c, double limit_s) {
  return {ACPLAN_PROGRAM,
          "plan",
          c.path.string(),
          "--budget",
          fmt::format("{}", c.budget_bytes),
          "--memory-model",
          std::string(ToString(c.memory)),
          "--time-limit",
          fmt::format("{}", limit_s),
          "-q"};
}

// What two stages recompute, and how much lower the joint plan is.
std::pair<std::string, std::string> BesideTwoStages(
    const test_support::TwoStagePlan& two, double joint_ms) {
  const std::string ms = fmt::format("{:.3f}", two.plan.recompute_ms);
  switch (two.outcome) {
    case TwoStageOutcome::kFits:
      return {ms, two.plan.recompute_ms > 0
                      ? fmt::format("{:.1f}%", 100 - 100 * joint_ms /
                                                         two.plan.recompute_ms)
                      : "0.0%"};
    case TwoStageOutcome::kOverBudget:
      return {ms + ", over budget", "-"};
    case TwoStageOutcome::kNoPolicy:
      return {"no policy for a unit", "-"};
    case TwoStageOutcome::kNoRatios:
      break;
  }
  return {"no ratios", "-"};
}

std::string ByCbc(const problems::PlanningProblem& problem, const Case& c,
                  double limit_s) {
  problems::JointProblem joint =
      std::get<problems::BuiltJointProblem>(problem.formulation).problem;
  joint.relaxed.budget_bytes = static_cast<double>(c.budget_bytes);
  solver::SearchLimits limits;
  limits.time_limit_s = limit_s;
  const problems::ModuleSolution solved = SolveJointByCbc(joint, limits);
  return fmt::format("{:.3f} in {:.2f} s, gap {:.2g}%", solved.ms,
                     solved.seconds,
                     100 * (solved.ms - solved.bound_ms) / solved.ms);
}

void Report(const Case& c, const CommandCost& command, const Flags& flags) {
  const graph::Profile profile = graph::ReadProfile(c.path);
  const graph::ModuleTree tree(profile);
  problems::PlanOptions options = Options(c.memory);
  solver::SearchLimits limits;
  limits.time_limit_s = flags.limit_s;
  problems::Plan plan;
  const double plan_s = Median(flags.runs, [&] {
    const solver::Stopwatch stopwatch;
    plan = PlanFor(BuildPlanningProblem(profile, tree, options), c.budget_bytes,
                   limits)
               .plan;
    return stopwatch.Seconds();
  });
  const problems::PlanningProblem problem =
      BuildPlanningProblem(profile, tree, options);
  const auto& joint =
      std::get<problems::BuiltJointProblem>(problem.formulation);
  const auto candidates = std::ranges::count_if(
      joint.problem.policies_of, [](int policies) { return policies >= 0; });
  const auto [two_ms, lower] =
      BesideTwoStages(test_support::PlanInTwoStages(
                          profile, tree, options.memory, c.budget_bytes),
                      plan.recompute_ms);
  fmt::print(
      "| {} | {} | {} | {} | {:.3f} | {:.3f} | {} | {:.3f} | {:.2g} | {} | "
      "{:.4f} | {:.3f} | {:.0f} | {} | {} |",
      c.name, ToString(c.memory), profile.modules.size(), candidates,
      static_cast<double>(c.budget_bytes) / 1e9, plan.recompute_ms,
      ToString(plan.status), plan.bound_ms, plan.gap, plan.solver.nodes, plan_s,
      command.seconds, command.megabytes, two_ms, lower);
  if (flags.cbc_limit_s > 0) {
    fmt::print(" {} |", ByCbc(problem, c, flags.cbc_limit_s));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

void PrintHead(bool with_cbc) {
  const std::vector<std::string> columns = {
      "case",   "memory model", "modules", "candidates", "budget GB",
      "ms",     "status",       "bound",   "gap",        "labels",
      "plan s", "command s",    "MB",      "two stages", "lower by"};
  fmt::print("| {} |{}\n", fmt::join(columns, " | "), with_cbc ? " CBC |" : "");
  for (size_t i = 0; i < columns.size() + with_cbc; ++i) fmt::print("|---");
  fmt::print("|\n");
}

}  // namespace

}  // namespace acplan::bench

int main(int argc, char** argv) {
  using namespace acplan::bench;  // NOLINT: the program's own namespace
  CLI::App app("Time to the optimal plan of units and operators");
  Flags flags;
  bool synthetic = false;
  double jitter = 0.1;
  std::string only;
  app.add_option("--runs", flags.runs, "runs, the median counts");
  app.add_option("--limit", flags.limit_s, "seconds that each plan gets");
  app.add_option("--cbc-limit", flags.cbc_limit_s,
                 "seconds for the same by CBC; 0 (default) leaves it out");
  app.add_option("--only", only, "only models with this in their names");
  app.add_option("--jitter", jitter,
                 "by how much layers differ where they do (default .1)");
  app.add_flag("--synthetic", synthetic,
               "synthetic GPT trees instead of the bundled profiles");
  CLI11_PARSE(app, argc, argv);
  const TemporaryFolder folder;
  // Elsewhere, and commands before this program itself grows: CommandCost.
  RunInChild([&] {
    WriteCases(AllCases(synthetic ? SyntheticModels(folder.path(), jitter)
                                  : BundledModels(),
                        only),
               folder.path() / "cases");
  });
  const std::vector<Case> cases = ReadCases(folder.path() / "cases");
  std::vector<CommandCost> commands;
  commands.reserve(cases.size());
  for (const Case& c : cases) {
    commands.push_back(MedianCost(Command(c, flags.limit_s), flags.runs));
  }
  PrintHead(flags.cbc_limit_s > 0);
  for (size_t i = 0; i < cases.size(); ++i) {
    Report(cases[i], commands[i], flags);
  }
}
