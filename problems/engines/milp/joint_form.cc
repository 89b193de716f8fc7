#include "problems/engines/milp/joint_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "problems/engines/milp/module_milp.h"

// From a forest to classes, and from classes to columns and rows.
//
// The first step chooses the records that may bind. Then every candidate gets a
// sight: the records that count it, and those at which it holds bytes. Two
// candidates are alike if exchanging them, with all that they contain, maps
// every row onto itself; the same policies, the same sight and insides that are
// alike are enough for that. `shape` numbers these kinds from the leaves
// upwards, as in the canonical form of a tree (Aho, Hopcroft and Ullman).
// Siblings of one shape are a class, and so are the children of all members of
// a class that have one shape.
//
// Numbers in a class can be shared out among its members: by the path row there
// are enough members without a chosen module around them, and any choice among
// these will do, since all count at the same records. The relaxation is no
// weaker than that of single modules, whose solutions can be averaged over a
// class. docs/formulation.md has the argument in full.

namespace acplan::problems {

using solver::Milp;

namespace {

// A record row is wider by half of the unit that divides its bytes, clamped to
// these limits. So sums that meet the record, and those that miss it, are both
// far from the row's end by CBC's tolerances. A sum within CBC's tolerances of
// the end is a solution to one part of CBC and none to another, which loses all
// solutions near it.
constexpr double kLeastWider = 1e-9 * JointMilp::kNeedScale;
constexpr double kMostWider = 1e-5 * JointMilp::kNeedScale;

}  // namespace

const JointProblem::Policies& PoliciesOf(const JointProblem& problem,
                                         int node) {
  return problem.policies[problem.policies_of[node]];
}

double NeedAt(const JointProblem& problem, int record) {
  return problem.relaxed.nodes[record].base_bytes -
         problem.relaxed.budget_bytes;
}

bool Contains(const JointProblem& problem, int node, int other) {
  return node <= other &&
         other < node + problem.relaxed.nodes[node].subtree_size;
}

namespace {

// Returns whether every unit recomputes the groups of a kind: they cost
// nothing, or a unit that saves one would discard nothing.
bool RunsAgainAlways(const GroupKind& kind, int64_t most_bytes) {
  return kind.ms == 0 || kind.bytes >= most_bytes;
}

// Returns the policy of a unit that recomputes only the groups that every unit
// does.
PolicyPoint FirstPolicy(const JointProblem::Policies& policies) {
  PolicyPoint first{.bytes = policies.base_bytes, .ms = policies.base_ms};
  const int64_t most_bytes = policies.MostBytes();
  for (const GroupKind& kind : policies.kinds) {
    if (!RunsAgainAlways(kind, most_bytes)) continue;
    first.bytes += kind.bytes * kind.count;
    first.ms += kind.ms * kind.count;
  }
  return first;
}

bool IsCandidate(const JointProblem& problem, int node) {
  return problem.policies_of[node] >= 0 &&
         !problem.relaxed.nodes[node].curve.empty();
}

double MostHeldAt(const JointProblem& problem, int record) {
  double most = 0;
  for (int i = 0; i <= record; ++i) {
    if (IsCandidate(problem, i) && Contains(problem, i, record)) {
      most = std::max(most, problem.relaxed.nodes[i].held_bytes);
    }
  }
  return most;
}

std::vector<int> RecordsToKeep(const JointProblem& problem) {
  std::vector<int> records;
  for (const int record : BindingRecords(problem.relaxed)) {
    if (NeedAt(problem, record) + MostHeldAt(problem, record) > 0) {
      records.push_back(record);
    }
  }
  return records;
}

// A candidate as the record rows see it.
struct Sight {
  int first_row = 0;           // the first record that counts it
  std::vector<int> held_rows;  // records inside that its held bytes reach
};

Sight SightOf(const JointProblem& problem, const std::vector<int>& records,
              int node) {
  const ModuleProblem::Node& unit = problem.relaxed.nodes[node];
  Sight sight;
  for (size_t r = 0; r < records.size(); ++r) {
    if (problem.relaxed.nodes[records[r]].time <= unit.time) {
      sight.first_row = static_cast<int>(r) + 1;
    }
    if (unit.held_bytes > 0 && Contains(problem, node, records[r])) {
      sight.held_rows.push_back(static_cast<int>(r));
    }
  }
  return sight;
}

// The candidates that some record counts, as a forest.
struct CandidateForest {
  std::vector<int> roots;
  // Indexed by node of the problem:
  std::vector<std::vector<int>> children;
  std::vector<Sight> sights;
  std::vector<int> shape;  // equal if candidates are alike; -1: none
};

// Returns the candidate around each candidate: the number of nodes if there is
// none, -1 if a node is no candidate.
std::vector<int> ParentsOf(const JointProblem& problem, int records,
                           const std::vector<Sight>& sights) {
  const int n = static_cast<int>(sights.size());
  std::vector<int> parent(n, -1);
  std::vector<int> open;
  for (int i = 0; i < n; ++i) {
    while (!open.empty() && !Contains(problem, open.back(), i)) {
      open.pop_back();
    }
    if (!IsCandidate(problem, i) || sights[i].first_row == records) continue;
    parent[i] = open.empty() ? n : open.back();
    open.push_back(i);
  }
  return parent;
}

// Returns a key that is equal for two candidates if they are alike.
std::vector<int> ShapeKey(const JointProblem& problem,
                          const CandidateForest& forest, int node) {
  std::vector<int> child_shapes;
  for (const int child : forest.children[node]) {
    child_shapes.push_back(forest.shape[child]);
  }
  std::ranges::sort(child_shapes);
  const Sight& sight = forest.sights[node];
  std::vector<int> key = {problem.policies_of[node], sight.first_row,
                          static_cast<int>(sight.held_rows.size())};
  std::ranges::copy(sight.held_rows, std::back_inserter(key));
  std::ranges::copy(child_shapes, std::back_inserter(key));
  return key;
}

CandidateForest FindForest(const JointProblem& problem,
                           const std::vector<int>& records) {
  const int n = static_cast<int>(problem.relaxed.nodes.size());
  CandidateForest forest;
  forest.children.resize(n);
  forest.shape.assign(n, -1);
  for (int i = 0; i < n; ++i) {
    forest.sights.push_back(
        IsCandidate(problem, i) ? SightOf(problem, records, i) : Sight());
  }
  const std::vector<int> parent =
      ParentsOf(problem, static_cast<int>(records.size()), forest.sights);
  std::map<std::vector<int>, int> shapes;
  for (int i = n - 1; i >= 0; --i) {
    if (parent[i] < 0) continue;
    std::ranges::reverse(forest.children[i]);
    const int next = static_cast<int>(shapes.size());
    forest.shape[i] =
        shapes.try_emplace(ShapeKey(problem, forest, i), next).first->second;
    (parent[i] == n ? forest.roots : forest.children[parent[i]]).push_back(i);
  }
  std::ranges::reverse(forest.roots);
  return forest;
}

// Returns the nodes by shape, in the order of the first node of each shape.
std::vector<std::vector<int>> ByShape(const CandidateForest& forest,
                                      const std::vector<int>& siblings) {
  std::vector<std::vector<int>> classes;
  std::map<int, size_t> class_of;
  for (const int node : siblings) {
    const auto [it, is_new] =
        class_of.try_emplace(forest.shape[node], classes.size());
    if (is_new) classes.emplace_back();
    classes[it->second].push_back(node);
  }
  return classes;
}

// Adds the columns of all classes, the rows of each on its own, and those of
// the paths.
class ClassBuilder {
 public:
  ClassBuilder(const JointProblem& problem, const CandidateForest& forest)
      : problem_(problem), forest_(forest) {
    form_.milp.name = "joint_checkpointing";
    AddClasses(forest.roots, {});
  }

