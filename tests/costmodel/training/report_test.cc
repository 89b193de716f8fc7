#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "costmodel/training/settings/setting_names.h"
#include "costmodel/training/training_report.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/training/training_example.h"
#include "tests/graph/test_files.h"

namespace acplan::costmodel {
namespace {

using ::testing::HasSubstr;

// The operations for a token of Llama 3 8B: two for each weight of a layer's
// matrices, and for attention two products with half of the sequence.
constexpr double kWeights =
    2.0 * 4096 * 4096 + 2.0 * 4096 * 1024 + 3.0 * 4096 * 14336;
double AttentionFlops(double keys) { return 2 * 2 * keys * 4096; }
constexpr double kLogits = 2.0 * 4096 * 128256;

TEST(CountIterationFlops, AreThoseOfTheProducts) {
  const TrainingJob job = Llama8B();
  const double layer = 2 * kWeights + AttentionFlops(8192 / 2);
  const double tokens = 64 * 8192;
  const IterationFlops flops = CountIterationFlops(job);
  EXPECT_NEAR(flops.model, 3 * tokens * (32 * layer + kLogits),
              1e-3 * flops.model);
  EXPECT_EQ(flops.hardware, flops.model);
}

TEST(CountIterationFlops, DoNotDependOnHowAModelIsSpread) {
  TrainingJob job = Llama8B();
  const double alone = CountIterationFlops(job).model;
  job.strategy.tensor = 2;
  job.strategy.sequence_parallel = true;
  job.strategy.pipeline = 2;
  job.strategy.context = 2;
  EXPECT_EQ(CountIterationFlops(job).model, alone);
}

TEST(CountIterationFlops, AddWhatIsRecomputedToTheHardwares) {
  TrainingJob job = Llama8B();
  const double model = CountIterationFlops(job).model;
  const double logits = 64 * 8192 * kLogits;
  job.strategy.recomputation = Recomputation::kFull;
  const IterationFlops full = CountIterationFlops(job);
  EXPECT_EQ(full.model, model);
  // A forward pass of all layers again, without the logits.
  EXPECT_NEAR(full.hardware - model, model / 3 - logits, 1e-9 * model);
  job.strategy.full_layers = 4;
  job.strategy.pipeline = 2;
  const IterationFlops quarter = CountIterationFlops(job);
  EXPECT_NEAR(quarter.hardware - model, (full.hardware - model) / 4,
              1e-9 * model);
}

TEST(CountIterationFlops, CountTheKeysOfAWindow) {
  TrainingJob job = Llama8B();
  const double all = CountIterationFlops(job).model;
  job.shape.sliding_window = 1024;
  const double windowed = CountIterationFlops(job).model;
  const double tokens = 64 * 8192;
  // The first 1,024 queries see fewer keys: 1,024 (1 - 1,024 / (2 * 8,192)).
  EXPECT_NEAR(all - windowed,
              3 * tokens * 32 * (AttentionFlops(4096) - AttentionFlops(960)),
              .002 * all);
  job.shape.full_layers = 8;
  EXPECT_NEAR(CountIterationFlops(job).model, windowed + (all - windowed) / 4,
              1e-9 * all);
}

TEST(CountIterationFlops, CountLayersOfMultiTokenPrediction) {
  TrainingJob job = Llama8B();
  const double plain = CountIterationFlops(job).model;
  job.shape.mtp_layers = 32;  // as many again, each with logits
  const double logits = 3 * 64 * 8192 * kLogits;
  const double with = CountIterationFlops(job).model;
  EXPECT_NEAR(with, 2 * (plain - logits) + 33 * logits, 1e-9 * with);
}

TEST(TrainingReport, DividesByTimeAndGpus) {
  const TrainingReport report = ReportOfTraining(Llama8B());
  const double seconds = report.time.Total();
  EXPECT_EQ(report.Tokens(), 64 * 8192);
  EXPECT_DOUBLE_EQ(report.TokensPerGpuSecond(), 64 * 8192 / seconds / 8);
  EXPECT_DOUBLE_EQ(report.GpuHours(64 * 8192), 8 * seconds / 3600);
  EXPECT_DOUBLE_EQ(
      report.ModelUtilisation(),
      report.flops.model / seconds / 8 / report.job.cluster.gpu.bf16_rate);
  EXPECT_GT(report.ModelUtilisation(), .2);
  EXPECT_LT(report.ModelUtilisation(), .7);
  EXPECT_DOUBLE_EQ(report.HardwareUtilisation(), report.ModelUtilisation());
}

TEST(TrainingReport, FitsWhereItsFullestStageDoes) {
  TrainingJob job = Llama8B();
  job.strategy.pipeline = 4;
  const TrainingReport report = ReportOfTraining(job);
  ASSERT_EQ(report.memory.stages.size(), 4u);
  ASSERT_EQ(report.stages.size(), 4u);
  const double most = report.memory.stages[report.FullestStage()].Total();
  for (const RankMemory& stage : report.memory.stages) {
    EXPECT_LE(stage.Total(), most);
  }
  EXPECT_TRUE(report.Fits(most));
  EXPECT_FALSE(report.Fits(most - 1));
}

TEST(TrainingReport, HasThePlanThatItsStrategyAsksFor) {
  TrainingJob job = Llama8B();
  const TrainingReport none = ReportOfTraining(job);
  EXPECT_FALSE(none.plan);
  job.strategy.recomputation = Recomputation::kPlan;
  const double budget = none.memory.stages[none.FullestStage()].Total() * .8;
  const TrainingReport report = ReportOfTraining(job, budget);
  ASSERT_TRUE(report.plan);
  EXPECT_TRUE(report.Fits(budget));
  EXPECT_FALSE(none.Fits(budget));
  EXPECT_EQ(report.flops.model, none.flops.model);
  EXPECT_GT(report.flops.hardware, report.flops.model);
  EXPECT_GT(report.HardwareUtilisation(), report.ModelUtilisation());
}

TEST(NamesOf, AreThoseOfMegatron) {
  EXPECT_EQ(NamesOf({}), "");
  for (const std::string name :
       {"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act",
        "core_attn+layernorm+moe_act"}) {
    const auto parts = LayerPartsNamed(name);
    ASSERT_TRUE(parts) << name;
    EXPECT_EQ(NamesOf(*parts), name);
  }
}

TEST(ReadOwnAccelerators, SaysWhatIsWrong) {
  const graph::TemporaryFolder folder;
  const auto path = folder.path() / "own.json";
  const auto error_of = [&](std::string_view text) {
    graph::PutBytes(path, text);
    try {
      ReadOwnAccelerators(path);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(error_of(R"({"format": "acplan.plan", "version": 1})"),
              HasSubstr("own.json: format: expected \"acplan.system\""));
  EXPECT_THAT(error_of(R"({"format": "acplan.system", "version": 2})"),
              HasSubstr("own.json: version: expected 1"));
  EXPECT_THAT(error_of(R"({"format": "acplan.system", "version": 1,
                           "accelerators": []})"),
              HasSubstr("accelerators: expected at least one GPU"));
}

// The counts in the model's card and its files on Hugging Face.
TEST(CountParameters, AreThoseOfPublishedModels) {
  const auto counts_of = [](const std::string& name) {
    return CountParameters(ReadHuggingFaceConfig(
        ACPLAN_DATA_DIR "/training/models/" + name + ".json"));
  };
  EXPECT_EQ(counts_of("llama-3.1-8b"), 8'030'261'248);
  EXPECT_EQ(counts_of("llama-3.1-70b"), 70'553'706'496);
  EXPECT_EQ(counts_of("mixtral-8x7b"), 46'702'792'704);
  EXPECT_EQ(counts_of("qwen3-30b-a3b"), 30'532'122'624);
}

TEST(CheckShape, SaysWhichSizesContradictEachOther) {
  const auto error_of = [](auto change) {
    ModelShape shape = Llama8B().shape;
    change(shape);
    try {
      CheckShape(shape, "x.json");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(error_of([](ModelShape&) {}), "none");
  EXPECT_EQ(error_of([](ModelShape& s) { s.kv_heads = 5; }),
            "x.json: expected a number of heads that kv_heads divides, found "
            "32 heads and 5 kv_heads");
  EXPECT_THAT(error_of([](ModelShape& s) { s.kv_rank = 512; }),
              HasSubstr("x.json: latent attention needs its dimensions"));
  const auto moe = [](int64_t top_k, int64_t width, int64_t dense) {
    return [=](ModelShape& s) {
      s.experts = 8;
      s.top_k = top_k;
      s.expert_feedforward = width;
      s.dense_layers = dense;
    };
  };
  EXPECT_EQ(error_of(moe(2, 64, 1)), "none");
  EXPECT_EQ(error_of(moe(9, 64, 0)),
            "x.json: expected from 1 to 8 experts per token, found 9");
  EXPECT_EQ(error_of(moe(2, 0, 0)),
            "x.json: experts need the width of an "
            "expert");
  EXPECT_EQ(error_of(moe(2, 64, 33)),
            "x.json: expected at most 32 dense layers, found 33");
}

}  // namespace
}  // namespace acplan::costmodel
