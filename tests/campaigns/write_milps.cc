// Writes programs for another solver, with the answers to them here by CBC
// alone, by the label engines and, for profiles, by the engine that is made
// with CBC:
//
//   write_milps random FOLDER COUNT [FIRST]    random profiles and steps
//   write_milps files FOLDER PROFILE...        of each, four budgets
//
// writes NAME.mps into the folder and, to standard output, a line of JSON for
// each: name, kind, and the answers, each a status and an objective.
// check_milps.py has HiGHS solve them and compares.

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/engines/labels/joint_labels.h"
#include "problems/engines/labels/module_labels.h"
#include "problems/engines/milp/joint_form.h"
#include "problems/engines/milp/joint_milp.h"
#include "problems/engines/milp/module_milp.h"
#include "problems/planner.h"
#include "problems/trace/relaxation/need_milp.h"
#include "problems/trace/relaxation/relaxation.h"
#include "solver/cbc_solver.h"
#include "solver/milp.h"
#include "tests/problems/trace/trace_case.h"
#include "tests/support/synthetic_profile.h"

namespace acplan::problems {
namespace {

using nlohmann::ordered_json;
using solver::Milp;

// Longer than anything in reach of a campaign.
constexpr double kSecondsOfCbc = 60;

struct WrittenMilps {
  std::filesystem::path folder;
  std::string source = {};  // the seed, or the file
  int count = 0;
};

ordered_json AnswerOfCbc(const Milp& milp) {
  solver::CbcOptions options;
  options.limits.time_limit_s = kSecondsOfCbc;
  const solver::MilpSolution solution = solver::SolveWithCbc(milp, options);
  switch (solution.status) {
    case solver::MilpStatus::kOptimal:
      return {{"status", "optimal"}, {"objective", solution.objective}};
    case solver::MilpStatus::kInfeasible:
      return {{"status", "infeasible"}, {"objective", nullptr}};
    default:
      return {{"status", "unproven"}, {"objective", nullptr}};
  }
}

ordered_json AnswerOf(const ModuleSolution& solution) {
  switch (solution.status) {
    case solver::SearchStatus::kOptimal:
      return {{"status", "optimal"}, {"objective", solution.ms}};
    case solver::SearchStatus::kInfeasible:
      return {{"status", "infeasible"}, {"objective", nullptr}};
    default:
      return {{"status", "unproven"}, {"objective", nullptr}};
  }
}

void Write(WrittenMilps& milps, const std::string& kind, const Milp& milp,
           const ModuleSolution& by_labels,
           const std::optional<ModuleSolution>& by_engine) {
  // There is nothing to decide.
  if (milp.columns.empty()) return;
  const std::string name =
      fmt::format("{}_{}_{}", kind, milps.source, milps.count++);
  std::ofstream file(milps.folder / (name + ".mps"));
  file << solver::ToMps(milp);
  file.close();
  if (!file) throw std::runtime_error("cannot write " + name + ".mps");
  ordered_json line = {{"name", name}, {"kind", kind}};
  line["cbc"] = AnswerOfCbc(milp);
  line["labels"] = AnswerOf(by_labels);
  if (by_engine) line["engine"] = AnswerOf(*by_engine);
  std::cout << line << '\n' << std::flush;
}

void WriteProfile(WrittenMilps& milps, const graph::Profile& profile,
                  PlanOptions options, std::span<const double> shares) {
  const graph::ModuleTree tree(profile);
  options.engine = Engine::kLabels;
  std::optional<PlanningProblem> problem;
  try {
    problem = BuildPlanningProblem(profile, tree, options);
  } catch (const InputError&) {
    return;  // not for labels, or nothing that may be a unit
  }
  const auto least = static_cast<double>(LeastPlan(*problem, {}).budget.bytes);
  const auto most = static_cast<double>(problem->unplanned_peak_bytes);
  solver::SearchLimits limits;
  limits.time_limit_s = kSecondsOfCbc;
  for (const double share : shares) {
    const double budget = std::floor(least + share * (most - least));
    if (auto* joint = std::get_if<BuiltJointProblem>(&problem->formulation)) {
      joint->problem.relaxed.budget_bytes = budget;
      Write(milps, "operators", ToMilp(joint->problem).milp,
            SolveJointByLabels(joint->problem),
            SolveJointByCbc(joint->problem, limits));
    } else {
      auto& built_problem = std::get<BuiltModuleProblem>(problem->formulation);
      built_problem.problem.budget_bytes = budget;
      Write(milps, "modules", ToMilp(built_problem.problem).milp,
            SolveByLabels(built_problem.problem),
            SolveByCbc(built_problem.problem, limits));
    }
  }
}

void WriteRandomProfile(WrittenMilps& milps, unsigned seed) {
  std::mt19937 random(seed);
  const graph::Profile profile = test_support::RandomProfile(
      seed, {.most_modules = 6 + static_cast<int>(random() % 30),
             .most_operators = 8});
  PlanOptions options;
  if (random() % 2 == 0) options.granularity = Granularity::kModule;
  if (random() % 3 != 0) options.memory.model = DefaultMemoryModel(profile);
  if (random() % 3 == 0) options.max_units = 1 + static_cast<int>(random() % 3);
  const double share = std::uniform_real_distribution(0., 0.8)(random);
  // No plan is below the least budget, which both must see.
  WriteProfile(milps, profile, options, std::vector<double>{-0.02, share});
}

void WriteRandomStep(WrittenMilps& milps, unsigned seed) {
  const std::vector<TraceCaseKind> kinds = TraceCaseKinds();
  const TraceCase c(kinds[seed % kinds.size()], seed);
  std::mt19937 random(seed);
  TraceRelaxation relaxation = Relax(c.problem, FirstWitnesses(c.problem), {});
  ModuleProblem& relaxed = relaxation.joint.relaxed;
  const double peak = SolutionPeak(relaxed, {});
  const double share = std::uniform_real_distribution(0.6, 1.)(random);
  relaxed.budget_bytes = std::floor(share * peak);
  if (relaxed.fixed_bytes > relaxed.budget_bytes) return;
  const NeedMilp form =
      ToMilp(c.problem, relaxation,
             ChoicesOfCalls(c.problem, FirstWitnesses(c.problem), {}));
  Write(milps, "needs", form.milp, SolveJointByLabels(relaxation.joint), {});
}

int Main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() < 3) {
    std::cerr << "write_milps random FOLDER COUNT [FIRST] | "
                 "files FOLDER PROFILE...\n";
    return 2;
  }
  std::filesystem::create_directories(args[1]);
  WrittenMilps milps = {.folder = args[1]};
  if (args[0] == "files") {
    for (size_t k = 2; k < args.size(); ++k) {
      const graph::Profile profile = graph::ReadProfile(args[k]);
      milps.source = std::filesystem::path(args[k]).stem().stem();
      for (const Granularity granularity :
           {Granularity::kModule, Granularity::kOperator}) {
        PlanOptions options;
        options.granularity = granularity;
        options.memory.model = DefaultMemoryModel(profile);
        WriteProfile(milps, profile, options,
                     std::vector<double>{0.1, 0.4, 0.7, 0.9});
      }
    }
    return 0;
  }
  const int first = args.size() > 3 ? std::stoi(args[3]) : 0;
  const int end = first + std::stoi(args[2]);
  for (int seed = first; seed < end; ++seed) {
    milps.source = std::to_string(seed);
    WriteRandomProfile(milps, seed);
    WriteRandomStep(milps, seed);
  }
  return 0;
}

}  // namespace
}  // namespace acplan::problems

int main(int argc, char** argv) {
  try {
    return acplan::problems::Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "write_milps: " << error.what() << '\n';
    return 1;
  }
}