#include "problems/language/changed_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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

// Runs of blocks as units, by the segments themselves.
TEST(RunsOfBlocks, AreTheBestOfAllLengths) {
  int answers = 0;
  for (unsigned seed = 0; seed < kChangedSteps; ++seed) {
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
      const graph::Trace trace = graph::WithSegments(step.trace, runs);
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
  EXPECT_GT(answers, 0);
}

// Parts that discard their results keep nothing of them, and run again whenever backward
// reads one.
TEST(PartsOfBlocks, DiscardTheirResults) {
  int lower = 0;
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
    for (const graph::OperatorId op :
         graph::OperatorsIn(0, trace.forward_end)) {
      // Nothing runs again in the forward pass.
      const graph::StepId at{IndexOf(op)};
      ASSERT_LE(use.live_bytes[at], keeping_use.live_bytes[at])
          << "seed " << seed;
      lower += use.live_bytes[at] < keeping_use.live_bytes[at] ? 1 : 0;
    }
    more_reruns += use.recompute_ms > keeping_use.recompute_ms ? 1 : 0;
  }
  EXPECT_GT(lower, 0);
  EXPECT_GT(more_reruns, 0);
}

}  // namespace
}  // namespace acplan::problems
