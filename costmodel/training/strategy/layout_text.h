#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/model/model_shape.h"

namespace acplan::costmodel {

// What each chunk of each stage holds, as Megatron-LM's pipeline_model_parallel_layout
// writes it, chunks in the order in which a microbatch passes them, with | between
// them: E the embedding, t a layer, m a layer of prediction, L logits and loss;
// (...)*3 or t*3 repeats, and commas mean nothing. "Et*3|(tt|)*29m|L" is of 61 layers.
// The number of these in each chunk; nothing where the text is no such layout.
std::optional<std::vector<int64_t>> ParseLayout(std::string_view text,
                                                const ModelShape& shape);

// The same layout, without repetitions.
std::string LayoutText(const std::vector<int64_t>& counts,
                       const ModelShape& shape);

}  // namespace acplan::costmodel
