#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/model/model_shape.h"

namespace acplan::costmodel {

// Parses a layout as Megatron-LM's pipeline_model_parallel_layout writes it: the content of
// each chunk of each stage, in the order in which a microbatch passes chunks, with |
// between them. E is the embedding, t a layer, m a layer of prediction, L logits and loss;
// (...)*3 or t*3 repeats, and commas are ignored. "Et*3|(tt|)*29m|L" has 61 layers. Returns
// the number of these parts in each chunk; nothing if the text is no such layout.
std::optional<std::vector<int64_t>> ParseLayout(std::string_view text,
                                                const ModelShape& shape);

// Returns a layout as text, without repetitions.
std::string LayoutText(const std::vector<int64_t>& counts,
                       const ModelShape& shape);

}  // namespace acplan::costmodel
