#include "problems/trace/relaxation/need_milp.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "graph/base/flag.h"
#include "problems/trace/problem/holders.h"
#include "problems/trace/problem/unit_policies.h"

// Builds the program candidate by candidate, then the rows of the forest.
//
// A need graph lists operators from the last to the first, and what is needed of a
// result is a matter of time: an operator in place needs what it writes to as it was
// before. So a result has a column N for each operator that makes or writes to it. A
// reader or a request of a result later in the call, that is earlier in the list, needs
// it as the next operator in the list leaves it, and demands wait by result until that
// operator comes.
//
// K and R being 0 or 1, the least N is 0 or 1 as well, and so is the least k,
// which only takes bytes away: they need not be integer columns.

namespace acplan::problems {

using solver::Milp;

namespace {

using Terms = std::vector<Milp::Term>;

// The bytes that a candidate discards as a unit.
struct Discarded {
  Terms terms = {};  // bytes
  double least = 0;  // of any policy, or of no unit
};

class NeedMilpBuilder {
 public:
  NeedMilpBuilder(const TraceProblem& problem,
                  const TraceRelaxation& relaxation,
                  const ChoicesByCandidate& choices)
      : problem_(problem),
        joint_(relaxation.joint),
        nodes_(relaxation.joint.relaxed.nodes),
        choices_(choices),
        discarded_(problem.candidates.size()) {}

  NeedMilp Build() && {
    const size_t count = problem_.candidates.size();
    form_.milp.name = "relaxed_trace";
    form_.unit_columns.assign(count, -1);
    form_.saved_columns.resize(count);
    for (const CandidateId c : problem_.candidates.ids()) {
      if (joint_.policies_of[NodeOf(c)] < 0) continue;
      form_.unit_columns[c] = Binary(0);
      if (choices_[c]) {
        AddPolicies(c, problem_.need_graphs[problem_.candidates[c].needs]);
      } else {
        AddGroups(c);
      }
    }
    AddChoiceRows();
    for (int k = 0; k < std::ssize(nodes_); ++k) AddRecordRow(k);
    for (const CandidateId c : problem_.candidates.ids()) AddUnitRow(c);
    return std::move(form_);
  }

 private:
  // Returns the node of a candidate in the forest.
  int NodeOf(CandidateId c) const {
    return IndexOf(problem_.candidates[c].node);
  }

  bool Contains(int node, int other) const {
    return node <= other && other < node + nodes_[node].subtree_size;
  }

  int Binary(double cost, bool may_be = true) {
    return form_.milp.AddColumn(
        {.upper = may_be ? 1.0 : 0.0, .cost = cost, .is_integer = true});
  }

  int Share() { return form_.milp.AddColumn({.upper = 1}); }

  void AtLeast(double lower, Terms terms) {
    form_.milp.AddRow({.lower = lower, .terms = std::move(terms)});
  }

  void AtMost(double upper, Terms terms) {
    form_.milp.AddRow({.upper = upper, .terms = std::move(terms)});
  }

  void AddGroups(CandidateId c) {
    const JointProblem::Policies& policies =
        joint_.policies[joint_.policies_of[NodeOf(c)]];
    const int unit = form_.unit_columns[c];
    form_.milp.columns[unit].cost = policies.base_ms;
    Discarded& discarded = discarded_[c];
    const auto base = static_cast<double>(policies.base_bytes);
    discarded.terms.push_back({unit, base});
    discarded.least = std::min(base, 0.0);
    for (const GroupKind& kind : policies.kinds) {
      const auto most = static_cast<double>(kind.count);
      const int column = form_.milp.AddColumn(
          {.upper = most, .cost = kind.ms, .is_integer = true});
      AtMost(0, {{column, 1}, {unit, -most}});
      discarded.terms.push_back({column, static_cast<double>(kind.bytes)});
    }
  }

  // The columns that demand a result since the operator before in the list that
  // makes it: the unit's, where backward asks for it.
  using Demands = std::map<ResultId, std::vector<int>>;

  void AddPolicies(CandidateId c, const NeedGraph& graph) {
    const NeedChoices& choices = *choices_[c];
    const int unit = form_.unit_columns[c];
    graph::IndexedVector<graph::GroupId, int>& save_columns =
        form_.saved_columns[c];
    save_columns.assign(choices.may_save.size(), -1);
    Discarded& discarded = discarded_[c];
    discarded.least = static_cast<double>(choices.base_bytes);
    discarded.terms.push_back({unit, discarded.least});
    graph::IndexedVector<ResultId, graph::Flag> is_counted(graph.results,
                                                           false);
    Demands demands;
    for (const NeedGraph::Operator& op : graph.operators) {
      int& save = save_columns[op.group];
      if (save < 0) save = Binary(0, choices.may_save[op.group]);
      const int rerun = Binary(op.ms, choices.may_rerun[op.group]);
      AtMost(0, {{save, 1}, {rerun, 1}, {unit, -1}});
      if (op.is_always_needed) {
        AtLeast(0, {{save, 1}, {rerun, 1}, {unit, -1}});
      }
      for (const ResultId r : op.requests) demands[r].push_back(unit);
      for (const ResultId r : op.makes) {
        const int is_needed = Share();
        for (const int user : demands[r]) {
          AtLeast(0, {{is_needed, 1}, {user, -1}});
        }
        demands[r].clear();
        AtLeast(0, {{save, 1}, {rerun, 1}, {is_needed, -1}});
        if (!choices.may_keep[r]) AtMost(1, {{save, 1}, {is_needed, 1}});
        if (is_counted[r]) continue;
        is_counted[r] = true;
        const int is_kept = Share();
        AtLeast(-1, {{is_kept, 1}, {save, -1}, {is_needed, -1}});
        const auto bytes = static_cast<double>(choices.bytes[r]);
        discarded.terms.push_back({is_kept, -bytes});
        discarded.least -= bytes;
      }
      for (const ResultId r : op.reads) demands[r].push_back(rerun);
    }
    discarded.least = std::min(discarded.least, 0.0);
  }

