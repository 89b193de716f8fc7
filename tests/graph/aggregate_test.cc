#include "graph/trace/aggregate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "graph/base/flag.h"
#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/sac_statistics.h"
#include "graph/trace/simulation.h"
#include "graph/trace/unit_refusal.h"
#include "tests/support/random_trace.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using test_support::Enough;
using test_support::RandomTrace;
using test_support::Repetitions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

using Op = TraceOperator;
using enum StorageCategory;

const Module& Find(const Profile& profile, const std::string& fqn) {
  const auto module = std::ranges::find(profile.modules, fqn, &Module::fqn);
  if (module == profile.modules.end())
    throw std::runtime_error("no module " + fqn);
  return *module;
}

std::string ErrorOf(const Trace& trace) {
  try {
    Aggregate(trace);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

// ---- Worked by hand.

TEST(Aggregate, TakesSnapshotsOfASmallStep) {
  const Profile p = Aggregate(ReadTrace(ACPLAN_SEED_TRACE));
  ASSERT_EQ(p.modules.size(), 3u);
  const Module& net = p.modules[0];
  EXPECT_EQ(net.fqn, "Net");
  EXPECT_EQ(net.snap->pre_fw,
            (MemorySnapshot{4608, 512, 0, 0, 0, 0, 2048, 7168}));
  EXPECT_EQ(net.snap->post_fw,
            (MemorySnapshot{4608, 512, 0, 1536, 0, 0, 2048, 8704}));
  EXPECT_EQ(net.snap->peak_fw,
            (MemorySnapshot{4608, 512, 0, 2560, 0, 0, 2048, 9728}));
  EXPECT_EQ(net.snap->pre_bw,
            (MemorySnapshot{4608, 512, 0, 2048, 1024, 0, 1024, 9216}));
  EXPECT_EQ(net.snap->peak_bw,
            (MemorySnapshot{4608, 512, 4096, 512, 1536, 0, 1024, 12288}));
  EXPECT_EQ(net.snap->post_bw,
            (MemorySnapshot{4608, 512, 4608, 512, 0, 0, 1024, 11264}));
  EXPECT_EQ(net.input_per_module, 1024);
  EXPECT_EQ(net.output_per_module, 1024);
  EXPECT_EQ(net.act_fw_per_module, 512);
  EXPECT_EQ(net.act_total, 1536);
  EXPECT_EQ(net.act_bw_per_module, 512);
  EXPECT_EQ(net.act_grad_per_module, 512);
  EXPECT_EQ(net.grad_total, 0);
  EXPECT_EQ(net.param_per_module, 4608);
  EXPECT_EQ(net.grad_per_module, 4608);
  EXPECT_EQ(net.buffer_per_module, 512);
  EXPECT_EQ(net.held_per_module, 0);
  EXPECT_EQ(net.fw_runtime_per_module, 0.875);
  EXPECT_EQ(net.bw_runtime_per_module, 0.875);
  EXPECT_FALSE(net.is_leaf);
  EXPECT_FALSE(net.no_backward);
  EXPECT_EQ(net.calls, 1);

  const Module& act = p.modules[2];
  EXPECT_TRUE(act.is_leaf);
  EXPECT_EQ(act.sac, std::nullopt);
  EXPECT_EQ(act.param_per_module, 0);
  EXPECT_EQ(act.bw_runtime_per_module, 0.125);
}

TEST(Aggregate, DescribesOperators) {
  const Profile p = Aggregate(ReadTrace(ACPLAN_SEED_TRACE));
  const SacStatistics& sac = *p.modules[0].sac;
  EXPECT_THAT(sac.func_names,
              ElementsAre("t", "addmm", "native_dropout", "relu_"));
  EXPECT_THAT(sac.runtimes, ElementsAre(0, 0.5, 0.25, 0.125));
  // The dropout's result is the module's and kept, its mask is not.
  EXPECT_THAT(sac.memory, ElementsAre(0, 1024, 512, 0));
  EXPECT_THAT(sac.view_like_ops, ElementsAre(0));
  EXPECT_THAT(sac.rand_ops, ElementsAre(2));
  EXPECT_THAT(sac.saved_autograd_ops, ElementsAre(0, 2, 3));
  EXPECT_THAT(sac.inplace_ops, ElementsAre(Pair(3, 2)));
  EXPECT_FALSE(sac.force_store_random);
}

TEST(Aggregate, OrdersModulesAndMeasuresTheStep) {
  const Profile p = Aggregate(ReadTrace(ACPLAN_SEED_TRACE));
  EXPECT_THAT(p.order.fw_pre, ElementsAre("Net", "Net.fc", "Net.act"));
  EXPECT_THAT(p.order.fw_post, ElementsAre("Net.fc", "Net.act", "Net"));
  EXPECT_THAT(p.order.bw_pre, ElementsAre("Net", "Net.act", "Net.fc"));
  EXPECT_THAT(p.order.bw_post, ElementsAre("Net.act", "Net.fc", "Net"));
  EXPECT_EQ(p.measured.peak_bytes, 15360);
  EXPECT_EQ(p.measured.opt_step_peak_bytes, 15360);
  EXPECT_EQ(p.measured.opt_step_peak_categories,
            (MemorySnapshot{4608, 512, 4608, 512, 0, 4096, 1024, 15360}));
  EXPECT_EQ(p.measured.param_bytes, 4608);
  EXPECT_EQ(p.measured.grad_bytes, 4608);
  EXPECT_EQ(p.measured.optimizer_bytes, 0);
  EXPECT_EQ(p.measured.buffer_bytes, 512);
  EXPECT_EQ(p.measured.input_bytes, 2048);
  EXPECT_EQ(p.model.root_class, "Net");
  EXPECT_EQ(p.device.name, "A100");
}

// Returns a root that calls a block twice. In each call f makes a storage that
// autograd saves, and g the result; h is the loss. The backward of a call frees
// what the call saved: operators 6 and 7.
Trace TwoCalls() {
  Trace t;
  t.forward_end = 5;
  t.backward_end = 8;
  t.modules = {
      {"M", "M", {}, {}}, {"M.b", "B", {}, {}}, {"M.b.x", "X", {}, {}}};
  t.operator_names = {"ns.f.default", "ns.g.default", "h"};
  t.storages = {
      {.bytes = 512, .category = kInput},
      {.bytes = 1024, .born = 0_op, .freed = 7, .scope_end = 1},
      {.bytes = 2048, .born = 1_op, .freed = 4, .scope_end = 4},
      {.bytes = 1024, .born = 2_op, .freed = 6, .scope_end = 3},
      {.bytes = 2048, .born = 3_op, .freed = 5, .scope_end = 5},
      {.bytes = 4, .born = 4_op},
      {.bytes = 4, .category = kTemporary, .born = 5_op, .freed = 6},
  };
  t.operators = {{.name = 0_name,
                  .call = 1_call,
                  .runtime_ms = 1,
                  .reads = {0_s},
                  .creates = {1_s},
                  .outputs = {1_s},
                  .mutates = {}},
                 {.name = 1_name,
                  .call = 1_call,
                  .runtime_ms = 2,
                  .reads = {1_s},
                  .creates = {2_s},
                  .outputs = {2_s},
                  .mutates = {}},
                 {.name = 0_name,
                  .call = 2_call,
                  .runtime_ms = 4,
                  .reads = {2_s},
                  .creates = {3_s},
                  .outputs = {3_s},
                  .mutates = {}},
                 {.name = 1_name,
                  .call = 2_call,
                  .runtime_ms = 8,
                  .reads = {3_s},
                  .creates = {4_s},
                  .outputs = {4_s},
                  .mutates = {}},
                 {.name = 2_name,
                  .call = 0_call,
                  .runtime_ms = 16,
                  .reads = {4_s},
                  .creates = {5_s},
                  .outputs = {5_s},
                  .mutates = {}},
                 {.name = 2_name,
                  .runtime_ms = 32,
                  .reads = {5_s},
                  .creates = {6_s},
                  .outputs = {6_s},
                  .mutates = {}},
                 {.name = 2_name,
                  .runtime_ms = 64,
                  .reads = {3_s},
                  .creates = {},
                  .outputs = {},
                  .mutates = {}},
                 {.name = 2_name,
                  .runtime_ms = 128,
                  .reads = {1_s},
                  .creates = {},
                  .outputs = {},
                  .mutates = {}}};
  t.tensors = {{0_s}, {2_s, kNone, 1_op}};
  t.operators[1_op].results = {1_t};
  t.calls = {{0_module, kNone, 0, 5, {0_s}, {5_s}, {0_t}, false, 6, 8},
             {1_module, 0_call, 0, 2, {0_s}, {2_s}, {0_t}, false, 7, 8},
             {1_module, 0_call, 2, 4, {2_s}, {4_s}, {1_t}, false, 6, 7}};
  t.saved = {{.storage = 1_s,
              .packed = 1,
              .call = 1_call,
              .unpacked = 7,
              .local_end = 8,
              .released = 8},
             {.storage = 3_s,
              .packed = 3,
              .call = 2_call,
              .unpacked = 6,
              .local_end = 7,
              .released = 7}};
  t.storages[1_s].freed = 8;
  t.storages[3_s].freed = 7;
  return ParseTrace(ToJson(t), "two_calls");
}

TEST(Aggregate, SumsOverCalls) {
  const Profile p = Aggregate(TwoCalls());
  const Module& block = Find(p, "M.b");
  EXPECT_EQ(block.calls, 2);
  EXPECT_THAT(block.sac->func_names, ElementsAre("f", "g"));
  // The last save is before g, whose results are freed before backward.
  EXPECT_THAT(block.sac->runtimes, ElementsAre(5, 0));
  EXPECT_THAT(block.sac->memory, ElementsAre(2048, 4096));
  EXPECT_EQ(block.fw_runtime_per_module, 15);
  EXPECT_EQ(block.bw_runtime_per_module, 192);
  EXPECT_EQ(block.act_fw_per_module, 2048);
  // Snapshots are of the second call. It began when the first call's result and
  // saved storage were there, and ended before that result was freed.
  EXPECT_EQ((*block.snap->pre_fw)[kAct], 3072);
  EXPECT_EQ((*block.snap->post_fw)[kAct], 6144);
  EXPECT_EQ(block.input_per_module, 2048);
  EXPECT_EQ((*block.snap->pre_bw)[kAct], 2560);
  // Frames hold the first result until backward asks for what they saved.
  EXPECT_EQ(block.held_per_module, 2048);
  EXPECT_EQ(Find(p, "M").held_per_module, 0);
  EXPECT_THAT(p.order.bw_pre, ElementsAre("M", "M.b"));
  EXPECT_EQ(p.modules.size(), 2u) << "M.b.x is never called";
}

TEST(Aggregate, NeedsCallsThatRunTheSame) {
  Trace t = TwoCalls();
  t.operators[3_op].random = true;
  EXPECT_EQ(Find(Aggregate(t), "M.b").sac, std::nullopt);
  EXPECT_FALSE(Find(Aggregate(t), "M.b").is_leaf);
}

TEST(Aggregate, CountsACallInsideItselfOnce) {
  Trace t = TwoCalls();
  t.calls[0_call].module = 1_module;
  const Profile p = Aggregate(t);
  const Module& block = Find(p, "M.b");
  EXPECT_EQ(block.calls, 3);
  EXPECT_EQ(block.fw_runtime_per_module, 31);
  EXPECT_EQ(block.bw_runtime_per_module, 192);
  EXPECT_EQ(block.sac, std::nullopt);
}

TEST(Aggregate, TellsWhatIsWrittenInPlace) {
  Trace t = TwoCalls();
  t.operators[1_op].mutates = {1_s};
  t.operators[1_op].outputs = {1_s, 2_s};
  t.operators[3_op].mutates = {3_s};
  t.operators[3_op].outputs = {3_s, 4_s};
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->inplace_ops,
              ElementsAre(Pair(1, 0)));
  // The storage is the caller's; the operator does not return it, so there is
  // no result to save.
  t.calls[1_call].arguments = t.calls[2_call].arguments = {};
  t.operators[1_op].mutates = {0_s};
  t.operators[1_op].outputs = {0_s, 2_s};
  t.operators[3_op].mutates = {2_s};
  t.operators[3_op].outputs = {2_s, 4_s};
  // An operator that reads it before that may not run again.
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->inplace_ops,
              ElementsAre(Pair(0, 0), Pair(1, 1)));
  t.operators[1_op].outputs = {2_s};
  t.operators[3_op].outputs = {4_s};
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->inplace_ops,
              ElementsAre(Pair(0, 0)));
}

