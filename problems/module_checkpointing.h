#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/module_tree.h"
#include "graph/profile.h"
#include "problems/memory_model.h"
#include "problems/plan.h"
#include "solver/search.h"

namespace acplan::problems {

// Module granularity, end to end: which modules to checkpoint and how much of
// each to discard, with the least recomputation within a budget
// (module_problem.h states the problem). This replaces PyTorch's
// torch.distributed._tools.sac_ilp.

enum class Engine {
  kAuto,    // kLabels where the module tree allows it, else kCbc
  kLabels,  // module_labels.h
  kCbc,     // module_milp.h
};
std::string_view ToString(Engine engine);
std::optional<Engine> ParseEngine(std::string_view name);

struct PlanOptions {
  int64_t budget_bytes = 0;
  int64_t reserve_bytes = 0;  // kept free: the plan has budget - reserve
  MemoryOptions memory;
  std::vector<std::string> ac_units;  // only these; empty: any module
  std::vector<std::string>
      fsdp_units;                // no AC unit strictly above one of these
  std::optional<int> max_units;  // at most so many AC units
  Engine engine = Engine::kAuto;
  solver::SearchLimits limits;
};

struct PlanResult {
  Plan plan;
  std::vector<std::string> warnings;  // a line each
};

// Plans, and checks the plan with code that shares nothing with the engines
// (plan_check.h) before it returns. Where no plan fits, the plan says so and
// has the smallest budget that one would fit. Throws InputError for what
// BuildModuleProblem refuses, a world size or max_units out of range, a reserve
// that leaves no budget, or Engine::kLabels where the tree does not allow it,
// and std::logic_error where the plan fails the check: a defect of acplan.
PlanResult PlanModules(const graph::Profile& profile,
                       const graph::ModuleTree& tree,
                       const PlanOptions& options);

}  // namespace acplan::problems
