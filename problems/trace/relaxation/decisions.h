#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// Something that holds in a part of the plans.
struct Decision {
  enum class Kind {
    kLife,   // a storage is live at a time, as it was made first
    kUnit,   // a module is a unit
    kGroup,  // a module, if it is a unit, recomputes a group of operators
  };
  Kind kind = Kind::kLife;
  int32_t subject = 0;  // the storage, or a node of the module tree
  int32_t detail = 0;   // the time, or the group
  bool is_so = false;

  // Returns whether this decision settles the other one.
  bool Settles(const Decision& other) const {
    if (kind != other.kind || subject != other.subject) return false;
    if (kind != Kind::kLife) return detail == other.detail;
    // What is live at a time has been so since it was made.
    return is_so ? other.detail <= detail : other.detail >= detail;
  }
};

// What decisions say of each candidate. A storage that is dead at a time has no
// holder then: its frames are no units, no policy saves what makes it, and a unit
// around each saved tensor of it must be one. Life alone says nothing here: the
// witnesses count it.
struct DecidedChoices {
  // A candidate: it is no unit; it is one or one around it is; it is one.
  std::vector<char> is_no_unit, must_be_unit, is_unit;
  // A node of the module tree and a group of its operators.
  std::map<std::pair<int, int>, bool> is_recomputed = {};
  // A candidate and a storage: its policy does not keep it. Only where operators
  // may be skipped; where not, its group is recomputed.
  std::set<std::pair<int, int32_t>> is_not_kept = {};
  bool is_impossible = false;  // no plan keeps all decisions

  // These candidates are no units. Where one of them must be or have a unit around it,
  // the one around it must be.
  void RuleOut(const TraceProblem& problem, const std::vector<int>& candidates);

  // Returns whether a policy of the candidate must recompute a group, or save
  // it; nothing where both are open.
  std::optional<bool> Recomputes(const TraceProblem& problem,
                                 const CandidateCall& candidate,
                                 int group) const;
};
DecidedChoices ChoicesLeftBy(const TraceProblem& problem,
                             const std::vector<Decision>& decisions);

}  // namespace acplan::problems
