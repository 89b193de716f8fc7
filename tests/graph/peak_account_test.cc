#include "graph/trace/peak_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "graph/trace/trace.h"
#include "tests/graph/random_units.h"
#include "tests/support/random_trace.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using test_support::Enough;
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
  int plan_count = 0;
  for (int i = 0; i < Repetitions(8000); ++i) {
    const Trace trace = RandomTrace(random, 30);
    const auto modules = PlanByChance(trace, random);
    const auto simulation = Accepted(trace, modules);
    if (!simulation || simulation->peak_step == kNone) continue;
    plan_count += simulation->recompute_ms > 0;
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
  EXPECT_GT(plan_count, Enough(200));
}

// Plans are tried, so that a floor that is too high shows.
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
      if (simulation->peak_step == kNone) continue;
      const PeakAccount account = AccountForPeak(trace, modules);
      if (account.step.redone == kNone) {
        EXPECT_LE(account.FixedBytes(), floor.bytes);
      }
    }
  }
  EXPECT_GT(met, 20);  // otherwise the floor would be so low that it says
  // nothing
}

// The bytes fixed at an operator are those of the account there: in a trace
// whose only operator has the peak, all are needed.
TraceStorage Stored(int64_t bytes, StorageCategory category,
                    OperatorId born = kNone, Time freed = kNever) {
  TraceStorage storage;
  storage.bytes = bytes;
  storage.category = category;
  storage.born = born;
  storage.freed = freed;
  if (born != kNone) storage.scope_end = EndOf(born);
  return storage;
}

TraceCall CallOf(ModuleId module, CallId parent, Time start, Time end) {
  TraceCall call;
  call.module = module;
  call.parent = parent;
  call.start = start;
  call.end = end;
  return call;
}

TraceModule ModuleOfName(const std::string& fqn) {
  TraceModule module;
  module.fqn = fqn;
  return module;
}

TEST(PeakAccount, WhatTheOperatorNeedsIsFixed) {
  Trace trace;
  trace.modules = {ModuleOfName("root")};
  trace.modules[0_module].parameters = {0_s};
  trace.operator_names = {"mm"};
  TraceOperator product;
  product.call = 0_call;
  product.reads = {0_s, 1_s};
  product.creates = {2_s, 3_s};
  product.outputs = {2_s};
  trace.operators = {product};
  trace.calls = {CallOf(0_module, kNone, 0, 1)};
  trace.calls[0_call].inputs = {1_s};
  trace.forward_end = trace.backward_end = 1;
  trace.storages = {Stored(512, StorageCategory::kParameter),
                    Stored(1024, StorageCategory::kInput),
                    Stored(100, StorageCategory::kActivation, 0_op),
                    Stored(700, StorageCategory::kTemporary, 0_op, 1),
                    Stored(513, StorageCategory::kBuffer)};
  const PeakAccount account = AccountForPeak(trace, {});
  EXPECT_EQ(account.peak_bytes, 512 + 1024 + 512 + 1024 + 1024);
  EXPECT_EQ(account.FixedBytes(), account.peak_bytes);
  const auto kinds = account.ByKind();
  EXPECT_EQ(kinds[static_cast<size_t>(MemoryKind::kParameter)], 512);
  EXPECT_EQ(kinds[static_cast<size_t>(MemoryKind::kInput)], 1024);
  // The module of the operator, and no module.
  EXPECT_EQ(kinds[static_cast<size_t>(MemoryKind::kWorkspace)], 2048);
  EXPECT_EQ(FindPeakFloor(trace).bytes, account.peak_bytes);
}

// A storage that only autograd keeps is not there under every plan; a storage
// that autograd keeps and the operator reads is.
TEST(PeakAccount, WhatAutogradKeepsIsNotFixed) {
  Trace trace;
  trace.modules = {ModuleOfName("root")};
  trace.operator_names = {"a", "b"};
  TraceOperator make, use, back;
  make.call = use.call = 0_call;
  make.creates = make.outputs = {0_s};
  use.creates = use.outputs = {1_s};
  use.reads = {0_s};
  back.reads = {1_s};
  trace.operators = {make, use, back};
  trace.calls = {CallOf(0_module, kNone, 0, 2)};
  trace.forward_end = 2;
  trace.backward_end = 3;
  trace.storages = {Stored(1024, StorageCategory::kActivation, 0_op, 3),
                    Stored(512, StorageCategory::kActivation, 1_op, 3)};
  trace.storages[0_s].scope_end = 2;
  SavedTensor first, second;
  first.packed = second.packed = 2;
  first.call = second.call = 0_call;
  second.storage = 1_s;
  first.released = second.released = 3;
  first.unpacked = second.unpacked = 2;
  first.local_end = second.local_end = 3;
  trace.saved = {first, second};
  const PeakAccount account = AccountForPeak(trace, {});
  ASSERT_EQ(account.peak_bytes, 1536);
  EXPECT_EQ(account.ByKind()[static_cast<size_t>(MemoryKind::kSaved)], 1536);
  // At the second operator, which is the first with the peak, the program holds
  // both.
  EXPECT_EQ(account.step_id, 1_step);
  EXPECT_EQ(account.FixedBytes(), 1536);
  EXPECT_EQ(FindPeakFloor(trace).op, 1_op);
  // If it does not, the storage that backward reads is there, and the other is
  // not.
  trace.storages[0_s].scope_end = trace.storages[1_s].scope_end = 2;
  trace.operators[1_op].reads = {};
  trace.storages[0_s].scope_end = 1;
  EXPECT_EQ(AccountForPeak(trace, {}).FixedBytes(), 512);
  EXPECT_EQ(FindPeakFloor(trace).bytes, 1024);
}

// A gradient's operator is in the backward pass that began last.
TEST(ModuleOfOperatorTest, TakesTheBackwardPassThatBeganLast) {
  Trace trace;
  trace.modules = {ModuleOfName("r"), ModuleOfName("r.a"), ModuleOfName("r.b")};
  trace.operators.resize(6);
  trace.operators[0_op].call = 1_call;
  trace.operators[1_op].call = 2_call;
  trace.operator_names = {"o"};
  trace.forward_end = 2;
  trace.backward_end = 5;
  const auto add = [&](TraceCall call, Time start, Time end) {
    call.backward_start = start;
    call.backward_end = end;
    trace.calls.push_back(std::move(call));
  };
  add(CallOf(0_module, kNone, 0, 2), 2, 5);
  add(CallOf(1_module, 0_call, 0, 1), 3, 4);
  add(CallOf(2_module, 0_call, 1, 2), 2, 4);
  const ModuleOfOperator module_of(trace);
  std::vector<ModuleId> modules;
  for (const OperatorId op : trace.operators.ids()) {
    modules.push_back(module_of(op));
  }
  EXPECT_THAT(modules,
              ::testing::ElementsAre(1_module, 2_module, 2_module, 1_module,
                                     0_module, ModuleId{kNone}));
}

}  // namespace
}  // namespace acplan::graph
