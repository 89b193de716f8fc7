#pragma once

#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "graph/profile/profile.h"
#include "problems/plan/plan.h"

namespace acplan::test_support {

// The bundled profiles, and other programs' answers on them (tests/data).

std::filesystem::path ProfilePath(const std::string& name);
// Returns a bundled profile, which is read once in a process.
const graph::Profile& BundledProfile(const std::string& name);

struct KnownOptimum {
  std::string profile;
  int64_t budget_bytes = 0;
  double module_recompute_ms = 0;  // a discard ratio for each unit
  double joint_recompute_ms = 0;   // a decision for each operator
};
// Returns the known optima at module granularity; KnownJointOptima returns
// those for units and operators together.
std::vector<KnownOptimum> KnownModuleOptima();
std::vector<KnownOptimum> KnownJointOptima();

struct TorchBaseline {
  std::string profile;
  int64_t predicted = 0;       // get_peak_memory_runtime_baseline
  int64_t measured_total = 0;  // MemTracker
};
std::vector<TorchBaseline> TorchBaselines();

struct TorchPlan {
  std::string profile, label;
  int64_t budget_bytes = 0;
  int64_t predicted_peak = 0;
  double recompute_ms = 0;
  int64_t measured_peak = 0;  // without optimizer state, buffers and inputs
  int64_t measured_peak_total = 0;
  // Ratios as sac_milp gives them, and the operator decisions if there are any.
  // The file does not name operators.
  std::vector<problems::PlannedModule> unnamed_units;
};
std::vector<TorchPlan> TorchPlans();

// Returns the plan's units, with operators named as in the bundled profile.
// This is a function, since every run of the tests lists all plans and would
// read every profile.
std::vector<problems::PlannedModule> UnitsOf(const TorchPlan& plan);

std::ostream& operator<<(std::ostream& out, const KnownOptimum& optimum);
std::ostream& operator<<(std::ostream& out, const TorchBaseline& baseline);
std::ostream& operator<<(std::ostream& out, const TorchPlan& plan);

}  // namespace acplan::test_support
