#pragma once

#include <string>
#include <vector>

#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"

namespace acplan::test_support {

// The rules of operator policies as PyTorch's MILP states them, one by one.
// This file shares no code with graph/profile/sac_statistics.cc.

// Returns whether `name` matches the whole of a shell pattern of '*', '?' and
// '[...]' (single characters, no ranges).
bool GlobMatches(const std::string& name, const std::string& pattern);

// Returns whether a policy (one entry an operator, 1 is saved) keeps every
// rule.
bool KeepsRules(const graph::SacStatistics& sac,
                const graph::OperatorPatterns& patterns,
                const std::vector<char>& save);

// The rules, each filed under the last operator that it concerns.
class RulesByLastOperator {
 public:
  RulesByLastOperator(const graph::SacStatistics& sac,
                      const graph::OperatorPatterns& patterns);
  // Returns whether save[k] keeps the rules of k and operators before it.
  bool Allows(const std::vector<char>& save, int k) const;
  int ops() const { return static_cast<int>(rules_.size()); }

 private:
  struct Rules {
    bool must_save = false;
    bool must_recompute = false;
    std::vector<int> same_as;  // earlier operators
  };
  std::vector<Rules> rules_;
};

// Invokes `use` with each policy that keeps every rule, in the order of
// operators, a saved one before a recomputed one. For few operators.
template <typename Use>
void ForEachLegalPolicy(const graph::SacStatistics& sac,
                        const graph::OperatorPatterns& patterns,
                        const Use& use) {
  const RulesByLastOperator rules(sac, patterns);
  std::vector<char> save(rules.ops(), 0);
  const auto decide = [&](const auto& self, int k) -> void {
    if (k == rules.ops()) {
      use(save);
      return;
    }
    for (const char saved : {char{1}, char{0}}) {
      save[k] = saved;
      if (rules.Allows(save, k)) self(self, k + 1);
    }
  };
  decide(decide, 0);
}

}  // namespace acplan::test_support
