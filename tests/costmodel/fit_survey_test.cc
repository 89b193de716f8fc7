#include "costmodel/search/fit_survey.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <tuple>

#include "costmodel/llm/evaluation.h"
#include "costmodel/llm/records.h"
#include "tests/costmodel/golden_data.h"

namespace acplan::costmodel {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

FitProblem ProblemOf(const std::string& model, int64_t num_procs,
                     double capacity, int64_t microbatch_size = 1) {
  FitProblem problem;
  problem.model = GoldenModel("models/" + model + ".json");
  problem.system = GoldenSystem("systems/a100_80g.json");
  problem.system.mem1.capacity = capacity;
  problem.num_procs = num_procs;
  problem.batch_size = num_procs * microbatch_size;
  problem.microbatch_size = microbatch_size;
  return problem;
}

// All kinds of answers are among them.
std::vector<FitProblem> Problems() {
  std::vector<FitProblem> problems = {
      ProblemOf("megatron-22B", 16, 80 * kGiB),
      ProblemOf("megatron-22B", 16, 30 * kGiB, 4),
      ProblemOf("megatron-22B", 8, 12 * kGiB, 2),
      ProblemOf("gpt3-13B", 12, 40 * kGiB),
      ProblemOf("turing-530B", 40, 80 * kGiB)};
  problems.push_back(problems[1]);
  problems.back().system.mem2.capacity = 0;
  problems.push_back(problems[2]);
  problems.back().system.mem2.capacity = 40 * kGiB;
  return problems;
}

std::string NameOf(const Execution& execution) {
  return ToJson(execution).dump();
}

// A degree of 1 is on the first tier, as in searches.
std::vector<Execution> OnAllTiers(const FitProblem& problem, Execution e) {
  const int tiers = static_cast<int>(problem.system.networks.size());
  const auto tiers_of = [&](int64_t degree) { return degree > 1 ? tiers : 1; };
  std::vector<Execution> executions;
  for (int t = 0; t < tiers_of(e.tensor_par); ++t) {
    for (int p = 0; p < tiers_of(e.pipeline_par); ++p) {
      for (int d = 0; d < tiers_of(e.data_par); ++d) {
        e.tensor_par_net = t;
        e.pipeline_par_net = p;
        e.data_par_net = d;
        if (CheckFit(problem.model, problem.system, e).Fits()) {
          executions.push_back(e);
        }
      }
    }
  }
  return executions;
}

// Seconds of the fastest plan on any tiers; endless where none fits.
double LeastSeconds(const FitProblem& problem, const Execution& strategy) {
  double least = std::numeric_limits<double>::infinity();
  for (const Execution& e : OnAllTiers(problem, strategy)) {
    const StrategyPlan plan = PlanStrategy(problem.model, problem.system, e);
    if (plan.verdict.Fits()) least = std::min(least, plan.times.total);
  }
  return least;
}

bool CanFit(const FitProblem& problem, const Execution& strategy) {
  return LeastSeconds(problem, strategy) <
         std::numeric_limits<double>::infinity();
}

Execution WithoutChanges(const FitProblem& problem, const FitRow& row) {
  Execution base = row.execution;
  base.weight_offload = false;
  base.activations_offload = false;
  base.optimizer_offload = false;
  base.microbatch_size = problem.microbatch_size;
  return base;
}

TEST(FitSurvey, DivisionsAreThoseOfASearch) {
  const FitProblem problem = ProblemOf("gpt3-13B", 24, 80 * kGiB);
  std::set<std::tuple<int64_t, int64_t, int64_t>> expected;
  for (int64_t t = 1; t <= 24; ++t) {
    for (int64_t p = 1; p <= 24; ++p) {
      const bool divides = 24 % (t * p) == 0 && problem.model.hidden % t == 0 &&
                           problem.model.attn_heads % t == 0;
      if (divides && p <= problem.model.num_blocks) {
        expected.insert({t, p, 24 / t / p});
      }
    }
  }
  std::vector<std::tuple<int64_t, int64_t, int64_t>> found;
  for (const Execution& e : ListDivisions(problem)) {
    found.emplace_back(e.tensor_par, e.pipeline_par, e.data_par);
    EXPECT_EQ(e.IsSequenceParallel(), e.tensor_par > 1);
    EXPECT_EQ(e.optimizer_sharding, e.data_par > 1);
    EXPECT_EQ(e.pipeline_interleaving, 1);
  }
  EXPECT_THAT(found, testing::UnorderedElementsAreArray(expected));
}

TEST(FitSurvey, RowsAreThePlansOfTheirStrategies) {
  for (const FitProblem& problem : Problems()) {
    const FitSurvey survey = SurveyFit(problem);
    EXPECT_EQ(survey.rows.size(), survey.divisions);
    for (const FitRow& row : survey.rows) {
      SCOPED_TRACE(NameOf(row.execution));
      if (row.plan.stages.empty()) continue;
      const StrategyPlan plan =
          PlanStrategy(problem.model, problem.system, row.execution);
      EXPECT_EQ(plan.verdict.Fits(), row.Fits());
      EXPECT_EQ(plan.times.total, row.plan.times.total);
      ASSERT_EQ(plan.stages.size(), row.plan.stages.size());
      ASSERT_EQ(plan.stages.size(), row.all_kept.size());
      double most = 0;
      for (size_t i = 0; i < plan.stages.size(); ++i) {
        EXPECT_EQ(plan.stages[i].memory.tier1, row.plan.stages[i].memory.tier1);
        most = std::max(most, row.plan.stages[i].memory.tier1);
      }
      if (row.Fits()) {
        EXPECT_LE(most, problem.system.mem1.capacity);
        EXPECT_DOUBLE_EQ(row.plan.times.total,
                         LeastSeconds(problem, row.execution));
      }
    }
  }
}

// Returns the bytes of a block's activations that an evaluation keeps though
// nothing but other kept ones is made from them.
double UnreadBytes(const FitProblem& problem, const Execution& execution) {
  double bytes = 0;
  for (const KeepableTensor& tensor :
       ListOperators(problem.model, problem.system, execution).tensors) {
    if (!tensor.is_required) bytes += tensor.bytes;
  }
  return bytes;
}

TEST(FitSurvey, AllThatIsKeptIsAnEvaluationWithoutRecomputation) {
  int keeping = 0;
  for (const FitProblem& problem : Problems()) {
    for (const FitRow& row : SurveyFit(problem).rows) {
      if (row.all_kept.empty()) continue;
      SCOPED_TRACE(NameOf(row.execution));
      const Execution base = WithoutChanges(problem, row);
      const Evaluation evaluation =
          Evaluate(problem.model, problem.system, base, AllCorrections());
      const Schedule schedule = ScheduleOf(problem.model, base);
      const double unread =
          UnreadBytes(problem, base) *
          (schedule.blocks * StageMicrobatches(schedule, 0) - 1);
      EXPECT_NEAR(row.all_kept.front().tier1 + unread, evaluation.memory.tier1,
                  1e-9 * evaluation.memory.tier1);
      EXPECT_EQ(row.status == FitStatus::kKeepsAll,
                row.all_kept.front().tier1 <= problem.system.mem1.capacity);
      if (row.status != FitStatus::kKeepsAll) continue;
      EXPECT_EQ(row.plan.times.total, row.all_kept_seconds);
      for (const auto& recomputed : row.recomputed) {
        EXPECT_THAT(recomputed, testing::IsEmpty());
      }
      if (!evaluation.verdict.Fits()) continue;
      ++keeping;
      // A plan counts stages with fewer blocks as faster.
      EXPECT_LE(row.plan.times.total, evaluation.times.total * (1 + 1e-9));
      EXPECT_GE(row.plan.times.total, evaluation.times.total * 0.9);
    }
  }
  EXPECT_GT(keeping, 0);
}

TEST(FitSurvey, WhatRecomputesMust) {
  int recomputing = 0;
  for (const FitProblem& problem : Problems()) {
    for (const FitRow& row : SurveyFit(problem).rows) {
      if (row.status != FitStatus::kRecomputes) continue;
      SCOPED_TRACE(NameOf(row.execution));
      ++recomputing;
      EXPECT_THAT(row.changes, testing::IsEmpty());
      EXPECT_GE(row.plan.times.total, row.all_kept_seconds);
      ASSERT_FALSE(row.recomputed.front().empty());
      for (size_t i = 0; i < row.recomputed.size(); ++i) {
        for (const RecomputedOperator& one : row.recomputed[i]) {
          EXPECT_GT(one.blocks, 0);
          EXPECT_LE(one.blocks, row.plan.stages[i].blocks);
        }
      }
    }
  }
  EXPECT_GT(recomputing, 0);
}

// All strategies that change no more than is looked through.
std::vector<Execution> Alternatives(const FitProblem& problem,
                                    const Execution& base) {
  std::vector<Execution> all;
  for (int64_t size = 1; size <= base.microbatch_size; ++size) {
    if (base.microbatch_size % size != 0) continue;
    for (int flags = 0; flags < (problem.system.mem2.capacity > 0 ? 8 : 1);
         ++flags) {
      Execution e = base;
      e.microbatch_size = size;
      e.weight_offload = (flags & 1) != 0;
      e.activations_offload = (flags & 2) != 0;
      e.optimizer_offload = (flags & 4) != 0;
      all.push_back(e);
    }
  }
  return all;
}

// Returns whether `part` changes nothing but what `whole` changes too.
bool IsPart(const Execution& part, const Execution& whole,
            const Execution& base) {
  return (!part.weight_offload || whole.weight_offload) &&
         (!part.activations_offload || whole.activations_offload) &&
         (!part.optimizer_offload || whole.optimizer_offload) &&
         (part.microbatch_size == base.microbatch_size ||
          part.microbatch_size == whole.microbatch_size);
}

TEST(FitSurvey, AChangeIsNeededAndTheFastest) {
  int changed = 0;
  for (const FitProblem& problem : Problems()) {
    for (const FitRow& row : SurveyFit(problem).rows) {
      if (row.status != FitStatus::kChanges) continue;
      SCOPED_TRACE(NameOf(row.execution));
      ++changed;
      EXPECT_FALSE(row.changes.empty());
      const Execution base = WithoutChanges(problem, row);
      EXPECT_FALSE(CanFit(problem, base));
      std::vector<Execution> fitting;
      for (const Execution& e : Alternatives(problem, base)) {
        if (CanFit(problem, e)) fitting.push_back(e);
      }
      double least = std::numeric_limits<double>::infinity();
      for (const Execution& e : fitting) {
        const auto is_less = [&](const Execution& other) {
          return !(other == e) && IsPart(other, e, base);
        };
        if (std::ranges::none_of(fitting, is_less)) {
          least = std::min(least, LeastSeconds(problem, e));
        }
      }
      EXPECT_DOUBLE_EQ(row.plan.times.total, least);
      for (const Execution& e : fitting) {
        const bool is_part = IsPart(e, row.execution, base);
        const bool is_all = IsPart(row.execution, e, base);
        EXPECT_TRUE(!is_part || is_all) << NameOf(e);
      }
    }
  }
  EXPECT_GT(changed, 3);
}

TEST(FitSurvey, WhereNothingHelpsLeastIsMissing) {
  int none = 0;
  for (const FitProblem& problem : Problems()) {
    for (const FitRow& row : SurveyFit(problem).rows) {
      if (row.Fits() || row.plan.stages.empty()) continue;
      SCOPED_TRACE(NameOf(row.execution));
      ++none;
      const MemoryNeeds& memory = row.plan.stages.front().memory;
      EXPECT_NEAR(row.missing.tier1,
                  std::max(0.0, memory.tier1 - problem.system.mem1.capacity),
                  1);
      EXPECT_NEAR(row.missing.tier2,
                  std::max(0.0, memory.tier2 - problem.system.mem2.capacity),
                  1);
      EXPECT_GT(row.missing.Sum(), 0);
      for (const Execution& e :
           Alternatives(problem, WithoutChanges(problem, row))) {
        EXPECT_FALSE(CanFit(problem, e)) << NameOf(e);
      }
    }
  }
  EXPECT_GT(none, 0);
}

TEST(FitSurvey, TheBestIsFirst) {
  for (const FitProblem& problem : Problems()) {
    const std::vector<FitRow> rows = SurveyFit(problem).rows;
    EXPECT_TRUE(std::ranges::is_sorted(rows, {}, [](const FitRow& row) {
      return std::pair(!row.Fits(), row.Fits() ? row.plan.times.total : 0.0);
    }));
  }
}

TEST(FitSurvey, WhatDoesNotSplitTheBatchIsLeftOut) {
  FitProblem problem = ProblemOf("megatron-22B", 16, 80 * kGiB);
  problem.batch_size = 4;
  const FitSurvey survey = SurveyFit(problem);
  for (const FitRow& row : survey.rows) EXPECT_LE(row.execution.data_par, 4);
  problem.batch_size = 16;
  EXPECT_EQ(survey.divisions + survey.left_out, SurveyFit(problem).divisions);
  EXPECT_GT(survey.left_out, 0);
}

TEST(FitSurvey, DegreesThatNoNetworkHoldsDoNotFit) {
  FitProblem problem = ProblemOf("megatron-22B", 16, 80 * kGiB);
  problem.system.networks.resize(1);  // connects 8
  for (const FitRow& row : SurveyFit(problem).rows) {
    EXPECT_FALSE(row.Fits());
    EXPECT_EQ(row.verdict.rule, Rule::kNetworkTooSmall);
  }
}

TEST(FitSurvey, AnInterruptEndsIt) {
  const std::atomic<bool> interrupt = true;
  const FitSurvey survey =
      SurveyFit(ProblemOf("megatron-22B", 16, 80 * kGiB), &interrupt);
  EXPECT_TRUE(survey.was_interrupted);
  EXPECT_THAT(survey.rows, testing::IsEmpty());
  EXPECT_GT(survey.divisions, 0);
}

TEST(FitSurvey, EnoughProcessorsAreTheFirstDoublingThatFits) {
  FitProblem problem = ProblemOf("turing-530B", 8, 80 * kGiB);
  problem.system.mem2.capacity = 0;
  ASSERT_FALSE(SurveyFit(problem).rows.front().Fits());
  const int64_t enough = FindEnoughProcessors(problem).value();
  problem.num_procs = problem.batch_size = enough;
  EXPECT_TRUE(SurveyFit(problem).rows.front().Fits());
  problem.num_procs = problem.batch_size = enough / 2;
  EXPECT_FALSE(SurveyFit(problem).rows.front().Fits());
  problem.system.mem1.capacity = kGiB / 8;
  EXPECT_EQ(FindEnoughProcessors(problem), std::nullopt);
}

}  // namespace
}  // namespace acplan::costmodel
