#include "problems/language/changed_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/trace/segments.h"
#include "graph/trace/simulation.h"
#include "problems/language/language.h"
#include "problems/language/language_search.h"
#include "problems/language/module_parts.h"
#include "problems/language/trainer_policy.h"
#include "solver/infinity.h"
#include "tests/problems/language_step.h"
#include "tests/support/repetitions.h"

// Units that are no modules of the trace: runs of blocks, and parts that discard their
// results.

namespace acplan::problems {
namespace {

using graph::CheckpointedModule;
using solver::SearchStatus;

constexpr int kChangedSteps = test_support::Repetitions(25);

// Returns nothing if the blocks of a run are not called one right after the other.
std::optional<graph::Trace> WithRuns(
    const graph::Trace& trace, const std::vector<graph::ModuleRun>& runs) {
  try {
    return graph::WithSegments(trace, runs);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// Runs of blocks as units, by the segments themselves.
TEST(RunsOfBlocks, AreTheBestOfAllLengths) {
  int answers = 0;
  for (unsigned seed = 0; seed < 4 * kChangedSteps; ++seed) {
    const LanguageStep step(seed, {.blocks_least = 3, .blocks_most = 6});
    const std::vector<graph::ModuleId> blocks = BlocksOf(step.trace);
    const RestrictedTrace restricted = Restrict(
        step.problem,
        {.blocks = {BlockKind::kAll, BlockKind::kRuns}, .stops_early = false},
        blocks);
    std::vector<graph::Simulation> uses = {graph::Simulate(step.trace, {})};
    for (size_t length = 1; length <= blocks.size(); ++length) {
      std::vector<graph::ModuleRun> runs;
      for (size_t k = 0; k + 1 < blocks.size() && length > 1; k += length) {
        runs.push_back(
            {blocks[k], blocks[std::min(k + length, blocks.size()) - 1]});
      }
      const std::optional<graph::Trace> changed_trace =
          WithRuns(step.trace, runs);
      if (!changed_trace) continue;
      const graph::Trace& trace = *changed_trace;
      std::vector<CheckpointedModule> units;
      for (const graph::ModuleId module : trace.modules.ids()) {
        const std::string& fqn = trace.modules[module].fqn;
        const bool is_last = fqn == step.trace.modules[blocks.back()].fqn &&
                             (length == 1 || blocks.size() % length == 1);
        // A trace without runs has the modules of the step.
        const bool is_block =
            length == 1 && std::ranges::binary_search(blocks, module);
        if (trace.modules[module].IsSegment() || is_last || is_block) {
          units.push_back({.module = module, .stops_early = false});
        }
      }
      uses.push_back(graph::Simulate(trace, units));
    }
    for (const graph::Simulation& use : uses) {
      double least_ms = solver::kInfinity;
      for (const graph::Simulation& other : uses) {
        if (other.peak_bytes > use.peak_bytes) continue;
        least_ms = std::min(least_ms, other.recompute_ms);
      }
      const LanguageSolution solution =
          SolveLanguage(restricted, use.peak_bytes, {});
      ASSERT_EQ(solution.status, SearchStatus::kOptimal) << "seed " << seed;
      ASSERT_NEAR(solution.use.recompute_ms, least_ms, 1e-9 * (1 + least_ms))
          << "seed " << seed;
      answers += solution.policy.blocks.kind == BlockKind::kRuns ? 1 : 0;
    }
  }
  EXPECT_GE(answers, test_support::Enough(2));
}

bool IsUnit(const graph::TraceCall& call,
            const std::vector<CheckpointedModule>& units) {
  return std::ranges::any_of(units, [&](const CheckpointedModule& unit) {
    return unit.module == call.module;
  });
}

// Parts that discard their results keep nothing of them, and run again whenever backward
// reads one.
TEST(PartsOfBlocks, DiscardTheirResults) {
  int discarded_count = 0;
  int more_reruns = 0;
  for (unsigned seed = 0; seed < 4 * kChangedSteps; ++seed) {
    const LanguageStep plain(seed, {.operators_least = 3, .operators_most = 5});
    graph::Trace trace = plain.trace;
    for (graph::TraceModule& module : trace.modules) {
      if (module.fqn.ends_with(".leaf0")) {
        module.fqn.replace(module.fqn.size() - 5, 5, "input_layernorm");
      }
    }
    const graph::Profile profile = graph::Aggregate(trace);
    const graph::ModuleTree tree(profile);
    const PlanningProblem problem = BuildPlanningProblem(
        profile, tree, {.memory = {.model = MemoryModel::kTrace}}, &trace);
    const Language language{.blocks = {BlockKind::kParts},
                            .stops_early = false};
    const RestrictedTrace restricted =
        Restrict(problem, language, BlocksOf(trace));
    if (restricted.choices.size() < 2) continue;
    const TrainerPolicy& policy = restricted.choices[1].policy;
    ASSERT_EQ(policy.blocks.parts, std::vector<std::string>{"layernorm"});
    std::vector<CheckpointedModule> leaves;
    for (const graph::ModuleId module :
         ModulesOfParts(trace, restricted.blocks, policy.blocks.parts)) {
      leaves.push_back({.module = module, .stops_early = false});
    }
    const graph::Simulation keeping_use = graph::Simulate(trace, leaves);
    const auto& simulator = restricted.TraceProblemOf(policy.blocks).simulator;
    const auto units = PlannedUnitsOf(restricted, policy);
    const graph::Simulation use = simulator.Simulate(units);
    ASSERT_GE(use.recompute_ms, keeping_use.recompute_ms);
    // In the forward pass, a result lives as long as the program or another unit holds it.
    const graph::LivedStep lived = simulator.Live(units);
    const auto held_until = graph::HeldByOthers(trace);
    for (const graph::CallId c : trace.calls.ids()) {
      const graph::TraceCall& call = trace.calls[c];
      if (!IsUnit(call, leaves)) continue;
      for (const graph::StorageId result : call.outputs) {
        const bool is_input =
            std::ranges::any_of(trace.calls, [&](const auto& other) {
              return IsUnit(other, leaves) &&
                     std::ranges::count(other.inputs, result) > 0;
            });
        if (is_input || held_until[result] >= trace.forward_end) continue;
        ASSERT_LE(IndexOf(lived.lives[graph::OriginalLife(result)].end),
                  std::max(held_until[result], call.end))
            << "seed " << seed;
        ++discarded_count;
      }
    }
    more_reruns += use.recompute_ms > keeping_use.recompute_ms ? 1 : 0;
  }
  EXPECT_GT(discarded_count, 0);
  EXPECT_GT(more_reruns, 0);
}

}  // namespace
}  // namespace acplan::problems
