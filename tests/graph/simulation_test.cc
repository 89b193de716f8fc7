#include "graph/trace/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/trace/trace.h"
#include "tests/graph/naive_simulation.h"
#include "tests/support/random_trace.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using nlohmann::json;
using test_support::Enough;
using test_support::RandomTrace;
using test_support::Repetitions;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns decisions: 0 recomputed, 1 saved, 2 skipped.
std::vector<OperatorDecision> Decisions(const std::vector<int>& values) {
  std::vector<OperatorDecision> decisions;
  for (const int value : values) {
    decisions.push_back(static_cast<OperatorDecision>(value));
  }
  return decisions;
}

ModuleId ModuleNamed(const Trace& trace, const std::string& fqn) {
  const ModuleId module = FindModule(trace, fqn);
  if (module == kNone) throw std::logic_error("no module " + fqn);
  return module;
}

const std::string& Name(const Trace& trace, const Simulation::Step& step) {
  return trace.operator_names[trace.operators[step.op].name];
}

class MeasuredByPyTorch : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, MeasuredByPyTorch,
                         ::testing::Values("gpt2", "llama", "bert", "t5", "vit",
                                           "swin", "mixtral", "transformer",
                                           "noted", "writing", "resnet", "unet",
                                           "custom", "shared"));

// Every operator that PyTorch runs, and the bytes in use while it does, with
// the modules actually checkpointed (written by
// adapters/torch/tests/write_goldens.py).
TEST_P(MeasuredByPyTorch, IsSimulatedToTheByte) {
  const std::string stem =
      std::string(ACPLAN_TEST_DATA_DIR "/traces/") + GetParam();
  const Trace trace = ReadTrace(stem + ".trace.json.gz");
  EXPECT_EQ(Simulate(trace, {}).peak_bytes, trace.peak_bytes);
  const json measured = json::parse(ReadFile(stem + ".measured.json.gz"));
  ASSERT_GE(measured.size(), 6u);
  for (const json& plan : measured) {
    SCOPED_TRACE(plan["label"]);
    std::vector<CheckpointedModule> modules;
    for (const json& module : plan["modules"]) {
      modules.push_back({.module = ModuleNamed(trace, module["fqn"])});
      for (const int save : module["save"]) {
        modules.back().decisions.push_back(SaveOrRecompute(save != 0));
      }
    }
    const Simulation simulation = Simulate(trace, modules);
    ASSERT_EQ(simulation.steps.size(), plan["operators"].size());
    int64_t live_bytes = 0;
    for (const StepId k : simulation.steps.ids()) {
      ASSERT_EQ(Name(trace, simulation.steps[k]), plan["operators"][IndexOf(k)])
          << IndexOf(k);
      live_bytes += plan["live_bytes_changes"][IndexOf(k)].get<int64_t>();
      ASSERT_EQ(simulation.live_bytes[k], live_bytes) << IndexOf(k);
    }
    EXPECT_EQ(simulation.peak_bytes,
              *std::ranges::max_element(simulation.live_bytes));
  }
}

// Returns called units with random decisions that PyTorch accepts.
std::vector<CheckpointedModule> RandomUnits(const Trace& trace,
                                            std::mt19937& random) {
  std::set<StorageId> mutated;
  for (const TraceOperator& op : trace.operators) {
    mutated.insert(op.mutates.begin(), op.mutates.end());
  }
  std::vector<CheckpointedModule> units;
  for (const ModuleId m : IdRange(1_module, trace.modules.end_id())) {
    if (random() % 2 == 0) continue;
    std::set<int32_t> lengths;
    const TraceCall* last = nullptr;
    for (const TraceCall& call : trace.calls) {
      if (call.module != m) continue;
      lengths.insert(call.OperatorCount());
      last = &call;
    }
    if (lengths.empty()) continue;
    CheckpointedModule unit{.module = m};
    if (lengths.size() == 1 && random() % 2 == 0) {
      for (int32_t k = 0; k < *lengths.begin(); ++k) {
        const TraceOperator& op = trace.operators[last->AtPlace(k)];
        const bool is_mutated = std::ranges::any_of(
            op.outputs, [&](StorageId s) { return mutated.contains(s); });
        unit.decisions.push_back(
            SaveOrRecompute(!is_mutated && random() % 2 == 0));
        if (random() % 8 == 0) unit.decisions[k] = OperatorDecision::kSkip;
        if (unit.decisions[k] == OperatorDecision::kSave && random() % 8 == 0) {
          unit.kept_results[k] = {};
        }
      }
    }
    units.push_back(std::move(unit));
    try {
      Simulate(trace, units);
    } catch (const InputError&) {
      units.pop_back();
    }
  }
  return units;
}