  JointMilp Take() { return std::move(form_); }

 private:
  struct PathStep {
    int column;
    size_t members;
  };

  void AddClasses(const std::vector<int>& siblings,
                  std::vector<PathStep> path) {
    for (const std::vector<int>& nodes : ByShape(forest_, siblings)) {
      const int unit = AddClass(nodes);
      std::vector<int> children;
      for (const int node : nodes) {
        std::ranges::copy(forest_.children[node], std::back_inserter(children));
      }
      path.push_back({unit, nodes.size()});
      if (!children.empty()) {
        AddClasses(children, path);
      } else if (path.size() > 1) {
        AddPathRow(path);
      }
      path.pop_back();
    }
  }

  void AddPathRow(const std::vector<PathStep>& path) {
    const size_t members = path.back().members;
    Milp::Row row{.name = fmt::format("path{}", form_.milp.rows.size()),
                  .upper = static_cast<double>(members)};
    for (const PathStep& step : path) {
      row.terms.push_back(
          {step.column, static_cast<double>(members / step.members)});
    }
    form_.choice_rows.push_back(form_.milp.AddRow(std::move(row)));
  }

  int AddClass(const std::vector<int>& nodes) {
    Milp& milp = form_.milp;
    const JointProblem::Policies& policies = PoliciesOf(problem_, nodes[0]);
    const auto members = static_cast<double>(nodes.size());
    JointMilp::UnitClass unit_class;
    unit_class.nodes = nodes;
    unit_class.first = FirstPolicy(policies);
    unit_class.unit_column =
        milp.AddColumn({.name = fmt::format("y{}", nodes[0]),
                        .upper = members,
                        .cost = unit_class.first.ms,
                        .is_integer = true});
    const auto threshold = static_cast<double>(1 - unit_class.first.bytes);
    Milp::Row useful{.name = fmt::format("useful{}", nodes[0]),
                     .lower = 0,
                     .terms = {{unit_class.unit_column, -1}}};
    const int64_t most_bytes = policies.MostBytes();
    for (size_t g = 0; g < policies.kinds.size(); ++g) {
      const GroupKind& kind = policies.kinds[g];
      if (RunsAgainAlways(kind, most_bytes)) {
        unit_class.kind_columns.push_back(-1);
        continue;
      }
      const int column =
          milp.AddColumn({.name = fmt::format("z{}_{}", nodes[0], g),
                          .upper = members * kind.count,
                          .cost = kind.ms,
                          .is_integer = true});
      unit_class.kind_columns.push_back(column);
      milp.AddRow({.name = fmt::format("unit{}_{}", nodes[0], g),
                   .upper = 0,
                   .terms = {{column, 1},
                             {unit_class.unit_column,
                              -static_cast<double>(kind.count)}}});
      useful.terms.push_back(
          {column, std::min(1.0, static_cast<double>(kind.bytes) / threshold)});
    }
    if (threshold >= 1) milp.AddRow(std::move(useful));
    form_.classes.push_back(std::move(unit_class));
    return form_.classes.back().unit_column;
  }

