#include "costmodel/profile/stage_profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "costmodel/training/layer/layer_graph.h"
#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/time/unit_times.h"
#include "tests/costmodel/training/training_example.h"

namespace acplan::costmodel {
namespace {

using graph::Module;
using graph::Profile;

TrainingJob Job() {
  TrainingJob job = Llama8B();
  job.strategy.pipeline = 2;
  return job;
}

double Sum(const std::vector<double>& values) {
  return std::reduce(values.begin(), values.end());
}

TEST(StageProfile, IsAValidProfile) {
  for (const size_t stage : {0, 1}) {
    const Profile profile = StageProfile(Job(), stage);
    EXPECT_EQ(graph::ParseProfile(graph::ProfileToJson(profile), "stage"),
              profile);
  }
}

// The profile's operators are all operations of a forward pass, and keep all
// that the backward pass reads except the layer's input.
TEST(StageProfile, OperatorsTakeWhatLayersTake) {
  const TrainingJob job = Job();
  const LayerGraph graph = GraphOfLayer(job, false);
  const UnitTimes units = TimesOfUnits(job);
  const double microbatches = static_cast<double>(job.strategy.Microbatches());
  const Profile profile = StageProfile(job, 0);
  int64_t layers = 0;
  for (const Module& module : profile.modules) {
    if (module.is_leaf || module.fqn == "Transformer") continue;
    ++layers;
    ASSERT_TRUE(module.sac.has_value());
    const double forward = 1e3 * microbatches *
                           (units.dense.forward.compute +
                            units.dense.forward.communication.Total());
    EXPECT_NEAR(Sum(module.sac->runtimes), forward, 1e-9 * forward);
    EXPECT_NEAR(module.fw_runtime_per_module, forward, 1e-9 * forward);
    // Two microbatches are in flight on the first of two stages.
    const double kept_bytes = 2 * (graph.WholeBytes() - graph.input_bytes);
    const bool is_last = layers == DivideLayers(job)[0].Layers();
    EXPECT_NEAR(static_cast<double>(module.act_fw_per_module),
                is_last ? kept_bytes / 2 : kept_bytes, 20);
    EXPECT_EQ(module.sac->memory.back(), 0) << "its last product";
  }
  EXPECT_EQ(layers, DivideLayers(job)[0].Layers());
}

TEST(StageProfile, IgnoresTheStrategysRecomputation) {
  TrainingJob job = Job();
  const Profile none = StageProfile(job, 0);
  job.strategy.recomputation = Recomputation::kFull;
  job.strategy.full_layers = 1;
  EXPECT_EQ(StageProfile(job, 0), none);
}

}  // namespace
}  // namespace acplan::costmodel
