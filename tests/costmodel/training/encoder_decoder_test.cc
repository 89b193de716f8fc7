#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/settings/strategy_settings.h"
#include "costmodel/training/time/step_time.h"
#include "costmodel/training/training_report.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/training/training_example.h"

namespace acplan::costmodel {
namespace {

using ::testing::HasSubstr;

// Flan-T5 base, as its authors published it.
constexpr std::string_view kFlanT5 = R"({"model_type": "t5", "d_ff": 2048,
    "d_kv": 64, "d_model": 768, "dropout_rate": 0.1, "feed_forward_proj":
    "gated-gelu", "is_encoder_decoder": true, "n_positions": 512,
    "num_decoder_layers": 12, "num_heads": 12, "num_layers": 12,
    "relative_attention_num_buckets": 32, "tie_word_embeddings": false,
    "vocab_size": 32128})";

// Megatron-LM's T5: learned positions, LayerNorm, biases.
ModelShape MegatronT5(int64_t layers, int64_t hidden, int64_t heads,
                      int64_t feedforward) {
  const auto sizes = [&](std::string_view part) {
    return fmt::format(
        R"("{}_layers": {}, "{}_attention_heads": {}, "{}_ffn_dim": {})", part,
        layers, part, heads, part, feedforward);
  };
  return ParseHuggingFaceConfig(
      fmt::format(R"({{"model_type": "blenderbot", "d_model": {}, {}, {},
      "vocab_size": 29184, "max_position_embeddings": 512, "dropout": 0.1,
      "attention_dropout": 0.1}})",
                  hidden, sizes("encoder"), sizes("decoder")),
      "c");
}

TrainingJob JobOf(const ModelShape& shape, const StrategySettings& more = {}) {
  static const TrainingSystems kSystems =
      ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json");
  StrategySettings settings = {
      {"gpu", {"h100", "gpu"}}, {"gpus", {"8", "gpus"}},
      {"seq", {"128", "seq"}},  {"source_seq", {"512", "source_seq"}},
      {"gbs", {"32", "gbs"}},   {"mbs", {"4", "mbs"}}};
  for (const auto& [key, value] : more) settings.insert_or_assign(key, value);
  return JobOfSettings(shape, settings, kSystems);
}