TEST(Aggregate, TiesWhatReadsAResultBeforeItIsWrittenTo) {
  // One call of three operators: f makes storage 1, g reads it, h writes to it.
  Trace t = TwoCalls();
  t.calls.pop_back();
  t.calls[1_call].end = 3;
  t.operators[2_op].call = 1_call;
  t.operators[3_op].call = 0_call;
  t.saved.pop_back();
  t.operators[2_op].mutates = {1_s};
  t.operators[2_op].reads = {1_s, 2_s};
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->inplace_ops,
              ElementsAre(Pair(1, 0), Pair(2, 0)));
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->view_like_ops, IsEmpty());
  // A view has no bytes of its own.
  t.operators[1_op].view = true;
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->inplace_ops,
              ElementsAre(Pair(2, 0)));
  t.operators[1_op].view = false;
  // Only the caller's operator writes to it: nothing can be saved that this
  // operator writes to.
  t.operators[2_op].mutates = {};
  t.operators[4_op].mutates = {1_s};
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->inplace_ops, IsEmpty());
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->view_like_ops, ElementsAre(0));
}

// Saving the operator would keep none of the tensor's parts; if it runs again
// in one call, it does so in each.
TEST(Aggregate, WhatMakesASparseTensorIsNotSaved) {
  Trace t = TwoCalls();
  t.operators[0_op].opaque = true;
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->view_like_ops, ElementsAre(0));
  t.operators[2_op].opaque = true;
  t.operators[0_op].outputs = t.operators[2_op].outputs = {};
  const Profile profile = Aggregate(t);
  const SacStatistics& sac = *Find(profile, "M.b").sac;
  EXPECT_THAT(sac.view_like_ops, ElementsAre(0));
  EXPECT_THAT(sac.memory, ElementsAre(0, 4096));
  EXPECT_THAT(sac.runtimes, ElementsAre(5, 0));
  // A policy has no choice but to run it again.
  const OperatorGroups groups = GroupOperators(sac);
  EXPECT_EQ(groups.groups[groups.group_of[0]].rule, GroupRule::kRecompute);
}