  // The units around a node, itself among them.
  Terms UnitsAround(int node) const {
    Terms terms;
    for (const CandidateId c : form_.unit_columns.ids()) {
      const bool is_around =
          form_.unit_columns[c] >= 0 && Contains(NodeOf(c), node);
      if (is_around) terms.push_back({form_.unit_columns[c], 1});
    }
    return terms;
  }

  void AddChoiceRows() {
    for (int k = 0; k < std::ssize(nodes_); ++k) {
      Terms units = UnitsAround(k);
      if (nodes_[k].must_be_unit) AtLeast(1, units);
      if (units.size() > 1) AtMost(1, std::move(units));
    }
    if (!joint_.relaxed.max_units) return;
    Terms all;
    for (const int unit : form_.unit_columns) {
      if (unit >= 0) all.push_back({unit, 1});
    }
    AtMost(*joint_.relaxed.max_units, std::move(all));
  }

  // Returns the bytes that are discarded before a node, in units of the rows.
  Discarded Before(int node) const {
    Discarded all;
    for (const CandidateId c : discarded_.ids()) {
      if (nodes_[NodeOf(c)].time >= nodes_[node].time) {
        continue;
      }
      for (const Milp::Term& term : discarded_[c].terms) {
        all.terms.push_back(
            {term.column, term.coefficient / NeedMilp::kUnitBytes});
      }
      all.least += discarded_[c].least / NeedMilp::kUnitBytes;
    }
    return all;
  }

  double MissingOf(double bytes) const {
    return (bytes - joint_.relaxed.budget_bytes) / NeedMilp::kUnitBytes;
  }

  void AddRecordRow(int node) {
    if (nodes_[node].time < 0) return;
    const double missing = MissingOf(nodes_[node].base_bytes);
    Discarded before = Before(node);
    const double slack = missing - before.least;
    if (slack <= 0) return;
    for (const Milp::Term& unit : UnitsAround(node)) {
      before.terms.push_back({unit.column, slack});
    }
    AtLeast(missing, std::move(before.terms));
  }

  void AddUnitRow(CandidateId c) {
    const int unit = form_.unit_columns[c];
    const ModuleProblem::Node& node = nodes_[NodeOf(c)];
    if (unit < 0 || !node.unit_base_bytes) return;
    Discarded before = Before(NodeOf(c));
    const double slack = MissingOf(*node.unit_base_bytes) - before.least;
    if (slack <= 0) return;
    // Units inside of this one are none then.
    before.terms.push_back({unit, -slack});
    AtLeast(before.least, std::move(before.terms));
  }

  const TraceProblem& problem_;
  const JointProblem& joint_;
  const std::vector<ModuleProblem::Node>& nodes_;
  const ChoicesByCandidate& choices_;
  graph::IndexedVector<CandidateId, Discarded> discarded_;
  NeedMilp form_;
};

}  // namespace

NeedMilp ToMilp(const TraceProblem& problem, const TraceRelaxation& relaxation,
                const ChoicesByCandidate& choices) {
  return NeedMilpBuilder(problem, relaxation, choices).Build();
}

std::vector<graph::CheckpointedModule> UnitsOf(const TraceProblem& problem,
                                               const NeedMilp& form,
                                               const std::vector<double>& x) {
  std::map<TreeNodeId, GroupFlags> saved_by;
  for (const CandidateId c : form.unit_columns.ids()) {
    if (form.unit_columns[c] < 0 || x[form.unit_columns[c]] < 0.5) continue;
    const TreeNodeId node = problem.candidates[c].module_node;
    GroupFlags& is_saved = saved_by[node];
    if (is_saved.empty()) {
      is_saved.assign(problem.groups[node].groups.size(), true);
    }
    for (const graph::GroupId g : is_saved.ids()) {
      const int column =
          form.saved_columns[c].empty() ? -1 : form.saved_columns[c][g];
      if (column < 0 || x[column] < 0.5) is_saved[g] = false;
    }
  }
  std::vector<graph::CheckpointedModule> units;
  for (const auto& [node, is_saved] : saved_by) {
    units.push_back(UnitThatSaves(problem, node, is_saved));
  }
  return units;
}

}  // namespace acplan::problems
