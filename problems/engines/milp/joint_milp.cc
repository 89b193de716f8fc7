#include "problems/engines/milp/joint_milp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "problems/engines/milp/module_milp.h"
#include "solver/cbc_solver.h"
#include "solver/cut_off.h"
#include "solver/lp_solver.h"

namespace acplan::problems {

using solver::SearchStatus;

using solver::Milp;
using solver::MilpSolution;
using solver::MilpStatus;

namespace {

constexpr double kProofTolerance = 1e-6;
constexpr double kRowTolerance = 1e-6;
// By which records are relaxed where CBC calls a problem infeasible: a byte in
// 1 GB of the largest need.
constexpr double kSecondTolerance = 1e-9 * JointMilp::kNeedScale;
constexpr double kInf = std::numeric_limits<double>::infinity();

const JointProblem::Policies& PoliciesOf(const JointProblem& problem,
                                         int node) {
  return problem.policies[problem.policies_of[node]];
}

double Need(const JointProblem& problem, int record) {
  return problem.relaxed.nodes[record].base_bytes -
         problem.relaxed.budget_bytes;
}

bool Contains(const JointProblem& problem, int node, int other) {
  return node <= other &&
         other < node + problem.relaxed.nodes[node].subtree_size;
}

bool IsCandidate(const JointProblem& problem, int node) {
  return problem.policies_of[node] >= 0 &&
         !problem.relaxed.nodes[node].curve.empty();
}

// What a unit discards when it recomputes what costs nothing.
double FirstBytes(const JointProblem::Policies& policies) {
  int64_t bytes = policies.base_bytes;
  for (const GroupKind& kind : policies.kinds) {
    if (kind.ms == 0) bytes += kind.bytes * kind.count;
  }
  return static_cast<double>(bytes);
}

// How a record row sees a candidate.
struct Sight {
  int first_row = 0;           // the first record that counts it
  std::vector<int> held_rows;  // records inside that its held bytes reach
};

class Builder {
 public:
  explicit Builder(const JointProblem& problem) : problem_(problem) {
    form_.milp.name = "joint_checkpointing";
    ChooseRecords();
    FindForest();
    const std::vector<int> roots = std::move(children_.back());
    AddClasses(roots, {});
    AddUnitLimit();
    AddRecordRows();
  }
  JointMilp Take() { return std::move(form_); }

 private:
  struct PathStep {
    int column;
    size_t members;
  };

  void ChooseRecords() {
    for (const int record : BindingRecords(problem_.relaxed)) {
      if (Need(problem_, record) + MostHeldAt(record) > 0) {
        form_.records.push_back(record);
      }
    }
  }

  double MostHeldAt(int record) const {
    double most = 0;
    for (int i = 0; i <= record; ++i) {
      if (IsCandidate(problem_, i) && Contains(problem_, i, record)) {
        most = std::max(most, problem_.relaxed.nodes[i].held_bytes);
      }
    }
    return most;
  }

  Sight SightOf(int node) const {
    const ModuleProblem::Node& unit = problem_.relaxed.nodes[node];
    Sight sight;
    for (size_t r = 0; r < form_.records.size(); ++r) {
      const int record = form_.records[r];
      if (problem_.relaxed.nodes[record].time <= unit.time) {
        sight.first_row = static_cast<int>(r) + 1;
      }
      if (unit.held_bytes > 0 && Contains(problem_, node, record)) {
        sight.held_rows.push_back(static_cast<int>(r));
      }
    }
    return sight;
  }

  // The forest of candidates, and what makes their subtrees alike.
  void FindForest() {
    const int n = static_cast<int>(problem_.relaxed.nodes.size());
    const int rows = static_cast<int>(form_.records.size());
    children_.resize(n + 1);
    shape_.assign(n, -1);
    sights_.resize(n);
    std::vector<int> parent(n, n);
    std::vector<char> used(n, 0);
    std::vector<int> open;
    for (int i = 0; i < n; ++i) {
      while (!open.empty() && !Contains(problem_, open.back(), i)) {
        open.pop_back();
      }
      if (!IsCandidate(problem_, i)) continue;
      sights_[i] = SightOf(i);
      if (sights_[i].first_row == rows) continue;
      used[i] = 1;
      parent[i] = open.empty() ? n : open.back();
      open.push_back(i);
    }
    std::map<std::vector<int>, int> shapes;
    for (int i = n - 1; i >= 0; --i) {
      if (!used[i]) continue;
      std::ranges::reverse(children_[i]);
      std::vector<int> inside;
      for (const int child : children_[i]) inside.push_back(shape_[child]);
      std::ranges::sort(inside);
      std::vector<int> key = {problem_.policies_of[i], sights_[i].first_row};
      key.push_back(static_cast<int>(sights_[i].held_rows.size()));
      std::ranges::copy(sights_[i].held_rows, std::back_inserter(key));
      std::ranges::copy(inside, std::back_inserter(key));
      const int next = static_cast<int>(shapes.size());
      shape_[i] = shapes.try_emplace(std::move(key), next).first->second;
      children_[parent[i]].push_back(i);
    }
    std::ranges::reverse(children_.back());
  }

