#include <benchmark/benchmark.h>

#include <string>

#include "graph/base/file_io.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/plan/baseline.h"
#include "problems/planner.h"
#include "tests/support/asked_plan.h"
#include "tests/support/reference_data.h"
#include "tests/support/synthetic_profile.h"

namespace acplan {

namespace {

void ReadLlama(benchmark::State& state) {
  const auto path = test_support::ProfilePath("llama8b");
  for (auto _ : state) {
    benchmark::DoNotOptimize(graph::ReadProfile(path));
  }
}
BENCHMARK(ReadLlama)->Unit(benchmark::kMillisecond);

void ParseManyModules(benchmark::State& state) {
  const std::string text = graph::ProfileToJson(
      test_support::SyntheticGpt(static_cast<int>(state.range(0))));
  for (auto _ : state) {
    const graph::Profile profile = graph::ParseProfile(text, "synthetic");
    benchmark::DoNotOptimize(graph::ModuleTree(profile));
  }
}
BENCHMARK(ParseManyModules)
    ->Arg(100)
    ->Arg(1000)
    ->Arg(7692)
    ->Unit(benchmark::kMillisecond);

void PlanSynthetic(benchmark::State& state) {
  const double jitter = static_cast<double>(state.range(1)) / 100;
  const graph::Profile profile =
      test_support::SyntheticGpt(static_cast<int>(state.range(0)), jitter);
  const graph::ModuleTree tree(profile);
  problems::PlanOptions options{.granularity = problems::Granularity::kModule,
                                .tradeoff = problems::Tradeoff::kProfile};
  options.memory.model = problems::MemoryModel::kTorch;
  options.budget_bytes =
      ComputeBaseline(profile, tree, options.memory).peak_bytes * 7 / 10;
  for (auto _ : state) {
    benchmark::DoNotOptimize(test_support::AskedPlan(profile, tree, options));
  }
}
BENCHMARK(PlanSynthetic)
    ->ArgNames({"layers", "jitter%"})
    ->ArgsProduct({{12, 24, 48, 96, 192}, {0, 10}})
    ->Unit(benchmark::kMillisecond);

}  // namespace

}  // namespace acplan
