#include "problems/check/skip_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "graph/base/flag.h"
#include "graph/base/input_error.h"
#include "graph/trace/needs.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using graph::CheckpointedModule;
using graph::OperatorDecision;
using graph::Trace;
using test_support::Enough;
using test_support::Repetitions;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Returns a module's number of operators, or nothing if its calls differ.
std::optional<size_t> LengthOf(const Trace& trace, graph::ModuleId module) {
  std::optional<size_t> length;
  for (const graph::TraceCall& call : trace.calls) {
    if (call.module != module) continue;
    const auto now = static_cast<size_t>(call.end - call.start);
    if (length && *length != now) return std::nullopt;
    length = now;
  }
  return length;
}

std::string RefusalOf(const Trace& trace, const CheckpointedModule& unit) {
  try {
    graph::Simulate(trace, {unit});
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// Returns need-driven decisions with random changes; decisions about views
// change only if `skips_views`.
CheckpointedModule RandomPolicy(const Trace& trace, graph::ModuleId module,
                                size_t length, bool skips_views,
                                std::mt19937& random) {
  std::vector<graph::Flag> saves(length);
  for (graph::Flag& save : saves) save = random() % 3 == 0;
  CheckpointedModule unit =
      graph::NeedDrivenPolicies(trace).PolicyFor(module, saves);
  const auto call =
      std::ranges::find(trace.calls, module, &graph::TraceCall::module);
  const auto one_in = 1 + random() % 8;
  for (size_t k = 0; k < length; ++k) {
    const bool is_view =
        trace.operators[call->AtPlace(static_cast<int32_t>(k))].view;
    if (is_view && !skips_views) {
      unit.decisions[k] = OperatorDecision::kRecompute;
      unit.kept_results.erase(static_cast<int32_t>(k));
    } else if (random() % one_in == 0) {
      unit.decisions[k] = static_cast<OperatorDecision>(random() % 3);
      unit.kept_results.erase(static_cast<int32_t>(k));
    }
  }
  return unit;
}

// Returns whether a unit skips, since the rules are about such units.
bool SkipsSome(const CheckpointedModule& unit) {
  return !unit.kept_results.empty() ||
         std::ranges::find(unit.decisions, OperatorDecision::kSkip) !=
             unit.decisions.end();
}

TEST(SkipRules, RefuseWhatTheSimulationRefuses) {
  std::mt19937 random(21);
  int accepted = 0, refused = 0, sparse = 0;
  for (int round = 0; round < Repetitions(3000); ++round) {
    SCOPED_TRACE(round);
    const auto half = [&] { return random() % 2 == 0; };
    const bool is_exact = half();
    const Trace trace =
        test_support::RandomStep(random, {.operators_most = 8,
                                          .nests = half(),
                                          .skips = half(),
                                          .shares_storages = half(),
                                          .repeats = half(),
                                          .writes = !is_exact,
                                          .keeps = half(),
                                          .makes_sparse = half(),
                                          .has_odd_ends = half()});
    for (const graph::ModuleId m : trace.modules.ids()) {
      const std::optional<size_t> length = LengthOf(trace, m);
      if (!length || *length == 0) continue;
      const CheckpointedModule unit =
          RandomPolicy(trace, m, *length, !is_exact, random);
      const std::string refusal = RefusalOf(trace, unit);
      const std::optional<std::string> broken =
          BrokenSkipRule(trace, CallIndex(trace), unit);
      const bool is_of_stand_ins =
          refusal.find("cannot be skipped") != refusal.npos ||
          refusal.find("must keep another result") != refusal.npos ||
          (SkipsSome(unit) &&
           refusal.find("its result is sparse") != refusal.npos);
      sparse += refusal.find("its result is sparse") != refusal.npos ? 1 : 0;
      ++(refusal.empty() ? accepted : refused);
      if (refusal.empty()) {
        EXPECT_EQ(broken, std::nullopt);
      }
      if (is_exact && is_of_stand_ins) {
        EXPECT_NE(broken, std::nullopt);
      }
      if (broken) {
        EXPECT_THAT(*broken, HasSubstr(trace.modules[m].fqn + ": operator "));
        EXPECT_THAT(*broken,
                    AnyOf(HasSubstr("is skipped, but "),
                          HasSubstr("does not keep a result that is needed"),
                          HasSubstr("is kept, but cannot be kept")));
      }
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(accepted, Enough(1000));
  EXPECT_GT(refused, Enough(1000));
  EXPECT_GT(sparse, Enough(100));
}

}  // namespace
}  // namespace acplan::problems
