#include "graph/trace/segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using test_support::Enough;
using test_support::Repetitions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// M calls its children a, b, c and d in turn; between c and d it runs an
// operator of its own. a makes storage 1 from the input 0, b storage 2 from 1
// and from the mask 5, c storage 3, M storage 4, d storage 6.
class FourChildren : public ::testing::Test {
 protected:
  FourChildren() {
    trace_.operator_names = {"op"};
    trace_.modules = {{"M", "M", {}, {}},      {"M.a", "L", {7_s}, {}},
                      {"M.a.in", "L", {}, {}}, {"M.b", "L", {8_s}, {}},
                      {"M.c", "L", {7_s}, {}}, {"M.d", "L", {}, {}}};
    trace_.storages = {{.bytes = 512, .category = StorageCategory::kInput},
                       {.bytes = 512, .born = 0_op},
                       {.bytes = 512, .born = 1_op},
                       {.bytes = 512, .born = 2_op},
                       {.bytes = 512, .born = 3_op},
                       {.bytes = 512, .category = StorageCategory::kInput},
                       {.bytes = 512, .born = 4_op},
                       {.bytes = 1024, .category = StorageCategory::kParameter},
                       {.bytes = 512, .category = StorageCategory::kParameter}};
    trace_.tensors = {{.storage = 0_s}, {.storage = 1_s}, {.storage = 2_s}};
    AddCall(0_module, kNone, 0, 5, {0_s, 5_s}, {6_s});
    AddCall(1_module, 0_call, 0, 1, {0_s}, {1_s});
    trace_.calls.back().arguments = {0_t};
    AddCall(2_module, 1_call, 0, 1, {0_s}, {1_s});
    AddCall(3_module, 0_call, 1, 2, {1_s, 5_s}, {2_s});
    trace_.calls.back().arguments = {1_t};
    AddCall(4_module, 0_call, 2, 3, {2_s, 5_s}, {3_s});
    AddCall(5_module, 0_call, 4, 5, {4_s}, {6_s});
    const std::vector<CallId> call_of = {2_call, 3_call, 4_call, 0_call,
                                         5_call};
    const std::vector<StorageId> storages = {1_s, 2_s, 3_s, 4_s, 6_s};
    for (size_t k = 0; k < 5; ++k) {
      TraceOperator op;
      op.call = call_of[k];
      op.runtime_ms = 1;
      op.creates = op.outputs = {storages[k]};
      trace_.operators.push_back(op);
    }
    trace_.operators.resize(7);
    trace_.forward_end = 5;
    trace_.backward_end = 7;
    trace_.calls[3_call].backward_start = 5;
    trace_.calls[3_call].backward_end = 6;
    trace_.calls[1_call].backward_start = 6;
    trace_.calls[1_call].backward_end = 7;
    trace_.saved = {{.storage = 1_s,
                     .packed = 2,
                     .call = 3_call,
                     .unpacked = 5,
                     .local_end = 6,
                     .released = 6}};
  }

  void AddCall(ModuleId module, CallId parent, Time start, Time end,
               std::vector<StorageId> inputs, std::vector<StorageId> outputs) {
    trace_.calls.push_back({.module = module,
                            .parent = parent,
                            .start = start,
                            .end = end,
                            .inputs = std::move(inputs),
                            .outputs = std::move(outputs)});
  }

