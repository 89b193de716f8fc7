#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "problems/trace/policies/need_policies.h"
#include "problems/trace/policies/sharp_policies.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// The policies of calls (need_policies.h), those of calls that are alike once: most
// relaxations of a search differ in few of them. Forgets all when they take too much
// memory. Refers to the problem, which must outlive it.
class PolicyMemo {
 public:
  explicit PolicyMemo(const TraceProblem& problem) : problem_(problem) {}

  // Returns the policies of a graph of the problem, as if the base were 0. Some may
  // cost more than `choices.most_ms`.
  std::shared_ptr<const NeedPolicies> PoliciesFor(NeedGraphId graph,
                                                  NeedChoices choices);

  // Replaces them from now on by what SharpPolicies makes of them (sharp_policies.h).
  std::shared_ptr<const NeedPolicies> Sharpen(NeedGraphId graph,
                                              NeedChoices choices,
                                              const PolicyWindow& window);

 private:
  // Policies that cost as much are of no interest.
  struct Entry {
    double most_ms = 0;
    std::shared_ptr<const NeedPolicies> policies = {};
  };

  // Counts an entry's policies in the memory that all take.
  void CountBytes(const NeedChoices& choices, const Entry& entry);

  const TraceProblem& problem_;
  std::map<std::pair<NeedGraphId, NeedChoices>, Entry> entries_;
  size_t bytes_ = 0;
};

}  // namespace acplan::problems
