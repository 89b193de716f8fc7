#include "costmodel/calculon/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "costmodel/calculon/llm/evaluation.h"
#include "costmodel/calculon/llm/fit.h"
#include "costmodel/calculon/llm/records.h"
#include "costmodel/calculon/search/fixed_walk.h"
#include "tests/costmodel/calculon/golden_data.h"

namespace acplan::costmodel {
namespace {

SearchProblem SmallProblem() {
  SearchProblem problem;
  problem.model = GoldenModel("custom/models/tiny-odd.json");
  problem.system = GoldenSystem("systems/a100_80g.json");
  problem.num_procs = 8;
  problem.max_batch = 12;
  problem.fused_activation = {false, true};
  return problem;
}

// Returns a problem with three tiers of the network and a second tier of
// memory, in which not everything fits.
SearchProblem TightProblem() {
  SearchProblem problem;
  problem.model = GoldenModel("models/megatron-22B.json");
  problem.system = GoldenSystem("custom/systems/roofline_4dt_3net.json");
  problem.system.mem1.capacity = 1e11;
  problem.num_procs = 2;
  problem.max_batch = 6;
  problem.system.networks.pop_back();
  return problem;
}

std::string Rows(const SearchProblem& problem, const SearchOptions& options) {
  std::string text;
  ListAll(problem, options, [&](const std::string& rows) { text += rows; });
  return text;
}

std::vector<std::string> Executions(const std::vector<Candidate>& candidates) {
  std::vector<std::string> texts;
  for (const Candidate& candidate : candidates) {
    texts.push_back(ToJson(candidate.execution).dump());
  }
  return texts;
}

TEST(SearchSpace, UnitsAreInOrder) {
  SearchProblem problem = SmallProblem();
  problem.model.num_blocks = 4;
  const std::vector<SearchUnit> units = SearchUnits(problem);
  // TP 1, PP 1, DP 8: 3 recomputations x 2 shardings x 3 communications.
  ASSERT_GT(units.size(), 18);
  EXPECT_EQ(units[0].activation_recompute, Recompute::kFull);
  EXPECT_TRUE(units[0].optimizer_sharding);
  EXPECT_EQ(units[1].tensor_par_comm_type, TensorCommType::kScatteredSend);
  EXPECT_FALSE(units[3].optimizer_sharding);
  EXPECT_EQ(units[6].activation_recompute, Recompute::kAttentionOnly);
  EXPECT_EQ(units[0].batch_size, 8);
  // Then PP 2 with interleavings 1 and 2, DP 4 with a batch of 12.
  EXPECT_EQ(units[18].pipeline_par, 2);
  EXPECT_EQ(units[18].batch_size, 12);
  EXPECT_EQ(units[18].pipeline_interleaving, 1);
  EXPECT_EQ(units[36].pipeline_interleaving, 2);
  EXPECT_TRUE(std::ranges::is_sorted(units, {}, &SearchUnit::tensor_par));
}

TEST(SearchSpace, DegreesDivide) {
  SearchProblem problem = SmallProblem();  // hidden 96, 5 blocks
  problem.num_procs = 40;
  problem.max_batch = 40;
  std::set<int64_t> tensor;
  std::set<int64_t> pipeline;
  for (const SearchUnit& unit : SearchUnits(problem)) {
    tensor.insert(unit.tensor_par);
    pipeline.insert(unit.pipeline_par);
    EXPECT_EQ(unit.tensor_par * unit.pipeline_par * unit.data_par, 40);
  }
  EXPECT_THAT(pipeline, testing::ElementsAre(1, 5));
}

TEST(SearchSpace, NothingForNoProcessorsOrNoBatch) {
  SearchProblem problem = SmallProblem();
  problem.max_batch = 0;
  EXPECT_EQ(CountSpace(problem), 0);
  EXPECT_TRUE(FindBest(problem, {}).best.empty());
  problem = SmallProblem();
  problem.num_procs = 0;
  EXPECT_EQ(CountSpace(problem), 0);
}

TEST(SearchSpace, EveryExecutionIsConsistent) {
  const SearchProblem problem = TightProblem();
  std::set<std::string> texts;
  for (const SearchUnit& unit : SearchUnits(problem)) {
    FixedWalk walk(problem, unit);
    for (const SearchVariant& variant : SearchVariants(problem, unit)) {
      walk.Run(variant, {},
               [&](const Execution& execution, int64_t, const MemoryNeeds&,
                   const BatchTimes&, const BlockCosts&) {
                 const std::string text = ToJson(execution).dump();
                 EXPECT_EQ(ParseExecution(text, "execution"), execution);
                 EXPECT_TRUE(texts.insert(text).second);
               });
    }
  }
  EXPECT_GT(texts.size(), 1000);
}

// Cached values equal computed ones.
TEST(Search, AgreesWithEvaluationsOneByOne) {
  const SearchProblem problem = TightProblem();
  int64_t visited = 0;
  for (const SearchUnit& unit : SearchUnits(problem)) {
    FixedWalk walk(problem, unit);
    for (const SearchVariant& variant : SearchVariants(problem, unit)) {
      walk.Run(
          variant, {},
          [&](const Execution& execution, int64_t, const MemoryNeeds& memory,
              const BatchTimes& times, const BlockCosts&) {
            const Evaluation alone =
                Evaluate(problem.model, problem.system, execution);
            ASSERT_TRUE(alone.verdict.Fits());
            ASSERT_EQ(alone.times.total, times.total);
            ASSERT_EQ(alone.memory.tier1, memory.tier1);
            ASSERT_EQ(alone.memory.tier2, memory.tier2);
            ++visited;
          });
    }
  }
  EXPECT_EQ(visited, FindBest(problem, {}).counts.good);
}

TEST(Search, DoesNotDependOnThreads) {
  for (const SearchProblem& problem : {SmallProblem(), TightProblem()}) {
    SearchOptions options{.top_n = 200, .threads = 1};
    const SearchOutcome alone = FindBest(problem, options);
    const std::string rows = Rows(problem, options);
    options.threads = 4;
    const SearchOutcome together = FindBest(problem, options);
    EXPECT_EQ(alone.counts, together.counts);
    EXPECT_EQ(Executions(alone.best), Executions(together.best));
    EXPECT_TRUE(rows == Rows(problem, options));
  }
}

TEST(Search, EqualRatesKeepTheOrderOfTheSpace) {
  const SearchOutcome outcome =
      FindBest(SmallProblem(), {.top_n = 3000, .threads = 3});
  int ties = 0;
  for (size_t i = 1; i < outcome.best.size(); ++i) {
    const Candidate& before = outcome.best[i - 1];
    const Candidate& after = outcome.best[i];
    ASSERT_GE(before.sample_rate, after.sample_rate);
    if (before.sample_rate != after.sample_rate) continue;
    ++ties;
    EXPECT_LT(std::tuple(before.unit, before.variant, before.index),
              std::tuple(after.unit, after.variant, after.index));
  }
  EXPECT_GT(ties, 0);
}

TEST(Search, FewerAreTheFirstOfMore) {
  const SearchProblem problem = TightProblem();
  const std::vector<Candidate> many = FindBest(problem, {.top_n = 50}).best;
  const std::vector<Candidate> few = FindBest(problem, {.top_n = 5}).best;
  ASSERT_EQ(few.size(), 5);
  EXPECT_EQ(Executions(few), Executions({many.begin(), many.begin() + 5}));
}

TEST(Search, ShardsMakeUpTheSpace) {
  for (const SearchProblem& problem : {SmallProblem(), TightProblem()}) {
    const SearchOutcome whole = FindBest(problem, {.top_n = 1'000'000});
    const std::string rows = Rows(problem, {});
    for (const int count : {1, 4, 7}) {
      SearchCounts counts;
      std::string shard_rows;
      int64_t most = 0;
      for (int index = 1; index <= count; ++index) {
        const SearchOptions options{.shard = {index, count}};
        const SearchOutcome part = FindBest(problem, options);
        EXPECT_EQ(part.counts.total, CountSpace(problem, options.shard));
        counts.total += part.counts.total;
        counts.good += part.counts.good;
        counts.bad += part.counts.bad;
        most = std::max(most, part.counts.total);
        shard_rows += Rows(problem, options);
      }
      EXPECT_EQ(counts, whole.counts);
      EXPECT_TRUE(shard_rows == rows) << count;
      EXPECT_LT(most, whole.counts.total / count + 1000);
    }
  }
}

TEST(Search, BreaksMicrobatchesOff) {
  const SearchProblem problem = TightProblem();
  const SearchOutcome all = FindBest(problem, {.top_n = 20});
  const SearchOutcome broken =
      FindBest(problem, {.top_n = 20, .breaks_microbatches = true});
  EXPECT_LT(broken.counts.total, all.counts.total);
  EXPECT_EQ(broken.counts.good, all.counts.good);
  EXPECT_EQ(Executions(broken.best), Executions(all.best));
}

TEST(Search, CountsOnly) {
  const SearchProblem problem = TightProblem();
  const SearchOutcome count_outcome = FindBest(problem, {.counts_only = true});
  EXPECT_EQ(count_outcome.counts.total, FindBest(problem, {}).counts.total);
  EXPECT_EQ(count_outcome.counts.good, 0);
  EXPECT_EQ(count_outcome.counts.bad, 0);
  EXPECT_TRUE(count_outcome.best.empty());
}

TEST(Search, AnInterruptEndsIt) {
  const std::atomic<bool> interrupt = true;
  const SearchOutcome outcome =
      FindBest(TightProblem(), {.interrupt = &interrupt});
  EXPECT_TRUE(outcome.was_interrupted);
  EXPECT_EQ(outcome.counts.total, 0);
}

TEST(Search, ReportsProgress) {
  int64_t last = 0;
  SearchOptions options;
  options.on_progress = [&](const SearchProgress& progress) {
    EXPECT_GE(progress.done_count, last);
    EXPECT_LE(progress.done_count, progress.total);
    last = progress.done_count;
  };
  const SearchOutcome outcome = FindBest(TightProblem(), options);
  EXPECT_GT(last, 0);
  EXPECT_LE(last, outcome.counts.total);
}

}  // namespace
}  // namespace acplan::costmodel
