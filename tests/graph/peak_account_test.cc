#include "graph/trace/peak_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "graph/trace/trace.h"
#include "tests/graph/random_units.h"
#include "tests/support/random_trace.h"
#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using test_support::RandomTrace;
using test_support::Repetitions;

std::vector<CheckpointedModule> PlanByChance(const Trace& trace,
                                             std::mt19937& random) {
  std::vector<CheckpointedModule> modules;
  for (const RandomUnit& unit : UnitsByChance(trace, random, true)) {
    modules.push_back(
        AllOthersRunAgain(unit.module, RandomSaves(unit.length, random)));
  }
  return modules;
}

// The sum is checked against another account of the same peak: by category.
TEST(PeakAccount, AddsUpToThePeakUnderAnyPlan) {
  std::mt19937 random(31);
  int planned = 0;
  for (int i = 0; i < Repetitions(400); ++i) {
    const Trace trace = RandomTrace(random, 30);
    const auto modules = PlanByChance(trace, random);
    const auto simulation = Accepted(trace, modules);
    if (!simulation || simulation->peak_step < 0) continue;
    planned += simulation->recompute_ms > 0;
    const PeakAccount account = AccountForPeak(trace, modules);
    EXPECT_EQ(account.peak_bytes, simulation->peak_bytes);
    EXPECT_EQ(account.step, simulation->steps[simulation->peak_step]);
    std::array<int64_t, kStorageCategories> by_category = {};
    for (const PeakStorage& storage : account.storages) {
      by_category[static_cast<size_t>(
          trace.storages[storage.storage].category)] += storage.bytes;
    }
    EXPECT_EQ(by_category, simulation->peak_by_category);
    const auto kinds = account.ByKind();
    EXPECT_EQ(std::accumulate(kinds.begin(), kinds.end(), int64_t{0}),
              simulation->peak_bytes);
  }
  EXPECT_GT(planned, 20);
}

// Plans are tried, so that a floor that is too high is found.
TEST(PeakAccount, NoPlanIsBelowTheFloor) {
  std::mt19937 random(32);
  int met = 0;
  for (int i = 0; i < Repetitions(400); ++i) {
    const Trace trace = RandomTrace(random, 25);
    const PeakFloor floor = FindPeakFloor(trace);
    for (int k = 0; k < 5; ++k) {
      const auto modules = k == 0 ? std::vector<CheckpointedModule>()
                                  : PlanByChance(trace, random);
      const auto simulation = Accepted(trace, modules);
      if (!simulation) continue;
      ASSERT_GE(simulation->peak_bytes, floor.bytes);
      met += simulation->peak_bytes == floor.bytes;
      if (simulation->peak_step < 0) continue;
      const PeakAccount account = AccountForPeak(trace, modules);
      if (account.step.redone < 0) {
        EXPECT_LE(account.FixedBytes(), floor.bytes);
      }
    }
  }
  EXPECT_GT(met, 20);  // else it would be too low to say anything
}

// What is fixed at an operator is what the account there says: of the trace
// whose only operator has the peak, all is needed.
TEST(PeakAccount, WhatTheOperatorNeedsIsFixed) {
  Trace trace;
  trace.modules = {{.fqn = "root", .class_name = "Root", .parameters = {0}}};
  trace.operator_names = {"mm"};
  trace.operators = {
      {.call = 0, .reads = {0, 1}, .creates = {2, 3}, .outputs = {2}}};
  trace.calls = {{.module = 0, .start = 0, .end = 1, .inputs = {1}}};
  trace.forward_end = trace.backward_end = 1;
  trace.storages = {{.bytes = 512, .category = StorageCategory::kParameter},
                    {.bytes = 1024, .category = StorageCategory::kInput},
                    {.bytes = 100,
                     .category = StorageCategory::kActivation,
                     .born = 0,
                     .scope_end = 1},
                    {.bytes = 700,
                     .category = StorageCategory::kTemporary,
                     .born = 0,
                     .freed = 1,
                     .scope_end = 1},
                    {.bytes = 513, .category = StorageCategory::kBuffer}};
  const PeakAccount account = AccountForPeak(trace, {});
  EXPECT_EQ(account.peak_bytes, 512 + 1024 + 512 + 1024 + 1024);
  EXPECT_EQ(account.FixedBytes(), account.peak_bytes);
  const auto kinds = account.ByKind();
  EXPECT_EQ(kinds[static_cast<size_t>(MemoryKind::kParameter)], 512);
  EXPECT_EQ(kinds[static_cast<size_t>(MemoryKind::kInput)], 1024);
  EXPECT_EQ(kinds[static_cast<size_t>(MemoryKind::kSaved)], 512);
  // That of the operator, and that of no module.
  EXPECT_EQ(kinds[static_cast<size_t>(MemoryKind::kWorkspace)], 2048);
  EXPECT_EQ(FindPeakFloor(trace).bytes, account.peak_bytes);
}

// A gradient's operator is in the backward pass that began last.
TEST(ModuleOfOperatorTest, TakesTheBackwardPassThatBeganLast) {
  Trace trace;
  trace.modules = {{.fqn = "r"}, {.fqn = "r.a"}, {.fqn = "r.b"}};
  trace.operators = {{.call = 1}, {.call = 2}, {}, {}, {}, {}};
  trace.operator_names = {"o"};
  trace.forward_end = 2;
  trace.backward_end = 5;
  trace.calls = {{.module = 0,
                  .start = 0,
                  .end = 2,
                  .backward_start = 2,
                  .backward_end = 5},
                 {.module = 1,
                  .parent = 0,
                  .start = 0,
                  .end = 1,
                  .backward_start = 3,
                  .backward_end = 4},
                 {.module = 2,
                  .parent = 0,
                  .start = 1,
                  .end = 2,
                  .backward_start = 2,
                  .backward_end = 4}};
  const ModuleOfOperator module_of(trace);
  std::vector<int32_t> found;
  for (int32_t op = 0; op < 6; ++op) found.push_back(module_of(op));
  EXPECT_THAT(found, ::testing::ElementsAre(1, 2, 2, 1, 0, -1));
}

}  // namespace
}  // namespace acplan::graph