  std::string Complaint(std::vector<ModuleRun> runs) const {
    try {
      WithSegments(trace_, std::move(runs));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  Trace trace_;
};

TEST_F(FourChildren, AreARunUpToTheOperatorOfTheParent) {
  EXPECT_THAT(LongestRuns(trace_),
              ElementsAre(ElementsAre(1_module, 3_module, 4_module)));
}

TEST_F(FourChildren, AreNoRunWhereTheParentSavesInBetween) {
  trace_.saved.push_back({.storage = 2_s, .packed = 2, .call = 0_call});
  EXPECT_THAT(LongestRuns(trace_),
              ElementsAre(ElementsAre(1_module, 3_module)));
}

TEST_F(FourChildren, AreNoRunWhereOneIsCalledMoreOften) {
  AddCall(4_module, 0_call, 5, 5, {}, {});
  EXPECT_THAT(LongestRuns(trace_),
              ElementsAre(ElementsAre(1_module, 3_module)));
}

TEST_F(FourChildren, AreNoRunWhereOneHasNoGradients) {
  trace_.calls[3_call].no_grad = true;
  EXPECT_TRUE(LongestRuns(trace_).empty());
}

TEST_F(FourChildren, AreCalledInTheCallOfTheirSegment) {
  const Trace with =
      WithSegments(trace_, {{.first = 1_module, .last = 4_module}});
  ASSERT_EQ(with.modules.size(), 7U);
  EXPECT_EQ(with.modules[1_module].fqn, "M.a-c");
  EXPECT_EQ(with.modules[1_module].run_end, 6_module);
  EXPECT_EQ(with.modules[6_module].fqn, "M.d");
  ASSERT_EQ(with.calls.size(), 7U);
  EXPECT_EQ(with.calls[1_call], (TraceCall{.module = 1_module,
                                           .parent = 0_call,
                                           .start = 0,
                                           .end = 3,
                                           .inputs = {0_s, 5_s},
                                           .outputs = {3_s},
                                           .arguments = {0_t},
                                           .no_grad = false,
                                           .backward_start = 5,
                                           .backward_end = 7}));
  std::vector<CallId> parents, of_operators;
  for (const TraceCall& call : with.calls) parents.push_back(call.parent);
  for (const OperatorId k : OperatorsIn(0, 5)) {
    of_operators.push_back(with.operators[k].call);
  }
  EXPECT_THAT(parents, ElementsAre(CallId{kNone}, 0_call, 1_call, 2_call,
                                   1_call, 1_call, 0_call));
  EXPECT_THAT(of_operators,
              ElementsAre(3_call, 4_call, 5_call, 0_call, 6_call));
  EXPECT_EQ(with.saved.front().call, 4_call);
}

// Parameters that children share count once.
TEST_F(FourChildren, AreAboveInTheTreeOfModules) {
  const Trace with =
      WithSegments(trace_, {{.first = 1_module, .last = 3_module},
                            {.first = 1_module, .last = 4_module}});
  const Profile profile = Aggregate(with);
  const ModuleTree tree(profile);
  const auto parent = [&](std::string_view fqn) -> std::string {
    const int up = tree.node(tree.Find(fqn).value()).parent;
    return up < 0 ? "" : profile.modules[tree.node(up).module].fqn;
  };
  EXPECT_EQ(parent("M.a-c"), "M");
  EXPECT_EQ(parent("M.a-b"), "M.a-c");
  EXPECT_EQ(parent("M.a"), "M.a-b");
  EXPECT_EQ(parent("M.a.in"), "M.a");
  EXPECT_EQ(parent("M.b"), "M.a-b");
  EXPECT_EQ(parent("M.c"), "M.a-c");
  EXPECT_EQ(parent("M.d"), "M");
  const auto segment =
      std::ranges::find(profile.modules, "M.a-c", &Module::fqn);
  EXPECT_EQ(segment->param_per_module, 1536);
  EXPECT_FALSE(segment->is_leaf);
  EXPECT_EQ(segment->fw_runtime_per_module, 3);
}

TEST_F(FourChildren, AreRefusedWhereTheyAreNoRun) {
  EXPECT_THAT(Complaint({{.first = 1_module, .last = 5_module}}),
              HasSubstr("\"M.a-d\": expected calls that follow each other in "
                        "the trace, found none of \"d\" right after \"c\""));
  EXPECT_THAT(Complaint({{.first = 1_module, .last = 3_module},
                         {.first = 3_module, .last = 4_module}}),
              HasSubstr("\"M.a-b\" and \"M.b-c\": expected runs that are apart "
                        "or one inside the other, found an overlap"));
  EXPECT_THAT(Complaint({{.first = 1_module, .last = 3_module},
                         {.first = 1_module, .last = 3_module}}),
              HasSubstr("found one twice"));
  EXPECT_THAT(Complaint({{.first = 1_module, .last = 2_module}}),
              HasSubstr("two children"));
}

TEST_F(FourChildren, AreFoundByTheNameOfTheirSegment) {
  EXPECT_EQ(RunNamed(trace_, "M.a-c"),
            (ModuleRun{.first = 1_module, .last = 4_module}));
  EXPECT_EQ(RunNamed(trace_, "M.c-a"), std::nullopt);
  EXPECT_EQ(RunNamed(trace_, "M.a"), std::nullopt);
  EXPECT_EQ(RunNamed(trace_, "M.a-e"), std::nullopt);
  trace_.modules[5_module].fqn = "M.a-c";
  EXPECT_EQ(RunNamed(trace_, "M.a-c"), std::nullopt);
}

TEST_F(FourChildren, MayHaveNamesThatReadInTwoWays) {
  trace_.modules[1_module].fqn = "M.a";
  trace_.modules[3_module].fqn = "M.a-b";
  trace_.modules[4_module].fqn = "M.b-c";
  trace_.modules[5_module].fqn = "M.c";
  EXPECT_THROW(RunNamed(trace_, "M.a-b-c"), InputError);
}

// Returns some of the runs of a step, any two apart or one inside the other.
std::vector<ModuleRun> RunsByChance(const Trace& trace, std::mt19937& random) {
  std::vector<ModuleRun> runs;
  for (const std::vector<ModuleId>& children : LongestRuns(trace)) {
    size_t first = 0;
    while (first + 1 < children.size()) {
      const size_t last = first + 1 + random() % (children.size() - first - 1);
      runs.push_back({.first = children[first], .last = children[last]});
      if (last - first > 1 && random() % 2 == 0) {
        runs.push_back({.first = children[first + 1], .last = children[last]});
      }
      first = last + 1;
    }
  }
  return runs;
}

test_support::StepOptions OptionsByChance(std::mt19937& random) {
  const auto half = [&] { return random() % 2 == 0; };
  test_support::StepOptions options;
  options.nests = half();
  options.skips = half();
  options.shares_arguments = half();
  options.repeats = half();
  options.writes = half();
  options.draws = half();
  return options;
}

// The reader checks modules, calls, and the module of each operator and save.
TEST(SegmentsTest, GiveAValidTrace) {
  int segments = 0;
  for (unsigned seed = 0; seed < Repetitions(300); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Trace trace =
        test_support::RandomStep(random, OptionsByChance(random));
    const std::vector<ModuleRun> runs = RunsByChance(trace, random);
    segments += static_cast<int>(runs.size());
    Trace with = WithSegments(trace, runs);
    const std::string text = ToJson(with);
    for (TraceModule& module : with.modules) module.run_end = kNone;
    ASSERT_EQ(ParseTrace(text, "step"), with);
    ASSERT_EQ(WithSegments(trace, {}), trace);
  }
  EXPECT_GT(segments, Enough(100));
}

// Segments that are no units change nothing.
TEST(SegmentsTest, LeaveUnitsAsTheyWere) {
  for (unsigned seed = 0; seed < Repetitions(300); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Trace trace =
        test_support::RandomStep(random, OptionsByChance(random));
    const Trace with = WithSegments(trace, RunsByChance(trace, random));
    std::vector<CheckpointedModule> plain, units;
    for (const ModuleId m : IdRange(1_module, trace.modules.end_id())) {
      const bool is_called =
          std::ranges::find(trace.calls, m, &TraceCall::module) !=
          trace.calls.end();
      if (!is_called || random() % 2 == 0) continue;
      plain.push_back({.module = m});
      units.push_back({.module = FindModule(with, trace.modules[m].fqn)});
    }
    std::optional<Simulation> before, after;
    try {
      before = Simulate(trace, plain);
    } catch (const InputError&) {
    }
    try {
      after = Simulate(with, units);
    } catch (const InputError&) {
    }
    ASSERT_EQ(before.has_value(), after.has_value());
    if (!before) continue;
    EXPECT_EQ(before->live_bytes, after->live_bytes);
    EXPECT_EQ(before->recompute_ms, after->recompute_ms);
  }
}

}  // namespace
}  // namespace acplan::graph
