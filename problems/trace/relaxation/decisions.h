#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "graph/base/flag.h"
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

  // Subject and detail as what they are for kLife, and for kUnit and kGroup.
  graph::StorageId storage() const { return graph::StorageId{subject}; }
  graph::Time time() const { return detail; }
  TreeNodeId module_node() const { return TreeNodeId{subject}; }
  graph::GroupId group() const { return graph::GroupId{detail}; }

  // Returns whether this decision settles the other one.
  bool Settles(const Decision& other) const {
    if (kind != other.kind || subject != other.subject) return false;
    if (kind != Kind::kLife) return detail == other.detail;
    // A storage that is live at a time has been so since it was made.
    return is_so ? other.detail <= detail : other.detail >= detail;
  }
};

// Makes a decision of each kind, which is not so yet.
inline Decision LifeDecision(graph::StorageId storage, graph::Time time) {
  return {.kind = Decision::Kind::kLife,
          .subject = IndexOf(storage),
          .detail = time};
}
inline Decision UnitDecision(TreeNodeId module_node) {
  return {.kind = Decision::Kind::kUnit, .subject = IndexOf(module_node)};
}
inline Decision GroupDecision(TreeNodeId module_node, graph::GroupId group) {
  return {.kind = Decision::Kind::kGroup,
          .subject = IndexOf(module_node),
          .detail = IndexOf(group)};
}

// The choices that decisions leave each candidate. A storage that is dead at a time has
// no holder then: its frames are no units, no policy saves what makes it, and a unit
// around each saved tensor of it must be one. Life alone says nothing here: the
// witnesses count it.
struct DecidedChoices {
  // A candidate is no unit; it is one or one around it is; it is one.
  graph::IndexedVector<CandidateId, graph::Flag> is_no_unit, must_be_unit,
      is_unit;
  std::map<std::pair<TreeNodeId, graph::GroupId>, bool> is_recomputed = {};
  // The storages that policies of candidates do not keep. Only where operators may be
  // skipped; where not, the group of a storage is recomputed.
  std::set<std::pair<CandidateId, graph::StorageId>> is_not_kept = {};
  bool is_impossible = false;  // no plan keeps all decisions

  // Rules out that these candidates are units. If one of them must be or have a unit
  // around it, the one around it must be.
  void RuleOut(const TraceProblem& problem,
               const std::vector<CandidateId>& candidates);

  // Returns whether a policy of the candidate must recompute a group, or save
  // it; nothing where both are open.
  std::optional<bool> Recomputes(const TraceProblem& problem,
                                 const CandidateCall& candidate,
                                 graph::GroupId group) const;
};
// Returns the choices that decisions leave.
DecidedChoices ChoicesLeftBy(const TraceProblem& problem,
                             const std::vector<Decision>& decisions);

}  // namespace acplan::problems
