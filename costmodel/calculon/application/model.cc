#include "costmodel/calculon/application/model.h"

#include <nlohmann/json.hpp>

#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"

namespace acplan::costmodel {

namespace {

constexpr int64_t kMostModelSize = INT32_MAX;

}  // namespace

double CountParameters(const Model& model) {
  const double hidden = static_cast<double>(model.hidden);
  const double feedforward = static_cast<double>(model.feedforward);
  const double heads = static_cast<double>(model.attn_heads) *
                       static_cast<double>(model.attn_size);
  const double mlp = 2 * hidden * feedforward + hidden + feedforward;
  const double attention = 4 * hidden * heads + 3 * heads + hidden;
  const double norms = 2 * 2 * hidden;
  const double embeddings =
      (51200 + static_cast<double>(model.seq_size)) * hidden;
  return static_cast<double>(model.num_blocks) * (mlp + attention + norms) +
         embeddings;
}

Model ParseModel(std::string_view text, std::string_view file) {
  const nlohmann::json document = graph::ParseJson(text, file);
  const graph::JsonField root(document, std::string(file));
  const auto size = [&](std::string_view key) {
    return root.Get(key).Int(1, kMostModelSize);
  };
  return {.hidden = size("hidden"),
          .feedforward = size("feedforward"),
          .seq_size = size("seq_size"),
          .attn_heads = size("attn_heads"),
          .attn_size = size("attn_size"),
          .num_blocks = size("num_blocks")};
}

Model ReadModel(const std::filesystem::path& path) {
  return ParseModel(graph::ReadJsonText(path), path.string());
}

}  // namespace acplan::costmodel
