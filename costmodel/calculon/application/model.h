#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace acplan::costmodel {

// A transformer of equal blocks.
struct Model {
  int64_t hidden = 0;
  int64_t feedforward = 0;
  int64_t seq_size = 0;
  int64_t attn_heads = 0;
  int64_t attn_size = 0;  // the size of a head
  int64_t num_blocks = 0;

  bool operator==(const Model&) const = default;
};

// The keys of a model's file; others are ignored.
inline constexpr std::array<std::string_view, 6> kModelKeys = {
    "hidden",     "feedforward", "seq_size",
    "attn_heads", "attn_size",   "num_blocks"};

// Returns the parameters of blocks and embeddings, by equation 2 of Narayanan et al.,
// "Efficient large-scale language model training on GPU clusters using Megatron-LM" (2021),
// with heads attn_heads * attn_size wide and a vocabulary of 51,200.
double CountParameters(const Model& model);

// Reads docs/file_formats.md, "Model". Throws InputError, "FILE: path: ...".
Model ReadModel(const std::filesystem::path& path);
Model ParseModel(std::string_view text, std::string_view file);

}  // namespace acplan::costmodel
