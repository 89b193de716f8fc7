#include "tests/problems/joint_enumeration.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace acplan::problems {

namespace {

struct Policy {
  double bytes = 0;
  double ms = 0;
};

std::vector<Policy> AllPolicies(const JointProblem::Policies& policies) {
  std::vector<Policy> all;
  for (const PolicyPoint& point : policies.points) {
    all.push_back({static_cast<double>(point.bytes), point.ms});
  }
  if (!all.empty()) return all;
  all = {{static_cast<double>(policies.base_bytes), policies.base_ms}};
  for (const GroupKind& kind : policies.kinds) {
    std::vector<Policy> more;
    for (const Policy& policy : all) {
      for (int n = 0; n <= kind.count; ++n) {
        more.push_back({policy.bytes + static_cast<double>(kind.bytes * n),
                        policy.ms + kind.ms * n});
      }
    }
    all = std::move(more);
  }
  std::ranges::sort(all, {}, &Policy::ms);
  return all;
}

class Search {
 public:
  explicit Search(const JointProblem& problem) : problem_(problem) {
    for (size_t i = 0; i < problem.policies_of.size(); ++i) {
      if (problem.policies_of[i] < 0) continue;
      candidates_.push_back(static_cast<int>(i));
      choices_.push_back(AllPolicies(problem.policies[problem.policies_of[i]]));
    }
  }

  std::optional<double> Least() {
    if (problem_.relaxed.fixed_bytes > problem_.relaxed.budget_bytes) {
      return std::nullopt;
    }
    Extend(0, 0);
    if (std::isinf(least_)) return std::nullopt;
    return least_;
  }

 private:
  struct Unit {
    int node;
    double bytes;
  };

  bool Contains(int node, int other) const {
    return node <= other &&
           other < node + problem_.relaxed.nodes[node].subtree_size;
  }

  bool Fits() const {
    for (size_t k = 0; k < problem_.relaxed.nodes.size(); ++k) {
      const ModuleProblem::Node& record = problem_.relaxed.nodes[k];
      if (record.time < 0) continue;
      double above = record.base_bytes - problem_.relaxed.budget_bytes;
      for (const Unit& unit : units_) {
        const ModuleProblem::Node& node = problem_.relaxed.nodes[unit.node];
        if (node.time < record.time) above -= unit.bytes;
        if (Contains(unit.node, static_cast<int>(k))) above += node.held_bytes;
      }
      if (above > 1e-9 + 1e-14 * std::abs(problem_.relaxed.budget_bytes)) {
        return false;
      }
    }
    return true;
  }

  void Extend(size_t next, double ms) {
    if (ms >= least_) return;
    if (next == candidates_.size()) {
      if (Fits()) least_ = ms;
      return;
    }
    Extend(next + 1, ms);
    if (problem_.relaxed.max_units &&
        static_cast<int>(units_.size()) >= *problem_.relaxed.max_units) {
      return;
    }
    for (const Unit& unit : units_) {
      if (Contains(unit.node, candidates_[next])) return;
    }
    for (const Policy& policy : choices_[next]) {
      units_.push_back({candidates_[next], policy.bytes});
      Extend(next + 1, ms + policy.ms);
      units_.pop_back();
    }
  }

  const JointProblem& problem_;
  std::vector<int> candidates_;
  std::vector<std::vector<Policy>> choices_;
  std::vector<Unit> units_;
  double least_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::optional<double> LeastJointMs(const JointProblem& problem) {
  return Search(problem).Least();
}

}  // namespace acplan::problems
