#include "costmodel/llm/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace acplan::costmodel {
namespace {

using ::testing::ElementsAre;

// By stage.
std::vector<double> OfStages(
    const Execution& execution,
    const std::function<double(const Schedule&, int64_t)>& value,
    int64_t num_blocks = 8) {
  Model model;
  model.num_blocks = num_blocks;
  const Schedule schedule = ScheduleOf(model, execution);
  std::vector<double> values;
  for (int64_t stage = 0; stage < execution.pipeline_par; ++stage) {
    values.push_back(value(schedule, stage));
  }
  return values;
}

TEST(Schedule, MicrobatchesOfStages) {
  Execution execution;
  execution.pipeline_par = 4;
  execution.batch_size = 8;
  EXPECT_THAT(OfStages(execution, StageMicrobatches), ElementsAre(4, 3, 2, 1));
  execution.pipeline_interleaving = 2;
  EXPECT_THAT(OfStages(execution, StageMicrobatches),
              ElementsAre(5.5, 4.5, 3.5, 2.5));
  execution.batch_size = 2;
  EXPECT_THAT(OfStages(execution, StageMicrobatches), ElementsAre(2, 2, 2, 2));
  execution.pipeline_interleaving = 1;
  EXPECT_THAT(OfStages(execution, StageMicrobatches), ElementsAre(2, 2, 2, 1));
}

TEST(Schedule, BlocksOfUnevenStages) {
  Execution execution;
  execution.pipeline_par = 4;
  Model model;
  model.num_blocks = 6;
  EXPECT_THAT(OfStages(execution, StageBlocks, 6), ElementsAre(2, 2, 1, 1));
  EXPECT_EQ(StagesWithBlocks(model, execution), 4);
  model.num_blocks = 3;
  EXPECT_THAT(OfStages(execution, StageBlocks, 3), ElementsAre(1, 1, 1, 0));
  EXPECT_EQ(StagesWithBlocks(model, execution), 3);
}

}  // namespace
}  // namespace acplan::costmodel
