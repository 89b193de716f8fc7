#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "problems/model/module_problem.h"
#include "problems/model/unit_forest.h"
#include "solver/search.h"

namespace acplan::problems {

// Units and operators in one problem: which modules to checkpoint, and which of
// their operators to save, with the least recomputation within a budget.
//
// Data
//   The forest, times, records and budget of a module problem
//   (module_problem.h). For a candidate unit i the groups of operators that a
//   policy may decide (graph/profile/sac_statistics.h), group g with m_ig bytes
//   and t_ig ms; the bytes a_i that it discards and the ms c_i that it recomputes
//   if all of them are saved; and the bytes h_i that its checkpoint frame holds.
// Variables
//   y_i in {0, 1}            i is a unit
//   z_ig in {0, 1}           unit i recomputes group g
// Model
//   minimise   sum_i (c_i y_i + sum_g t_ig z_ig)
//   subject to z_ig <= y_i
//              sum_{j: t_j < t_k} (a_j y_j + sum_g m_jg z_jg)
//                - sum_{j contains k} h_j y_j >= b_k - B   for every record k
//              sum_{i on p} y_i <= 1          for every root-to-leaf path p
//              sum_i y_i <= max_units         if given
//
// A policy that saves S bytes of a module whose operator memory is M = sum of
// memory discards min(IA, M) - S bytes of what autograd keeps (bytes that no
// operator accounts for stay) and recomputes every operator that it does not
// save, including view-like ones. So a_i = min(IA, M) - S_i - h_i, where S_i is
// all that may be saved: a_i is negative if the operators make more than
// autograd keeps.

// Equal groups of one unit.
struct GroupKind {
  int64_t bytes = 0;  // discarded if one is recomputed; > 0
  double ms = 0;      // recomputed for it; >= 0
  int count = 1;
};

// A whole policy: the bytes that it discards, and their cost.
struct PolicyPoint {
  int64_t bytes = 0;
  double ms = 0;
  bool operator==(const PolicyPoint&) const = default;
};

struct JointProblem {
  // The policies of a candidate; candidates with identical ones share them.
  struct Policies {
    int64_t base_bytes = 0;        // a_i
    double base_ms = 0;            // c_i
    std::vector<GroupKind> kinds;  // most bytes a millisecond first,
                                   // all different
    // Replaces `kinds` if the cost of a policy is no sum over groups: all
    // policies that no other one beats, bytes and ms strictly ascending. The
    // first is the base. A policy is counts = {its index}.
    std::vector<PolicyPoint> points = {};
    int64_t MostBytes() const;  // with everything recomputed
    // These return the bytes that a policy discards which recomputes counts[k] groups
    // of kind k, and the ms that it costs.
    int64_t BytesOf(const std::vector<int>& counts) const;
    double MsOf(const std::vector<int>& counts) const;
    // Returns the cheapest policy that discards at least `bytes` <=
    // MostBytes(), or, if a limit stops the search, the best one known.
    std::vector<int> LeastCounts(int64_t bytes,
                                 const solver::SearchLimits& limits = {}) const;
  };
  // The relaxation in which units may mix policies: the curve of a candidate is
  // the lower convex hull of its policies. Forest, records, budget, held bytes
  // and max_units are those of the joint problem.
  ModuleProblem relaxed;
  std::vector<Policies> policies;
  std::vector<int> policies_of;  // by node: index into policies, -1: none
};

// A table of policies that has equal ones once.
class PolicyTable {
 public:
  int IndexOf(JointProblem::Policies policies);
  std::vector<JointProblem::Policies> Take() { return std::move(policies_); }

 private:
  using Kind = std::tuple<int64_t, double, int>;
  std::map<std::vector<Kind>, int> index_;
  std::vector<JointProblem::Policies> policies_;
};

// Returns the corners of the lower convex hull of points with ascending bytes.
std::vector<PolicyPoint> HullPoints(const std::vector<PolicyPoint>& points);

// Returns the curve of a candidate in the relaxation: the lower convex hull of
// its policies, from 0 bytes on. Requires MostBytes() > 0.
std::vector<Knot> HullOf(const JointProblem::Policies& policies);

struct JointProblemOptions {
  MemoryOptions memory = {};
  double budget_bytes = 0;
  std::vector<std::string> ac_units = {};    // only these; empty: all
  std::vector<std::string> fsdp_units = {};  // no unit strictly above these
  std::optional<int> max_units = {};
  graph::OperatorPatterns patterns = {};
  // When a unit runs again, only operators whose results something needs run,
  // and random operators are decided one by one. On traces only.
  bool may_skip = false;
};

// The choices that the modules of a profile have as units.
struct UnitChoices {
  UnitForest forest;
  // Indexed by node of the tree: the groups of its operators; empty: no candidate.
  std::vector<graph::OperatorGroups> groups;
  // A module that has no policy, with the reason.
  struct Refused {
    int node = 0;
    bool has_statistics = false;
    std::string kind, details = {};
  };
  std::vector<Refused> refused = {};
};

// Returns the choices of all modules. Throws InputError under the conditions of
// BuildModuleProblem, and for a pattern that matches no operator of any module.
// A module without operator statistics, or whose operators contradict each
// other, has no policy.
UnitChoices ChoicesOfUnits(const graph::Profile& profile,
                           const graph::ModuleTree& tree,
                           const JointProblemOptions& options);

struct BuiltJointProblem {
  JointProblem problem;
  std::vector<graph::OperatorGroups> groups;  // by node; empty: no candidate
  std::vector<std::string> warnings;          // a line each
};

// Throws InputError under the conditions of ChoicesOfUnits.
BuiltJointProblem BuildJointProblem(const graph::Profile& profile,
                                    const graph::ModuleTree& tree,
                                    const JointProblemOptions& options);

}  // namespace acplan::problems
