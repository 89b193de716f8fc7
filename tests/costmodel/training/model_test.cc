#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/score/run_table.h"
#include "graph/base/csv_table.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"

namespace acplan::costmodel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Complaint(const std::string& config) {
  try {
    ParseHuggingFaceConfig(config, "config.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

// Published tables of 79 models, with their stated parameters, in 10^9 with
// four digits.
TEST(ModelShape, ParametersAreThoseOfPublishedModels) {
  const std::string path = ACPLAN_TEST_DATA_DIR "/training/models.csv";
  const graph::CsvTable table = graph::ParseCsv(graph::ReadFile(path), path);
  ASSERT_GE(table.rows.size(), 79u);
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const graph::CsvRow row(table, i);
    const ModelShape shape = ShapeOfRow(row);
    EXPECT_NEAR(CountMatrixParameters(shape) / 1e9, row.Positive("params_b"),
                .0000501)
        << row.Text("model");
    EXPECT_NEAR(CountActiveMatrixParameters(shape) / 1e9,
                row.Positive("active_params_b"), .0000501)
        << row.Text("model");
  }
}

struct KnownConfig {
  std::string name;
  std::string json;
  double billions;  // as stated on its page
  double digits;    // the page's precision
};

class HuggingFaceConfig : public ::testing::TestWithParam<KnownConfig> {};

TEST_P(HuggingFaceConfig, HasTheParametersThatItsPageSays) {
  const KnownConfig& known_config = GetParam();
  const ModelShape shape =
      ParseHuggingFaceConfig(known_config.json, "config.json");
  EXPECT_NEAR(CountMatrixParameters(shape) / 1e9, known_config.billions,
              known_config.digits);
}

INSTANTIATE_TEST_SUITE_P(
    Types, HuggingFaceConfig,
    ::testing::Values(
        KnownConfig{"llama", R"({"model_type": "llama", "hidden_size": 4096,
            "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336,
            "vocab_size": 128256})",
                    8.03, .005},
        KnownConfig{"qwen2", R"({"model_type": "qwen2", "hidden_size": 3584,
            "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "intermediate_size": 18944,
            "vocab_size": 152064, "use_sliding_window": false})",
                    7.62, .01},
        KnownConfig{"qwen3", R"({"model_type": "qwen3", "hidden_size": 4096,
            "num_hidden_layers": 36, "num_attention_heads": 32, "head_dim": 128,
            "num_key_value_heads": 8, "intermediate_size": 12288,
            "vocab_size": 151936})",
                    8.19, .005},
        KnownConfig{"qwen3_moe", R"({"model_type": "qwen3_moe",
            "hidden_size": 2048, "num_hidden_layers": 48,
            "num_attention_heads": 32, "num_key_value_heads": 4,
            "head_dim": 128, "intermediate_size": 6144, "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 768,
            "decoder_sparse_step": 1, "vocab_size": 151936})",
                    30.5, .05},
        KnownConfig{"mistral", R"({"model_type": "mistral",
            "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 14336, "sliding_window": 4096,
            "vocab_size": 32000})",
                    7.24, .005},
        KnownConfig{"mixtral", R"({"model_type": "mixtral",
            "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 14336, "num_local_experts": 8,
            "num_experts_per_tok": 2, "vocab_size": 32000})",
                    46.7, .05},
        KnownConfig{"gemma2", R"({"model_type": "gemma2", "hidden_size": 3584,
            "num_hidden_layers": 42, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 256,
            "intermediate_size": 14336, "sliding_window": 4096,
            "vocab_size": 256000})",
                    9.24, .005},
        KnownConfig{"gpt2", R"({"model_type": "gpt2", "n_embd": 768,
            "n_layer": 12, "n_head": 12, "n_positions": 1024, "n_inner": null,
            "vocab_size": 50257})",
                    .124, .001},
        KnownConfig{"gpt_neox", R"({"model_type": "gpt_neox",
            "hidden_size": 6144, "num_hidden_layers": 44,
            "num_attention_heads": 64, "intermediate_size": 24576,
            "vocab_size": 50432, "tie_word_embeddings": false})",
                    20.55, .01},
        KnownConfig{"bloom", R"({"model_type": "bloom", "n_embed": 14336,
            "n_layer": 70, "num_attention_heads": 112,
            "vocab_size": 250880})",
                    176.2, .05},
        KnownConfig{"mpt", R"({"model_type": "mpt", "d_model": 4096,
            "n_layers": 32, "n_heads": 32, "expansion_ratio": 4,
            "max_seq_len": 2048, "no_bias": true,
            "attn_config": {"alibi": true}, "vocab_size": 50432})",
                    6.65, .005},
        KnownConfig{"gpt_oss", R"({"model_type": "gpt_oss",
            "hidden_size": 2880, "num_hidden_layers": 36,
            "num_attention_heads": 64, "num_key_value_heads": 8,
            "head_dim": 64, "intermediate_size": 2880,
            "num_local_experts": 128, "num_experts_per_tok": 4,
            "sliding_window": 128, "vocab_size": 201088})",
                    116.8, .05},
        KnownConfig{"deepseek_v3", R"({"model_type": "deepseek_v3",
            "hidden_size": 7168, "num_hidden_layers": 61,
            "num_attention_heads": 128, "num_key_value_heads": 128,
            "intermediate_size": 18432, "moe_intermediate_size": 2048,
            "n_routed_experts": 256, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "first_k_dense_replace": 3,
            "n_group": 8, "topk_group": 4, "q_lora_rank": 1536,
            "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128,
            "vocab_size": 129280})",
                    671.0, .05},
        KnownConfig{"olmo2", R"({"model_type": "olmo2", "hidden_size": 4096,
            "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 32, "intermediate_size": 11008,
            "vocab_size": 100352})",
                    7.30, .005}),
    [](const auto& tested) { return tested.param.name; });

