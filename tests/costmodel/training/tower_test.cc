#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/training/layer/rank_parameters.h"
#include "costmodel/training/layer/tower_operations.h"
#include "costmodel/training/plans/training_plan.h"
#include "costmodel/training/plans/training_plan_check.h"
#include "costmodel/training/settings/strategy_settings.h"
#include "costmodel/training/time/step_time.h"
#include "costmodel/training/training_report.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/training/training_example.h"

namespace acplan::costmodel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Qwen2.5-VL-7B, written as its authors do: without a part for the text.
std::string QwenWith(std::string_view tower_keys) {
  return fmt::format(
      R"({{"model_type": "qwen2_5_vl", "hidden_size": 3584,
      "intermediate_size": 18944, "num_attention_heads": 28,
      "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064,
      "tie_word_embeddings": false, "vision_config": {{"depth": 32,
      "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
      "out_hidden_size": 3584, "patch_size": 14, "in_chans": 3,
      "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]{}}}}})",
      tower_keys);
}

TrainingJob QwenJob(int64_t images) {
  TrainingJob job = Llama8B();
  job.shape = ParseHuggingFaceConfig(QwenWith(""), "c");
  job.strategy.images = images;
  return job;
}

std::string ComplaintOf(const std::string& config) {
  try {
    ParseHuggingFaceConfig(config, "c");
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

// The numbers that are published beside the weights.
TEST(Towers, CountAmongTheParameters) {
  EXPECT_EQ(CountParameters(QwenJob(0).shape), 8'292'166'656);
  const ModelShape gemma = ParseHuggingFaceConfig(
      R"({"model_type": "gemma3", "mm_tokens_per_image": 256, "text_config": {
      "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size":
      10240, "num_hidden_layers": 34, "sliding_window": 1024, "vocab_size":
      262208}, "vision_config": {"model_type": "siglip_vision_model",
      "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
      "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
      "vision_use_head": false}})",
      "c");
  EXPECT_EQ(CountParameters(gemma), 4'300'079'472);
  ASSERT_EQ(gemma.towers.size(), 1);
  EXPECT_EQ(gemma.towers[0].patches, 4096);
  EXPECT_EQ(ImageTokens(gemma.towers[0], 4096), 256);
}

TEST(Towers, AreRefusedIfTheyAreNotUnderstood) {
  EXPECT_THAT(ComplaintOf(QwenWith(R"(, "num_experts": 4)")),
              AllOf(HasSubstr("vision_config.num_experts"),
                    HasSubstr("does not know")));
  EXPECT_THAT(ComplaintOf(QwenWith(R"(, "model_type": "swin")")),
              HasSubstr("expected a tower that acplan models"));
  EXPECT_THAT(ComplaintOf(R"({"model_type": "qwen2_audio", "text_config": {
      "model_type": "qwen2"}, "audio_config": {"d_model": 1280}})"),
              AllOf(HasSubstr("audio_config"),
                    HasSubstr("acplan models no such part of a qwen2_audio")));
}

// Without images a tower has parameters and takes no time.
TEST(Towers, TakeTimeForTheirImages) {
  TrainingJob text = QwenJob(0);
  text.shape.towers.clear();
  const double text_seconds = PredictStepTime(text).compute;
  const double none = PredictStepTime(QwenJob(0)).compute;
  const double one = PredictStepTime(QwenJob(2)).compute;
  const double two = PredictStepTime(QwenJob(4)).compute;
  EXPECT_DOUBLE_EQ(none, text_seconds);
  EXPECT_GT(one, none);
  // Twice the images are as many rows of the same products.
  EXPECT_NEAR((two - none) / (one - none), 2, .2);
  EXPECT_GT(PredictStepTime(QwenJob(0)).optimizer,
            PredictStepTime(text).optimizer);
  const auto activations = [](const TrainingJob& job) {
    return PredictStepMemory(job).Worst().activations;
  };
  EXPECT_EQ(activations(QwenJob(0)), activations(text));
  EXPECT_NEAR((activations(QwenJob(4)) - activations(text)) /
                  (activations(QwenJob(2)) - activations(text)),
              2, 1e-9);
}

TEST(Towers, ThatAreFrozenHaveNoBackwardPass) {
  const TrainingJob trained = QwenJob(4);
  TrainingJob frozen = trained;
  frozen.strategy.freezes_towers = true;
  const auto towers = [](const TrainingJob& job) {
    return TimesOfUnits(job).towers;
  };
  EXPECT_DOUBLE_EQ(towers(frozen).forward.compute,
                   towers(trained).forward.compute);
  EXPECT_LT(towers(frozen).backward.compute,
            .1 * towers(trained).backward.compute);
  EXPECT_GT(towers(frozen).backward.compute, 0);  // the projector's
  const Tower& tower = frozen.shape.towers[0];
  EXPECT_DOUBLE_EQ(CountTrainedParameters(frozen),
                   CountTrainedParameters(trained) - StackParameters(tower));
  TrainingJob adapters = trained;
  adapters.strategy.lora_rank = 16;
  EXPECT_EQ(towers(adapters).backward.compute, 0);
}

// The pipeline's first stage has the tower, and a plan leaves it alone.
TEST(Towers, AreOnTheFirstStage) {
  TrainingJob job = QwenJob(4);
  job.strategy.pipeline = 2;
  TrainingJob text = job;
  text.strategy.images = 0;
  const StepMemory memory = PredictStepMemory(job);
  const StepMemory text_memory = PredictStepMemory(text);
  EXPECT_GT(memory.stages[0].Total(), text_memory.stages[0].Total());
  EXPECT_EQ(memory.stages[1].Total(), text_memory.stages[1].Total());
  job.strategy.recomputation = Recomputation::kPlan;
  const double budget = 60e9;
  EXPECT_EQ(FindTrainingPlanError(job, budget, PlanTraining(job, budget)),
            std::nullopt);
}

TEST(Towers, RunAgainWithFullRecomputation) {
  TrainingJob job = QwenJob(4);
  job.strategy.recomputation = Recomputation::kFull;
  const UnitTime towers = TimesOfUnits(job).towers;
  EXPECT_GT(towers.recomputation.compute, .9 * towers.forward.compute);
  job.strategy.full_layers = 1;  // towers run before the first layers
  EXPECT_EQ(TimesOfUnits(job).towers.recomputation.compute,
            towers.recomputation.compute);
}

TEST(Towers, HaveImagesWithinTheSequence) {
  const TrainingSystems systems =
      ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json");
  const auto complaint = [&](const ModelShape& shape,
                             const std::string& images) -> std::string {
    try {
      JobOfSettings(shape,
                    {{"gpu", {"h100", "gpu"}},
                     {"gpus", {"1", "gpus"}},
                     {"images", {images, "images"}}},
                    systems);
    } catch (const InputError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(complaint(QwenJob(0).shape, "16"), "none");
  EXPECT_THAT(complaint(QwenJob(0).shape, "17"),
              HasSubstr("expected at most 16 of 256 tokens each"));
  EXPECT_THAT(complaint(Llama8B().shape, "1"),
              HasSubstr("for a model without a vision tower"));
}

}  // namespace
}  // namespace acplan::costmodel
