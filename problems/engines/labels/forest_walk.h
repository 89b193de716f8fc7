#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "problems/engines/labels/completion_bound.h"
#include "problems/model/module_problem.h"

namespace acplan::problems {

// The walk that both label engines make over a forest whose time order is its
// post-order. `Labels` is a list of ways to reach a point of the walk. A walk
// carries one list for each number of units if max_units limits it, else one
// list.
//
// At a module there are two ways on. Either the module becomes a unit: then no
// unit lies inside, and the labels must already have discarded as much as its
// records ask for. The other way, the children are walked, and the labels then
// meet the module's own record; meanwhile the list of the first way is set
// aside. Both lists are joined afterwards. So the walk enumerates every
// antichain of units, and the labels of one antichain meet the needs of all
// records.
template <typename Labels>
using LabelsByCount = std::vector<Labels>;

// Every list of labels that a walk still needs.
template <typename Labels>
using LiveLabels = std::vector<LabelsByCount<Labels>*>;

// `Rules` defines a label:
//   Labels                          a list of labels
//   bool IsStopped()                returns whether the walk is to end early
//   bool IsCandidate(node)          returns whether the node may be a unit
//   void CutTo(need, labels)        drops labels that have discarded less than
//                                   `need`
//   AddUnit(node, labels by count)  returns the lists with the node as a unit
//   Join(node, by count, as units)  returns the better of both ways
//   Required(node, as units)        returns the lists if a unit is required
//   EndNode(live)                   forgets labels that are not live, and checks
//                                   limits
template <typename Rules>
class ForestWalk {
 public:
  using Lists = LabelsByCount<typename Rules::Labels>;

  ForestWalk(const ModuleProblem& problem, const FixedProblem& fixed,
             Rules& rules)
      : nodes_(problem.nodes),
        counts_(problem.max_units ? static_cast<size_t>(*problem.max_units) + 1
                                  : 1),
        fixed_(fixed),
        rules_(rules) {}

  // Walks over the whole forest, from labels without a unit.
  Lists Run(typename Rules::Labels start) {
    Lists lists(counts_);
    lists[0] = std::move(start);
    return WalkSiblings(0, static_cast<int>(nodes_.size()), std::move(lists));
  }

 private:
  Lists WalkSiblings(int begin, int end, Lists lists) {
    for (int i = begin; i < end && !rules_.IsStopped();
         i += nodes_[i].subtree_size) {
      lists = WalkNode(i, std::move(lists));
    }
    return lists;
  }

  Lists WalkNode(int i, Lists lists) {
    if (!fixed_.has_units[i]) {
      for (auto& labels : lists) rules_.CutTo(fixed_.subtree_need[i], labels);
      return lists;
    }
    Lists as_unit(lists.size());
    if (rules_.IsCandidate(i)) as_unit = rules_.AddUnit(i, lists);
    if (nodes_[i].must_be_unit) return rules_.Required(i, std::move(as_unit));
    set_aside_.push_back(&as_unit);
    lists = WalkSiblings(i + 1, i + nodes_[i].subtree_size, std::move(lists));
    set_aside_.pop_back();
    for (auto& labels : lists) rules_.CutTo(fixed_.need[i], labels);
    lists = rules_.Join(i, std::move(lists), std::move(as_unit));
    LiveLabels<typename Rules::Labels> live = set_aside_;
    live.push_back(&lists);
    rules_.EndNode(live);
    return lists;
  }

  const std::vector<ModuleProblem::Node>& nodes_;
  size_t counts_;
  const FixedProblem& fixed_;
  Rules& rules_;
  // The lists of nodes as units, while their children are walked.
  LiveLabels<typename Rules::Labels> set_aside_;
};

}  // namespace acplan::problems
