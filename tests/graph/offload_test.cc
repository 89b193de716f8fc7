#include "graph/trace/offload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "graph/trace/needs.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "tests/graph/naive_simulation.h"
#include "tests/graph/random_units.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using test_support::Enough;
using test_support::RandomStep;
using test_support::Repetitions;

// Sends one of `one_in` saved operators to the host, and of the tensors that each call
// is given.
CheckpointedModule WithOffload(CheckpointedModule unit, const Trace& trace,
                               unsigned one_in, std::mt19937& random) {
  size_t count = SIZE_MAX;
  for (const TraceCall& call : trace.calls) {
    if (call.module == unit.module) {
      count =
          std::min(count, call.arguments.size() + call.further_inputs.size());
    }
  }
  for (int32_t place = 0; place < static_cast<int32_t>(count); ++place) {
    if (random() % one_in == 0) unit.offloaded_arguments.push_back(place);
  }
  for (OperatorDecision& decision : unit.decisions) {
    const bool goes =
        decision == OperatorDecision::kSave && random() % one_in == 0;
    if (goes) decision = OperatorDecision::kOffload;
  }
  return unit;
}

struct Played {
  int plans = 0, refused = 0, moved = 0, arguments = 0, further = 0,
      dropped = 0;
};

// Expects that the device has fewer bytes while storages are away.
void ExpectAway(const Trace& trace, const Simulation& use,
                const Simulation& saved) {
  IndexedVector<StepId, int64_t> away(use.steps.size(), 0);
  std::set<StorageId> moved_storages;
  for (const OffloadedStorage& storage : use.offload.storages) {
    // One that several calls move is away until the first of them fetches it.
    if (!moved_storages.insert(storage.storage).second) return;
    const int64_t bytes =
        (trace.storages[storage.storage].bytes + 511) / 512 * 512;
    for (const StepId k : IdRange(storage.away_begin, storage.away_end)) {
      away[k] += bytes;
    }
    // Some steps have a storage twice.
    if (storage.away_end < storage.away_begin) return;
  }
  for (const StepId k : away.ids()) {
    ASSERT_EQ(use.live_bytes[k], saved.live_bytes[k] - away[k]) << IndexOf(k);
  }
}

// Plays random units beside the simulation.
void PlayOne(const Trace& trace, std::mt19937& random, Played& played) {
  const NeedDrivenPolicies needs(trace);
  std::vector<CheckpointedModule> units;
  for (const RandomUnit& at : UnitsByChance(trace, random)) {
    CheckpointedModule unit =
        needs.PolicyFor(at.module, RandomSaves(at.length, random));
    if (random() % 4 == 0) unit.kept_results.clear();
    units.push_back(
        WithOffload(std::move(unit), trace, 1 + random() % 2, random));
    if (Accepted(trace, units)) continue;
    ++played.refused;
    units.pop_back();
  }
  if (units.empty()) return;
  const Simulation use = Simulate(trace, units);
  ++played.plans;
  played.moved += static_cast<int>(use.offload.storages.size());
  played.arguments += static_cast<int>(std::ranges::count(
      use.offload.storages, OperatorId{kNone}, &OffloadedStorage::op));
  for (const OffloadedStorage& storage : use.offload.storages) {
    const std::vector<StorageId>& further =
        trace.calls[storage.call].further_inputs;
    const bool is_further =
        storage.op == kNone &&
        std::ranges::find(further, storage.storage) != further.end();
    played.further += is_further ? 1 : 0;
  }
  for (const OffloadEvent& event : use.offload.events) {
    played.dropped += event.kind == OffloadEvent::Kind::kDrop ? 1 : 0;
  }
  ExpectTheSame(use, SimulateNaively(trace, units));
  EXPECT_TRUE(SavesViews(trace, units) || ComputesTheSame(trace, units));
  // Nothing else changes.
  for (CheckpointedModule& unit : units) {
    unit.offloaded_arguments.clear();
    for (OperatorDecision& decision : unit.decisions) {
      if (Keeps(decision)) decision = OperatorDecision::kSave;
    }
  }
  const Simulation saved = Simulate(trace, units);
  EXPECT_EQ(saved.steps, use.steps);
  EXPECT_EQ(saved.recompute_ms, use.recompute_ms);
  EXPECT_EQ(saved.offload, OffloadUse());
  ExpectAway(trace, use, saved);
}

TEST(Offload, IsAsPlainlyPlayed) {
  std::mt19937 random(21);
  Played played;
  for (int round = 0;
       round < Repetitions(5000) && !::testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(round);
    PlayOne(RandomStep(random, RandomOptions(random)), random, played);
  }
  EXPECT_GT(played.plans, Enough(2000));
  EXPECT_GT(played.refused, Enough(50));
  EXPECT_GT(played.moved, Enough(4000));
  EXPECT_GT(played.dropped, Enough(50));
  EXPECT_GT(played.arguments, Enough(1000));
  EXPECT_GT(played.further, Enough(200));
}

class OffloadOfRealSteps : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, OffloadOfRealSteps,
                         ::testing::Values("gpt2", "t5", "vit", "swin",
                                           "resnet", "unet", "custom",
                                           "shared"));

TEST_P(OffloadOfRealSteps, IsAsPlainlyPlayed) {
  const Trace trace = ReadTrace(std::string(ACPLAN_TEST_DATA_DIR "/traces/") +
                                GetParam() + ".trace.json.gz");
  std::mt19937 random(22);
  Played played;
  for (int round = 0; round < Repetitions(10); ++round) {
    SCOPED_TRACE(round);
    PlayOne(trace, random, played);
  }
  EXPECT_GT(played.plans, Enough(5));
  EXPECT_GT(played.moved, Enough(10));
}

}  // namespace
}  // namespace acplan::graph
