#pragma once

#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "graph/profile/profile.h"
#include "problems/plan/plan.h"

namespace acplan::test_support {

// The bundled profiles, and what others answer on them (tests/data).

std::filesystem::path ProfilePath(const std::string& name);
// Read once a process.
const graph::Profile& BundledProfile(const std::string& name);

struct KnownOptimum {
  std::string profile;
  int64_t budget_bytes = 0;
  double module_recompute_ms = 0;  // a discard ratio a unit
  double joint_recompute_ms = 0;   // a decision an operator
};
// Where the file has an optimum at module granularity, and for units and
// operators together.
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
  // Ratios as sac_milp gives them, and the operator decisions where there are. The
  // file does not name operators.
  std::vector<problems::PlannedModule> unnamed_units;
};
std::vector<TorchPlan> TorchPlans();

// The plan's units, with operators named as the bundled profile does. Apart, since
// every run of the tests lists all plans and would read every profile.
std::vector<problems::PlannedModule> UnitsOf(const TorchPlan& plan);

std::ostream& operator<<(std::ostream& out, const KnownOptimum& optimum);
std::ostream& operator<<(std::ostream& out, const TorchBaseline& baseline);
std::ostream& operator<<(std::ostream& out, const TorchPlan& plan);

}  // namespace acplan::test_support