TEST(HuggingFaceConfigs, TellOfWindowsGroupsAndPositions) {
  const ModelShape oss = ParseHuggingFaceConfig(R"({"model_type": "gpt_oss",
      "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
      "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880,
      "num_local_experts": 128, "num_experts_per_tok": 4,
      "sliding_window": 128, "vocab_size": 201088})",
                                                "c");
  EXPECT_EQ(oss.sliding_window, 128);
  EXPECT_EQ(oss.full_layers, 18);
  EXPECT_EQ(oss.expert_feedforward, 2880);
  EXPECT_TRUE(oss.is_clamped);
  const ModelShape qwen = ParseHuggingFaceConfig(
      R"({"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 99,
      "sliding_window": 7, "use_sliding_window": false})",
      "c");
  EXPECT_EQ(qwen.sliding_window, 0);
  EXPECT_EQ(qwen.kv_heads, 4);
}

// Small configurations of each type, and the parameters of the modules that
// transformers 5.23 builds from them (adapters/torch/tests/test_cost_model.py
// counts these again).
TEST(HuggingFaceConfigs, HaveTheParametersOfTheirModules) {
  const std::string path =
      ACPLAN_TEST_DATA_DIR "/training/config_counts.json.gz";
  const nlohmann::json document = graph::ParseJson(graph::ReadFile(path), path);
  ASSERT_GE(document.size(), 180u);
  for (const nlohmann::json& one : document) {
    const std::string text = one.at("config").dump();
    EXPECT_EQ(CountParameters(ParseHuggingFaceConfig(text, "c")),
              one.at("parameters").get<double>())
        << text;
  }
}

constexpr std::string_view kQwenMoe = R"("model_type": "qwen3_moe",
    "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
    "intermediate_size": 96, "vocab_size": 99, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32)";

ModelShape QwenMoeWith(std::string_view more) {
  return ParseHuggingFaceConfig(fmt::format("{{{}, {}}}", kQwenMoe, more), "c");
}

std::vector<int64_t> MoeLayersOf(const ModelShape& shape) {
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < shape.layers; ++i) {
    if (shape.IsMoeLayer(i)) layers.push_back(i);
  }
  return layers;
}

