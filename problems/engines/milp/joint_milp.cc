#include "problems/engines/milp/joint_milp.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "problems/engines/milp/joint_form.h"
#include "problems/engines/milp/joint_start.h"
#include "problems/engines/milp/milp_answer.h"
#include "solver/cbc_solver.h"
#include "solver/cut_off.h"
#include "solver/lp_solver.h"

// Asks CBC until its answer is one.
//
// The relaxation gives a bound and, rounded, a start; between the two, reduced
// costs narrow the columns, and CBC solves the rest, the core. Its answer is
// shared out among the members of the classes and added up anew. If that breaks
// a record, CBC accepted it within its tolerances. Then a row is added that
// cuts this answer off and no plan that keeps the record (solver/cut_off.h),
// and CBC is asked again. An answer near the end of a record row is an answer
// to some part of CBC and none to another, which then loses all answers near
// it. So CBC's "optimal" is believed only if a plain branch and bound with
// tight tolerances finds nothing cheaper, and its "infeasible" only if both CBC
// and that one find no answer of the whole form either.

namespace acplan::problems {

using solver::Milp;
using solver::MilpSolution;
using solver::MilpStatus;
using solver::SearchStatus;

namespace {

// The amount by which records are relaxed if CBC fails.
constexpr double kRecordTolerance = 1e-6 * JointMilp::kNeedScale;
// The node limit of the search for something better than an optimum.
constexpr int64_t kConfirmingNodes = 2000;

struct PricedUnit {
  ChosenUnit unit;
  double ms = 0;
};

struct SharedUnit {
  int node = 0;
  int64_t bytes = 0;
  std::vector<int> counts = {};
};

// Returns the members of a class that are units: the first ones without a unit
// around them. They recompute the groups that every unit does.
std::vector<SharedUnit> UnitsOfClass(const JointProblem::Policies& policies,
                                     const JointMilp::UnitClass& members,
                                     int64_t number,
                                     const std::vector<char>& covered) {
  SharedUnit unit{.bytes = members.first.bytes};
  for (size_t g = 0; g < policies.kinds.size(); ++g) {
    unit.counts.push_back(members.kind_columns[g] < 0 ? policies.kinds[g].count
                                                      : 0);
  }
  std::vector<SharedUnit> units;
  for (const int node : members.nodes) {
    if (static_cast<int64_t>(units.size()) == number) break;
    if (covered[node]) continue;
    unit.node = node;
    units.push_back(unit);
  }
  return units;
}

// Shares the groups of a class out among its units: the kinds with the most
// bytes first, each group to the unit that has discarded least.
void ShareGroups(const JointProblem::Policies& policies,
                 const JointMilp::UnitClass& members,
                 const std::vector<double>& x, std::vector<SharedUnit>& units) {
  std::vector<size_t> order(policies.kinds.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, std::greater<>(),
                    [&](size_t g) { return policies.kinds[g].bytes; });
  for (const size_t g : order) {
    if (members.kind_columns[g] < 0) continue;
    const GroupKind& kind = policies.kinds[g];
    for (auto remaining_groups = std::llround(x[members.kind_columns[g]]);
         remaining_groups > 0; --remaining_groups) {
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
}

// Shares the numbers of every class out among its members.
std::vector<PricedUnit> SharedOut(const JointProblem& problem,
                                  const JointMilp& form,
                                  const std::vector<double>& x) {
  std::vector<PricedUnit> chosen_units;
  std::vector<char> covered(problem.relaxed.nodes.size(), 0);
  for (const JointMilp::UnitClass& members : form.classes) {
    const JointProblem::Policies& policies =
        PoliciesOf(problem, members.nodes[0]);
    std::vector<SharedUnit> units = UnitsOfClass(
        policies, members, std::llround(x[members.unit_column]), covered);
    if (units.empty()) continue;
    ShareGroups(policies, members, x, units);
    for (const SharedUnit& unit : units) {
      for (int i = unit.node; Contains(problem, unit.node, i); ++i) {
        covered[i] = 1;
      }
      if (unit.bytes <= 0) continue;
      chosen_units.push_back(
          {{unit.node, static_cast<double>(unit.bytes), unit.counts},
           policies.MsOf(unit.counts)});
    }
  }
  std::ranges::sort(chosen_units, {},
                    [](const PricedUnit& priced) { return priced.unit.node; });
  return chosen_units;
}

// Returns the row of the record that these units exceed most.
std::optional<int> WorstRecordRow(const JointProblem& problem,
                                  const JointMilp& form,
                                  const std::vector<PricedUnit>& units) {
  std::optional<int> worst;
  double worst_bytes = 0;
  for (size_t r = 0; r < form.records.size(); ++r) {
    const int record = form.records[r];
    long double missing = NeedAt(problem, record);
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

std::vector<ChosenUnit> UnitsOf(const std::vector<PricedUnit>& priced) {
  std::vector<ChosenUnit> units;
  for (const PricedUnit& p : priced) units.push_back(p.unit);
  return units;
}

bool KeepsBudget(const JointProblem& problem,
                 const std::vector<PricedUnit>& units) {
  return SolutionPeak(problem.relaxed, UnitsOf(units)) <=
         problem.relaxed.budget_bytes + ByteTolerance(problem.relaxed);
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

// The input of CBC.
struct Core {
  Milp milp;
  std::optional<std::vector<double>> start = {};
  double bound_ms = 0;  // no solution costs less
};

Core StartOf(const JointProblem& problem, const JointMilp& form,
             double time_limit_s) {
  Core core{.milp = form.milp};
  const solver::LpSolution lp = solver::SolveLp(form.milp, time_limit_s);
  if (lp.status != solver::LpStatus::kOptimal) return core;
  core.bound_ms = std::max(0.0, lp.objective);
  core.start = RoundedStart(form, lp);
  if (core.start &&
      !KeepsBudget(problem, SharedOut(problem, form, *core.start))) {
    core.start.reset();
  }
  if (core.start) {
    core.milp = CoreOf(std::move(core.milp), lp,
                       solver::ObjectiveValue(form.milp, *core.start));
  }
  return core;
}

// Returns the answer with these units, which keep the budget.
ModuleSolution WithUnits(const JointProblem& problem, MilpStatus status,
                         const std::vector<PricedUnit>& priced,
                         ModuleSolution solution) {
  solution.units = WithoutNeedlessUnits(problem.relaxed, UnitsOf(priced));
  solution.ms = 0;
  for (const PricedUnit& p : priced) {
    if (std::ranges::find(solution.units, p.unit.node, &ChosenUnit::node) !=
        solution.units.end()) {
      solution.ms += p.ms;
    }
  }
  const double noise = 1e-9 * DearestMs(problem);
  const double ms = solution.ms;
  return Concluded(std::move(solution), ms, status,
                   kProofTolerance * ms + noise);
}

class JointSearch {
 public:
  JointSearch(const JointProblem& problem, const solver::SearchLimits& limits)
      : problem_(problem), limits_(limits), form_(ToMilp(problem)) {
    solution_.engine = "cbc";
    solution_.rows = static_cast<int64_t>(form_.milp.rows.size());
    solution_.columns = static_cast<int64_t>(form_.milp.columns.size());
    core_ = StartOf(problem, form_, RemainingLimits().time_limit_s);
    solution_.bound_ms = core_.bound_ms;
  }

  ModuleSolution Run() {
    while (true) {
      std::optional<MilpSolution> answer = Ask();
      if (!answer) continue;
      if (answer->status == MilpStatus::kInfeasible) {
        if (!is_whole_) {
          // The core leaves out columns on the assumption that the relaxation
          // is exact.
          is_whole_ = true;
          solution_.bound_ms = 0;
          core_.milp = form_.milp;
          continue;
        }
        answer = Confirmed(core_.milp);
        if (!answer) return Infeasible(solution_);
        solution_.bound_ms = core_.bound_ms;
      }
      if (answer->status != MilpStatus::kOptimal &&
          answer->status != MilpStatus::kFeasible) {
        return solution_;
      }
      while (Keeps(answer->x) && answer->status == MilpStatus::kOptimal) {
        std::optional<MilpSolution> better = BetterThan(*answer);
        if (!better) break;
        answer = std::move(better);
        // CBC's bound was that of the dearer answer.
        solution_.bound_ms = core_.bound_ms;
      }
      if (Keeps(answer->x)) {
        return WithUnits(problem_, answer->status,
                         SharedOut(problem_, form_, answer->x), solution_);
      }
      CutOff(answer->x);
    }
  }

 private:
  solver::SearchLimits RemainingLimits() const {
    return LeftOf(limits_, stopwatch_.Seconds(), solution_.nodes);
  }

  // Asks CBC. If CBC fails, cuts off the answer at which it failed, or relaxes
  // the records, and returns nullopt.
  std::optional<MilpSolution> Ask() {
    MilpSolution answer;
    try {
      answer = SolveWithCbc(
          core_.milp, {.limits = RemainingLimits(), .warm_start = core_.start});
    } catch (const solver::CbcFailure& failure) {
      // CBC's tolerances are wider than this check.
      if (!failure.x().empty() && !Keeps(failure.x())) {
        CutOff(failure.x());
        return std::nullopt;
      }
      if (relaxed_by_ >= kRecordTolerance) throw;
      RelaxBy(kRecordTolerance);
      return std::nullopt;
    }
    solution_.stopped_by = answer.stopped_by;
    solution_.nodes += answer.nodes;
    solution_.bound_ms = std::max(solution_.bound_ms, answer.bound);
    solution_.seconds = stopwatch_.Seconds();
    return answer;
  }

  // Asks a plain branch and bound with tight tolerances for an answer that CBC
  // denies. Returns nullopt if it finds none either, or takes long.
  std::optional<MilpSolution> Confirmed(const Milp& milp) {
    solver::SearchLimits limits = RemainingLimits();
    limits.node_limit = std::min(limits.node_limit, kConfirmingNodes);
    limits.on_progress = {};
    MilpSolution answer;
    try {
      answer = SolveWithCbc(milp, {.limits = limits, .is_careful = true});
    } catch (const solver::CbcFailure&) {
      return std::nullopt;
    }
    solution_.nodes += answer.nodes;
    solution_.seconds = stopwatch_.Seconds();
    if (answer.x.empty()) return std::nullopt;
    return answer;
  }

  // Returns a cheaper answer than one that CBC calls optimal, if there is any.
  std::optional<MilpSolution> BetterThan(const MilpSolution& answer) {
    const double less =
        answer.objective - kProofTolerance * std::abs(answer.objective);
    if (less >= answer.objective) return std::nullopt;  // it costs nothing
    Milp cheaper = core_.milp;
    Milp::Row row{.name = "cheaper", .upper = less - cheaper.objective_offset};
    for (size_t j = 0; j < cheaper.columns.size(); ++j) {
      const double cost = cheaper.columns[j].cost;
      if (cost != 0) row.terms.push_back({static_cast<int>(j), cost});
    }
    cheaper.AddRow(std::move(row));
    std::optional<MilpSolution> better = Confirmed(cheaper);
    const double least_gain = (answer.objective - less) / 2;
    if (better && better->objective > answer.objective - least_gain) {
      return std::nullopt;
    }
    return better;
  }

  bool Keeps(const std::vector<double>& x) const {
    return KeepsBudget(problem_, SharedOut(problem_, form_, x));
  }

  void RelaxBy(double tolerance) {
    relaxed_by_ = tolerance;
    for (const int row : form_.record_rows) {
      core_.milp.rows[row].lower -= tolerance;
    }
  }

  // Cuts off an answer that is within CBC's tolerances, but not within the
  // budget.
  void CutOff(const std::vector<double>& x) {
    const std::optional<int> row =
        WorstRecordRow(problem_, form_, SharedOut(problem_, form_, x));
    if (!row) throw std::logic_error("a record that was left out is broken");
    core_.milp = solver::WithCutOff(std::move(core_.milp), *row, x);
    if (core_.start) core_.start->resize(core_.milp.columns.size(), 0);
  }

  const JointProblem& problem_;
  const solver::SearchLimits& limits_;
  solver::Stopwatch stopwatch_;
  JointMilp form_;
  ModuleSolution solution_;
  Core core_;
  double relaxed_by_ = 0;
  bool is_whole_ = false;  // nothing is left out
};

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
  return JointSearch(problem, limits).Run();
}

}  // namespace acplan::problems