// Returns a call of two operators: the first makes a result (storage 0), a
// storage that is saved for backward (1), and a workspace (2). One operator
// follows the call, then a backward that asks for the saved storage.
Trace TwoOperators() {
  Trace trace;
  trace.forward_end = 3;
  trace.backward_end = 4;
  trace.modules = {
      {.fqn = "M", .class_name = "M", .parameters = {}, .buffers = {}}};
  trace.calls = {{.module = 0_module,
                  .start = 0,
                  .end = 2,
                  .inputs = {},
                  .outputs = {0_s}}};
  trace.operator_names = {"op"};
  trace.operators.resize(4);
  trace.operators[0_op].creates = {0_s, 1_s, 2_s};
  trace.operators[0_op].outputs = {0_s, 1_s};
  trace.operators[0_op].call = trace.operators[1_op].call = 0_call;
  trace.storages = {{.bytes = 512, .born = 0_op, .freed = 3, .scope_end = 3},
                    {.bytes = 1024, .born = 0_op, .freed = 4, .scope_end = 1},
                    {.bytes = 2048, .born = 0_op, .freed = 1, .scope_end = 1}};
  trace.saved = {{.storage = 1_s,
                  .packed = 1,
                  .call = 0_call,
                  .unpacked = 3,
                  .local_end = 4,
                  .released = 4}};
  return trace;
}

TEST(Simulate, KeepsNoWorkspaceOfWhatIsSaved) {
  const Simulation simulation = Simulate(
      TwoOperators(), {{.module = 0_module, .decisions = Decisions({1, 0})}});
  EXPECT_EQ(simulation.recompute_ms, 0);
  EXPECT_THAT(simulation.live_bytes, ElementsAre(3584, 1536, 1536, 1024));
}

// The recomputation stops before the operator that writes to a saved result.
TEST(Simulate, TakesWritersThatAreSavedWhereItStops) {
  Trace trace = TwoOperators();
  trace.operators[1_op].reads = trace.operators[1_op].outputs = {0_s};
  trace.operators[1_op].mutates = {0_s};
  EXPECT_NO_THROW(
      Simulate(trace, {{.module = 0_module, .decisions = Decisions({1, 1})}}));
  EXPECT_THROW(
      Simulate(trace, {{.module = 0_module, .decisions = Decisions({1, 0})}}),
      InputError);
  trace.operators[2_op] = trace.operators[1_op];
  trace.operators[2_op].call = kNone;
  EXPECT_THROW(
      Simulate(trace, {{.module = 0_module, .decisions = Decisions({1, 1})}}),
      InputError);
}

TEST(Simulate, WithoutUnitsIsTheTrace) {
  std::mt19937 random(1);
  for (int round = 0; round < Repetitions(500); ++round) {
    SCOPED_TRACE(round);
    const Trace trace = RandomTrace(random, static_cast<int>(random() % 60));
    const Simulation simulation = Simulate(trace, {});
    ASSERT_EQ(simulation.steps.size(), trace.operators.size());
    EXPECT_EQ(simulation.recompute_ms, 0);
    for (const OperatorId op : trace.operators.ids()) {
      const StepId k{IndexOf(op)};
      const Time time = StartOf(op);
      EXPECT_EQ(simulation.steps[k], (Simulation::Step{.op = op}));
      int64_t live = 0;
      for (const TraceStorage& storage : trace.storages) {
        const bool is_live =
            storage.born <= op && (time < storage.freed || storage.born == op ||
                                   (storage.born == kNone && time == 0));
        if (is_live) live += (storage.bytes + 511) / 512 * 512;
      }
      ASSERT_EQ(simulation.live_bytes[k], live) << time;
    }
    if (HasFailure()) break;
  }
}

// Invariants of every trace.
TEST(Simulate, KeepsItsRules) {
  std::mt19937 random(2);
  int with_units = 0;
  for (int round = 0; round < Repetitions(1500); ++round) {
    SCOPED_TRACE(round);
    const Trace trace = RandomTrace(random, static_cast<int>(random() % 80));
    const std::vector<CheckpointedModule> units = RandomUnits(trace, random);
    const Simulation simulation = Simulate(trace, units);
    with_units += units.empty() ? 0 : 1;
    ASSERT_EQ(simulation.live_bytes.size(), simulation.steps.size());
    // The step itself, in its order, with repeated operators in between.
    std::vector<OperatorId> once;
    double ms = 0;
    for (const Simulation::Step& step : simulation.steps) {
      if (step.redone == kNone) {
        once.push_back(step.op);
        continue;
      }
      ms += trace.operators[step.op].runtime_ms;
      const TraceCall& call = trace.calls[step.redone];
      if (StartOf(step.op) < call.start) {
        continue;  // a cast
      }
      EXPECT_LT(StartOf(step.op), call.end);
      const auto unit =
          std::ranges::find(units, call.module, &CheckpointedModule::module);
      ASSERT_NE(unit, units.end());
      EXPECT_TRUE(unit->decisions.empty() ||
                  unit->decisions[call.PlaceOf(step.op)] ==
                      OperatorDecision::kRecompute);
    }
    ASSERT_EQ(once.size(), trace.operators.size());
    EXPECT_TRUE(std::ranges::is_sorted(once));
    EXPECT_NEAR(simulation.recompute_ms, ms, 1e-9 * (1 + ms));
    if (!simulation.steps.empty()) {
      EXPECT_EQ(simulation.peak_bytes,
                *std::ranges::max_element(simulation.live_bytes));
      EXPECT_EQ(simulation.live_bytes[simulation.peak_step],
                simulation.peak_bytes);
      EXPECT_EQ(std::accumulate(simulation.peak_by_category.begin(),
                                simulation.peak_by_category.end(), int64_t{0}),
                simulation.peak_bytes);
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(with_units, Enough(500));
}

TEST(Simulator, OfManyPlansIsThatOfEachAlone) {
  std::mt19937 random(3);
  for (int round = 0; round < Repetitions(50); ++round) {
    const Trace trace = RandomTrace(random, static_cast<int>(random() % 80));
    const Simulator simulator(trace);
    for (int plan = 0; plan < 10; ++plan) {
      const std::vector<CheckpointedModule> units = RandomUnits(trace, random);
      const Simulation alone = Simulate(trace, units);
      ASSERT_EQ(simulator.Simulate(units), alone) << round;
      const DetailedSimulation detail = simulator.SimulateInDetail(units);
      ASSERT_EQ(detail.simulation, alone) << round;
      ASSERT_EQ(detail.by_kind.size(), alone.steps.size());
      for (const StepId k : detail.by_kind.ids()) {
        const LiveBytes& bytes = detail.by_kind[k];
        ASSERT_EQ(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}),
                  alone.live_bytes[k]);
        ASSERT_GE(std::ranges::min(bytes), 0);
      }
    }
    ASSERT_EQ(simulator.Simulate({}), Simulate(trace, {})) << round;
  }
}

