#include "costmodel/search/fit_survey.h"

#include <fmt/format.h>
#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "costmodel/llm/evaluation.h"
#include "costmodel/search/space.h"

namespace acplan::costmodel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Bytes; finite, as a price of 0 times it must be 0.
constexpr double kEndless = 1e30;

// The flags that offload, and what they are called.
struct Offload {
  bool Execution::*is_on;
  std::string_view name;
};
constexpr std::array<Offload, 3> kOffloads = {{
    {&Execution::activations_offload, "offload activations"},
    {&Execution::weight_offload, "offload weights"},
    {&Execution::optimizer_offload, "offload optimizer"},
}};

struct Change {
  Execution execution;
  int count = 0;

  // Returns whether all that `other` changes is changed here alike.
  bool Contains(const Change& other, int64_t microbatch_size) const {
    const Execution& less = other.execution;
    return std::ranges::all_of(kOffloads,
                               [&](const Offload& offload) {
                                 return !(less.*offload.is_on) ||
                                        execution.*offload.is_on;
                               }) &&
           (less.microbatch_size == microbatch_size ||
            less.microbatch_size == execution.microbatch_size);
  }
};

// Fewest changes first.
std::vector<Change> ListChanges(const FitProblem& problem,
                                const Execution& base) {
  std::vector<Change> changes;
  const unsigned offloads = problem.system.mem2.capacity > 0 ? 8 : 1;
  for (int64_t size = base.microbatch_size; size > 0; --size) {
    if (base.microbatch_size % size != 0) continue;
    for (unsigned flags = 0; flags < offloads; ++flags) {
      Change change{base, size == base.microbatch_size ? 0 : 1};
      change.execution.microbatch_size = size;
      for (size_t i = 0; i < kOffloads.size(); ++i) {
        const bool is_on = (flags >> i & 1) != 0;
        change.execution.*kOffloads[i].is_on = is_on;
        change.count += is_on ? 1 : 0;
      }
      if (change.count > 0) changes.push_back(change);
    }
  }
  std::ranges::stable_sort(changes, {}, &Change::count);
  return changes;
}

std::vector<std::string> DescribeChanges(const Execution& base,
                                         const Execution& changed) {
  std::vector<std::string> changes;
  for (const Offload& offload : kOffloads) {
    if (changed.*offload.is_on) changes.emplace_back(offload.name);
  }
  if (changed.microbatch_size != base.microbatch_size) {
    changes.push_back(fmt::format("microbatch {}", changed.microbatch_size));
  }
  return changes;
}

// The search whose divisions and tiers these are.
SearchProblem SearchOf(const FitProblem& problem) {
  return {.model = problem.model,
          .system = problem.system,
          .num_procs = problem.num_procs,
          .max_batch = problem.num_procs,
          .datatype = problem.datatype,
          .corrections = AllCorrections(),
          .filters = problem.filters,
          .plans = true};
}

// A strategy on all tiers that hold its degrees.
std::vector<Execution> OnTiers(const FitProblem& problem,
                               const Execution& strategy) {
  const auto [tensor, pipeline, data] =
      SearchTiers(SearchOf(problem), strategy);
  std::vector<Execution> executions;
  Execution execution = strategy;
  for (int t = 0; t < tensor; ++t) {
    execution.tensor_par_net = t;
    for (int p = 0; p < pipeline; ++p) {
      execution.pipeline_par_net = p;
      for (int d = 0; d < data; ++d) {
        execution.data_par_net = d;
        if (CheckFit(problem.model, problem.system, execution).Fits()) {
          executions.push_back(execution);
        }
      }
    }
  }
  return executions;
}

// Why no tiers hold it: of the last ones, which connect most.
Verdict WhyNone(const FitProblem& problem, Execution strategy) {
  const auto [tensor, pipeline, data] =
      SearchTiers(SearchOf(problem), strategy);
  strategy.tensor_par_net = tensor - 1;
  strategy.pipeline_par_net = pipeline - 1;
  strategy.data_par_net = data - 1;
  return CheckFit(problem.model, problem.system, strategy);
}

// Returns what is missing for the first stage, which needs most, where blocks
// keep nothing but their input.
MissingBytes MissingOf(const FitProblem& problem, const Execution& execution) {
  const Schedule schedule = ScheduleOf(problem.model, execution);
  const double input = BlockInputBytes(problem.model, execution);
  const MemoryNeeds needs = ComputeStageMemoryNeeds(
      execution, schedule.blocks,
      ComputeBlockCosts(problem.model, problem.system,
                        PlannedExecution(execution), AllCorrections()),
      {StageMicrobatches(schedule, 0), schedule.blocks * input, input},
      AllCorrections());
  return {std::max(0.0, needs.tier1 - problem.system.mem1.capacity),
          std::max(0.0, needs.tier2 - problem.system.mem2.capacity)};
}