TEST(HuggingFaceConfigs, TellWhichLayersHaveExperts) {
  const auto layers = [](std::string_view more) {
    const ModelShape shape = QwenMoeWith(more);
    const std::vector<int64_t> moe = MoeLayersOf(shape);
    EXPECT_EQ(static_cast<int64_t>(moe.size()), shape.MoeLayers());
    return moe;
  };
  EXPECT_THAT(layers(R"("mlp_only_layers": [])"),
              ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(layers(R"("mlp_only_layers": [0, 3])"), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(layers(R"("decoder_sparse_step": 3)"), ElementsAre(2, 5));
  EXPECT_THAT(layers(R"("decoder_sparse_step": 2, "mlp_only_layers": [3])"),
              ElementsAre(1, 5));
  EXPECT_THAT(layers(R"("moe_layer_freq": 2)"), ElementsAre(0, 2, 4));
  EXPECT_THAT(layers(R"("moe_layer_freq": [0, 1, 1, 0, 1, 1])"),
              ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(layers(R"("first_k_dense_replace": 4)"), ElementsAre(4, 5));
  EXPECT_THAT(layers(R"("moe_layers": [1, 4])"), ElementsAre(1, 4));
  const ModelShape none =
      QwenMoeWith(R"("mlp_only_layers": [0, 1, 2, 3, 4, 5])");
  EXPECT_FALSE(none.IsMoe());
}

TEST(HuggingFaceConfigs, TellWhichLayersHaveAWindow) {
  const auto shape = [](std::string_view more) { return QwenMoeWith(more); };
  EXPECT_EQ(shape(R"("sliding_window": 7)").sliding_window, 0);
  const ModelShape flagged = shape(
      R"("sliding_window": 7, "use_sliding_window": true,
         "max_window_layers": 2)");
  EXPECT_EQ(flagged.sliding_window, 7);
  EXPECT_EQ(flagged.full_layers, 2);
  const ModelShape listed = shape(
      R"("sliding_window": 7, "layer_types": ["sliding_attention",
         "full_attention", "sliding_attention", "sliding_attention",
         "sliding_attention", "full_attention"])");
  EXPECT_EQ(listed.full_layers, 2);
  EXPECT_DOUBLE_EQ(listed.FullShare(), 1. / 3);
  const std::string hybrid = fmt::format(
      R"({{{}, "layer_types": ["linear_attention", "full_attention",
         "full_attention", "full_attention", "full_attention",
         "full_attention"]}})",
      kQwenMoe);
  EXPECT_THAT(Complaint(hybrid), AllOf(HasSubstr("layer_types[0]"),
                                       HasSubstr("linear_attention")));
}

TEST(HuggingFaceConfigs, ReadLettersOfWindows) {
  const ModelShape shape = ParseHuggingFaceConfig(
      R"({"model_type": "exaone4", "hidden_size": 64, "num_hidden_layers": 10,
          "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 99,
          "sliding_window": 16, "sliding_window_pattern": "LLLG"})",
      "c");
  EXPECT_EQ(shape.sliding_window, 16);
  EXPECT_EQ(shape.full_layers, 2);
}

TEST(HuggingFaceConfigs, ReadTheTextOfAModelOfSeveralParts) {
  const ModelShape shape = ParseHuggingFaceConfig(
      R"({"model_type": "llava", "text_config": {"model_type": "gemma3_text",
          "num_hidden_layers": 34, "hidden_size": 2560,
          "intermediate_size": 10240, "sliding_window": 1024},
          "image_token_id": 5})",
      "c");
  // Values that the file lacks are the type's: 8 heads of 256, 262,208 tokens.
  EXPECT_EQ(shape.heads, 8);
  EXPECT_EQ(shape.head_dim, 256);
  EXPECT_EQ(shape.full_layers, 5);
  EXPECT_TRUE(shape.is_tied);
  EXPECT_EQ(CountParameters(shape), 3'880'263'168);
}