  void AddClasses(const std::vector<int>& siblings,
                  std::vector<PathStep> path) {
    std::vector<std::vector<int>> classes;
    std::map<int, size_t> class_of;
    for (const int node : siblings) {
      const auto [it, is_new] =
          class_of.try_emplace(shape_[node], classes.size());
      if (is_new) classes.emplace_back();
      classes[it->second].push_back(node);
    }
    for (const std::vector<int>& nodes : classes) {
      const int unit = AddClass(nodes);
      std::vector<int> inside;
      for (const int node : nodes) {
        std::ranges::copy(children_[node], std::back_inserter(inside));
      }
      path.push_back({unit, nodes.size()});
      if (!inside.empty()) {
        AddClasses(inside, path);
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
    JointMilp::UnitClass added;
    added.nodes = nodes;
    added.unit_column = milp.AddColumn({.name = fmt::format("y{}", nodes[0]),
                                        .upper = members,
                                        .cost = policies.base_ms,
                                        .is_integer = true});
    const double threshold = 1 - FirstBytes(policies);
    Milp::Row useful{.name = fmt::format("useful{}", nodes[0]),
                     .lower = 0,
                     .terms = {{added.unit_column, -1}}};
    for (size_t g = 0; g < policies.kinds.size(); ++g) {
      const GroupKind& kind = policies.kinds[g];
      if (kind.ms == 0) {
        added.kind_columns.push_back(-1);
        continue;
      }
      const int column =
          milp.AddColumn({.name = fmt::format("z{}_{}", nodes[0], g),
                          .upper = members * kind.count,
                          .cost = kind.ms,
                          .is_integer = true});
      added.kind_columns.push_back(column);
      milp.AddRow(
          {.name = fmt::format("unit{}_{}", nodes[0], g),
           .upper = 0,
           .terms = {{column, 1},
                     {added.unit_column, -static_cast<double>(kind.count)}}});
      useful.terms.push_back(
          {column, std::min(1.0, static_cast<double>(kind.bytes) / threshold)});
    }
    if (threshold >= 1) milp.AddRow(std::move(useful));
    form_.classes.push_back(std::move(added));
    return form_.classes.back().unit_column;
  }

  void AddUnitLimit() {
    if (!problem_.relaxed.max_units) return;
    Milp::Row row{.name = "max_units",
                  .upper = static_cast<double>(*problem_.relaxed.max_units)};
    for (const JointMilp::UnitClass& units : form_.classes) {
      row.terms.push_back({units.unit_column, 1});
    }
    form_.choice_rows.push_back(form_.milp.AddRow(std::move(row)));
  }

  void AddRecordRows() {
    double unit = 0;
    for (const int record : form_.records) {
      unit = std::max(unit, std::abs(Need(problem_, record)));
    }
    unit = unit > 0 ? unit / JointMilp::kNeedScale : 1;
    for (size_t r = 0; r < form_.records.size(); ++r) {
      const int record = form_.records[r];
      const double need = Need(problem_, record);
      const double enough = need + MostHeldAt(record);
      Milp::Row row{.name = fmt::format("record{}", record),
                    .lower = need / unit};
      for (const JointMilp::UnitClass& units : form_.classes) {
        const int node = units.nodes[0];
        const JointProblem::Policies& policies = PoliciesOf(problem_, node);
        double of_unit = 0;
        if (sights_[node].first_row <= static_cast<int>(r)) {
          const double first = FirstBytes(policies);
          of_unit = std::min(first, enough);
          const double most = enough - std::min(first, 0.0);
          for (size_t g = 0; g < policies.kinds.size(); ++g) {
            if (units.kind_columns[g] < 0) continue;
            const auto bytes = static_cast<double>(policies.kinds[g].bytes);
            row.terms.push_back(
                {units.kind_columns[g], std::min(bytes, most) / unit});
          }
        }
        if (std::ranges::binary_search(sights_[node].held_rows,
                                       static_cast<int>(r))) {
          of_unit -= problem_.relaxed.nodes[node].held_bytes;
        }
        if (of_unit != 0) {
          row.terms.push_back({units.unit_column, of_unit / unit});
        }
      }
      form_.record_rows.push_back(form_.milp.AddRow(std::move(row)));
    }
  }

  const JointProblem& problem_;
  JointMilp form_;
  std::vector<std::vector<int>> children_;  // a node; the last has the roots
  std::vector<int> shape_;
  std::vector<Sight> sights_;
};

}  // namespace

JointMilp ToMilp(const JointProblem& problem) {
  return Builder(problem).Take();
}

namespace {

struct PricedUnit {
  ChosenUnit unit;
  double ms = 0;
};

// Shares the numbers of every class out among its members: groups with the most
// bytes first, each to the unit that has discarded least.
std::vector<PricedUnit> SharedOut(const JointProblem& problem,
                                  const JointMilp& form,
                                  const std::vector<double>& x) {
  struct Unit {
    int node = 0;
    int64_t bytes = 0;
    std::vector<int> counts = {};
  };
  std::vector<PricedUnit> chosen;
  std::vector<char> covered(problem.relaxed.nodes.size(), 0);
  for (const JointMilp::UnitClass& members : form.classes) {
    const auto count = std::llround(x[members.unit_column]);
    std::vector<Unit> units;
    for (const int node : members.nodes) {
      if (static_cast<long long>(units.size()) == count) break;
      if (covered[node]) continue;
      units.push_back({.node = node});
      for (int i = node; Contains(problem, node, i); ++i) covered[i] = 1;
    }
    if (units.empty()) continue;
    const JointProblem::Policies& policies =
        PoliciesOf(problem, members.nodes[0]);
    for (Unit& unit : units) {
      unit.bytes = static_cast<int64_t>(FirstBytes(policies));
      for (const GroupKind& kind : policies.kinds) {
        unit.counts.push_back(kind.ms == 0 ? kind.count : 0);
      }
    }
    std::vector<size_t> order(policies.kinds.size());
    for (size_t g = 0; g < order.size(); ++g) order[g] = g;
    std::ranges::sort(order, std::greater<>(),
                      [&](size_t g) { return policies.kinds[g].bytes; });
    for (const size_t g : order) {
      if (members.kind_columns[g] < 0) continue;
      const GroupKind& kind = policies.kinds[g];
      for (auto left = std::llround(x[members.kind_columns[g]]); left > 0;
           --left) {
        size_t least = units.size();
        for (size_t u = 0; u < units.size(); ++u) {
          if (units[u].counts[g] < kind.count &&
              (least == units.size() || units[u].bytes < units[least].bytes)) {
            least = u;
          }
        }
        ++units[least].counts[g];
        units[least].bytes += kind.bytes;
      }
    }
    for (const Unit& unit : units) {
      if (unit.bytes <= 0) continue;
      chosen.push_back(
          {{unit.node, static_cast<double>(unit.bytes), unit.counts},
           policies.MsOf(unit.counts)});
    }
  }
  std::ranges::sort(chosen, {},
                    [](const PricedUnit& priced) { return priced.unit.node; });
  return chosen;
}

// Rounds the relaxation: units by their share of it, then the groups with the
// most bytes a millisecond for one record after the other, then what is not
// needed taken back. Everything it returns keeps every row.
class Rounding {
 public:
  explicit Rounding(const JointMilp& form) : form_(form) {
    const size_t rows = form.record_rows.size();
    for (size_t r = 0; r < rows; ++r) {
      lower_.push_back(form.milp.rows[form.record_rows[r]].lower);
    }
    coefficients_.assign(form.milp.columns.size(), {});
    for (size_t r = 0; r < rows; ++r) {
      for (const auto& term : form.milp.rows[form.record_rows[r]].terms) {
        auto& column = coefficients_[term.column];
        column.resize(rows, 0);
        column[r] = term.coefficient;
      }
    }
    for (auto& column : coefficients_) column.resize(rows, 0);
  }

