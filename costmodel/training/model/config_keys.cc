#include "costmodel/training/model/config_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "costmodel/training/model/known_keys.h"
#include "graph/base/message_text.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;

constexpr int64_t kMostSize = INT32_MAX;

// Returns whether a value is null, false, zero, or empty.
bool SaysNothing(const nlohmann::json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  return value.empty() ||
         (value.is_string() && value.get<std::string>().empty());
}

// Returns whether a key is a size that every file has.
bool IsMainSize(std::string_view name) {
  return name == "vocab_size" || name == "hidden_size" ||
         name == "intermediate_size" || name == "num_hidden_layers" ||
         name == "num_attention_heads";
}

}  // namespace

ConfigKeys::ConfigKeys(JsonField config, std::string_view defaults,
                       bool is_part)
    : config_(std::move(config)),
      default_document_(graph::ParseJson(defaults, "defaults")),
      defaults_(default_document_, "defaults"),
      is_part_(is_part) {}

std::optional<JsonField> ConfigKeys::Find(KeyNames names) {
  bool is_said = false;
  std::optional<JsonField> field;
  for (const std::string_view name : names) {
    if (!config_.json().contains(name)) continue;
    used_keys_.emplace(name);
    is_said = true;
    if (!field && config_.Has(name)) field = config_.Get(name);
  }
  if (is_said || (!is_part_ && IsMainSize(*names.begin()))) return field;
  for (const std::string_view name : names) {
    if (defaults_.Has(name)) return defaults_.Get(name);
  }
  return {};
}

int64_t ConfigKeys::Size(KeyNames names) {
  const std::optional<JsonField> field = Find(names);
  if (!field) return config_.Get(*names.begin()).Int(1, kMostSize);
  return field->Int(1, kMostSize);
}

int64_t ConfigKeys::SizeOr(KeyNames names, int64_t fallback) {
  const std::optional<JsonField> field = Find(names);
  return field ? field->Int(0, kMostSize) : fallback;
}

bool ConfigKeys::Flag(std::string_view name, bool fallback) {
  const std::optional<JsonField> field = Find({name});
  return field ? field->Bool() : fallback;
}

double ConfigKeys::Share(KeyNames names) {
  const std::optional<JsonField> field = Find(names);
  if (!field) return 0;
  const double share = field->NonNegativeNumber();
  if (share > 1) field->Fail("a number from 0 to 1");
  return share;
}

std::vector<int64_t> ConfigKeys::Numbers(std::string_view name) {
  std::vector<int64_t> numbers;
  const std::optional<JsonField> field = Find({name});
  if (!field) return numbers;
  for (const JsonField& element : field->Elements()) {
    numbers.push_back(element.Int(0, kMostSize));
  }
  return numbers;
}

std::vector<std::string> ForeignKeys(const JsonField& config) {
  std::vector<std::string> foreign;
  for (const auto& [key, value] : config.json().items()) {
    if (!SaysNothing(value) && key != "layer_types" &&
        key != "mlp_layer_types" && !IsHarmlessKey(key) && IsForeignKey(key)) {
      foreign.push_back(graph::OneLine(key));
    }
  }
  return foreign;
}

void ConfigKeys::RequireKnownKeys() const {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : config_.json().items()) {
    if (used_keys_.contains(key) || SaysNothing(value)) continue;
    if (IsHarmlessKey(key) || IsOtherPart(key)) continue;
    unknown.push_back(key);
  }
  if (unknown.empty()) return;
  std::vector<std::string> names;
  for (const std::string& key : unknown) names.push_back(graph::OneLine(key));
  config_.Get(unknown.front())
      .Fail(fmt::format(
          "no value, as acplan does not know whether {} {} the sizes of a "
          "model of this model_type (delete {} if not)",
          fmt::join(names, ", "), names.size() > 1 ? "change" : "changes",
          names.size() > 1 ? "them" : "it"));
}

}  // namespace acplan::costmodel