TEST(HuggingFaceConfigs, RefuseKeysThatAreNotUnderstood) {
  const auto complaint = [](std::string_view key, std::string_view value) {
    return Complaint(fmt::format(
        R"({{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 99,
        "rms_norm_eps": 1e-5, "rope_theta": 10000, "{}": {}}})",
        key, value));
  };
  EXPECT_THAT(complaint("num_something", "3"),
              HasSubstr("num_something: expected no value, as acplan does not "
                        "know whether num_something changes the sizes"));
  // A value that says nothing changes nothing.
  for (const std::string_view value : {"null", "false", "0", "[]", "{}"}) {
    EXPECT_EQ(complaint("num_something", value), "none");
  }
  for (const std::string_view key :
       {"mamba_d_state", "linear_num_key_heads", "num_local_experts",
        "index_n_heads", "kv_lora_rank", "attention_gate",
        "full_attention_interval", "hybrid_override_pattern",
        "num_dense_layers", "moe_config", "prefix_dense_intermediate_size"}) {
    EXPECT_THAT(complaint(key, "4"), HasSubstr(key));
  }
  // Quantized checkpoints have the same sizes; towers are another part.
  EXPECT_EQ(complaint("quantization_config", R"({"bits": 4})"), "none");
}

TEST(HuggingFaceConfigs, RefuseCrossAttentionAndEncoders) {
  EXPECT_THAT(Complaint(R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2,
          "n_head": 4, "n_positions": 128, "vocab_size": 99,
          "add_cross_attention": true})"),
              HasSubstr("add_cross_attention"));
  EXPECT_THAT(
      Complaint(R"({"model_type": "longt5", "is_encoder_decoder": true})"),
      HasSubstr("one of the encoders with decoders that acplan models"));
}

TEST(HuggingFaceConfigs, TellOfDropouts) {
  const ModelShape shape = ParseHuggingFaceConfig(
      R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
          "n_positions": 128, "vocab_size": 99, "attn_pdrop": 0.1,
          "resid_pdrop": 0, "embd_pdrop": 0.2})",
      "c");
  EXPECT_EQ(shape.attention_dropout, .1);
  EXPECT_EQ(shape.hidden_dropout, 0);
  EXPECT_EQ(shape.embedding_dropout, .2);
  EXPECT_EQ(shape.form.dropout_masks, 0);
}

TEST(CountActiveParameters, LeaveOutExpertsThatATokenDoesNotPass) {
  const ModelShape shape = QwenMoeWith(R"("mlp_only_layers": [0])");
  EXPECT_EQ(CountParameters(shape) - CountActiveParameters(shape),
            5 * (8 - 2) * 3 * 64 * 32);
}

TEST(HuggingFaceConfigs, WrongOnesAreRefusedInALine) {
  EXPECT_THAT(Complaint("{}"), HasSubstr("model_type"));
  EXPECT_THAT(
      Complaint(R"({"model_type": "llama", "hidden_size": 64, "vocab_size": 8,
          "num_hidden_layers": 2147483647, "num_attention_heads": 8,
          "intermediate_size": 64})"),
      HasSubstr("expected at most 100000 layers, found 2147483647"));
  EXPECT_THAT(
      Complaint(R"({"model_type": "llamas"})"),
      ::testing::AllOf(HasSubstr("types that acplan models, such as llama"),
                       HasSubstr("hidden_size, num_hidden_layers"),
                       HasSubstr("\"llamas\"")));
  EXPECT_THAT(
      Complaint(R"({"model_type": "zamba", "mamba_d_state": 16})"),
      HasSubstr("model_type: expected a type of which acplan models all "
                "parts, unlike those of mamba_d_state, found"));
  EXPECT_THAT(Complaint(R"({"model_type": "llama"})"),
              HasSubstr("num_hidden_layers"));
  EXPECT_THAT(Complaint(R"({"model_type": "llama", "num_hidden_layers": 0})"),
              HasSubstr("num_hidden_layers"));
  const std::string llama =
      R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 6, "num_key_value_heads": 4,
      "intermediate_size": 256, "vocab_size": 99})";
  EXPECT_THAT(Complaint(llama), HasSubstr("6 heads and 4 kv_heads"));
  const std::string mixtral =
      R"({"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 99,
      "num_local_experts": 4, "num_experts_per_tok": 5})";
  EXPECT_THAT(Complaint(mixtral), HasSubstr("from 1 to 4 experts"));
}

}  // namespace
}  // namespace acplan::costmodel
