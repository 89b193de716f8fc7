#include "problems/engines/milp/module_milp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "problems/engines/milp/milp_answer.h"
#include "solver/cbc_solver.h"

namespace acplan::problems {

using solver::Milp;
using solver::MilpSolution;
using solver::MilpStatus;

namespace {

constexpr double kRowTolerance = 1e-6;

double Need(const ModuleProblem& problem, int node) {
  return problem.nodes[node].base_bytes - problem.budget_bytes;
}

std::vector<int> CandidatesOf(const ModuleProblem& problem) {
  std::vector<int> candidates;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    if (!problem.nodes[i].curve.empty())
      candidates.push_back(static_cast<int>(i));
  }
  return candidates;
}

// Returns the most bytes that units ending in the time window [from, to) can
// discard.
double MostDiscarded(const ModuleProblem& problem, int from, int to) {
  const int n = static_cast<int>(problem.nodes.size());
  std::vector<double> most(n, 0);
  double total = 0;
  for (int i = n - 1; i >= 0; --i) {
    const ModuleProblem::Node& node = problem.nodes[i];
    double children = 0;
    for (int c = i + 1; c < i + node.subtree_size;
         c += problem.nodes[c].subtree_size) {
      children += most[c];
    }
    const bool is_inside =
        !node.curve.empty() && from <= node.time && node.time < to;
    most[i] = std::max(children, is_inside ? node.curve.back().bytes : 0.0);
  }
  for (int i = 0; i < n; i += problem.nodes[i].subtree_size) total += most[i];
  return total;
}

bool HoldsBytes(const ModuleProblem& problem) {
  return std::ranges::any_of(problem.nodes, [](const auto& node) {
    return !node.curve.empty() && node.held_bytes > 0;
  });
}

// Returns the bytes with which a unit meets every record alone. No unit needs
// to discard more.
double UsefulBytes(const ModuleProblem& problem) {
  double need = 0;
  double held_bytes = 0;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const ModuleProblem::Node& node = problem.nodes[i];
    if (node.time >= 0) {
      need = std::max(need, Need(problem, static_cast<int>(i)));
    }
    if (!node.curve.empty()) held_bytes = std::max(held_bytes, node.held_bytes);
  }
  return need + held_bytes > 0 ? need + held_bytes
                               : std::numeric_limits<double>::infinity();
}

std::vector<Knot> CutTo(std::vector<Knot> curve, double bytes) {
  if (bytes >= curve.back().bytes) return curve;
  if (bytes <= curve.front().bytes) return {curve.front()};
  const double ms = CurveCost(curve, bytes);
  while (!curve.empty() && curve.back().bytes >= bytes) curve.pop_back();
  curve.push_back({bytes, ms});
  return curve;
}

std::vector<int> UnitNodes(const ModuleMilp& form,
                           const std::vector<double>& x) {
  std::vector<int> nodes;
  for (size_t c = 0; c < form.candidates.size(); ++c) {
    if (x[ModuleMilp::UnitColumn(c)] > 0.5) nodes.push_back(form.candidates[c]);
  }
  return nodes;
}

// Returns a row that cuts these units off. It comes from the worst record that
// they break with all their bytes discarded. Every solution meets that record,
// so it has another unit before it, or one less that holds bytes there.
Milp::Row CutOff(const ModuleProblem& problem, const ModuleMilp& form,
                 const std::vector<int>& unit_nodes) {
  const int n = static_cast<int>(problem.nodes.size());
  std::vector<char> is_unit(n, 0);
  for (const int i : unit_nodes) is_unit[i] = 1;
  const auto holds_at = [&](int unit, int record) {
    const ModuleProblem::Node& node = problem.nodes[unit];
    return node.held_bytes > 0 && unit <= record &&
           record < unit + node.subtree_size;
  };
  int worst = -1;
  double worst_bytes = -std::numeric_limits<double>::infinity();
  for (int k = 0; k < n; ++k) {
    if (problem.nodes[k].time < 0) continue;
    double bytes = problem.nodes[k].base_bytes;
    for (const int j : unit_nodes) {
      const ModuleProblem::Node& node = problem.nodes[j];
      if (node.time < problem.nodes[k].time) bytes -= node.curve.back().bytes;
      if (holds_at(j, k)) bytes += node.held_bytes;
    }
    if (bytes > worst_bytes) {
      worst = k;
      worst_bytes = bytes;
    }
  }
  Milp::Row cut{.name = fmt::format("cut{}", form.milp.rows.size()),
                .lower = 1};
  for (size_t c = 0; c < form.candidates.size(); ++c) {
    const int j = form.candidates[c];
    if (is_unit[j] && holds_at(j, worst)) {
      cut.terms.push_back({ModuleMilp::UnitColumn(c), -1});
      cut.lower -= 1;
    } else if (!is_unit[j] &&
               problem.nodes[j].time < problem.nodes[worst].time) {
      cut.terms.push_back({ModuleMilp::UnitColumn(c), 1});
    }
  }
  return cut;
}

}  // namespace