// Two layers of three operators: a product that autograd saves, an activation
// function that saves its result, a temporary. Sizes in units of 512 bytes.
//
//   operator 0..2: layer a, 3..5: layer b, 6: loss, 7: backward of b, 8: of a
class TwoLayers : public ::testing::Test {
 protected:
  TwoLayers() {
    trace_.modules = {
        {"N", "N", {}, {}}, {"N.a", "L", {}, {}}, {"N.b", "L", {}, {}}};
    trace_.tensors = {{0_s}, {3_s, kNone, 2_op, 6}};
    trace_.calls = {{0_module, kNone, 0, 6, {0_s}, {6_s}, {0_t}},
                    {1_module, 0_call, 0, 3, {0_s}, {3_s}, {0_t}},
                    {2_module, 0_call, 3, 6, {3_s}, {6_s}, {1_t}}};
    trace_.operator_names = {"op"};
    trace_.forward_end = 7;
    trace_.backward_end = 9;
    AddStorage(1, kNone, kNever, kNever);  // 0: the input
    AddStorage(8, 0_op, 9, 2);             // 1: product of a, saved
    AddStorage(4, 1_op, 2, 2);             // 2: temporary of a
    AddStorage(2, 2_op, 9, 6);             // 3: result of a, saved by a and b
    AddStorage(16, 3_op, 8, 5);            // 4: product of b, saved
    AddStorage(4, 4_op, 5, 5);             // 5: temporary of b
    AddStorage(2, 5_op, 8, 7);             // 6: result of b, saved
    AddStorage(1, 6_op, 9, kNever);        // 7: the loss
    for (int32_t k = 0; k < 9; ++k) {
      TraceOperator op;
      op.call = k < 3 ? 1_call : k < 6 ? 2_call : kNone;
      op.runtime_ms = 1.0 + k;
      if (k < 7) op.creates = op.outputs = {StorageId{k + 1}};
      trace_.operators.push_back(op);
    }
    AddSaved(1_s, 1, 1_call, 8, 9);
    AddSaved(3_s, 3, 1_call, 8, 9);
    AddSaved(3_s, 3, 2_call, 7, 8);
    AddSaved(4_s, 4, 2_call, 7, 8);
    AddSaved(6_s, 6, 2_call, 7, 8);
  }

  void AddSaved(StorageId storage, Time packed, CallId call, Time unpacked,
                Time released) {
    trace_.saved.push_back({.storage = storage,
                            .packed = packed,
                            .call = call,
                            .unpacked = unpacked,
                            .local_end = released,
                            .released = released});
  }

  void AddStorage(int64_t units, OperatorId born, Time freed, int32_t scope) {
    trace_.storages.push_back({.bytes = units * 512,
                               .category = StorageCategory::kActivation,
                               .born = born,
                               .freed = freed,
                               .scope_end = scope});
  }

  std::vector<int64_t> Units(const std::vector<CheckpointedModule>& modules) {
    std::vector<int64_t> units = Simulate(trace_, modules).live_bytes.values();
    for (int64_t& bytes : units) bytes /= 512;
    return units;
  }

  std::vector<int64_t> NaiveUnits(
      const std::vector<CheckpointedModule>& modules) {
    std::vector<int64_t> units =
        SimulateNaively(trace_, modules).live_bytes.values();
    for (int64_t& bytes : units) bytes /= 512;
    return units;
  }

  std::vector<int32_t> Operators(
      const std::vector<CheckpointedModule>& modules) {
    std::vector<int32_t> operators;
    for (const Simulation::Step& step : Simulate(trace_, modules).steps) {
      operators.push_back(IndexOf(step.op));
    }
    return operators;
  }