std::vector<RecomputedOperator> RecomputedOn(const StagePlan& stage,
                                             const PlannedBlock& block) {
  const std::vector<Operator>& operators = block.operators.operators;
  std::vector<int64_t> blocks(operators.size(), 0);
  for (const PolicyShare& share : stage.policies) {
    const std::vector<bool> runs = RunsAgain(block.operators, share.kept);
    for (size_t i = 0; i < runs.size(); ++i) {
      if (runs[i]) blocks[i] += share.blocks;
    }
  }
  std::vector<RecomputedOperator> recomputed;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] == 0 || std::ranges::max(block.seconds[i]) <= 0) continue;
    const bool gathers = operators[i].kind == Operator::Kind::kGather;
    recomputed.push_back(
        {fmt::format("{}{}", operators[i].name, gathers ? " gather" : ""),
         blocks[i]});
  }
  return recomputed;
}

struct Planned {
  Execution execution;
  StrategyPlan plan;
};

// Finds the row of a division.
class DivisionSurvey {
 public:
  DivisionSurvey(const FitProblem& problem, const Execution& base)
      : problem_(problem), base_(base) {}

  FitRow Row() {
    FitRow row{.execution = base_};
    const std::vector<Execution> executions = OnTiers(problem_, base_);
    if (executions.empty()) {
      row.verdict = WhyNone(problem_, base_);
      return row;
    }
    System roomy = problem_.system;
    roomy.mem1.capacity = kEndless;
    Planned all_kept = *FindFastest(roomy, executions, kInfinity);
    row.all_kept_seconds = all_kept.plan.times.total;
    for (const StagePlan& stage : all_kept.plan.stages) {
      row.all_kept.push_back(stage.memory);
    }
    if (std::ranges::all_of(row.all_kept, [&](const MemoryNeeds& needs) {
          return CheckMemory(problem_.system, needs).Fits();
        })) {
      SetPlan(FitStatus::kKeepsAll, std::move(all_kept), row);
    } else if (auto planned =
                   FindFastest(problem_.system, executions, kInfinity)) {
      SetPlan(FitStatus::kRecomputes, *std::move(planned), row);
    } else {
      ChangeToFit(executions.front(), row);
    }
    return row;
  }

 private:
  const PlannedBlock& BlockOf(const Execution& execution) {
    const auto [at, is_new] = blocks_.try_emplace(
        std::pair(execution.microbatch_size, execution.tensor_par_net));
    if (is_new) {
      at->second = PlanBlock(problem_.model, problem_.system, execution);
    }
    return at->second;
  }

  // The fastest plan that fits, if one takes less than `seconds`. Executions
  // that cannot be faster are not planned.
  std::optional<Planned> FindFastest(const System& system,
                                     const std::vector<Execution>& executions,
                                     double seconds) {
    const Schedule schedule = ScheduleOf(problem_.model, executions.front());
    std::vector<std::pair<double, Execution>> by_bound;
    for (const Execution& execution : executions) {
      by_bound.emplace_back(
          LeastBatchTime(system, execution, schedule, BlockOf(execution).costs),
          execution);
    }
    std::ranges::stable_sort(by_bound, {},
                             &std::pair<double, Execution>::first);
    std::optional<Planned> fastest;
    for (const auto& [bound, execution] : by_bound) {
      if (bound >= seconds) break;
      StrategyPlan plan =
          PlanWithBlock(system, execution, schedule, BlockOf(execution));
      if (!plan.verdict.Fits()) break;  // tiers need the same memory
      if (plan.times.total >= seconds) continue;
      seconds = plan.times.total;
      fastest = {execution, std::move(plan)};
    }
    return fastest;
  }

  void SetPlan(FitStatus status, Planned planned, FitRow& row) {
    row.status = status;
    row.execution = planned.execution;
    row.changes = DescribeChanges(base_, planned.execution);
    row.plan = std::move(planned.plan);
    row.verdict = row.plan.verdict;
    const PlannedBlock& block = BlockOf(row.execution);
    for (const StagePlan& stage : row.plan.stages) {
      row.recomputed.push_back(RecomputedOn(stage, block));
    }
  }

