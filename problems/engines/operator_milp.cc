#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "problems/engines/milp/milp_answer.h"
#include "problems/engines/operator_checkpointing.h"
#include "solver/cbc_solver.h"
#include "solver/cut_off.h"

namespace acplan::problems {

using solver::SearchStatus;

using graph::OperatorPatterns;
using graph::SacStatistics;
using solver::Milp;
using solver::MilpSolution;
using solver::MilpStatus;

namespace {

// The scale of the capacity in its row. CBC's tolerances are 1e-7; a byte in 10
// GB is 1e-10.
constexpr double kCapacityScale = 1000;
constexpr const char* kCapacityRow = "capacity";

struct Forced {
  std::vector<char> save, recompute;  // by operator
};

Forced ForcedOperators(const SacStatistics& sac,
                       const OperatorPatterns& patterns, int64_t capacity) {
  const size_t n = sac.memory.size();
  Forced forced{std::vector<char>(n, 0), std::vector<char>(n, 0)};
  for (const int op : sac.view_like_ops) forced.recompute[op] = 1;
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op == parent) forced.save[op] = 1;
  }
  if (sac.force_store_random) {
    for (const int op : sac.rand_ops) forced.save[op] = 1;
  }
  const auto matches = [&](const std::vector<std::string>& list, size_t op) {
    return std::ranges::any_of(list, [&](const std::string& pattern) {
      return graph::MatchesPattern(sac.func_names[op], pattern);
    });
  };
  for (size_t op = 0; op < n; ++op) {
    // Bytes far beyond the capacity lie outside CBC's tolerances.
    if (sac.memory[op] > std::max<int64_t>(capacity, 0))
      forced.recompute[op] = 1;
  }
  for (size_t op = 0; !patterns.empty() && op < n; ++op) {
    forced.save[op] |= matches(patterns.save, op);
    forced.recompute[op] |= matches(patterns.recompute, op);
  }
  return forced;
}

int CapacityRow(const Milp& milp) {
  const auto row = std::ranges::find(milp.rows, kCapacityRow, &Milp::Row::name);
  return static_cast<int>(row - milp.rows.begin());
}

}  // namespace

int64_t CapacityOf(const graph::OperatorGroups& groups, double share) {
  return static_cast<int64_t>(
      std::ceil(share * static_cast<double>(groups.TotalBytes())));
}

OperatorPolicy PolicyOf(const SacStatistics& sac, std::vector<char> save) {
  OperatorPolicy policy;
  for (size_t op = 0; op < save.size(); ++op) {
    if (save[op]) {
      policy.saved_bytes += sac.memory[op];
      policy.saved_ms += sac.runtimes[op];
    } else {
      policy.recompute_ms += sac.runtimes[op];
    }
  }
  policy.save = std::move(save);
  return policy;
}

Milp ToOperatorMilp(const SacStatistics& sac, const OperatorPatterns& patterns,
                    int64_t capacity) {
  const Forced forced = ForcedOperators(sac, patterns, capacity);
  Milp milp;
  milp.name = "operator_checkpointing";
  for (size_t op = 0; op < sac.memory.size(); ++op) {
    milp.objective_offset += sac.runtimes[op];
    const int column = milp.AddColumn({.name = fmt::format("x{}", op),
                                       .lower = forced.save[op] ? 1.0 : 0.0,
                                       .upper = 1,
                                       .cost = -sac.runtimes[op],
                                       .is_integer = true});
    if (!forced.recompute[op]) continue;
    if (forced.save[op]) {
      milp.AddRow({.name = fmt::format("recompute{}", op),
                   .upper = 0,
                   .terms = {{column, 1}}});
    } else {
      milp.columns.back().upper = 0;
    }
  }
  const auto tie = [&](int a, int b) {
    milp.AddRow({.name = fmt::format("tie{}_{}", a, b),
                 .lower = 0,
                 .upper = 0,
                 .terms = {{a, 1}, {b, -1}}});
  };
  for (size_t k = 1; k < sac.rand_ops.size(); ++k) {
    tie(sac.rand_ops[k - 1], sac.rand_ops[k]);
  }
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op != parent) tie(op, parent);
  }
  const double unit =
      capacity > 0 ? static_cast<double>(capacity) / kCapacityScale : 1;
  Milp::Row row{.name = kCapacityRow,
                .upper = static_cast<double>(capacity) / unit};
  for (size_t op = 0; op < sac.memory.size(); ++op) {
    if (sac.memory[op] == 0) continue;
    row.terms.push_back(
        {static_cast<int>(op), static_cast<double>(sac.memory[op]) / unit});
  }
  milp.AddRow(std::move(row));
  return milp;
}

OperatorSolution SolveOperatorsByCbc(const SacStatistics& sac,
                                     const OperatorPatterns& patterns,
                                     int64_t capacity,
                                     const solver::SearchLimits& limits) {
  const solver::Stopwatch stopwatch;
  OperatorSolution solution;
  solution.engine = "cbc";
  if (sac.memory.empty()) {
    if (capacity < 0) return Infeasible(solution);
    solution.status = SearchStatus::kOptimal;
    return solution;
  }
  Milp milp = ToOperatorMilp(sac, patterns, capacity);
  const int capacity_row = CapacityRow(milp);
  const double all_ms = milp.objective_offset;
  while (true) {
    const MilpSolution answer = SolveWithCbc(
        milp, {.limits = LeftOf(limits, stopwatch.Seconds(), solution.nodes)});
    solution.stopped_by = answer.stopped_by;
    solution.nodes += answer.nodes;
    solution.bound_ms = std::max(solution.bound_ms, answer.bound);
    solution.seconds = stopwatch.Seconds();
    if (answer.status == MilpStatus::kInfeasible) return Infeasible(solution);
    if (answer.status != MilpStatus::kOptimal &&
        answer.status != MilpStatus::kFeasible) {
      return solution;
    }

    std::vector<char> save;
    for (size_t op = 0; op < sac.memory.size(); ++op) {
      save.push_back(answer.x[op] > 0.5 ? 1 : 0);
    }
    OperatorPolicy policy = PolicyOf(sac, std::move(save));
    if (policy.saved_bytes > capacity) {
      // This solution is within CBC's tolerances, but not within the capacity:
      // cut it off.
      milp = solver::WithCutOff(std::move(milp), capacity_row, answer.x);
      continue;
    }
    solution.policy = std::move(policy);
    const double ms = solution.policy.recompute_ms;
    return Concluded(std::move(solution), ms, answer.status,
                     kProofTolerance * ms + 1e-9 * all_ms);
  }
}

}  // namespace acplan::problems