  std::string ErrorOf(const std::vector<CheckpointedModule>& modules) {
    try {
      Simulate(trace_, modules);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  }

  Trace trace_;
};

TEST_F(TwoLayers, WithoutUnits) {
  //                          input, then what is alive beside it
  EXPECT_THAT(Units({}), ElementsAre(1 + 8, 1 + 8 + 4, 1 + 8 + 2,
                                     1 + 8 + 2 + 16, 1 + 8 + 2 + 16 + 4,
                                     1 + 8 + 2 + 16 + 2, 1 + 8 + 2 + 16 + 2 + 1,
                                     1 + 8 + 2 + 16 + 2 + 1, 1 + 8 + 2 + 1));
}

TEST_F(TwoLayers, BothRunAgain) {
  const std::vector<CheckpointedModule> both = {{.module = 1_module},
                                                {.module = 2_module}};
  EXPECT_THAT(Operators(both),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 3, 4, 5, 7, 0, 1, 2, 8));
  EXPECT_THAT(
      Units(both),
      ElementsAre(1 + 8, 1 + 8 + 4, 1 + 2, 1 + 2 + 16, 1 + 2 + 16 + 4,
                  1 + 2 + 2, 1 + 2 + 2 + 1,
                  // b again: its input is the frame's
                  1 + 2 + 1 + 16, 1 + 2 + 1 + 16 + 4, 1 + 2 + 1 + 16 + 2,
                  1 + 2 + 1 + 16 + 2,
                  // a again: its result was b's input, freed with b's frame
                  1 + 1 + 8, 1 + 1 + 8 + 4, 1 + 1 + 8 + 2, 1 + 1 + 8 + 2));
  EXPECT_EQ(Simulate(trace_, both).recompute_ms, 1 + 2 + 3 + 4 + 5 + 6);

  // The results of reruns, apart from those of the forward pass.
  std::vector<int64_t> recomputed;
  for (const LiveBytes& bytes :
       Simulator(trace_).SimulateInDetail(both).by_kind) {
    recomputed.push_back(bytes[kRecomputedKind] / 512);
  }
  EXPECT_THAT(recomputed, ElementsAre(0, 0, 0, 0, 0, 0, 0, 16, 16 + 4, 16 + 2,
                                      16 + 2, 8, 8 + 4, 8 + 2, 8 + 2));
}

TEST_F(TwoLayers, WhatIsSavedDoesNotRunAgain) {
  const std::vector<CheckpointedModule> unit = {
      {.module = 2_module, .decisions = Decisions({1, 0, 0})}};
  EXPECT_THAT(Operators(unit), ElementsAre(0, 1, 2, 3, 4, 5, 6, 4, 5, 7, 8));
  EXPECT_THAT(Units(unit),
              ElementsAre(1 + 8, 1 + 8 + 4, 1 + 8 + 2, 1 + 8 + 2 + 16,
                          1 + 8 + 2 + 16 + 4, 1 + 8 + 2 + 16 + 2,
                          1 + 8 + 2 + 16 + 2 + 1, 1 + 8 + 2 + 16 + 1 + 4,
                          1 + 8 + 2 + 16 + 1 + 2, 1 + 8 + 2 + 16 + 1 + 2,
                          1 + 8 + 2 + 1));
}

TEST_F(TwoLayers, ASavedViewThatIsLetGoOfBeforeTheCallWaitsForItToRunAgain) {
  // Operator 4 also returns a view of the product of b. The view's scope_end is
  // before the operator, which a trace may state.
  trace_.tensors.push_back({4_s, kNone, 3_op, 5});
  trace_.tensors.push_back({4_s, 2_t, 4_op, 0});
  EXPECT_THAT(Units({{.module = 2_module, .decisions = Decisions({0, 1, 0})}}),
              ElementsAre(1 + 8, 1 + 8 + 4, 1 + 8 + 2, 1 + 8 + 2 + 16,
                          1 + 8 + 2 + 16 + 4, 1 + 8 + 2 + 16 + 4 + 2,
                          1 + 8 + 2 + 16 + 4 + 2 + 1,
                          // the product again, not the original
                          1 + 8 + 2 + 16 + 4 + 1, 1 + 8 + 2 + 16 + 1 + 2,
                          1 + 8 + 2 + 16 + 1 + 2, 1 + 8 + 2 + 1));
}

TEST_F(TwoLayers, StopsEarly) {
  // The last thing that b saves is its product, before operator 4.
  trace_.saved.pop_back();
  trace_.storages[6_s].freed = 7;
  EXPECT_THAT(Operators({{.module = 2_module}}),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 3, 7, 8));
}

TEST_F(TwoLayers, NeverAskedForNeverRunAgain) {
  for (SavedTensor& saved : trace_.saved) {
    if (saved.call == 2_call) saved.unpacked = saved.local_end = kNever;
  }
  EXPECT_THAT(Operators({{.module = 2_module}}),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
}

TEST_F(TwoLayers, AUnitInsideAnother) {
  const std::vector<CheckpointedModule> nested = {{.module = 0_module},
                                                  {.module = 2_module}};
  // The model again up to the arguments of b, then b.
  EXPECT_THAT(Operators(nested),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 7, 8));
  EXPECT_THAT(Units(nested),
              ElementsAre(1 + 8, 1 + 8 + 4, 1 + 2, 1 + 2 + 16, 1 + 2 + 16 + 4,
                          // b's frame leaves its argument to the model's
                          1 + 2 + 2, 1 + 2 + 1,
                          // the model: what a saved stays for the backward of a
                          1 + 1 + 8, 1 + 1 + 8 + 4, 1 + 1 + 8 + 2,
                          // b, with the argument that this made
                          1 + 1 + 8 + 2 + 16, 1 + 1 + 8 + 2 + 16 + 4,
                          1 + 1 + 8 + 2 + 16 + 2, 1 + 1 + 8 + 2 + 16 + 2,
                          1 + 1 + 8 + 2));
  // An argument that is not a tensor given by position stays with b's frame,
  // and b does not need the model to run again.
  trace_.calls[2_call].arguments = {};
  EXPECT_THAT(Operators(nested),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 3, 4, 5, 7, 0, 1, 2, 8));
  EXPECT_THAT(
      Units(nested),
      ElementsAre(1 + 8, 1 + 8 + 4, 1 + 2, 1 + 2 + 16, 1 + 2 + 16 + 4,
                  1 + 2 + 2, 1 + 2 + 2 + 1, 1 + 2 + 1 + 16, 1 + 2 + 1 + 16 + 4,
                  1 + 2 + 1 + 16 + 2, 1 + 2 + 1 + 16 + 2, 1 + 1 + 8,
                  1 + 1 + 8 + 4, 1 + 1 + 8 + 2, 1 + 1 + 8 + 2));
}