std::string ComplaintOf(const ModelShape& shape,
                        const StrategySettings& settings) {
  try {
    JobOf(shape, settings);
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

TEST(EncoderDecoders, HaveThePublishedParameters) {
  EXPECT_EQ(CountParameters(ParseHuggingFaceConfig(std::string(kFlanT5), "c")),
            247'577'856);
}

// The peaks of Megatron-LM's functional tests of T5 (mem-max-allocated-bytes of
// tests/functional_tests/test_cases/t5: t5_11b_mcore_tp4_pp1 at 36dbfbfc and 7c926adc, te_tp1,
// te_tp2, te_tp2 with sequence_parallel, te_tp4 at 6910259b, 0a8446dd, 0a8446dd, 1b432dd9).
TEST(EncoderDecoders, HoldTheBytesOfMegatronsTests) {
  const ModelShape large = MegatronT5(24, 4096, 64, 10240);
  const ModelShape base = MegatronT5(12, 768, 12, 3072);
  const auto error_of = [](const ModelShape& shape, StrategySettings settings,
                           double measured) {
    settings["zero"] = {"0", "zero"};
    return PredictStepMemory(JobOf(shape, settings)).Worst().Total() /
               measured -
           1;
  };
  const std::pair<std::string, StrategySetting> unfused = {
      "attention", {"unfused", "attention"}};
  const std::pair<std::string, StrategySetting> whole = {"sp", {"false", "sp"}};
  const auto tensor = [](std::string degree) {
    return std::pair<std::string, StrategySetting>{"tp", {degree, "tp"}};
  };
  EXPECT_NEAR(error_of(large, {tensor("4"), whole, {"gbs", {"8", "gbs"}}},
                       44'993'564'672),
              0, .002);
  EXPECT_NEAR(
      error_of(
          large,
          {tensor("4"), whole, {"gbs", {"8", "gbs"}}, {"gpu", {"a100", "gpu"}}},
          45'261'885'440),
      0, .01);
  EXPECT_NEAR(error_of(base, {unfused}, 6'206'499'840), 0, .02);
  EXPECT_NEAR(error_of(base, {unfused, tensor("2"), whole}, 3'375'193'600), 0,
              .04);
  EXPECT_NEAR(error_of(base, {unfused, tensor("2")}, 3'236'697'600), 0, .04);
  EXPECT_NEAR(error_of(base, {unfused, tensor("4"), whole}, 1'864'166'912), 0,
              .03);
}

// Twice the source is twice the encoder's rows, and twice the keys of the decoder.
TEST(EncoderDecoders, TakeTimeAndMemoryForTheirSource) {
  const ModelShape shape = ParseHuggingFaceConfig(std::string(kFlanT5), "c");
  const auto with = [&](std::string source) {
    return JobOf(shape, {{"source_seq", {source, "source_seq"}}});
  };
  const auto seconds = [](const TrainingJob& job) {
    return PredictStepTime(job).compute;
  };
  const auto activations = [](const TrainingJob& job) {
    return PredictStepMemory(job).Worst().activations;
  };
  EXPECT_GT(seconds(with("4096")), 1.8 * seconds(with("2048")));
  EXPECT_NEAR((activations(with("1024")) - activations(with("512"))) /
                  (activations(with("512")) - activations(with("256"))),
              2, 1e-9);
  TrainingJob recomputed = with("1024");
  recomputed.strategy.recomputation = Recomputation::kFull;
  // Each layer keeps its input, and the decoder's the encoder's result once.
  EXPECT_DOUBLE_EQ(activations(recomputed),
                   2. * 4 * 768 * (12 * 128 + 13 * 1024) +
                       4 * 768 * (128 + 1024));  // dropout of embeddings
  const UnitTime encoder = TimesOfUnits(recomputed).towers;
  EXPECT_GT(encoder.recomputation.compute, .9 * encoder.forward.compute);
}

TEST(EncoderDecoders, RefuseOtherStrategies) {
  const ModelShape t5 = ParseHuggingFaceConfig(std::string(kFlanT5), "c");
  const auto complaint = [&](std::string key, std::string value) {
    return ComplaintOf(t5, {{key, {value, key}}});
  };
  EXPECT_EQ(complaint("tp", "4"), "none");
  EXPECT_THAT(complaint("pp", "2"), HasSubstr("pp: expected 1 for an encoder"));
  EXPECT_THAT(complaint("cp", "2"), HasSubstr("cp: expected 1"));
  EXPECT_THAT(complaint("lora_rank", "8"), HasSubstr("lora_rank: expected 0"));
  EXPECT_THAT(complaint("recompute", "selective"), HasSubstr("recompute:"));
  EXPECT_THAT(complaint("images", "1"), HasSubstr("without a vision tower"));
  EXPECT_THAT(ComplaintOf(t5, {{"tp", {"2", "tp"}},
                               {"source_seq", {"511", "source_seq"}}}),
              HasSubstr("a length that tp divides"));
  EXPECT_THAT(ComplaintOf(MegatronT5(2, 64, 4, 128),
                          {{"source_seq", {"513", "source_seq"}}}),
              HasSubstr("at most 512 (positions of the encoder)"));
  EXPECT_THAT(ComplaintOf(Llama8B().shape, {}),
              HasSubstr("source_seq: expected no value"));
}

TEST(EncoderDecoders, RefuseWhatChangesTheirTables) {
  const auto complaint = [](const std::string& keys) -> std::string {
    try {
      ParseHuggingFaceConfig(
          R"({"model_type": "marian", "d_model": 64, "vocab_size": 99,
          "max_position_embeddings": 64, "encoder_layers": 1,
          "decoder_layers": 1, "encoder_attention_heads": 2,
          "decoder_attention_heads": 2, "encoder_ffn_dim": 64,
          "decoder_ffn_dim": 64)" +
              keys + "}",
          "c");
    } catch (const InputError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(complaint(""), "none");
  EXPECT_THAT(complaint(R"(, "share_encoder_decoder_embeddings": false)"),
              HasSubstr("one table of tokens"));
  EXPECT_THAT(complaint(R"(, "is_encoder_decoder": false)"),
              HasSubstr("the decoder alone"));
  EXPECT_THAT(complaint(R"(, "encoder_experts": 4)"),
              HasSubstr("does not know whether encoder_experts"));
}

}  // namespace
}  // namespace acplan::costmodel