  std::optional<std::vector<double>> Round(const solver::LpSolution& lp) {
    std::vector<double> x(form_.milp.columns.size(), 0);
    struct Raise {
      double share;
      double reduced_cost;
      size_t units;
    };
    std::vector<Raise> raises;
    for (size_t c = 0; c < form_.classes.size(); ++c) {
      const int column = form_.classes[c].unit_column;
      x[column] = std::floor(lp.x[column] + 1e-6);
      raises.push_back({std::max(0.0, lp.x[column] - x[column]),
                        lp.reduced_costs[column], c});
    }
    std::ranges::stable_sort(raises, [](const Raise& a, const Raise& b) {
      return std::pair(-a.share, a.reduced_cost) <
             std::pair(-b.share, b.reduced_cost);
    });
    Try(x);
    for (const Raise& raise : raises) {
      if (raise.share < 1e-6 && best_) break;
      const int column = form_.classes[raise.units].unit_column;
      double step = raise.share < 1e-6 ? form_.milp.columns[column].upper : 1;
      for (; step > 0; --step) {
        if (MayAdd(x, column)) x[column] += 1;
      }
      Try(x);
    }
    if (best_) Climb();
    if (!best_) return std::nullopt;
    return best_;
  }

 private:
  bool MayAdd(const std::vector<double>& x, int column) const {
    if (x[column] + 1 > form_.milp.columns[column].upper) return false;
    for (const int choice : form_.choice_rows) {
      const Milp::Row& row = form_.milp.rows[choice];
      double sum = 0;
      bool counts = false;
      for (const Milp::Term& term : row.terms) {
        sum += term.coefficient * (x[term.column] + (term.column == column));
        counts |= term.column == column;
      }
      if (counts && sum > row.upper) return false;
    }
    return true;
  }

