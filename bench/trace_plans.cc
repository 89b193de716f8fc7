#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/trace.h"
#include "problems/budget_frontier.h"
#include "problems/planner.h"
#include "solver/search.h"

// Plans on traces (bench/README.md): `trace_plans [TRACE...]`, the bundled ones
// without arguments.

namespace acplan {

namespace {

constexpr double kShares[] = {0.9, 0.6, 0.3, 0.1};

double PeakMegabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void Report(const std::filesystem::path& path) {
  const graph::Trace trace = graph::ReadTrace(path);
  const solver::Stopwatch stopwatch;
  const graph::Profile profile = Aggregate(trace);
  const graph::ModuleTree tree(profile);
  const problems::PlanningProblem problem = problems::BuildPlanningProblem(
      profile, tree, {.memory = {.model = problems::MemoryModel::kTrace}},
      &trace);
  const double build_s = stopwatch.Seconds();
  const problems::MinimumBudget least = LeastPlan(problem, {}).budget;
  const double minimum_s = stopwatch.Seconds() - build_s;
  const int64_t most = problem.unplanned_peak_bytes;
  const std::string name = path.filename().string();
  double plans_s = 0;
  for (const double share : kShares) {
    const int64_t budget =
        least.bytes +
        static_cast<int64_t>(share * static_cast<double>(most - least.bytes));
    const problems::Plan plan = PlanFor(problem, budget, {}).plan;
    plans_s += plan.solver.seconds;
    fmt::print(
        "| {} | {:.0f}% | {} | {} | {:.6g} | {:.6g} | {:.4f}% | {} | {:.3f} | "
        "{} |\n",
        name.substr(0, name.find('.')), 100 * share, budget,
        ToString(plan.status), plan.recompute_ms, plan.bound_ms, 100 * plan.gap,
        plan.modules.size(), plan.solver.seconds, plan.solver.nodes);
  }
  const solver::Stopwatch frontier;
  PlanFrontier(problem, problems::EvenBudgets(least.bytes, most, 20), {});
  fmt::print(
      "| {} | building {:.3f} s, least budget {:.3f} s{}, 20 budgets "
      "{:.3f} s: {:.1f} of the mean plan, {:.0f} MB | | | | | | | | |\n",
      name.substr(0, name.find('.')), build_s, minimum_s,
      least.proven ? "" : " (not proven)", frontier.Seconds(),
      frontier.Seconds() / std::max(1e-9, plans_s / 4), PeakMegabytes());
}

int Run(int argc, char** argv) {
  std::vector<std::filesystem::path> paths(argv + 1, argv + argc);
  if (paths.empty()) {
    for (const auto& entry :
         std::filesystem::directory_iterator(ACPLAN_TRACE_DIR)) {
      paths.push_back(entry.path());
    }
    std::ranges::sort(paths);
  }
  fmt::print(
      "| trace | budget | bytes | status | recompute ms | bound ms | "
      "gap | units | seconds | labels |\n|---|---|---|---|---|---|---|"
      "---|---|---|\n");
  for (const std::filesystem::path& path : paths) {
    Report(path);
    std::fflush(stdout);
  }
  return EXIT_SUCCESS;
}

}  // namespace

}  // namespace acplan

int main(int argc, char** argv) {
  try {
    return acplan::Run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "trace_plans: {}\n", error.what());
    return 2;
  }
}
