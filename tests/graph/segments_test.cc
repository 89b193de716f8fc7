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
    trace_.modules = {{"M", "M", {}, {}},      {"M.a", "L", {7}, {}},
                      {"M.a.in", "L", {}, {}}, {"M.b", "L", {8}, {}},
                      {"M.c", "L", {7}, {}},   {"M.d", "L", {}, {}}};
    trace_.storages = {{.bytes = 512, .category = StorageCategory::kInput},
                       {.bytes = 512, .born = 0},
                       {.bytes = 512, .born = 1},
                       {.bytes = 512, .born = 2},
                       {.bytes = 512, .born = 3},
                       {.bytes = 512, .category = StorageCategory::kInput},
                       {.bytes = 512, .born = 4},
                       {.bytes = 1024, .category = StorageCategory::kParameter},
                       {.bytes = 512, .category = StorageCategory::kParameter}};
    trace_.tensors = {{.storage = 0}, {.storage = 1}, {.storage = 2}};
    AddCall(0, -1, 0, 5, {0, 5}, {6});
    AddCall(1, 0, 0, 1, {0}, {1});
    trace_.calls.back().arguments = {0};
    AddCall(2, 1, 0, 1, {0}, {1});
    AddCall(3, 0, 1, 2, {1, 5}, {2});
    trace_.calls.back().arguments = {1};
    AddCall(4, 0, 2, 3, {2, 5}, {3});
    AddCall(5, 0, 4, 5, {4}, {6});
    const std::vector<int32_t> call_of = {2, 3, 4, 0, 5};
    const std::vector<int32_t> storages = {1, 2, 3, 4, 6};
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
    trace_.calls[3].backward_start = 5;
    trace_.calls[3].backward_end = 6;
    trace_.calls[1].backward_start = 6;
    trace_.calls[1].backward_end = 7;
    trace_.saved = {{.storage = 1,
                     .packed = 2,
                     .call = 3,
                     .unpacked = 5,
                     .local_end = 6,
                     .released = 6}};
  }

  void AddCall(int32_t module, int32_t parent, int32_t start, int32_t end,
               std::vector<int32_t> inputs, std::vector<int32_t> outputs) {
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
  EXPECT_THAT(LongestRuns(trace_), ElementsAre(ElementsAre(1, 3, 4)));
}

TEST_F(FourChildren, AreNoRunWhereTheParentSavesInBetween) {
  trace_.saved.push_back({.storage = 2, .packed = 2, .call = 0});
  EXPECT_THAT(LongestRuns(trace_), ElementsAre(ElementsAre(1, 3)));
}

TEST_F(FourChildren, AreNoRunWhereOneIsCalledMoreOften) {
  AddCall(4, 0, 5, 5, {}, {});
  EXPECT_THAT(LongestRuns(trace_), ElementsAre(ElementsAre(1, 3)));
}

TEST_F(FourChildren, AreNoRunWhereOneHasNoGradients) {
  trace_.calls[3].no_grad = true;
  EXPECT_TRUE(LongestRuns(trace_).empty());
}

TEST_F(FourChildren, AreCalledInTheCallOfTheirSegment) {
  const Trace with = WithSegments(trace_, {{.first = 1, .last = 4}});
  ASSERT_EQ(with.modules.size(), 7U);
  EXPECT_EQ(with.modules[1].fqn, "M.a-c");
  EXPECT_EQ(with.modules[1].run_end, 6);
  EXPECT_EQ(with.modules[6].fqn, "M.d");
  ASSERT_EQ(with.calls.size(), 7U);
  EXPECT_EQ(with.calls[1], (TraceCall{.module = 1,
                                      .parent = 0,
                                      .start = 0,
                                      .end = 3,
                                      .inputs = {0, 5},
                                      .outputs = {3},
                                      .arguments = {0},
                                      .no_grad = false,
                                      .backward_start = 5,
                                      .backward_end = 7}));
  std::vector<int32_t> parents, of_operators;
  for (const TraceCall& call : with.calls) parents.push_back(call.parent);
  for (int32_t k = 0; k < 5; ++k) {
    of_operators.push_back(with.operators[k].call);
  }
  EXPECT_THAT(parents, ElementsAre(-1, 0, 1, 2, 1, 1, 0));
  EXPECT_THAT(of_operators, ElementsAre(3, 4, 5, 0, 6));
  EXPECT_EQ(with.saved.front().call, 4);
}

// Parameters that children share count once.
TEST_F(FourChildren, AreAboveInTheTreeOfModules) {
  const Trace with =
      WithSegments(trace_, {{.first = 1, .last = 3}, {.first = 1, .last = 4}});
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
  EXPECT_THAT(Complaint({{.first = 1, .last = 5}}),
              HasSubstr("\"M.a-d\": expected calls that follow each other in "
                        "the trace, found none of \"d\" right after \"c\""));
  EXPECT_THAT(Complaint({{.first = 1, .last = 3}, {.first = 3, .last = 4}}),
              HasSubstr("\"M.a-b\" and \"M.b-c\": expected runs that are apart "
                        "or one inside the other, found an overlap"));
  EXPECT_THAT(Complaint({{.first = 1, .last = 3}, {.first = 1, .last = 3}}),
              HasSubstr("found one twice"));
  EXPECT_THAT(Complaint({{.first = 1, .last = 2}}), HasSubstr("two children"));
}

TEST_F(FourChildren, AreFoundByTheNameOfTheirSegment) {
  EXPECT_EQ(RunNamed(trace_, "M.a-c"), (ModuleRun{.first = 1, .last = 4}));
  EXPECT_EQ(RunNamed(trace_, "M.c-a"), std::nullopt);
  EXPECT_EQ(RunNamed(trace_, "M.a"), std::nullopt);
  EXPECT_EQ(RunNamed(trace_, "M.a-e"), std::nullopt);
  trace_.modules[5].fqn = "M.a-c";
  EXPECT_EQ(RunNamed(trace_, "M.a-c"), std::nullopt);
}

TEST_F(FourChildren, MayHaveNamesThatReadInTwoWays) {
  trace_.modules[1].fqn = "M.a";
  trace_.modules[3].fqn = "M.a-b";
  trace_.modules[4].fqn = "M.b-c";
  trace_.modules[5].fqn = "M.c";
  EXPECT_THROW(RunNamed(trace_, "M.a-b-c"), InputError);
}

// Returns some of the runs of a step, any two apart or one inside the other.
std::vector<ModuleRun> RunsByChance(const Trace& trace, std::mt19937& random) {
  std::vector<ModuleRun> runs;
  for (const std::vector<int32_t>& children : LongestRuns(trace)) {
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
    for (TraceModule& module : with.modules) module.run_end = -1;
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
    for (int32_t m = 1; m < std::ssize(trace.modules); ++m) {
      const bool is_called =
          std::ranges::find(trace.calls, m, &TraceCall::module) !=
          trace.calls.end();
      if (!is_called || random() % 2 == 0) continue;
      const auto now = std::ranges::find(with.modules, trace.modules[m].fqn,
                                         &TraceModule::fqn);
      plain.push_back({.module = m});
      units.push_back(
          {.module = static_cast<int32_t>(now - with.modules.begin())});
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
