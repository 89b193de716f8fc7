// Time to the proven optimal plan, against the literal form of PyTorch's
// sac_milp solved by the same CBC in the same run. Prints Markdown;
// bench/README.md has the command and a record.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/commands.h"
#include "graph/base/file_io.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "solver/cbc_solver.h"
#include "tests/support/asked_plan.h"
#include "tests/support/literal_sac_milp.h"
#include "tests/support/reference_data.h"
#include "tests/support/synthetic_profile.h"

namespace acplan::bench {

namespace {

namespace fs = std::filesystem;

struct Case {
  std::string name;
  fs::path path;
  int64_t budget_bytes = 0;
};

std::vector<std::string> Command(const Case& c) {
  return {ACPLAN_PROGRAM,
          "plan",
          c.path.string(),
          "--budget",
          fmt::format("{}", c.budget_bytes),
          "--memory-model",
          "torch",
          "--tradeoff",
          "profile",
          "-q"};
}

void Report(const Case& c, const CommandCost& command, double literal_limit_s,
            int runs) {
  const graph::Profile profile = graph::ReadProfile(c.path);
  const graph::ModuleTree tree(profile);
  problems::PlanOptions options{.granularity = problems::Granularity::kModule,
                                .tradeoff = problems::Tradeoff::kProfile};
  options.budget_bytes = c.budget_bytes;
  options.memory.model = problems::MemoryModel::kTorch;

  problems::Plan plan;
  const double plan_s = Median(runs, [&] {
    const solver::Stopwatch stopwatch;
    plan = test_support::AskedPlan(profile, tree, options);
    return stopwatch.Seconds();
  });

  std::string literal = "-";
  std::string ratio = "-";
  std::string quality = "-";
  if (literal_limit_s > 0) {
    const solver::Milp milp = test_support::BuildLiteralSacMilp(
        profile, tree, static_cast<double>(c.budget_bytes));
    solver::CbcOptions cbc;
    cbc.limits.time_limit_s = literal_limit_s;
    const solver::MilpSolution solved = SolveWithCbc(milp, cbc);
    const bool limited = solved.status != solver::MilpStatus::kOptimal &&
                         solved.status != solver::MilpStatus::kInfeasible;
    literal = fmt::format("{}{:.2f}", limited ? "> " : "", solved.seconds);
    ratio =
        fmt::format("{}{:.0f}", limited ? "> " : "", solved.seconds / plan_s);
    if (solved.x.empty()) {
      quality = solved.status == solver::MilpStatus::kInfeasible
                    ? "infeasible (wrong)"
                    : "none";
    } else {
      const double excess = solved.objective / plan.recompute_ms - 1;
      quality = std::abs(excess) < 1e-5 ? "the same"
                                        : fmt::format("{:+.3f}%", 100 * excess);
      if (limited) {
        quality +=
            fmt::format(", gap {:.0f}%", 100 * std::min(1.0, solved.gap));
      }
    }
  }
  fmt::print(
      "| {} | {} | {:.3f} | {:.3f} | {} | {} | {:.5f} | {:.3f} | {:.0f} | {} | "
      "{} "
      "| {} |\n",
      c.name, profile.modules.size(), static_cast<double>(c.budget_bytes) / 1e9,
      plan.recompute_ms, ToString(plan.status), plan.solver.nodes, plan_s,
      command.seconds, command.megabytes, literal, ratio, quality);
  std::fflush(stdout);
}

std::vector<Case> RealCases() {
  std::vector<Case> cases;
  for (const test_support::TorchPlan& plan : test_support::TorchPlans()) {
    cases.push_back(
        {.name = plan.profile + " " + plan.label,
         .path = test_support::ProfilePath(plan.profile),
         .budget_bytes = std::max(plan.budget_bytes, plan.predicted_peak)});
  }
  for (const auto& optimum : test_support::KnownModuleOptima()) {
    cases.push_back({.name = optimum.profile,
                     .path = test_support::ProfilePath(optimum.profile),
                     .budget_bytes = optimum.budget_bytes});
  }
  return cases;
}

std::vector<Case> SyntheticCases(const fs::path& folder) {
  std::vector<Case> cases;
  for (const int layers : {12, 24, 48, 96, 192}) {
    for (const double jitter : {0.0, 0.1}) {
      const graph::Profile profile = test_support::SyntheticGpt(layers, jitter);
      const std::string name =
          fmt::format("GPT {} layers{}", layers, jitter > 0 ? ", jitter" : "");
      const fs::path path =
          folder / fmt::format("gpt{}{}.json", layers, jitter > 0 ? "j" : "");
      graph::WriteFile(path, ProfileToJson(profile));
      const graph::ModuleTree tree(profile);
      problems::PlanOptions options{
          .granularity = problems::Granularity::kModule,
          .tradeoff = problems::Tradeoff::kProfile};
      options.memory.model = problems::MemoryModel::kTorch;
      options.budget_bytes = 1;
      const problems::Plan plan =
          test_support::AskedPlan(profile, tree, options);
      const auto least = static_cast<double>(*plan.minimum_budget_bytes);
      const auto most = static_cast<double>(plan.baseline.peak_bytes);
      for (const int percent : {80, 50, 20}) {
        cases.push_back({.name = fmt::format("{}, {}%", name, percent),
                         .path = path,
                         .budget_bytes = std::llround(
                             least + (most - least) * percent / 100)});
      }
    }
  }
  return cases;
}

}  // namespace

}  // namespace acplan::bench

int main(int argc, char** argv) {
  using namespace acplan::bench;  // NOLINT: the program's own namespace
  CLI::App app("Time to the optimal plan against the literal form");
  double literal_limit_s = 20;
  int runs = 5;
  bool synthetic = false;
  app.add_option("--literal-limit", literal_limit_s,
                 "seconds for each literal form; 0 leaves it out");
  app.add_option("--runs", runs, "runs of ours, the median counts");
  app.add_flag("--synthetic", synthetic,
               "synthetic GPT trees instead of the "
               "bundled profiles");
  CLI11_PARSE(app, argc, argv);
  const TemporaryFolder folder;
  fmt::print(
      "| case | modules | budget GB | recompute ms | status | labels | plan s "
      "| "
      "command s | command MB | literal s | literal / plan | literal's plan |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  const std::vector<Case> cases =
      synthetic ? SyntheticCases(folder.path()) : RealCases();
  // Before this program itself grows, see CommandCost.
  std::vector<CommandCost> commands;
  for (const Case& c : cases) commands.push_back(MedianCost(Command(c), runs));
  for (size_t i = 0; i < cases.size(); ++i) {
    Report(cases[i], commands[i], literal_limit_s, runs);
  }
}