TEST(Aggregate, LeavesOutWhatCannotRunAgain) {
  const Trace t = TwoCalls();
  const auto has_operators = [](const Trace& trace) {
    return Find(Aggregate(trace), "M.b").sac.has_value();
  };
  EXPECT_TRUE(has_operators(t));
  Trace without_gradients = t;
  without_gradients.calls[1_call].no_grad = true;
  without_gradients.calls[2_call].no_grad = true;
  EXPECT_FALSE(has_operators(without_gradients));
  Trace asks_again = t;
  asks_again.saved[1_saved].unpacked_again = true;
  EXPECT_FALSE(has_operators(asks_again));
  Trace casts_again = t;
  casts_again.operators[3_op].recasts = {1_op};
  EXPECT_FALSE(has_operators(casts_again));
  casts_again.operators[3_op].recasts = {2_op};
  EXPECT_TRUE(has_operators(casts_again)) << "its own cast";
  Trace writes_to_argument = t;
  writes_to_argument.operators[3_op].mutates = {2_s};
  EXPECT_FALSE(has_operators(writes_to_argument));
  writes_to_argument.calls[2_call].arguments = {};
  EXPECT_TRUE(has_operators(writes_to_argument)) << "not by position";
}

TEST(Aggregate, CallsWithoutGradientsCountForNothing) {
  Trace t = TwoCalls();
  t.calls[2_call].no_grad = true;
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->runtimes, ElementsAre(1, 0));
  t.operators[3_op].name = 2_name;
  EXPECT_TRUE(Find(Aggregate(t), "M.b").sac.has_value()) << "another operator";
}