  // Changes a division that does not fit as it is. `base` is the division on
  // tiers that hold it.
  void ChangeToFit(const Execution& base, FitRow& row) {
    std::vector<Change> fitting;
    std::optional<Planned> fastest;
    Execution closest = base;
    row.missing = MissingOf(problem_, base);
    for (const Change& change : ListChanges(problem_, base)) {
      const std::vector<Execution> executions =
          OnTiers(problem_, change.execution);
      if (executions.empty() ||
          std::ranges::any_of(fitting, [&](const Change& less) {
            return change.Contains(less, base.microbatch_size);
          })) {
        continue;
      }
      const MissingBytes missing = MissingOf(problem_, change.execution);
      if (missing.Sum() > 0) {
        if (missing.Sum() >= row.missing.Sum()) continue;
        row.missing = missing;
        closest = executions.front();
        continue;
      }
      fitting.push_back(change);
      if (auto faster =
              FindFastest(problem_.system, executions,
                          fastest ? fastest->plan.times.total : kInfinity)) {
        fastest = std::move(faster);
      }
    }
    if (fastest) {
      row.missing = {};
      SetPlan(FitStatus::kChanges, *std::move(fastest), row);
    } else {
      StrategyPlan plan =
          PlanWithBlock(problem_.system, closest,
                        ScheduleOf(problem_.model, closest), BlockOf(closest));
      SetPlan(FitStatus::kNone, {closest, std::move(plan)}, row);
    }
  }

  const FitProblem& problem_;
  const Execution& base_;
  // By microbatch size and tier of tensor parallelism.
  std::map<std::pair<int64_t, int>, PlannedBlock> blocks_;
};

bool Splits(const FitProblem& problem, const Execution& division) {
  return problem.batch_size % (division.data_par * division.microbatch_size) ==
         0;
}

// Without planning it.
bool CanFit(const FitProblem& problem, const Execution& division) {
  const auto can = [&](const Execution& strategy) {
    return !OnTiers(problem, strategy).empty() &&
           MissingOf(problem, strategy).Sum() == 0;
  };
  return can(division) || std::ranges::any_of(ListChanges(problem, division),
                                              [&](const Change& change) {
                                                return can(change.execution);
                                              });
}

}  // namespace

std::vector<Execution> ListDivisions(const FitProblem& problem) {
  std::vector<Execution> divisions = SearchUnits(SearchOf(problem));
  std::erase_if(divisions, [&](const Execution& unit) {
    const bool splits_sequence =
        problem.microbatch_size * problem.model.seq_size % unit.tensor_par == 0;
    const TensorCommType comm_type = unit.tensor_par > 1 && splits_sequence
                                         ? TensorCommType::kScattered
                                         : TensorCommType::kAllReduce;
    return unit.pipeline_interleaving != 1 ||
           unit.tensor_par_comm_type != comm_type ||
           unit.optimizer_sharding != (unit.data_par > 1);
  });
  for (Execution& division : divisions) {
    division.batch_size = problem.batch_size;
    division.microbatch_size = problem.microbatch_size;
    division.fused_activation = true;
  }
  return divisions;
}

FitSurvey SurveyFit(const FitProblem& problem,
                    const std::atomic<bool>* interrupt) {
  std::vector<Execution> divisions = ListDivisions(problem);
  FitSurvey survey;
  survey.left_out = static_cast<int64_t>(std::erase_if(
      divisions, [&](const Execution& one) { return !Splits(problem, one); }));
  survey.divisions = static_cast<int64_t>(divisions.size());
  std::vector<std::optional<FitRow>> rows(divisions.size());
  oneapi::tbb::parallel_for(size_t{0}, divisions.size(), [&](size_t i) {
    if (interrupt != nullptr && *interrupt) return;
    rows[i] = DivisionSurvey(problem, divisions[i]).Row();
  });
  for (std::optional<FitRow>& row : rows) {
    if (row) survey.rows.push_back(*std::move(row));
  }
  survey.was_interrupted = survey.rows.size() < divisions.size();
  std::ranges::stable_sort(survey.rows, {}, [](const FitRow& row) {
    const bool has_plan = !row.plan.stages.empty();
    return std::tuple(!row.Fits(), !has_plan,
                      row.Fits() ? -SampleRate(row.execution, row.plan.times)
                                 : row.missing.Sum());
  });
  return survey;
}

std::optional<int64_t> FindEnoughProcessors(FitProblem problem) {
  constexpr int kMostDoublings = 10;
  for (int i = 0; i < kMostDoublings; ++i) {
    problem.num_procs *= 2;
    problem.batch_size *= 2;
    if (std::ranges::any_of(
            ListDivisions(problem), [&](const Execution& division) {
              return Splits(problem, division) && CanFit(problem, division);
            })) {
      return problem.num_procs;
    }
  }
  return std::nullopt;
}

}  // namespace acplan::costmodel
