#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "costmodel/training/model_shape.h"
#include "costmodel/training/run_table.h"
#include "graph/base/csv_table.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

using ::testing::HasSubstr;

std::string Complaint(const std::string& config) {
  try {
    ParseHuggingFaceConfig(config, "config.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

// Published tables of 79 models, with the parameters that they name, in 10^9 with
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
  double billions;  // as its page says
  double digits;    // to which the page rounds
};

class HuggingFaceConfig : public ::testing::TestWithParam<KnownConfig> {};

TEST_P(HuggingFaceConfig, HasTheParametersThatItsPageSays) {
  const KnownConfig& known = GetParam();
  const ModelShape shape = ParseHuggingFaceConfig(known.json, "config.json");
  EXPECT_NEAR(CountMatrixParameters(shape) / 1e9, known.billions, known.digits);
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
  EXPECT_EQ(oss.full_every, 2);
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

TEST(HuggingFaceConfigs, WrongOnesAreRefusedInALine) {
  EXPECT_THAT(Complaint("{}"), HasSubstr("model_type"));
  EXPECT_THAT(
      Complaint(R"({"model_type": "llama", "hidden_size": 64, "vocab_size": 8,
          "num_hidden_layers": 2147483647, "num_attention_heads": 8,
          "intermediate_size": 64})"),
      HasSubstr("expected at most 100000 layers, found 2147483647"));
  EXPECT_THAT(Complaint(R"({"model_type": "mamba"})"),
              ::testing::AllOf(HasSubstr("model_type: expected one of bloom"),
                               HasSubstr("hidden_size, num_hidden_layers"),
                               HasSubstr("\"mamba\"")));
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