// Makes both calls write to a storage that is there before the step.
Trace WithCounter() {
  Trace t = TwoCalls();
  const StorageId counter = t.storages.Add({.bytes = 4, .category = kBuffer});
  for (const OperatorId op : {0_op, 2_op}) {
    t.operators[op] = {.name = 2_name,
                       .call = t.operators[op].call,
                       .reads = {counter},
                       .creates = {},
                       .outputs = {counter},
                       .mutates = {counter}};
  }
  t.operators[1_op].reads = {0_s};
  t.operators[1_op].creates = {1_s, 2_s};
  t.operators[1_op].outputs = {1_s, 2_s};
  t.storages[1_s].born = 1_op;
  t.storages[1_s].scope_end = 2;
  t.operators[3_op].reads = {2_s};
  t.operators[3_op].creates = {3_s, 4_s};
  t.operators[3_op].outputs = {3_s, 4_s};
  t.storages[3_s].born = 3_op;
  t.storages[3_s].scope_end = 4;
  for (SavedTensor& saved : t.saved) {
    saved.packed = std::max(saved.packed, saved.storage == 1_s ? 2 : 4);
  }
  return t;
}

TEST(Aggregate, WhatOnlyCountsMayBeWrittenToAgain) {
  const auto refusal = [](const Trace& trace) {
    return FindUnitRefusal(CallFacts(trace), 1_module);
  };
  Trace t = WithCounter();
  EXPECT_FALSE(refusal(t).has_value());
  // An operator that reads the counter makes something of it.
  const StorageId counter = t.storages.last_id();
  for (const OperatorId op : {1_op, 3_op})
    t.operators[op].reads.push_back(counter);
  ASSERT_TRUE(refusal(t).has_value());
  EXPECT_EQ(refusal(t)->obstacle, UnitObstacle::kStateWritten);
  EXPECT_EQ(refusal(t)->op, 0_op);
  EXPECT_EQ(refusal(t)->other, 2_op);
  t.sources = {{.file = "net.py", .line = 7, .function = "forward"}};
  t.operators[0_op].source = 0_source;
  EXPECT_THAT(PlaceText(*refusal(t), t),
              HasSubstr("first by h at net.py:7, then by h"));
  EXPECT_TRUE(RefusalOfWhole(CallFacts(t), 1_module).has_value());
}

