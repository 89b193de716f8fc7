#include "problems/plan/rank_peak.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/plan/trace_memory.h"
#include "tests/support/random_trace.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using graph::CheckpointedModule;
using graph::MemoryKind;
using graph::PeakAccount;
using graph::StorageCategory;
using graph::Trace;
using test_support::Enough;
using test_support::RandomTrace;
using test_support::Repetitions;

MemoryOptions RankByChance(const Trace& trace, std::mt19937& random) {
  MemoryOptions options = {.model = MemoryModel::kTrace,
                           .world_size = int64_t{1} << random() % 4};
  for (const graph::TraceModule& module : trace.modules) {
    if (random() % 3 == 0) options.fsdp_units.push_back(module.fqn);
  }
  return options;
}

// Returns no module or one, all of which runs again.
std::vector<CheckpointedModule> UnitByChance(const Trace& trace,
                                             std::mt19937& random) {
  if (random() % 3 == 0) return {};
  return {{.module =
               graph::IdAt<graph::ModuleId>(random() % trace.modules.size())}};
}

std::optional<graph::DetailedSimulation> Accepted(
    const Trace& trace, const std::vector<CheckpointedModule>& modules) {
  try {
    return graph::Simulator(trace).SimulateInDetail(modules);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// The sums are checked against those by category, which are running sums over
// the step: parameters with gathered ones, gradients, optimizer state and the
// rest.
TEST(RankPeak, AddsUpToThePeakThatPlansAreMadeWith) {
  std::mt19937 random(41);
  int plan_count = 0;
  int gathered = 0;
  for (int i = 0; i < Repetitions(600); ++i) {
    const Trace trace = RandomTrace(random, 30);
    const MemoryOptions options = RankByChance(trace, random);
    const auto modules = UnitByChance(trace, random);
    const auto detail = Accepted(trace, modules);
    if (!detail || detail->simulation.peak_step == graph::kNone) continue;
    const auto of_rank =
        OnRank(detail->simulation, BytesOfRank(trace, options));
    const PeakAccount account = AccountForPeakOfRank(trace, modules, options);
    EXPECT_EQ(account.peak_bytes, of_rank.peak_bytes);
    EXPECT_EQ(account.SumOfBytes(), of_rank.peak_bytes);
    ASSERT_EQ(account.step_id, of_rank.peak_step);
    const graph::Time time = TimesOf(of_rank)[account.step_id];
    CategoryBytes expected =
        BytesOfRankByCategory(trace, options)[graph::OperatorAt(time)];
    const graph::LiveBytes& live = detail->by_kind[account.step_id];
    CategoryBytes sums = {};
    for (size_t c = 0; c < graph::kStorageCategories; ++c) {
      expected[c] += live[c];
    }
    for (const graph::PeakStorage& storage : account.storages) {
      const auto category = trace.storages[storage.storage].category;
      const bool is_gathered = storage.kind == MemoryKind::kGathered;
      sums[static_cast<size_t>(is_gathered ? StorageCategory::kParameter
                                           : category)] += storage.bytes;
      gathered += is_gathered;
    }
    for (const auto category :
         {StorageCategory::kParameter, StorageCategory::kGradient,
          StorageCategory::kOptimizer}) {
      EXPECT_EQ(sums[static_cast<size_t>(category)],
                expected[static_cast<size_t>(category)]);
    }
    plan_count += detail->simulation.recompute_ms > 0;
  }
  EXPECT_GT(plan_count, Enough(20));
  EXPECT_GT(gathered, Enough(20));
}

TEST(RankPeak, StoragesAddUpAtEveryOperator) {
  std::mt19937 random(42);
  for (int i = 0; i < Repetitions(200); ++i) {
    const Trace trace = RandomTrace(random, 25);
    const MemoryOptions options = RankByChance(trace, random);
    const auto bytes = BytesOfRank(trace, options);
    for (const graph::OperatorId op : bytes.ids()) {
      const auto parts = BytesOfRankByStorage(trace, options, op);
      EXPECT_EQ(bytes[op],
                std::accumulate(parts.begin(), parts.end(), int64_t{0},
                                [](int64_t sum, const RankBytes& b) {
                                  return sum + b.bytes;
                                }));
    }
  }
}

TEST(RankPeak, NoPlanIsBelowTheFloor) {
  std::mt19937 random(43);
  int met = 0;
  for (int i = 0; i < Repetitions(400); ++i) {
    const Trace trace = RandomTrace(random, 25);
    const MemoryOptions options = RankByChance(trace, random);
    const graph::PeakFloor floor = FindPeakFloorOfRank(trace, options);
    const auto detail = Accepted(trace, UnitByChance(trace, random));
    if (!detail) continue;
    const auto of_rank =
        OnRank(detail->simulation, BytesOfRank(trace, options));
    ASSERT_GE(of_rank.peak_bytes, floor.bytes);
    met += of_rank.peak_bytes == floor.bytes && options.world_size > 1;
  }
  EXPECT_GT(met, Enough(10));
}

TEST(RankPeak, OneRankIsOneDevice) {
  std::mt19937 random(44);
  const Trace trace = RandomTrace(random, 30);
  const MemoryOptions one = {.model = MemoryModel::kTrace};
  const PeakAccount account = AccountForPeakOfRank(trace, {}, one);
  EXPECT_EQ(account.storages, graph::AccountForPeak(trace, {}).storages);
  EXPECT_EQ(FindPeakFloorOfRank(trace, one).bytes,
            graph::FindPeakFloor(trace).bytes);
}

}  // namespace
}  // namespace acplan::problems