  // One unit more, one less, or one in place of another, while it helps.
  void Climb() {
    constexpr int kMostTries = 400;
    tries_ = 0;
    for (bool better = true; better;) {
      better = false;
      const std::vector<double> from = UnitsOf(*best_);
      for (const JointMilp::UnitClass& out : form_.classes) {
        if (from[out.unit_column] == 0) continue;
        std::vector<double> x = from;
        x[out.unit_column] -= 1;
        better |= Try(x);
        for (const JointMilp::UnitClass& in : form_.classes) {
          if (tries_ > kMostTries) return;
          if (&in == &out || !MayAdd(x, in.unit_column)) continue;
          std::vector<double> swapped = x;
          swapped[in.unit_column] += 1;
          better |= Try(swapped);
        }
      }
    }
  }

  std::vector<double> UnitsOf(const std::vector<double>& x) const {
    std::vector<double> units(x.size(), 0);
    for (const JointMilp::UnitClass& c : form_.classes) {
      units[c.unit_column] = x[c.unit_column];
    }
    return units;
  }

  // The groups for these units; whether that is the best so far.
  bool Try(std::vector<double> x) {
    ++tries_;
    std::vector<double> sums(lower_.size(), 0);
    for (const JointMilp::UnitClass& c : form_.classes) {
      Move(sums, c.unit_column, x[c.unit_column]);
    }
    struct Item {
      int column;
      double most;
      double cost;
    };
    std::vector<Item> items;
    for (const JointMilp::UnitClass& c : form_.classes) {
      if (x[c.unit_column] == 0) continue;
      const double members = form_.milp.columns[c.unit_column].upper;
      for (const int column : c.kind_columns) {
        if (column < 0) continue;
        const Milp::Column& groups = form_.milp.columns[column];
        items.push_back(
            {column, groups.upper / members * x[c.unit_column], groups.cost});
      }
    }
    for (size_t r = 0; r < lower_.size(); ++r) {
      if (sums[r] >= lower_[r]) continue;
      std::ranges::sort(items, std::greater<>(), [&](const Item& item) {
        return coefficients_[item.column][r] / item.cost;
      });
      for (const Item& item : items) {
        const double bytes = coefficients_[item.column][r];
        if (bytes <= 0) continue;
        const double missing = lower_[r] - sums[r];
        const double number = std::min(item.most - x[item.column],
                                       std::ceil(missing / bytes - 1e-12));
        if (number <= 0) continue;
        x[item.column] += number;
        Move(sums, item.column, number);
        if (sums[r] >= lower_[r]) break;
      }
      if (sums[r] < lower_[r]) return false;
    }
    std::ranges::sort(items, std::greater<>(), &Item::cost);
    const auto may_move = [&](int out, int in) {
      for (size_t r = 0; r < lower_.size(); ++r) {
        const double added = in < 0 ? 0 : coefficients_[in][r];
        if (sums[r] - coefficients_[out][r] + added < lower_[r]) return false;
      }
      return true;
    };
    for (const Item& out : items) {
      while (x[out.column] > 0 && may_move(out.column, -1)) {
        x[out.column] -= 1;
        Move(sums, out.column, -1);
      }
      for (size_t k = items.size(); k-- > 0 && x[out.column] > 0;) {
        const Item& in = items[k];
        if (in.cost >= out.cost) break;
        while (x[out.column] > 0 && x[in.column] < in.most &&
               may_move(out.column, in.column)) {
          x[out.column] -= 1;
          x[in.column] += 1;
          Move(sums, out.column, -1);
          Move(sums, in.column, 1);
        }
      }
    }
    if (!solver::IsFeasible(form_.milp, x, 1e-12)) return false;
    const double ms = solver::ObjectiveValue(form_.milp, x);
    if (best_ && ms >= best_ms_ * (1 - 1e-12)) return false;
    best_ = std::move(x);
    best_ms_ = ms;
    return true;
  }

