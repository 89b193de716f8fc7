#include "tests/graph/random_units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>

#include "graph/base/input_error.h"

namespace acplan::graph {

test_support::StepOptions RandomOptions(std::mt19937& random) {
  const auto half = [&] { return random() % 2 == 0; };
  test_support::StepOptions options;
  options.operators_most = 4 + static_cast<int>(random() % 5);
  options.nests = half();
  options.skips = half();
  options.shares_arguments = half();
  options.shares_storages = half();
  options.shares_modules = half();
  options.repeats = half();
  options.writes = half();
  options.draws = half();
  options.has_odd_ends = half();
  return options;
}

std::vector<RandomUnit> UnitsByChance(const Trace& trace, std::mt19937& random,
                                      bool may_nest) {
  IndexedVector<CallId, Flag> is_inside(trace.calls.size(), false);
  std::vector<RandomUnit> units;
  for (const ModuleId m : trace.modules.ids()) {
    std::set<int32_t> lengths;
    std::vector<CallId> calls;
    for (const CallId c : trace.calls.ids()) {
      if (trace.calls[c].module != m) continue;
      calls.push_back(c);
      lengths.insert(trace.calls[c].OperatorCount());
    }
    if (lengths.size() != 1 || random() % (m == ModuleId{0} ? 8 : 2) != 0)
      continue;
    const auto is_around = [&](CallId outer, CallId inner) {
      for (; inner != kNone; inner = trace.calls[inner].parent) {
        if (inner == outer) return true;
      }
      return false;
    };
    const bool is_nested = std::ranges::any_of(calls, [&](CallId c) {
      for (const CallId other : trace.calls.ids()) {
        const bool is_unit =
            is_inside[other] || (other != c && trace.calls[other].module == m);
        if (is_unit && (is_around(c, other) || is_around(other, c))) {
          return true;
        }
      }
      return false;
    });
    if (is_nested && !may_nest) continue;
    for (const CallId c : calls) is_inside[c] = true;
    units.push_back({.module = m, .length = *lengths.begin()});
  }
  return units;
}

std::vector<Flag> RandomSaves(int32_t length, std::mt19937& random) {
  const auto one_in = 1 + random() % 5;
  std::vector<Flag> saves(length);
  for (Flag& save : saves) save = random() % one_in == 0;
  return saves;
}

std::optional<Simulation> Accepted(
    const Trace& trace, const std::vector<CheckpointedModule>& modules) {
  try {
    return Simulate(trace, modules);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

CheckpointedModule AllOthersRunAgain(ModuleId module,
                                     const std::vector<Flag>& saves) {
  CheckpointedModule unit = {.module = module};
  for (const bool save : saves) {
    unit.decisions.push_back(SaveOrRecompute(save));
  }
  return unit;
}

bool SavesViews(const Trace& trace,
                const std::vector<CheckpointedModule>& modules) {
  for (const CheckpointedModule& unit : modules) {
    const auto call =
        std::ranges::find(trace.calls, unit.module, &TraceCall::module);
    for (int32_t k = 0; k < std::ssize(unit.decisions); ++k) {
      const bool saves_view =
          Keeps(unit.decisions[k]) && trace.operators[call->AtPlace(k)].view;
      if (saves_view) return true;
    }
  }
  return false;
}

void ExpectTheSame(const Simulation& simulation, const Simulation& naive) {
  ASSERT_EQ(simulation.steps, naive.steps);
  const auto [first, other] =
      std::ranges::mismatch(simulation.live_bytes, naive.live_bytes);
  ASSERT_EQ(simulation.live_bytes, naive.live_bytes)
      << "from step " << first - simulation.live_bytes.begin()
      << " on: " << *first << " and " << *other;
  OffloadUse offload = simulation.offload;
  for (OffloadedStorage& storage : offload.storages) {
    storage.away_begin = storage.away_end = {};
  }
  EXPECT_EQ(offload, naive.offload);
  EXPECT_NEAR(simulation.recompute_ms, naive.recompute_ms,
              1e-9 * (1 + naive.recompute_ms));
}

}  // namespace acplan::graph