TEST(Aggregate, TellsWhyAModuleCannotRunAgain) {
  const auto obstacle = [](const Trace& trace) {
    return FindUnitRefusal(CallFacts(trace), 1_module)->obstacle;
  };
  Trace differs = TwoCalls();
  differs.operators[3_op].name = 0_name;
  EXPECT_EQ(obstacle(differs), UnitObstacle::kOtherOperators);
  EXPECT_FALSE(RefusalOfWhole(CallFacts(differs), 1_module).has_value());
  differs.operators[3_op].random = true;
  differs.calls[2_call].arguments = {};
  EXPECT_THAT(RefusalOfWhole(CallFacts(differs), 1_module).value_or(""),
              HasSubstr("draws random numbers"));
  Trace asks_again = TwoCalls();
  asks_again.saved[1_saved].unpacked_again = true;
  EXPECT_EQ(obstacle(asks_again), UnitObstacle::kAskedTwice);
  Trace casts_again = TwoCalls();
  casts_again.operators[3_op].recasts = {1_op};
  EXPECT_EQ(obstacle(casts_again), UnitObstacle::kCastAgain);
  EXPECT_FALSE(RefusalOfWhole(CallFacts(casts_again), 1_module).has_value());
}

TEST(Aggregate, StoresRandomResultsOfCallsWithoutTensorsByPosition) {
  Trace t = TwoCalls();
  EXPECT_FALSE(Find(Aggregate(t), "M.b").sac->force_store_random);
  t.calls[2_call].arguments.clear();
  EXPECT_TRUE(Find(Aggregate(t), "M.b").sac->force_store_random);
}

TEST(Aggregate, KnowsModulesWithoutBackward) {
  Trace t = TwoCalls();
  t.calls[1_call].backward_start = t.calls[1_call].backward_end = kNever;
  t.calls[2_call].backward_start = t.calls[2_call].backward_end = kNever;
  const Profile p = Aggregate(t);
  const Module& block = Find(p, "M.b");
  EXPECT_TRUE(block.no_backward);
  EXPECT_EQ(block.snap->pre_bw, std::nullopt);
  EXPECT_EQ(block.snap->peak_bw, std::nullopt);
  EXPECT_EQ(block.bw_runtime_per_module, 0);
  EXPECT_THAT(p.order.bw_pre, ElementsAre("M"));
}

TEST(Aggregate, CountsSharedParametersOnce) {
  Trace t = TwoCalls();
  t.storages.push_back({.bytes = 512, .category = kParameter});
  t.storages.push_back({.bytes = 1, .category = kParameter});
  t.modules.push_back({"M.c", "C", {7_s}, {}});
  t.modules[1_module].parameters = {7_s, 8_s};
  t.modules[2_module].parameters = {7_s, 7_s};
  const Profile p = Aggregate(t);
  EXPECT_EQ(Find(p, "M").param_per_module, 1024);
  EXPECT_EQ(Find(p, "M.b").param_per_module, 1024);
}