TEST_F(TwoLayers, WithoutGradientsAUnitIsOnlyCalled) {
  trace_.calls[2_call].no_grad = true;
  EXPECT_EQ(Units({{.module = 2_module}}), Units({}));
}

TEST_F(TwoLayers, CastsThatAutocastKeptAreMadeAgain) {
  // Operator 1, of a, casts a weight that operators 3 and 5, of b, use.
  trace_.storages[2_s].scope_end = 7;
  for (const OperatorId op : {2_op, 3_op, 5_op})
    trace_.operators[op].recasts = {1_op};
  EXPECT_THAT(Operators({{.module = 2_module}}),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 1, 3, 4, 5, 7, 8));
  EXPECT_THAT(
      ErrorOf({{.module = 2_module, .decisions = Decisions({0, 1, 0})}}),
      HasSubstr("module 'N.b': it cannot have a policy, because autocast cast "
                "one of its weights before the call (operator 1)"));
  // No operator casts again if the call itself makes the cast.
  EXPECT_THAT(Operators({{.module = 0_module}}),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 7, 8));
}

TEST_F(TwoLayers, ASavedViewIsOneOfTheOriginal) {
  // Operator 4 makes a view of the product of b instead of a temporary, and the
  // view is what autograd saves.
  trace_.operators[4_op].view = true;
  trace_.operators[4_op].creates = {};
  trace_.operators[4_op].outputs = {4_s};
  std::vector<TraceStorage> storages = trace_.storages.values();
  storages.erase(storages.begin() + 5);
  trace_.storages = IndexedVector<StorageId, TraceStorage>(storages);
  for (TraceOperator& op : trace_.operators) {
    for (StorageId& s : op.creates) {
      if (s > 5_s) s = Previous(s);
    }
  }
  for (SavedTensor& saved : trace_.saved) {
    if (saved.storage == 6_s) saved.storage = 5_s;
  }
  trace_.tensors.push_back({4_s, kNone, 3_op, 5});
  trace_.tensors.push_back({4_s, 2_t, 4_op, 5});
  trace_.operators[3_op].results = {2_t};
  trace_.operators[4_op].results = {3_t};
  trace_.saved[3_saved].tensor = 3_t;
  trace_.saved[3_saved].requires_grad = true;
  const std::vector<CheckpointedModule> view = {
      {.module = 2_module, .decisions = Decisions({0, 1, 0})}};
  EXPECT_THAT(Operators(view), ElementsAre(0, 1, 2, 3, 4, 5, 6, 3, 5, 7, 8));
  EXPECT_THAT(
      Units(view),
      ElementsAre(1 + 8, 1 + 8 + 4, 1 + 8 + 2, 1 + 8 + 2 + 16, 1 + 8 + 2 + 16,
                  1 + 8 + 2 + 16 + 2, 1 + 8 + 2 + 16 + 2 + 1,
                  // the product is made again beside the original, and
                  // held until its last use
                  1 + 8 + 2 + 16 + 1 + 16, 1 + 8 + 2 + 16 + 1 + 2,
                  1 + 8 + 2 + 16 + 1 + 2, 1 + 8 + 2 + 1));
}

TEST_F(TwoLayers, WhatIsSkippedTakesNeitherTimeNorMemory) {
  // Only its result, which is saved, needs the temporary of b.
  const std::vector<CheckpointedModule> unit = {
      {.module = 2_module, .decisions = Decisions({0, 2, 1})}};
  EXPECT_THAT(Operators(unit), ElementsAre(0, 1, 2, 3, 4, 5, 6, 3, 7, 8));
  EXPECT_EQ(Simulate(trace_, unit).recompute_ms, 4);
  EXPECT_THAT(Units(unit),
              ElementsAre(1 + 8, 1 + 8 + 4, 1 + 8 + 2, 1 + 8 + 2 + 16,
                          1 + 8 + 2 + 16 + 4, 1 + 8 + 2 + 2, 1 + 8 + 2 + 2 + 1,
                          // no temporary beside the product
                          1 + 8 + 2 + 2 + 1 + 16, 1 + 8 + 2 + 2 + 1 + 16,
                          1 + 8 + 2 + 1));
}

