// Encoders with decoders: T5 and its kin (RMSNorm, no biases, tables of relative positions),
// BART and its kin (LayerNorm, biases), and Whisper, whose encoder reads frames of sound.
#include "costmodel/training/model/encoder_decoder.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

namespace acplan::costmodel {
namespace {

// A type that is implemented as BART is.
struct BartType {
  std::string_view name = {};
  // The vectors of positions in addition to those of the configuration; -1 if positions have
  // no parameters.
  int64_t more_positions = 0;
  bool has_embedding_norm = false;
  bool has_final_norm = false;
};

constexpr BartType kBartTypes[] = {
    {"bart", 2, true, false},
    {"blenderbot", 0, false, true},
    {"blenderbot-small", 0, true, false},
    {"m2m_100", -1, false, true},
    {"marian", 0, false, false},
    {"mbart", 2, true, true},
    {"mvp", 2, true, false},
    {"pegasus", 0, false, true},
    {"plbart", 2, true, false},
};

bool IsT5(std::string_view type) {
  return type == "t5" || type == "mt5" || type == "umt5";
}

const BartType* FindBart(std::string_view type) {
  const auto* match = std::ranges::find(kBartTypes, type, &BartType::name);
  return match == std::end(kBartTypes) ? nullptr : match;
}

// Returns the layers of an encoder, which has the sizes of a decoder except those given. Its
// positions limit its source, and are among the parameters outside of its layers.
ModelShape EncoderOf(const ModelShape& decoder, int64_t layers) {
  ModelShape encoder = decoder;
  encoder.layers = layers;
  encoder.vocabulary = 0;
  encoder.learned_positions = 0;
  encoder.is_tied = true;
  encoder.has_cross_attention = false;
  encoder.block_norms = 2;
  encoder.is_bidirectional = true;
  return encoder;
}

ModelShape WithEncoder(ModelShape decoder, const ModelShape& encoder,
                       int64_t outer_parameters) {
  decoder.towers.push_back(
      {.name = "encoder",
       .stack = std::make_shared<const ModelShape>(encoder),
       .is_encoder = true,
       .outer_parameters = outer_parameters});
  return decoder;
}

ModelShape ParseT5(ConfigKeys& config, std::string_view type) {
  ModelShape decoder{.hidden = config.Size({"d_model"}),
                     .heads = config.Size({"num_heads"}),
                     .head_dim = config.Size({"d_kv"}),
                     .feedforward = config.Size({"d_ff"}),
                     .vocabulary = config.Size({"vocab_size"}),
                     .block_norms = 3,
                     .is_tied = config.Flag("tie_word_embeddings", true),
                     .has_cross_attention = true};
  const int64_t encoder_layers = config.Size({"num_layers"});
  decoder.layers = config.SizeOr({"num_decoder_layers"}, encoder_layers);
  if (decoder.layers == 0) decoder.layers = encoder_layers;
  decoder.kv_heads = decoder.heads;
  const auto projection = config.Find({"feed_forward_proj"});
  decoder.is_gated = config.Flag(
      "is_gated_act",
      projection ? projection->String().starts_with("gated-") : type != "t5");
  decoder.hidden_dropout = decoder.attention_dropout =
      decoder.embedding_dropout = config.Share({"dropout_rate"});
  config.Supersede({"dense_act_fn", "n_positions",
                    "relative_attention_max_distance", "classifier_dropout",
                    "num_hidden_layers", "hidden_size", "num_attention_heads",
                    "head_dim", "scale_decoder_outputs", "output_past"});
  const int64_t table =
      config.SizeOr({"relative_attention_num_buckets"}, 32) * decoder.heads;
  ModelShape encoder = EncoderOf(decoder, encoder_layers);
  if (type == "umt5") {  // a table in each layer
    decoder.layer_vectors = encoder.layer_vectors = table;
    return WithEncoder(decoder, encoder, encoder.hidden);
  }
  return WithEncoder(decoder, encoder, encoder.hidden + 2 * table);
}

// Reads the sizes that BART and Whisper have under the same keys.
ModelShape BartDecoder(ConfigKeys& config) {
  ModelShape decoder{.layers = config.Size({"decoder_layers"}),
                     .hidden = config.Size({"d_model"}),
                     .heads = config.Size({"decoder_attention_heads"}),
                     .feedforward = config.Size({"decoder_ffn_dim"}),
                     .vocabulary = config.Size({"vocab_size"}),
                     .norm_weights = NormWeights::kScaleAndBias,
                     .block_norms = 3,
                     .is_tied = true,
                     .has_cross_attention = true};
  decoder.kv_heads = decoder.heads;
  decoder.head_dim = decoder.hidden / decoder.heads;
  decoder.SetBiases(true);
  decoder.hidden_dropout = decoder.embedding_dropout =
      config.Share({"dropout"});
  decoder.attention_dropout = config.Share({"attention_dropout"});
  for (const std::string_view key :
       {"tie_word_embeddings", "share_encoder_decoder_embeddings"}) {
    if (!config.Flag(key, true)) {
      config.config().Get(key).Fail(
          "true, as acplan models one table of tokens");
    }
  }
  config.Supersede({"num_hidden_layers",
                    "hidden_size",
                    "num_attention_heads",
                    "scale_embedding",
                    "classifier_dropout",
                    "activation_dropout",
                    "encoder_layerdrop",
                    "decoder_layerdrop",
                    "normalize_before",
                    "normalize_embedding",
                    "add_bias_logits",
                    "add_final_layer_norm",
                    "extra_pos_embeddings",
                    "static_position_embeddings",
                    "use_prompt",
                    "prompt_length",
                    "prompt_mid_dim",
                    "save_step",
                    "force_bos_token_to_be_generated",
                    "decoder_vocab_size"});
  return decoder;
}

ModelShape BartEncoder(ConfigKeys& config, const ModelShape& decoder) {
  ModelShape encoder = EncoderOf(decoder, config.Size({"encoder_layers"}));
  encoder.heads = encoder.kv_heads = config.Size({"encoder_attention_heads"});
  encoder.head_dim = encoder.hidden / encoder.heads;
  encoder.feedforward = config.Size({"encoder_ffn_dim"});
  return encoder;
}

ModelShape ParseBart(ConfigKeys& config, const BartType& type) {
  ModelShape decoder = BartDecoder(config);
  const int64_t positions = config.Size({"max_position_embeddings"});
  decoder.has_final_norm = type.has_final_norm;
  decoder.form.has_embedding_norm = type.has_embedding_norm;
  const auto prompt = config.Find({"use_prompt"});
  if (prompt && prompt->Bool()) {
    prompt->Fail("false, as acplan does not model prompts");
  }
  int64_t outer = 0;
  if (type.more_positions >= 0) {
    decoder.learned_positions = positions;
    outer += (positions + 2 * type.more_positions) * decoder.hidden;
  }
  const int64_t norms =
      (type.has_embedding_norm ? 1 : 0) + (type.has_final_norm ? 1 : 0);
  ModelShape encoder = BartEncoder(config, decoder);
  encoder.learned_positions = decoder.learned_positions;
  return WithEncoder(decoder, encoder, outer + norms * 2 * decoder.hidden);
}

ModelShape ParseWhisper(ConfigKeys& config) {
  ModelShape decoder = BartDecoder(config);
  decoder.learned_positions = config.Size({"max_target_positions"});
  const int64_t hidden = decoder.hidden;
  const int64_t frames = config.Size({"max_source_positions"});
  const int64_t bins = config.Size({"num_mel_bins"});
  // The product of keys has no bias.
  decoder.layer_vectors = -2 * hidden;
  ModelShape encoder = BartEncoder(config, decoder);
  encoder.layer_vectors = -hidden;
  encoder.learned_positions = frames;
  const int64_t convolutions = 3 * hidden * (bins + hidden) + 2 * hidden;
  config.Supersede({"apply_spec_augment", "median_filter_width",
                    "use_weighted_layer_sum", "classifier_proj_size",
                    "mask_time_prob", "mask_time_length", "mask_time_min_masks",
                    "mask_feature_prob", "mask_feature_length",
                    "mask_feature_min_masks"});
  decoder = WithEncoder(decoder, encoder,
                        convolutions + frames * hidden + 2 * hidden);
  Tower& tower = decoder.towers.back();
  tower.patches = frames;
  // Two convolutions over three frames, the second of which takes every other one.
  tower.patch_elements = 3 * (2 * bins + hidden);
  return decoder;
}

}  // namespace

bool IsEncoderDecoderType(std::string_view type) {
  return IsT5(type) || type == "whisper" || FindBart(type) != nullptr;
}

ModelShape ParseEncoderDecoder(ConfigKeys& config, std::string_view type) {
  if (IsT5(type)) return ParseT5(config, type);
  if (type == "whisper") return ParseWhisper(config);
  return ParseBart(config, *FindBart(type));
}

}  // namespace acplan::costmodel