TEST(Aggregate, TellsWhatIsMissingOrTooMuch) {
  Trace t = TwoCalls();
  for (TraceCall& call : t.calls)
    call.backward_start = call.backward_end = kNever;
  EXPECT_THAT(ErrorOf(t), HasSubstr("backward_start"));
  t = TwoCalls();
  t.storages[0_s].bytes = int64_t{1} << 53;
  EXPECT_THAT(ErrorOf(t), HasSubstr("at most 2^53 bytes in all"));
  t = TwoCalls();
  t.operators[0_op].runtime_ms = t.operators[2_op].runtime_ms = 1e18;
  EXPECT_THAT(ErrorOf(t), HasSubstr("at most 1e18 ms"));
}

TEST(Aggregate, CountsResultsThatNobodyKeeps) {
  Trace t = TwoCalls();
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->memory, ElementsAre(2048, 4096));
  t.storages[2_s].freed = t.storages[4_s].freed = 8;
  EXPECT_THAT(Find(Aggregate(t), "M.b").sac->memory, ElementsAre(2048, 0));
}

// ---- Compared with plain loops over everything.

int64_t Rounded(int64_t bytes) { return (bytes + 511) / 512 * 512; }

int64_t LiveWhile(const Trace& trace, OperatorId op) {
  int64_t bytes = 0;
  for (const TraceStorage& s : trace.storages) {
    const Time begin = std::max(StartOf(s.born), 0);
    const Time time = StartOf(op);
    if (begin <= time && time < std::max(s.freed, begin + 1))
      bytes += Rounded(s.bytes);
  }
  return bytes;
}

using FlagOfOperator = IndexedVector<OperatorId, Flag>;

FlagOfOperator IsInCallOf(const Trace& trace, ModuleId module) {
  FlagOfOperator is_in(trace.operators.size(), false);
  for (const TraceCall& call : trace.calls)
    if (call.module == module)
      for (const OperatorId op : call.Operators()) is_in[op] = true;
  return is_in;
}

FlagOfOperator IsInBackwardOf(const Trace& trace, ModuleId module) {
  FlagOfOperator is_in(trace.operators.size(), false);
  for (const TraceCall& call : trace.calls)
    if (call.module == module && call.backward_start != kNever)
      for (const OperatorId op :
           OperatorsIn(call.backward_start, call.backward_end))
        is_in[op] = true;
  return is_in;
}

double SumOf(const Trace& trace, const FlagOfOperator& is_in) {
  double ms = 0;
  for (const OperatorId k : is_in.ids())
    if (is_in[k]) ms += trace.operators[k].runtime_ms;
  return ms;
}

int64_t MostWhile(const Trace& trace, const FlagOfOperator& is_in) {
  int64_t most = 0;
  for (const OperatorId k : is_in.ids())
    if (is_in[k]) most = std::max(most, LiveWhile(trace, k));
  return most;
}

int64_t StatesOf(const Trace& trace, const std::string& fqn,
                 std::vector<StorageId> TraceModule::*states) {
  std::set<StorageId> storages;
  for (const TraceModule& module : trace.modules)
    if (IsSelfOrSubmodule(module.fqn, fqn))
      storages.insert((module.*states).begin(), (module.*states).end());
  int64_t bytes = 0;
  for (const StorageId s : storages) bytes += Rounded(trace.storages[s].bytes);
  return bytes;
}

void ExpectAddsUp(const MemorySnapshot& snapshot) {
  EXPECT_EQ(
      std::accumulate(snapshot.begin(), snapshot.begin() + kTotal, int64_t{0}),
      snapshot[kTotal]);
  EXPECT_GE(*std::ranges::min_element(snapshot), 0);
}

// Returns the trace without the parts that a profile ignores.
Trace Plain(Trace trace) {
  for (TraceOperator& op : trace.operators) {
    op.recasts = {};
    op.mutates = {};
  }
  return trace;
}