TEST_F(TwoLayers, FramesInsideSkipForThemselves) {
  const auto nested = [](const std::vector<int>& model,
                         const std::vector<int>& layer) {
    return std::vector<CheckpointedModule>{
        {.module = 0_module, .decisions = Decisions(model)},
        {.module = 2_module, .decisions = Decisions(layer)}};
  };
  const std::vector<CheckpointedModule> both =
      nested({0, 2, 0, 0, 0, 0}, {0, 2, 0});
  EXPECT_THAT(Operators(both),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 0, 2, 3, 5, 7, 8));
  EXPECT_THAT(Units(both),
              ElementsAre(1 + 8, 1 + 8 + 4, 1 + 2, 1 + 2 + 16, 1 + 2 + 16 + 4,
                          1 + 2 + 2, 1 + 2 + 1,
                          // the model, without the temporary
                          1 + 1 + 8, 1 + 1 + 8 + 2,
                          // b, without the temporary
                          1 + 1 + 8 + 2 + 16, 1 + 1 + 8 + 2 + 16 + 2,
                          1 + 1 + 8 + 2 + 16 + 2, 1 + 1 + 8 + 2));
  // b has the storages that it saved from the forward pass.
  AddSaved(6_s, 6, 0_call, 7, 8);
  EXPECT_THAT(Operators(nested({0, 0, 0, 2, 2, 0}, {1, 0, 0})),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 5, 4, 5, 7, 8));
  // Now the argument of b.
  trace_.saved[1_saved].unpacked = kNever;
  EXPECT_THAT(
      ErrorOf(nested({0, 0, 2, 0, 0, 0}, {0, 0, 0})),
      HasSubstr("module 'N': operator 2 (op) cannot be skipped, because "
                "module 'N.b' inside, which runs again, receives its "
                "result; save it or run it again"));
}

TEST_F(TwoLayers, ResultsThatAreNotKeptAreFreed) {
  // Operator 3 makes the product and a second result, operator 4 none.
  trace_.operators[3_op].creates = trace_.operators[3_op].outputs = {4_s, 5_s};
  trace_.storages[5_s].born = 3_op;
  trace_.operators[4_op].creates = trace_.operators[4_op].outputs = {};
  trace_.operators[4_op].outputs = {4_s};
  trace_.operators[4_op].view = true;
  trace_.tensors.push_back({4_s, kNone, 3_op, 5});
  trace_.tensors.push_back({5_s, kNone, 3_op, 4});
  trace_.operators[3_op].results = {2_t, 3_t};
  const auto with = [&](std::vector<int32_t> kept_results) {
    CheckpointedModule unit{.module = 2_module,
                            .decisions = Decisions({1, 0, 0})};
    unit.kept_results[0] = std::move(kept_results);
    return std::vector<CheckpointedModule>{unit};
  };
  const std::vector<int64_t> all =
      Units({{.module = 2_module, .decisions = Decisions({1, 0, 0})}});
  EXPECT_EQ(Units(with({0, 1})), all);
  std::vector<int64_t> expected = all;
  // The program holds it during step 4, and when it is handed out again.
  for (const int step : {5, 6, 7}) expected[step] -= 4;
  EXPECT_EQ(Units(with({0})), expected);
  EXPECT_THAT(ErrorOf(with({1})),
              HasSubstr("module 'N.b': operator 0 (op) must keep another "
                        "result, because the backward pass needs it"));
  EXPECT_THAT(ErrorOf(with({2})),
              HasSubstr("module 'N.b': operator 0: expected results to be kept "
                        "of the 2 that it makes, found index 2"));
  EXPECT_THAT(ErrorOf(with({1, 0})),
              HasSubstr("expected results to be kept in ascending order, found "
                        "0 after 1"));
  CheckpointedModule unit{.module = 2_module,
                          .decisions = Decisions({0, 0, 0})};
  unit.kept_results[0] = {0};
  EXPECT_THAT(ErrorOf({unit}),
              HasSubstr("module 'N.b': operator 0: expected results to be kept "
                        "of a saved operator, found one that is not saved"));
}

TEST_F(TwoLayers, RefusesToComputeWithStandIns) {
  const auto decide = [&](const std::vector<int>& decisions) {
    return ErrorOf({{.module = 2_module, .decisions = Decisions(decisions)}});
  };
  trace_.operators[4_op].reads = {4_s};
  trace_.operators[5_op].reads = {5_s};
  EXPECT_EQ(decide({0, 2, 1}), "accepted");
  EXPECT_THAT(decide({0, 2, 0}),
              HasSubstr("module 'N.b': operator 1 (op) cannot be skipped, "
                        "because operator 2 (op), which runs again, reads its "
                        "result"));
  EXPECT_THAT(decide({2, 2, 1}),
              HasSubstr("module 'N.b': operator 0 (op) cannot be skipped, "
                        "because the backward pass needs its result"));
  trace_.saved[3_saved].unpacked = kNever;
  EXPECT_EQ(decide({2, 2, 1}), "accepted");
  // A storage that a module keeps beyond the step is that of the forward pass.
  trace_.storages[5_s].scope_end = trace_.storages[5_s].freed = kNever;
  EXPECT_EQ(decide({2, 2, 1}), "accepted");
  trace_.storages[5_s].scope_end = trace_.storages[5_s].freed = 5;
  // Operator 4 writes to the product in place.
  trace_.operators[4_op].mutates = trace_.operators[4_op].outputs = {4_s};
  trace_.operators[4_op].creates = {};
  trace_.storages[5_s].born = 3_op;
  trace_.operators[3_op].creates = {4_s, 5_s};
  EXPECT_EQ(decide({2, 2, 1}), "accepted");
  trace_.operators[5_op].reads = {4_s};
  EXPECT_THAT(decide({0, 2, 0}),
              HasSubstr("operator 1 (op) cannot be skipped, because operator 2 "
                        "(op), which runs again, reads the tensor to which it "
                        "writes in place"));
  // A storage from outside of the unit is as the forward pass left it.
  trace_.operators[4_op].mutates = trace_.operators[4_op].outputs = {0_s};
  trace_.operators[5_op].reads = {0_s, 4_s};
  EXPECT_EQ(decide({0, 2, 0}), "accepted");
  trace_.operators[4_op].mutates = trace_.operators[4_op].outputs = {};
  EXPECT_THAT(decide({0, 2, 0}),
              HasSubstr("operator 1 (op) cannot be skipped, because it returns "
                        "no tensor"));
}