std::vector<int> BindingRecords(const ModuleProblem& problem) {
  const bool holds = HoldsBytes(problem);
  std::vector<int> records;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const int node = static_cast<int>(i);
    if (problem.nodes[i].time >= 0 && (holds || Need(problem, node) > 0)) {
      records.push_back(node);
    }
  }
  std::ranges::sort(records, {}, [&](int i) { return problem.nodes[i].time; });
  if (holds) return records;

  std::vector<int> rising;
  for (const int record : records) {
    if (rising.empty() ||
        Need(problem, record) > Need(problem, rising.back())) {
      rising.push_back(record);
    }
  }
  std::vector<int> kept_records;
  std::ranges::reverse(rising);
  for (const int record : rising) {
    const bool implied =
        !kept_records.empty() &&
        Need(problem, kept_records.back()) -
                MostDiscarded(problem, problem.nodes[record].time,
                              problem.nodes[kept_records.back()].time) >=
            Need(problem, record);
    if (!implied) kept_records.push_back(record);
  }
  std::ranges::reverse(kept_records);
  return kept_records;
}

std::vector<Milp::Row> ChoiceRows(const ModuleProblem& problem,
                                  const std::vector<int>& unit_column) {
  const int n = static_cast<int>(problem.nodes.size());
  std::vector<Milp::Row> rows;
  for (int leaf = 0; leaf < n; ++leaf) {
    if (unit_column[leaf] < 0) continue;
    const int end = leaf + problem.nodes[leaf].subtree_size;
    bool has_candidate_below = false;
    for (int i = leaf + 1; i < end; ++i)
      has_candidate_below |= unit_column[i] >= 0;
    if (has_candidate_below) continue;
    Milp::Row path{.name = fmt::format("path{}", leaf), .upper = 1};
    for (int i = 0; i <= leaf;) {
      if (leaf >= i + problem.nodes[i].subtree_size) {
        i += problem.nodes[i].subtree_size;
        continue;
      }
      if (unit_column[i] >= 0) path.terms.push_back({unit_column[i], 1});
      ++i;
    }
    if (path.terms.size() > 1) rows.push_back(std::move(path));
  }
  if (problem.max_units) {
    Milp::Row row{.name = "max_units",
                  .upper = static_cast<double>(*problem.max_units)};
    for (const int column : unit_column) {
      if (column >= 0) row.terms.push_back({column, 1});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

namespace {

// Adds the columns of a candidate, and the rows of its curve: the perspective.
// Returns the column of y.
int AddCandidate(int node, const std::vector<Knot>& curve, Milp& milp) {
  const double most = curve.back().bytes;
  const int y = milp.AddColumn(
      {.name = fmt::format("y{}", node), .upper = 1, .is_integer = true});
  const int share =
      milp.AddColumn({.name = fmt::format("s{}", node), .upper = 1});
  const int cost =
      milp.AddColumn({.name = fmt::format("c{}", node), .cost = 1});
  milp.AddRow({.name = fmt::format("unit{}", node),
               .upper = 0,
               .terms = {{share, 1}, {y, -1}}});
  if (curve.front().ms > 0) {
    milp.AddRow({.name = fmt::format("entry{}", node),
                 .lower = 0,
                 .terms = {{cost, 1}, {y, -curve.front().ms}}});
  }
  for (size_t k = 0; k + 1 < curve.size(); ++k) {
    const double slope =
        (curve[k + 1].ms - curve[k].ms) / (curve[k + 1].bytes - curve[k].bytes);
    milp.AddRow({.name = fmt::format("cost{}_{}", node, k),
                 .lower = 0,
                 .terms = {{cost, 1},
                           {share, -slope * most},
                           {y, slope * curve[k].bytes - curve[k].ms}}});
  }
  return y;
}

}  // namespace

ModuleMilp ToMilp(const ModuleProblem& problem) {
  ModuleMilp result;
  result.candidates = CandidatesOf(problem);
  Milp& milp = result.milp;
  milp.name = "module_checkpointing";
  std::vector<int> y_column(problem.nodes.size(), -1);
  const double useful = UsefulBytes(problem);
  for (const int i : result.candidates) {
    y_column[i] = AddCandidate(i, CutTo(problem.nodes[i].curve, useful), milp);
  }

  for (Milp::Row& row : ChoiceRows(problem, y_column)) {
    milp.AddRow(std::move(row));
  }

  const std::vector<int> records = BindingRecords(problem);
  double unit = 1;
  for (const int k : records) unit = std::max(unit, Need(problem, k));
  for (const int k : records) {
    Milp::Row row{.name = fmt::format("record{}", k),
                  .lower = Need(problem, k) / unit};
    for (size_t c = 0; c < result.candidates.size(); ++c) {
      const int j = result.candidates[c];
      const ModuleProblem::Node& node = problem.nodes[j];
      if (node.time < problem.nodes[k].time) {
        row.terms.push_back({ModuleMilp::ShareColumn(c),
                             std::min(node.curve.back().bytes, useful) / unit});
      }
      if (node.held_bytes > 0 && j <= k && k < j + node.subtree_size) {
        row.terms.push_back(
            {ModuleMilp::UnitColumn(c), -node.held_bytes / unit});
      }
    }
    result.record_rows.push_back(milp.AddRow(std::move(row)));
  }
  return result;
}

namespace {

ModuleSolution WithUnits(const ModuleProblem& problem, MilpStatus status,
                         std::vector<ChosenUnit> units,
                         ModuleSolution solution) {
  solution.units = WithoutNeedlessUnits(problem, std::move(units));
  solution.ms = SolutionCost(problem, solution.units);
  const double ms = solution.ms;
  return Concluded(std::move(solution), ms, status,
                   kProofTolerance * std::max(1.0, std::abs(ms)));
}

// Asks CBC until its units meet the budget in exact sums. Units that do not are
// cut off. If CBC fails or finds nothing, the records are relaxed once, by an
// upper limit of its tolerances.
class ModuleSearch {
 public:
  ModuleSearch(const ModuleProblem& problem, const solver::SearchLimits& limits)
      : problem_(problem), limits_(limits), form_(ToMilp(problem)) {
    solution_.engine = "cbc";
    solution_.columns = static_cast<int64_t>(form_.milp.columns.size());
  }

  ModuleSolution Run() {
    while (true) {
      const std::optional<MilpSolution> answer = Ask();
      if (!answer) continue;
      if (answer->status == MilpStatus::kInfeasible) {
        // A problem with a margin below CBC's tolerances may look infeasible.
        if (is_relaxed_) return Infeasible(solution_);
        Relax();
        continue;
      }
      if (answer->status != MilpStatus::kOptimal &&
          answer->status != MilpStatus::kFeasible) {
        return solution_;
      }
      const std::vector<int> nodes = UnitNodes(form_, answer->x);
      if (std::optional<std::vector<ChosenUnit>> units =
              CheapestBytes(problem_, nodes)) {
        return WithUnits(problem_, answer->status, *std::move(units),
                         solution_);
      }
      // These units are within CBC's tolerances, but not within the budget: cut
      // them off.
      Milp::Row cut = CutOff(problem_, form_, nodes);
      if (cut.terms.empty()) return Infeasible(solution_);
      form_.milp.AddRow(std::move(cut));
    }
  }

 private:
  // Asks CBC. If CBC fails, relaxes the records and returns nullopt.
  std::optional<MilpSolution> Ask() {
    MilpSolution answer;
    try {
      answer = SolveWithCbc(
          form_.milp,
          {.limits = LeftOf(limits_, stopwatch_.Seconds(), solution_.nodes)});
    } catch (const solver::CbcFailure&) {
      // CBC's tolerances are wider than this check.
      if (is_relaxed_) throw;
      Relax();
      return std::nullopt;
    }
    solution_.rows = static_cast<int64_t>(form_.milp.rows.size());
    solution_.stopped_by = answer.stopped_by;
    solution_.nodes += answer.nodes;
    solution_.bound_ms = std::max(0.0, answer.bound);
    solution_.seconds = stopwatch_.Seconds();
    return answer;
  }

  void Relax() {
    is_relaxed_ = true;
    for (const int row : form_.record_rows) {
      form_.milp.rows[row].lower -= kRowTolerance;
    }
  }

  const ModuleProblem& problem_;
  const solver::SearchLimits& limits_;
  solver::Stopwatch stopwatch_;
  ModuleMilp form_;
  ModuleSolution solution_;
  bool is_relaxed_ = false;
};

ModuleSolution SolveProgram(const ModuleProblem& problem,
                            const solver::SearchLimits& limits) {
  if (problem.fixed_bytes > problem.budget_bytes) {
    ModuleSolution solution;
    solution.engine = "cbc";
    return Infeasible(std::move(solution));
  }
  return ModuleSearch(problem, limits).Run();
}

}  // namespace

ModuleSolution SolveByCbc(const ModuleProblem& problem,
                          const solver::SearchLimits& limits) {
  // Times are scaled by the dearest useful curve, which is short if few bytes
  // are missing.
  ModuleProblem useful = problem;
  for (const int i : CandidatesOf(problem)) {
    ModuleProblem::Node& node = useful.nodes[i];
    node.curve = CutTo(std::move(node.curve), UsefulBytes(problem));
  }
  return SolveWithScaledTimes(useful, limits, SolveProgram);
}

}  // namespace acplan::problems
