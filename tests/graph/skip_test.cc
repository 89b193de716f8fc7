#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/trace/needs.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "tests/graph/naive_simulation.h"
#include "tests/graph/random_units.h"
#include "tests/support/random_step.h"

namespace acplan::graph {
namespace {

using test_support::RandomStep;

TEST(Skip, WhatNobodyNeedsCostsNothingToLeaveOut) {
  std::mt19937 random(11);
  int compared = 0, cheaper = 0, smaller = 0;
  for (int round = 0; round < 1500; ++round) {
    SCOPED_TRACE(round);
    const Trace trace = RandomStep(random, RandomOptions(random));
    const NeedDrivenPolicies needs(trace);
    std::vector<CheckpointedModule> all, needed;
    for (const RandomUnit& unit : UnitsByChance(trace, random)) {
      const std::vector<char> saves = RandomSaves(unit.length, random);
      all.push_back(AllOthersRunAgain(unit.module, saves));
      if (!Accepted(trace, all)) {
        all.pop_back();
        continue;
      }
      needed.push_back(needs.Of(unit.module, saves));
    }
    if (all.empty()) continue;
    ++compared;
    const Simulation with = Simulate(trace, all);
    const Simulation without = Simulate(trace, needed);
    EXPECT_LE(without.peak_bytes, with.peak_bytes);
    EXPECT_LE(without.recompute_ms, with.recompute_ms + 1e-9);
    cheaper += without.recompute_ms < with.recompute_ms - 1e-9 ? 1 : 0;
    smaller += without.peak_bytes < with.peak_bytes ? 1 : 0;
    EXPECT_TRUE(SavesViews(trace, all) || ComputesTheSame(trace, needed));
    ExpectTheSame(without, SimulateNaively(trace, needed));
    if (HasFailure()) break;
  }
  EXPECT_GT(compared, 1000);
  EXPECT_GT(cheaper, 200);
  EXPECT_GT(smaller, 100);
}

class RealSteps : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, RealSteps,
                         ::testing::Values("gpt2", "llama", "bert", "t5", "vit",
                                           "swin", "mixtral", "transformer",
                                           "noted", "writing", "resnet", "unet",
                                           "custom", "shared", "segformer"));

TEST_P(RealSteps, NeedNoMoreThanIsSaidToBeNeeded) {
  const Trace trace = ReadTrace(std::string(ACPLAN_TEST_DATA_DIR "/traces/") +
                                GetParam() + ".trace.json.gz");
  const Simulator simulator(trace);
  const NeedDrivenPolicies needs(trace);
  const bool is_plain =
      trace.kept.empty() &&
      std::ranges::all_of(trace.operators, [](const TraceOperator& op) {
        return op.recasts.empty();
      });
  std::mt19937 random(14);
  int compared = 0;
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    std::vector<CheckpointedModule> all, needed;
    for (const RandomUnit& unit : UnitsByChance(trace, random)) {
      const std::vector<char> saves = RandomSaves(unit.length, random);
      all.push_back(AllOthersRunAgain(unit.module, saves));
      if (!Accepted(trace, all)) {
        all.pop_back();
        continue;
      }
      needed.push_back(needs.Of(unit.module, saves));
    }
    if (all.empty()) continue;
    ++compared;
    const Simulation with = simulator.Simulate(all);
    const Simulation without = simulator.Simulate(needed);
    EXPECT_LE(without.peak_bytes, with.peak_bytes);
    EXPECT_LE(without.recompute_ms, with.recompute_ms + 1e-9);
    if (is_plain) {
      ExpectTheSame(with, SimulateNaively(trace, all));
      ExpectTheSame(without, SimulateNaively(trace, needed));
      EXPECT_TRUE(SavesViews(trace, all) || ComputesTheSame(trace, needed));
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(compared, 5);
}

// The operators that run again, views apart, which cost nothing.
std::set<int32_t> RunningAgain(const Simulation& simulation,
                               const Trace& trace) {
  std::set<int32_t> running;
  for (const Simulation::Step& step : simulation.steps) {
    if (step.redone >= 0 && !trace.operators[step.op].view) {
      running.insert(step.op);
    }
  }
  return running;
}

// Of all that could be skipped beside what is saved, and of all results that
// could be left out.
TEST(Skip, NothingMoreCanBeLeftOut) {
  std::mt19937 random(12);
  int plans = 0, results = 0;
  for (int round = 0; round < 600; ++round) {
    SCOPED_TRACE(round);
    const Trace trace = RandomStep(random, RandomOptions(random));
    const Simulator simulator(trace);
    const NeedDrivenPolicies needs(trace);
    for (const RandomUnit& unit : UnitsByChance(trace, random)) {
      if (unit.length > 8) continue;
      const std::vector<char> saves = RandomSaves(unit.length, random);
      CheckpointedModule some = AllOthersRunAgain(unit.module, saves);
      if (!Accepted(trace, {some}) || SavesViews(trace, {some})) continue;
      const CheckpointedModule least = needs.Of(unit.module, saves);
      const std::set<int32_t> running =
          RunningAgain(simulator.Simulate({least}), trace);
      for (int32_t mask = 0; mask < 1 << unit.length; ++mask) {
        bool is_of_saves = true;
        for (int32_t k = 0; k < unit.length; ++k) {
          const bool is_set = (mask >> k & 1) != 0;
          is_of_saves = is_of_saves && !(is_set && saves[k] != 0);
          some.decisions[k] =
              is_set ? OperatorDecision::kSkip : SaveOrRecompute(saves[k] != 0);
        }
        if (!is_of_saves) continue;
        const std::optional<Simulation> use = Accepted(trace, {some});
        if (!use) continue;
        ++plans;
        const std::set<int32_t> others = RunningAgain(*use, trace);
        ASSERT_TRUE(std::ranges::includes(others, running)) << mask;
        ASSERT_TRUE(ComputesTheSame(trace, {some})) << mask;
      }
      for (const auto& [place, kept] : least.kept_results) {
        for (size_t k = 0; k < kept.size(); ++k) {
          CheckpointedModule fewer = least;
          std::vector<int32_t>& left = fewer.kept_results[place];
          left.erase(left.begin() + static_cast<std::ptrdiff_t>(k));
          ++results;
          // Another result may be a view of the same storage.
          if (Accepted(trace, {fewer})) {
            EXPECT_TRUE(ComputesTheSame(trace, {fewer}));
          }
        }
      }
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(plans, 2000);
  EXPECT_GT(results, 20);
}

// Decisions by chance, those that compute with a stand-in among them.
TEST(Skip, IsAsPlainlyPlayed) {
  std::mt19937 random(13);
  int accepted = 0, refused = 0, skipped = 0;
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    const Trace trace = RandomStep(random, RandomOptions(random));
    const NeedDrivenPolicies needs(trace);
    std::vector<CheckpointedModule> units;
    for (const RandomUnit& at : UnitsByChance(trace, random)) {
      const std::vector<char> saves = RandomSaves(at.length, random);
      CheckpointedModule unit = needs.Of(at.module, saves);
      // Some decisions more, up to all.
      const auto one_in = 1 + random() % 8;
      for (int32_t k = 0; k < at.length; ++k) {
        if (random() % one_in != 0) continue;
        unit.decisions[k] = static_cast<OperatorDecision>(random() % 3);
        unit.kept_results.erase(k);
      }
      units.push_back(std::move(unit));
      if (Accepted(trace, units)) continue;
      ++refused;
      units.pop_back();
    }
    if (units.empty()) continue;
    ++accepted;
    for (const CheckpointedModule& unit : units) {
      skipped += static_cast<int>(
          std::ranges::count(unit.decisions, OperatorDecision::kSkip));
    }
    ExpectTheSame(Simulate(trace, units), SimulateNaively(trace, units));
    EXPECT_TRUE(SavesViews(trace, units) || ComputesTheSame(trace, units));
    if (HasFailure()) break;
  }
  EXPECT_GT(accepted, 1500);
  EXPECT_GT(refused, 500);
  EXPECT_GT(skipped, 3000);
}

}  // namespace
}  // namespace acplan::graph