// Operator 4 makes a sparse tensor, whose parts are storage 5.
TEST_F(TwoLayers, WhatMakesASparseTensorRunsAgain) {
  trace_.operators[4_op].opaque = true;
  trace_.operators[4_op].outputs = {};
  const auto decide = [&](const std::vector<int>& decisions) {
    return ErrorOf({{.module = 2_module, .decisions = Decisions(decisions)}});
  };
  for (const auto& decisions : {Decisions({0, 0, 0}), Decisions({1, 0, 1})}) {
    const std::vector<CheckpointedModule> unit = {
        {.module = 2_module, .decisions = decisions}};
    EXPECT_THAT(Operators(unit), Contains(4).Times(2));
    EXPECT_EQ(Units(unit), NaiveUnits(unit));
  }
  EXPECT_THAT(Operators({{.module = 2_module}}), Contains(4).Times(2));
  for (const int kept_result : {1, 3}) {
    EXPECT_THAT(decide({0, kept_result, 0}),
                HasSubstr("module 'N.b': operator 1 (op) cannot be saved, "
                          "because its result is sparse"));
  }
  EXPECT_THAT(decide({0, 2, 0}),
              HasSubstr("operator 1 (op) cannot be skipped, because it returns "
                        "no tensor"));
  // A recomputation that ends before it does not need it.
  trace_.saved[4_saved].packed = trace_.saved[3_saved].packed;
  trace_.saved[4_saved].storage = trace_.saved[3_saved].storage;
  EXPECT_EQ(decide({0, 1, 0}), "accepted");
  EXPECT_EQ(decide({0, 2, 0}), "accepted");
}

