#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/profile/sac_statistics.h"
#include "problems/model/memory_model.h"
#include "problems/model/module_problem.h"
#include "solver/search.h"

namespace acplan::problems {

// The options of a planning question.

enum class Granularity {
  kModule,    // which modules, and how much of each: module_problem.h
  kOperator,  // which modules, and which operators of each: joint_problem.h
};
std::string_view ToString(Granularity granularity);
std::optional<Granularity> ParseGranularity(std::string_view name);

// How the recomputation of a module depends on its discarded bytes, at module
// granularity.
enum class Tradeoff {
  // The convex hull of what the module's operators can do, mixtures allowed: no
  // policy does better. At operator granularity, the policies themselves.
  kPareto,
  kFit,      // a piecewise-linear fit of PyTorch's greedy curve, computed here
  kProfile,  // the fit that the profile carries
};
std::string_view ToString(Tradeoff tradeoff);
std::optional<Tradeoff> ParseTradeoff(std::string_view name);

enum class Engine {
  kAuto,    // kLabels where the module tree allows it, else kCbc
  kLabels,  // module_labels.h, joint_labels.h
  kCbc,     // module_milp.h, joint_milp.h
};
std::string_view ToString(Engine engine);
std::optional<Engine> ParseEngine(std::string_view name);

// Returns "time", "gap", "nodes", "memory", "unproven" or "interrupted"
// (Plan::limit); nullopt for kNothing.
std::optional<std::string> LimitName(solver::StoppedBy stopped_by);

struct PlanOptions {
  Granularity granularity = Granularity::kOperator;
  Tradeoff tradeoff = Tradeoff::kPareto;
  int64_t budget_bytes = 0;
  int64_t reserve_bytes = 0;  // kept free: the plan has budget - reserve
  MemoryOptions memory = {};
  std::vector<std::string> ac_units = {};    // only these; empty: any module
  std::vector<std::string> fsdp_units = {};  // no AC unit strictly above these
  std::optional<int> max_units = {};         // at most so many AC units
  graph::OperatorPatterns patterns = {};     // operators to save or recompute
  // When a unit runs again, operators whose results nothing needs are skipped.
  // On traces only.
  bool may_skip = false;
  Engine engine = Engine::kAuto;
  solver::SearchLimits limits = {};
};

// An option that is out of range or incompatible with another one.
class OptionError : public InputError {
 public:
  // Makes the error of an option, the complaint about it, and a remedy. `option` and
  // `remedy` are names of options as users know them, with '_' between words
  // and, where it helps, a value after the name: "max_units", "engine cbc".
  // what() is "OPTION: COMPLAINT", or "OPTION: COMPLAINT; use REMEDY".
  OptionError(std::string option, std::string complaint,
              std::string remedy = "");

  const std::string& option() const { return option_; }
  const std::string& complaint() const { return complaint_; }
  const std::string& remedy() const { return remedy_; }

 private:
  std::string option_, complaint_, remedy_;
};

// Throws OptionError if the budget is not positive or the reserve takes all of
// it.
void CheckBudget(const PlanOptions& options);

// Throws OptionError for options that are out of range or incompatible with
// each other.
void CheckOptions(const PlanOptions& options);

// Throws OptionError for options that are incompatible with the memory model
// kTrace.
void CheckTraceOptions(const PlanOptions& options);

// Throws OptionError if the engine is kLabels and labels cannot solve the
// problem.
void CheckEngine(const ModuleProblem& problem, Engine engine);

// Returns whether labels solve the problem.
bool TakesLabels(const ModuleProblem& problem, Engine engine);

}  // namespace acplan::problems
