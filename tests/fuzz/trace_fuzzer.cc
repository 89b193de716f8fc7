// All bytes are an accepted trace that is the same after it is written and read
// again, whose indices are valid, whose step can be simulated with any units,
// and whose profile, if it has one, is valid, or an InputError of one line.
// Built with -fsanitize=fuzzer, or with replay_main.cc.

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/profile/profile.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"
#include "tests/support/random_step.h"

namespace {

using namespace acplan::graph;

void CheckLives(const Trace& trace) {
  size_t born = 0;
  for (const TraceStorage& storage : trace.storages) {
    Require(StartOf(storage.born) <= storage.freed, "birth before death");
    if (storage.born != kNone) ++born;
  }
  for (const OperatorId k : trace.operators.ids()) {
    const TraceOperator& op = trace.operators[k];
    born -= op.creates.size();
    for (const StorageId s : op.creates)
      Require(trace.storages.values().at(IndexOf(s)).born == k,
              "creates what is born in it");
    for (const StorageId s : op.reads)
      Require(trace.storages.values().at(IndexOf(s)).freed >= StartOf(k),
              "reads what lives");
    if (op.call != kNone)
      Require(trace.calls.values().at(IndexOf(op.call)).end > StartOf(k),
              "runs in its call");
  }
  Require(born == 0, "an operator for each birth");
}

// Checks that a trace's profile, if it has one, is one that its reader accepts.
void CheckProfile(const Trace& trace) {
  try {
    const Profile profile = Aggregate(trace);
    Require(ParseProfile(ProfileToJson(profile), "fuzz.json") == profile,
            "the same profile after writing and reading");
  } catch (const acplan::InputError& error) {
    const std::string_view message = error.what();
    Require(!message.starts_with("fuzz.json"), "a profile that is read");
    Require(message.find('\n') == std::string_view::npos,
            "a message of one line");
  }
}

std::vector<CheckpointedModule> UnitsByChance(const Trace& trace,
                                              std::mt19937& random) {
  std::vector<CheckpointedModule> units;
  for (const TraceCall& call : trace.calls) {
    if (random() % 4 != 0) continue;
    CheckpointedModule unit = {.module = call.module};
    if (random() % 2 == 0) {
      for (int32_t k = call.start; k < call.end; ++k)
        unit.decisions.push_back(static_cast<OperatorDecision>(random() % 4));
    }
    units.push_back(std::move(unit));
  }
  return units;
}

void CheckStep(const Trace& trace) {
  const Simulation baseline = Simulate(trace, {});
  Require(baseline.steps.size() == trace.operators.size(),
          "the step as it was");
  Require(baseline.recompute_ms == 0, "nothing runs again");
  std::mt19937 random(static_cast<unsigned>(trace.operators.size()));
  for (int sample = 0; sample < 4; ++sample) {
    try {
      const Simulation use = Simulate(trace, UnitsByChance(trace, random));
      Require(use.live_bytes.size() == use.steps.size(), "bytes of every step");
      Require(use.recompute_ms >= 0, "no time is won");
    } catch (const acplan::InputError& error) {
      CheckMessage(error, "");  // units that the simulation refuses
    }
  }
}

}  // namespace

std::string ValidInput(unsigned seed) {
  std::mt19937 random(seed);
  const auto half = [&] { return random() % 2 == 0; };
  return ToJson(
      acplan::test_support::RandomStep(random, {.blocks_least = 1,
                                                .blocks_most = 2,
                                                .operators_least = 1,
                                                .operators_most = 3,
                                                .nests = half(),
                                                .skips = half(),
                                                .shares_arguments = half(),
                                                .shares_storages = half(),
                                                .shares_modules = half(),
                                                .repeats = half(),
                                                .writes = half(),
                                                .draws = half(),
                                                .keeps = half(),
                                                .has_odd_ends = half()}));
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Trace trace = ParseTrace(text, "fuzz.json");
    CheckLives(trace);
    CheckStep(trace);
    CheckProfile(trace);
    Require(ParseTrace(ToJson(trace), "fuzz.json") == trace,
            "the same trace after writing and reading");
  } catch (const acplan::InputError& error) {
    CheckMessage(error);
  }
  return 0;
}