  const JointProblem& problem_;
  const CandidateForest& forest_;
  JointMilp form_;
};

Milp::Row UnitLimit(const JointMilp& form, int max_units) {
  Milp::Row row{.name = "max_units", .upper = static_cast<double>(max_units)};
  for (const JointMilp::UnitClass& units : form.classes) {
    row.terms.push_back({units.unit_column, 1});
  }
  return row;
}

// Returns the divisor of all record rows: a power of two, so that whole bytes,
// and sums of them that meet a record exactly, stay exact.
double RecordScale(const JointProblem& problem,
                   const std::vector<int>& records) {
  double largest = 0;
  for (const int record : records) {
    largest = std::max(largest, std::abs(NeedAt(problem, record)));
  }
  return largest > 0
             ? std::exp2(std::floor(std::log2(largest / JointMilp::kNeedScale)))
             : 1;
}

// Returns the terms that a class adds to the row of the r-th record. `enough`
// bytes meet the record alone.
std::vector<Milp::Term> TermsOf(const JointProblem& problem,
                                const JointMilp::UnitClass& units,
                                const Sight& sight, size_t r, double enough) {
  const int node = units.nodes[0];
  const int row = static_cast<int>(r);
  const JointProblem::Policies& policies = PoliciesOf(problem, node);
  std::vector<Milp::Term> terms;
  double unit_bytes = 0;
  if (sight.first_row <= row) {
    const auto first = static_cast<double>(units.first.bytes);
    unit_bytes = std::min(first, enough);
    const double most = enough - std::min(first, 0.0);
    for (size_t g = 0; g < policies.kinds.size(); ++g) {
      if (units.kind_columns[g] < 0) continue;
      const auto bytes = static_cast<double>(policies.kinds[g].bytes);
      terms.push_back({units.kind_columns[g], std::min(bytes, most)});
    }
  }
  if (std::ranges::binary_search(sight.held_rows, row)) {
    unit_bytes -= problem.relaxed.nodes[node].held_bytes;
  }
  if (unit_bytes != 0) terms.push_back({units.unit_column, unit_bytes});
  return terms;
}

// Returns a number of bytes that divides all bytes, before they are cut, that
// units add to the row of the r-th record: no sum of them lies between the need
// and the next multiple of it.
int64_t ByteUnit(const JointProblem& problem, const JointMilp& form,
                 const CandidateForest& forest, size_t r) {
  const int row = static_cast<int>(r);
  int64_t unit = 0;
  for (const JointMilp::UnitClass& units : form.classes) {
    const int node = units.nodes[0];
    const Sight& sight = forest.sights[node];
    if (sight.first_row <= row) {
      unit = std::gcd(unit, units.first.bytes);
      const JointProblem::Policies& policies = PoliciesOf(problem, node);
      for (size_t g = 0; g < policies.kinds.size(); ++g) {
        if (units.kind_columns[g] >= 0) {
          unit = std::gcd(unit, policies.kinds[g].bytes);
        }
      }
    }
    if (std::ranges::binary_search(sight.held_rows, row)) {
      unit =
          std::gcd(unit, std::llround(problem.relaxed.nodes[node].held_bytes));
    }
  }
  return std::max<int64_t>(unit, 1);
}

}  // namespace

JointMilp ToMilp(const JointProblem& problem) {
  std::vector<int> records = RecordsToKeep(problem);
  const CandidateForest forest = FindForest(problem, records);
  JointMilp form = ClassBuilder(problem, forest).Take();
  if (problem.relaxed.max_units) {
    form.choice_rows.push_back(
        form.milp.AddRow(UnitLimit(form, *problem.relaxed.max_units)));
  }
  const double scale = RecordScale(problem, records);
  for (size_t r = 0; r < records.size(); ++r) {
    const auto unit = static_cast<double>(ByteUnit(problem, form, forest, r));
    const double need = std::ceil(NeedAt(problem, records[r]) / unit) * unit;
    const double enough = need + MostHeldAt(problem, records[r]);
    const double wider = std::clamp(unit / scale / 2, kLeastWider, kMostWider);
    Milp::Row row{.name = fmt::format("record{}", records[r]),
                  .lower = need / scale - wider};
    for (const JointMilp::UnitClass& units : form.classes) {
      for (Milp::Term term :
           TermsOf(problem, units, forest.sights[units.nodes[0]], r, enough)) {
        term.coefficient /= scale;
        row.terms.push_back(term);
      }
    }
    form.record_rows.push_back(form.milp.AddRow(std::move(row)));
  }
  form.records = std::move(records);
  return form;
}

}  // namespace acplan::problems