  void Move(std::vector<double>& sums, int column, double number) const {
    if (number == 0) return;
    for (size_t r = 0; r < sums.size(); ++r) {
      sums[r] += coefficients_[column][r] * number;
    }
  }

  const JointMilp& form_;
  std::vector<double> lower_;                      // of the record rows
  std::vector<std::vector<double>> coefficients_;  // a column, a record row
  std::optional<std::vector<double>> best_;
  double best_ms_ = kInf;
  int tries_ = 0;
};

// Bounds that no solution at most `ms` leaves, by the reduced costs of the
// relaxation.
Milp Core(Milp milp, const solver::LpSolution& lp, double ms) {
  const double room = ms - lp.objective + 1e-7 * std::abs(ms);
  if (room < 0) return milp;
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    Milp::Column& column = milp.columns[j];
    const double price = lp.reduced_costs[j];
    if (!column.is_integer || price == 0) continue;
    const double most = std::floor(room / std::abs(price) + 1e-6);
    if (price > 0) {
      column.upper = std::min(column.upper, column.lower + most);
    } else {
      column.lower = std::max(column.lower, column.upper - most);
    }
  }
  return milp;
}

// The row of the record that these units break most.
int WorstRecordRow(const JointProblem& problem, const JointMilp& form,
                   const std::vector<PricedUnit>& units) {
  int worst = -1;
  double worst_bytes = 0;
  for (size_t r = 0; r < form.records.size(); ++r) {
    const int record = form.records[r];
    long double missing = Need(problem, record);
    for (const auto& [unit, ms] : units) {
      const ModuleProblem::Node& node = problem.relaxed.nodes[unit.node];
      if (node.time < problem.relaxed.nodes[record].time) {
        missing -= unit.net_bytes;
      }
      if (Contains(problem, unit.node, record)) missing += node.held_bytes;
    }
    if (missing > worst_bytes) {
      worst = form.record_rows[r];
      worst_bytes = static_cast<double>(missing);
    }
  }
  return worst;
}

std::vector<ChosenUnit> Units(const std::vector<PricedUnit>& priced) {
  std::vector<ChosenUnit> units;
  for (const PricedUnit& p : priced) units.push_back(p.unit);
  return units;
}

ModuleSolution Infeasible(ModuleSolution solution) {
  solution.status = SearchStatus::kInfeasible;
  solution.stopped_by = solver::StoppedBy::kNothing;
  solution.bound_ms = kInf;
  return solution;
}

double DearestMs(const JointProblem& problem) {
  double dearest = 0;
  for (const JointProblem::Policies& policies : problem.policies) {
    double ms = policies.base_ms;
    for (const GroupKind& kind : policies.kinds) ms += kind.ms * kind.count;
    dearest = std::max(dearest, ms);
  }
  return dearest;
}

ModuleSolution Search(const JointProblem& problem,
                      const solver::SearchLimits& limits) {
  const solver::Stopwatch stopwatch;
  ModuleSolution solution;
  solution.engine = "cbc";
  JointMilp form = ToMilp(problem);
  solution.rows = static_cast<int64_t>(form.milp.rows.size());
  solution.columns = static_cast<int64_t>(form.milp.columns.size());
  const auto left = [&] {
    solver::SearchLimits rest = limits;
    rest.time_limit_s =
        std::max(0.0, limits.time_limit_s - stopwatch.Seconds());
    rest.node_limit = std::max<int64_t>(0, limits.node_limit - solution.nodes);
    return rest;
  };

  const auto keeps_budget = [&](const std::vector<PricedUnit>& units) {
    return SolutionPeak(problem.relaxed, Units(units)) <=
           problem.relaxed.budget_bytes + ByteTolerance(problem.relaxed);
  };

  Milp core = form.milp;
  std::optional<std::vector<double>> start;
  const solver::LpSolution lp = solver::SolveLp(form.milp, left().time_limit_s);
  if (lp.status == solver::LpStatus::kOptimal) {
    start = Rounding(form).Round(lp);
    if (start && !keeps_budget(SharedOut(problem, form, *start))) start.reset();
    solution.bound_ms = std::max(0.0, lp.objective);
    if (start) {
      core = Core(form.milp, lp, solver::ObjectiveValue(form.milp, *start));
    }
  }

  const double noise = 1e-9 * DearestMs(problem);
  bool relaxed = false;
  bool asked_twice = false;
  while (true) {
    MilpSolution milp;
    try {
      milp = SolveWithCbc(core, {.limits = left(), .warm_start = start});
    } catch (const std::runtime_error&) {
      // CBC's tolerances are wider than what decides here.
      if (relaxed) throw;
      relaxed = true;
      for (const int row : form.record_rows) {
        core.rows[row].lower -= kRowTolerance * JointMilp::kNeedScale;
      }
      continue;
    }
    solution.stopped_by = milp.stopped_by;
    solution.nodes += milp.nodes;
    solution.bound_ms = std::max(solution.bound_ms, milp.bound);
    solution.seconds = stopwatch.Seconds();
    if (milp.status == MilpStatus::kInfeasible) {
      if (asked_twice || relaxed) return Infeasible(solution);
      // What a budget leaves by less than CBC's tolerances may look infeasible.
      asked_twice = true;
      solution.bound_ms = 0;
      core = form.milp;
      for (const int row : form.record_rows) {
        core.rows[row].lower -= kSecondTolerance;
      }
      continue;
    }
    if (milp.status != MilpStatus::kOptimal &&
        milp.status != MilpStatus::kFeasible) {
      return solution;
    }

    std::vector<PricedUnit> priced = SharedOut(problem, form, milp.x);
    if (!keeps_budget(priced)) {
      // Within CBC's tolerances, but not within the budget: not these.
      const int row = WorstRecordRow(problem, form, priced);
      if (row < 0) {
        throw std::logic_error("a record that was left out is broken");
      }
      core = solver::WithCutOff(std::move(core), row, milp.x);
      if (start) start->resize(core.columns.size(), 0);
      continue;
    }
    solution.units = WithoutNeedlessUnits(problem.relaxed, Units(priced));
    solution.ms = 0;
    for (const PricedUnit& p : priced) {
      if (std::ranges::find(solution.units, p.unit.node, &ChosenUnit::node) !=
          solution.units.end()) {
        solution.ms += p.ms;
      }
    }
    const bool proven = solution.ms - solution.bound_ms <=
                        kProofTolerance * solution.ms + noise;
    if (milp.status == MilpStatus::kOptimal && proven) {
      solution.status = SearchStatus::kOptimal;
      solution.stopped_by = solver::StoppedBy::kNothing;
      solution.bound_ms = solution.ms;
    } else {
      solution.status = SearchStatus::kFeasible;
      solution.bound_ms = std::min(solution.bound_ms, solution.ms);
    }
    return solution;
  }
}

}  // namespace

ModuleSolution SolveJointByCbc(const JointProblem& problem,
                               const solver::SearchLimits& limits) {
  ModuleSolution solution;
  solution.engine = "cbc";
  if (problem.relaxed.fixed_bytes > problem.relaxed.budget_bytes) {
    return Infeasible(solution);
  }
  if (SolutionPeak(problem.relaxed, {}) <= problem.relaxed.budget_bytes) {
    solution.status = SearchStatus::kOptimal;
    solution.ms = 0;
    return solution;
  }
  return Search(problem, limits);
}

}  // namespace acplan::problems