void ExpectSound(const Trace& trace, const Module& m, ModuleId id) {
  SCOPED_TRACE(m.fqn);
  EXPECT_EQ(m.param_per_module,
            StatesOf(trace, m.fqn, &TraceModule::parameters));
  EXPECT_EQ(m.buffer_per_module, StatesOf(trace, m.fqn, &TraceModule::buffers));
  const FlagOfOperator forward = IsInCallOf(trace, id);
  const FlagOfOperator backward = IsInBackwardOf(trace, id);
  EXPECT_NEAR(m.fw_runtime_per_module, SumOf(trace, forward), 1e-6);
  EXPECT_NEAR(m.bw_runtime_per_module, SumOf(trace, backward), 1e-6);
  EXPECT_EQ(m.calls, std::ranges::count(trace.calls, id, &TraceCall::module));

  for (const auto& snapshot :
       {m.snap->pre_fw, m.snap->post_fw, m.snap->peak_fw, m.snap->pre_bw,
        m.snap->post_bw, m.snap->peak_bw})
    if (snapshot) ExpectAddsUp(*snapshot);
  // The most bytes in use at an operator or at the start.
  const int64_t most = MostWhile(trace, forward);
  EXPECT_GE((*m.snap->peak_fw)[kTotal], most);
  if ((*m.snap->peak_fw)[kTotal] > most) {
    EXPECT_EQ(m.snap->peak_fw, m.snap->pre_fw);
  }
  EXPECT_EQ(m.act_total, (*m.snap->post_fw)[kAct]);
  EXPECT_EQ(m.no_backward, !m.snap->peak_bw.has_value());
  if (m.snap->peak_bw) {
    const int64_t most_bw = MostWhile(trace, backward);
    EXPECT_GE((*m.snap->peak_bw)[kTotal], most_bw);
    if ((*m.snap->peak_bw)[kTotal] > most_bw) {
      EXPECT_EQ(m.snap->peak_bw, m.snap->pre_bw);
    }
    EXPECT_EQ(m.grad_total, (*m.snap->pre_bw)[kGrad]);
    EXPECT_EQ(m.act_bw_per_module, (*m.snap->peak_bw)[kAct]);
    EXPECT_EQ(m.act_grad_per_module,
              (*m.snap->peak_bw)[kTemp] - (*m.snap->pre_bw)[kTemp]);
  }
  if (m.calls == 1) {
    EXPECT_EQ(m.act_fw_per_module,
              std::max<int64_t>(0, (*m.snap->post_fw)[kAct] -
                                       (*m.snap->pre_fw)[kAct] -
                                       m.output_per_module));
  }
  if (m.sac) {
    EXPECT_NEAR(
        std::accumulate(m.sac->runtimes.begin(), m.sac->runtimes.end(), 0.0),
        Simulate(Plain(trace), {{.module = id}}).recompute_ms, 1e-6);
    const auto call = std::ranges::find_if(
        trace.calls,
        [&](const TraceCall& c) { return c.module == id && !c.no_grad; });
    for (const auto& [op, parent] : m.sac->inplace_ops)
      EXPECT_FALSE(trace.operators[call->AtPlace(op)].view);
    for (const auto& [op, parent] : m.sac->inplace_ops) EXPECT_LE(parent, op);
  }
}

TEST(Aggregate, AgreesWithPlainLoopsOnRandomTraces) {
  std::mt19937 random(7);
  int profiles = 0, with_operators = 0, with_many_calls = 0;
  for (int i = 0; i < Repetitions(300); ++i) {
    const Trace trace = RandomTrace(random, static_cast<int>(random() % 60));
    SCOPED_TRACE(i);
    if (ErrorOf(trace) != "accepted") continue;
    ++profiles;
    const Profile p = Aggregate(trace);
    for (const Module& m : p.modules) {
      ExpectSound(trace, m, FindModule(trace, m.fqn));
      with_operators += m.sac.has_value();
      with_many_calls += m.calls > 1;
    }
    int64_t most = 0;
    for (const OperatorId k : trace.operators.ids())
      most = std::max(most, LiveWhile(trace, k));
    if (!trace.operators.empty()) {
      EXPECT_EQ(p.measured.peak_bytes, most);
    }
    EXPECT_EQ(ParseProfile(ProfileToJson(p), "p.json"), p);
  }
  EXPECT_GT(profiles, Enough(150));
  EXPECT_GT(with_operators, Enough(100));
  EXPECT_GT(with_many_calls, Enough(100));
}

TEST(Aggregate, AgreesWithTheSimulationOfARealStep) {
  const Trace trace = ReadTrace(ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz");
  const Profile p = Aggregate(trace);
  EXPECT_EQ(p.measured.peak_bytes, trace.peak_bytes);
  EXPECT_EQ(p.measured.peak_bytes, Simulate(trace, {}).peak_bytes);
  EXPECT_EQ(ParseProfile(ProfileToJson(p), "p.json"), p);
  // Equal blocks have equal statistics; the last one's result lives longer.
  EXPECT_EQ(IdenticalBlocks(p, ModuleTree(p)).front().size(), 3u);
}

}  // namespace
}  // namespace acplan::graph
