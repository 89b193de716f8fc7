#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/flag.h"
#include "graph/base/input_error.h"
#include "graph/trace/needs.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "tests/graph/naive_simulation.h"
#include "tests/graph/random_units.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using test_support::Enough;
using test_support::RandomStep;
using test_support::Repetitions;
using test_support::StepOptions;

TEST(Skip, WhatNobodyNeedsCostsNothingToLeaveOut) {
  std::mt19937 random(11);
  int compared = 0, cheaper = 0, smaller = 0;
  for (int round = 0; round < Repetitions(1500); ++round) {
    SCOPED_TRACE(round);
    const Trace trace = RandomStep(random, RandomOptions(random));
    const NeedDrivenPolicies needs(trace);
    std::vector<CheckpointedModule> all, needed;
    for (const RandomUnit& unit : UnitsByChance(trace, random)) {
      const std::vector<Flag> saves = RandomSaves(unit.length, random);
      all.push_back(AllOthersRunAgain(unit.module, saves));
      if (!Accepted(trace, all)) {
        all.pop_back();
        continue;
      }
      needed.push_back(needs.PolicyFor(unit.module, saves));
    }
    if (all.empty()) continue;
    ++compared;
    const Simulation without_skips = Simulate(trace, all);
    const Simulation with_skips = Simulate(trace, needed);
    EXPECT_LE(with_skips.peak_bytes, without_skips.peak_bytes);
    EXPECT_LE(with_skips.recompute_ms, without_skips.recompute_ms + 1e-9);
    cheaper +=
        with_skips.recompute_ms < without_skips.recompute_ms - 1e-9 ? 1 : 0;
    smaller += with_skips.peak_bytes < without_skips.peak_bytes ? 1 : 0;
    EXPECT_TRUE(SavesViews(trace, all) || ComputesTheSame(trace, needed));
    ExpectTheSame(with_skips, SimulateNaively(trace, needed));
    if (HasFailure()) break;
  }
  EXPECT_GT(compared, Enough(1000));
  EXPECT_GT(cheaper, Enough(200));
  EXPECT_GT(smaller, Enough(100));
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
  const bool is_plain = std::ranges::all_of(
      trace.operators,
      [](const TraceOperator& op) { return op.recasts.empty(); });
  std::mt19937 random(14);
  int compared = 0;
  for (int round = 0; round < Repetitions(20); ++round) {
    SCOPED_TRACE(round);
    std::vector<CheckpointedModule> all, needed;
    for (const RandomUnit& unit : UnitsByChance(trace, random)) {
      const std::vector<Flag> saves = RandomSaves(unit.length, random);
      all.push_back(AllOthersRunAgain(unit.module, saves));
      if (!Accepted(trace, all)) {
        all.pop_back();
        continue;
      }
      needed.push_back(needs.PolicyFor(unit.module, saves));
    }
    if (all.empty()) continue;
    ++compared;
    const Simulation without_skips = simulator.Simulate(all);
    const Simulation with_skips = simulator.Simulate(needed);
    EXPECT_LE(with_skips.peak_bytes, without_skips.peak_bytes);
    EXPECT_LE(with_skips.recompute_ms, without_skips.recompute_ms + 1e-9);
    if (is_plain) {
      ExpectTheSame(without_skips, SimulateNaively(trace, all));
      ExpectTheSame(with_skips, SimulateNaively(trace, needed));
      EXPECT_TRUE(SavesViews(trace, all) || ComputesTheSame(trace, needed));
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(compared, Enough(5));
}

// Returns the operators that run again, without views, which cost nothing.
std::set<OperatorId> RunningAgain(const Simulation& simulation,
                                  const Trace& trace) {
  std::set<OperatorId> running;
  for (const Simulation::Step& step : simulation.steps) {
    if (step.redone != kNone && !trace.operators[step.op].view) {
      running.insert(step.op);
    }
  }
  return running;
}

// Tries all operators that could be skipped in addition, and all results that
// could be left out.
TEST(Skip, NothingMoreCanBeLeftOut) {
  std::mt19937 random(12);
  int plans = 0, results = 0;
  for (int round = 0; round < Repetitions(600); ++round) {
    SCOPED_TRACE(round);
    const Trace trace = RandomStep(random, RandomOptions(random));
    const Simulator simulator(trace);
    const NeedDrivenPolicies needs(trace);
    for (const RandomUnit& unit : UnitsByChance(trace, random)) {
      if (unit.length > 8) continue;
      const std::vector<Flag> saves = RandomSaves(unit.length, random);
      CheckpointedModule some = AllOthersRunAgain(unit.module, saves);
      if (!Accepted(trace, {some}) || SavesViews(trace, {some})) continue;
      const CheckpointedModule least = needs.PolicyFor(unit.module, saves);
      const std::set<OperatorId> running =
          RunningAgain(simulator.Simulate({least}), trace);
      for (int32_t mask = 0; mask < 1 << unit.length; ++mask) {
        bool is_of_saves = true;
        for (int32_t k = 0; k < unit.length; ++k) {
          const bool is_set = (mask >> k & 1) != 0;
          is_of_saves = is_of_saves && !(is_set && saves[k]);
          some.decisions[k] =
              is_set ? OperatorDecision::kSkip : SaveOrRecompute(saves[k]);
        }
        if (!is_of_saves) continue;
        const std::optional<Simulation> use = Accepted(trace, {some});
        if (!use) continue;
        ++plans;
        const std::set<OperatorId> others = RunningAgain(*use, trace);
        ASSERT_TRUE(std::ranges::includes(others, running)) << mask;
        ASSERT_TRUE(ComputesTheSame(trace, {some})) << mask;
      }
      for (const auto& [place, kept_results] : least.kept_results) {
        for (size_t k = 0; k < kept_results.size(); ++k) {
          CheckpointedModule fewer = least;
          std::vector<int32_t>& remaining_results = fewer.kept_results[place];
          remaining_results.erase(remaining_results.begin() +
                                  static_cast<std::ptrdiff_t>(k));
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
  EXPECT_GT(plans, Enough(2000));
  EXPECT_GT(results, Enough(20));
}

// Random decisions, some of which compute with a stand-in.
TEST(Skip, IsAsPlainlyPlayed) {
  std::mt19937 random(13);
  int accepted = 0, refused = 0, skipped = 0;
  for (int round = 0; round < Repetitions(2000); ++round) {
    SCOPED_TRACE(round);
    const Trace trace = RandomStep(random, RandomOptions(random));
    const NeedDrivenPolicies needs(trace);
    std::vector<CheckpointedModule> units;
    for (const RandomUnit& at : UnitsByChance(trace, random)) {
      const std::vector<Flag> saves = RandomSaves(at.length, random);
      CheckpointedModule unit = needs.PolicyFor(at.module, saves);
      // Some more decisions, up to all.
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
  EXPECT_GT(accepted, Enough(1500));
  EXPECT_GT(refused, Enough(500));
  EXPECT_GT(skipped, Enough(3000));
}

// Returns random decisions for units of a step, which may be inside one
// another, without those that the simulation refuses.
std::vector<CheckpointedModule> UnitsInsideUnits(const Trace& trace,
                                                 std::mt19937& random) {
  const NeedDrivenPolicies needs(trace);
  std::vector<CheckpointedModule> units;
  for (const RandomUnit& at : UnitsByChance(trace, random, true)) {
    CheckpointedModule unit = {.module = at.module};
    if (random() % 4 != 0) {
      unit = needs.PolicyFor(at.module, RandomSaves(at.length, random));
      const auto one_in = 1 + random() % 16;
      for (int32_t k = 0; k < at.length; ++k) {
        if (random() % one_in != 0) continue;
        unit.decisions[k] = static_cast<OperatorDecision>(random() % 3);
        unit.kept_results.erase(k);
      }
    }
    units.push_back(std::move(unit));
    if (!Accepted(trace, units)) units.pop_back();
  }
  return units;
}

// Returns whether a call of a unit is inside one of another unit.
bool HasNestedUnits(const Trace& trace,
                    const std::vector<CheckpointedModule>& units) {
  const auto is_unit = [&](CallId call) {
    return std::ranges::find(units, trace.calls[call].module,
                             &CheckpointedModule::module) != units.end();
  };
  for (const CallId c : trace.calls.ids()) {
    for (CallId a = trace.calls[c].parent; a != kNone && is_unit(c);
         a = trace.calls[a].parent) {
      if (is_unit(a)) return true;
    }
  }
  return false;
}

// Turns some operators that others read from into casts that autocast keeps.
Trace WithRecasts(Trace trace, std::mt19937& random) {
  for (const OperatorId op : OperatorsIn(0, trace.forward_end)) {
    for (const StorageId s : trace.operators[op].reads) {
      const OperatorId born = trace.storages[s].born;
      const bool is_cast = born != kNone && born < op && random() % 4 == 0;
      if (is_cast) trace.operators[op].recasts.push_back(born);
    }
  }
  return trace;
}

// Returns whether a call makes casts again from before it.
bool CastsAgain(const Trace& trace, const Simulation& simulation) {
  return std::ranges::any_of(
      simulation.steps, [&](const Simulation::Step& step) {
        return step.redone != kNone &&
               StartOf(step.op) < trace.calls[step.redone].start;
      });
}

bool RunsOpaqueOperatorsAgain(const Trace& trace,
                              const Simulation& simulation) {
  return std::ranges::any_of(
      simulation.steps, [&](const Simulation::Step& step) {
        return step.redone != kNone && trace.operators[step.op].opaque;
      });
}

// Returns whether something made in the forward pass outlives the step, as an
// attribute of a module does.
bool KeepsBeyondTheStep(const Trace& trace) {
  return std::ranges::any_of(trace.storages, [&](const TraceStorage& storage) {
    return storage.born != kNone && storage.IsOlderThan(trace.forward_end) &&
           trace.operators[storage.born].call != kNone &&
           storage.scope_end == kNever;
  });
}

// Units inside units, attributes that modules keep, and casts.
TEST(Skip, IsAsPlainlyPlayedInsideOfUnits) {
  std::mt19937 random(15);
  int played = 0, nested = 0, keeping = 0, casting = 0, sparse = 0;
  for (int round = 0; round < Repetitions(2500) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    StepOptions options = RandomOptions(random);
    options.nests = round % 2 == 0;
    options.keeps = round % 3 == 0;
    options.makes_sparse = round % 7 == 0;
    Trace trace = RandomStep(random, options);
    if (round % 5 == 0) trace = WithRecasts(std::move(trace), random);
    const std::vector<CheckpointedModule> units =
        UnitsInsideUnits(trace, random);
    if (units.empty()) continue;
    ++played;
    nested += HasNestedUnits(trace, units) ? 1 : 0;
    keeping += KeepsBeyondTheStep(trace) ? 1 : 0;
    const Simulation simulation = Simulate(trace, units);
    casting += CastsAgain(trace, simulation) ? 1 : 0;
    sparse += RunsOpaqueOperatorsAgain(trace, simulation) ? 1 : 0;
    ExpectTheSame(simulation, SimulateNaively(trace, units));
  }
  EXPECT_GT(played, Enough(2000));
  EXPECT_GT(nested, Enough(300));
  EXPECT_GT(keeping, Enough(300));
  EXPECT_GT(casting, Enough(30));
  EXPECT_GT(sparse, Enough(30));
}

// Units inside units, and attributes that modules keep.
TEST_P(RealSteps, AreAsPlainlyPlayed) {
  const Trace trace = ReadTrace(std::string(ACPLAN_TEST_DATA_DIR "/traces/") +
                                GetParam() + ".trace.json.gz");
  std::mt19937 random(16);
  int played = 0;
  for (int round = 0; round < 6 && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const std::vector<CheckpointedModule> units =
        UnitsInsideUnits(trace, random);
    if (units.empty()) continue;
    ++played;
    ExpectTheSame(Simulate(trace, units), SimulateNaively(trace, units));
  }
  EXPECT_GT(played, 2);
}

// Returns a trace: M.a makes storage 1. M.a.b makes 2 from the input, then
// writes to 1 in place (the operator at place 1 of its call), and M.a makes 3
// from that. Backward asks for 2 and 3.
Trace WritesInside(bool is_made_inside) {
  Trace trace;
  trace.forward_end = 5;
  trace.backward_end = 7;
  for (const char* fqn : {"M", "M.a", "M.a.b"}) {
    trace.modules.push_back(
        {.fqn = fqn, .class_name = "C", .parameters = {}, .buffers = {}});
  }
  const Time start = is_made_inside ? 0 : 1;
  trace.calls = {{.module = 0_module,
                  .start = 0,
                  .end = 5,
                  .inputs = {0_s},
                  .outputs = {}},
                 {.module = 1_module,
                  .parent = 0_call,
                  .start = start,
                  .end = 4,
                  .inputs = {is_made_inside ? 0_s : 1_s},
                  .outputs = {3_s}},
                 {.module = 2_module,
                  .parent = 1_call,
                  .start = 1,
                  .end = 3,
                  .inputs = {1_s},
                  .outputs = {2_s}}};
  trace.operator_names = {"make", "write"};
  trace.operators.resize(7);
  const auto make = [&](OperatorId op, StorageId storage, StorageId input) {
    trace.operators[op] = {.runtime_ms = 1,
                           .reads = {input},
                           .creates = {storage},
                           .outputs = {storage},
                           .mutates = {}};
  };
  make(0_op, 1_s, 0_s);
  make(1_op, 2_s, 0_s);
  trace.operators[2_op] = {.name = 1_name,
                           .reads = {1_s},
                           .creates = {},
                           .outputs = {1_s},
                           .mutates = {1_s}};
  make(3_op, 3_s, 1_s);
  make(4_op, 4_s, 3_s);
  trace.operators[0_op].call = is_made_inside ? 1_call : 0_call;
  trace.operators[1_op].call = trace.operators[2_op].call = 2_call;
  trace.operators[3_op].call = 1_call;
  trace.operators[4_op].call = 0_call;
  trace.storages = {{.bytes = 512},
                    {.bytes = 512, .born = 0_op, .freed = 4, .scope_end = 4},
                    {.bytes = 512, .born = 1_op, .freed = 7, .scope_end = 3},
                    {.bytes = 512, .born = 3_op, .freed = 6, .scope_end = 5},
                    {.bytes = 512, .born = 4_op, .freed = 5, .scope_end = 5}};
  const auto save = [&](StorageId storage, Time packed, CallId call,
                        Time unpacked) {
    trace.saved.push_back({.storage = storage,
                           .packed = packed,
                           .call = call,
                           .unpacked = unpacked,
                           .local_end = unpacked + 1,
                           .released = unpacked + 1});
  };
  save(2_s, 3, 2_call, 6);
  save(3_s, 4, 1_call, 5);
  return trace;
}

std::string RefusalOf(const Trace& trace,
                      const std::vector<CheckpointedModule>& modules) {
  try {
    Simulate(trace, modules);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// A storage that a unit around makes again has not been written to yet.
TEST(Skip, WritesAgainToWhatIsMadeAgain) {
  constexpr OperatorDecision kRuns = OperatorDecision::kRecompute;
  constexpr OperatorDecision kSkips = OperatorDecision::kSkip;
  const CheckpointedModule outer = {.module = 1_module};
  const CheckpointedModule skips = {.module = 2_module,
                                    .decisions = {kRuns, kSkips}};
  const CheckpointedModule writes = {.module = 2_module,
                                     .decisions = {kRuns, kRuns}};
  const Trace write_inside = WritesInside(true);
  EXPECT_EQ(ParseTrace(ToJson(write_inside), "trace"), write_inside);
  EXPECT_EQ(RefusalOf(write_inside, {outer, skips}),
            "module 'M.a.b': operator 1 (write) must run again, because it "
            "writes in place to a tensor that an enclosing unit recomputes");
  EXPECT_EQ(RefusalOf(write_inside, {outer, writes}), "");
  // The forward pass wrote to a storage that no unit makes again.
  EXPECT_EQ(RefusalOf(write_inside, {skips}), "");
  const Trace from_outside = WritesInside(false);
  EXPECT_EQ(ParseTrace(ToJson(from_outside), "trace"), from_outside);
  EXPECT_EQ(RefusalOf(from_outside, {outer, skips}), "");
}

TEST(Skip, RefusesWhatReadsBeforeAWriteFromOutside) {
  Trace trace = WritesInside(true);
  trace.operators[1_op].reads = {1_s};
  const std::string refusal =
      "module 'M.a.b': operator 0 (make) cannot run again, because it reads a "
      "tensor to which operator 2 (write) of the step writes in place before "
      "that; save its result";
  EXPECT_EQ(RefusalOf(trace, {{.module = 2_module}}), refusal);
  constexpr OperatorDecision kSaves = OperatorDecision::kSave;
  constexpr OperatorDecision kSkips = OperatorDecision::kSkip;
  EXPECT_EQ(
      RefusalOf(trace, {{.module = 2_module, .decisions = {kSaves, kSkips}}}),
      "");
}

}  // namespace
}  // namespace acplan::graph