// Operator 4 writes to the product in place, operator 5 makes a view of it.
TEST_F(TwoLayers, WhatIsNotWrittenToIsThere) {
  trace_.operators[4_op].mutates = trace_.operators[4_op].outputs = {4_s};
  trace_.operators[4_op].reads = {4_s};
  trace_.operators[5_op].view = true;
  trace_.operators[5_op].reads = trace_.operators[5_op].outputs = {4_s};
  trace_.operators[5_op].creates = {};
  trace_.operators[4_op].creates = {};
  trace_.operators[3_op].creates = {4_s, 5_s, 6_s};
  trace_.storages[5_s].born = trace_.storages[6_s].born = 3_op;
  trace_.saved[3_saved].unpacked = kNever;
  trace_.saved[4_saved].storage = 3_s;
  EXPECT_THAT(
      Operators({{.module = 2_module, .decisions = Decisions({0, 2, 0})}}),
      ElementsAre(0, 1, 2, 3, 4, 5, 6, 3, 5, 7, 8));
  EXPECT_THAT(
      Operators({{.module = 2_module, .decisions = Decisions({2, 2, 0})}}),
      ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  trace_.saved[3_saved].unpacked = 7;
  EXPECT_THAT(
      ErrorOf({{.module = 2_module, .decisions = Decisions({0, 2, 0})}}),
      HasSubstr("operator 1 (op) cannot be skipped, because the backward pass "
                "needs the tensor to which it writes in place"));
}

// A view of the product, made by operator 4.
TEST_F(TwoLayers, ViewsOfStandInsAreStandIns) {
  trace_.operators[4_op].view = true;
  trace_.operators[4_op].creates = {};
  trace_.operators[4_op].reads = trace_.operators[4_op].outputs = {4_s};
  trace_.operators[3_op].creates = {4_s, 5_s};
  trace_.storages[5_s].born = 3_op;
  trace_.tensors.push_back({4_s, kNone, 3_op, 5});
  trace_.tensors.push_back({4_s, 2_t, 4_op, 6});
  trace_.operators[3_op].results = {2_t};
  trace_.operators[4_op].results = {3_t};
  trace_.operators[5_op].reads = {};
  const auto decide = [&](const std::vector<int>& decisions) {
    return ErrorOf({{.module = 2_module, .decisions = Decisions(decisions)}});
  };
  trace_.saved[3_saved].tensor = 2_t;
  EXPECT_EQ(decide({0, 2, 0}), "accepted");
  trace_.operators[5_op].reads = {4_s};
  EXPECT_THAT(decide({0, 2, 0}),
              HasSubstr("operator 1 (op) cannot be skipped, because operator 2 "
                        "(op), which runs again, reads its result"));
  // The program no longer holds the view.
  trace_.tensors[3_t].scope_end = 4;
  EXPECT_EQ(decide({0, 2, 0}), "accepted");
  trace_.saved[3_saved].tensor = 3_t;
  EXPECT_THAT(decide({0, 2, 0}),
              HasSubstr("operator 1 (op) cannot be skipped, because the "
                        "backward pass needs its result"));
  trace_.operators[5_op].reads = {};
  // Autograd keeps nothing of a view that is not there and that nothing asks
  // for: step 8 is operator 5 again, after the product.
  trace_.saved[3_saved].unpacked = kNever;
  trace_.tensors[2_t].scope_end = 4;
  EXPECT_EQ(
      Units({{.module = 2_module, .decisions = Decisions({0, 2, 0})}})[8],
      Units({{.module = 2_module, .decisions = Decisions({2, 2, 0})}})[7]);
  trace_.saved[3_saved].unpacked = 7;
  trace_.tensors[2_t].scope_end = 5;
  // A saved view is a view of the original.
  EXPECT_EQ(decide({2, 1, 0}), "accepted");
  // No view of a missing storage runs.
  trace_.saved[3_saved].unpacked = kNever;
  EXPECT_THAT(
      Operators({{.module = 2_module, .decisions = Decisions({2, 0, 0})}}),
      ElementsAre(0, 1, 2, 3, 4, 5, 6, 5, 7, 8));
}

TEST_F(TwoLayers, AnAttributeStaysTheOneOfTheForwardPass) {
  // b keeps its temporary beyond the step.
  trace_.storages[5_s].scope_end = trace_.storages[5_s].freed = kNever;
  EXPECT_THAT(
      Units({{.module = 2_module}}),
      ElementsAre(1 + 8, 1 + 8 + 4, 1 + 8 + 2, 1 + 8 + 2 + 16,
                  1 + 8 + 2 + 16 + 4, 1 + 8 + 2 + 4 + 2, 1 + 8 + 2 + 4 + 2 + 1,
                  1 + 8 + 2 + 4 + 1 + 16, 1 + 8 + 2 + 4 + 1 + 16 + 4,
                  // the copy is there until b has run again, the original stays
                  1 + 8 + 2 + 4 + 1 + 16 + 4 + 2, 1 + 8 + 2 + 4 + 1 + 16 + 2,
                  1 + 8 + 2 + 4 + 1));
}

TEST_F(TwoLayers, RefusesWhatPyTorchCannotDo) {
  EXPECT_THAT(ErrorOf({{.module = 1_module, .decisions = Decisions({1})}}),
              HasSubstr("module 'N.a': expected a decision for each of the 3 "
                        "operators of a call, found 1"));
  trace_.operators[4_op].mutates = {3_s};
  EXPECT_THAT(ErrorOf({{.module = 2_module}}),
              HasSubstr("module 'N.b': it cannot be a unit, because operator 4 "
                        "(op) of the step writes in place to one of its "
                        "arguments"));
  trace_.operators[4_op].mutates = {};
  trace_.saved[3_saved].unpacked_again = true;
  EXPECT_THAT(ErrorOf({{.module = 2_module}}),
              HasSubstr("module 'N.b': it cannot be a unit, because the "
                        "backward pass asks twice for a tensor"));
  trace_.calls.pop_back();
  for (TraceOperator& op : trace_.operators)
    op.call = std::min(op.call, 1_call);
  trace_.saved.resize(2);
  EXPECT_THAT(ErrorOf({{.module = 2_module}}),
              HasSubstr("module 'N.b': expected one that is called"));
}

TEST_F(TwoLayers, WhatIsWrittenToInPlaceIsSavedAsAWholeOrNot) {
  const auto save = [&](const std::vector<int>& decisions) {
    return ErrorOf({{.module = 2_module, .decisions = Decisions(decisions)}});
  };
  // Operator 4 writes to the result of operator 3, and 5 as well.
  for (const OperatorId op : {4_op, 5_op}) {
    trace_.operators[op].mutates = {4_s};
    trace_.operators[op].reads = {4_s};
    trace_.operators[op].outputs.insert(trace_.operators[op].outputs.begin(),
                                        4_s);
  }
  EXPECT_EQ(save({0, 0, 0}), "accepted");
  EXPECT_EQ(save({1, 1, 1}), "accepted");
  EXPECT_THAT(save({1, 0, 0}),
              HasSubstr("operator 0 (op) cannot be saved, because operator 1 "
                        "(op), which is not saved, writes to its result in "
                        "place later"));
  EXPECT_THAT(save({1, 1, 0}),
              HasSubstr("operator 1 (op) cannot be saved, because operator 2 "
                        "(op), which is not saved, writes to its result"));
  EXPECT_THAT(save({0, 1, 0}),
              HasSubstr("operator 1 (op) cannot be saved, because it writes in "
                        "place to a tensor that is not saved"));
  // An operator that runs again would read the last write.
  trace_.operators[4_op].mutates = {};
  EXPECT_THAT(save({1, 0, 1}),
              HasSubstr("operator 0 (op) cannot be saved, because operator 2 "
                        "(op) writes to its result in place later and operator "
                        "1 (op), which runs again, reads it before that"));
}

}  // namespace
}  // namespace acplan::graph
