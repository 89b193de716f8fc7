#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "problems/language/ties.h"
#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// MaxText: names of a layer's values that stay on the device or go to the host. A name stands for the product
// of the modules that compute the value in models of PyTorch. MaxText checkpoints layers in
// any case.

namespace acplan::problems {
namespace {

constexpr std::string_view kPolicyName = "remat_policy";

// Returns patterns of the products in modules of these names.
std::vector<std::string> ProductsOf(
    std::initializer_list<const char*> modules) {
  std::vector<std::string> patterns;
  for (const char* module : modules) {
    patterns.push_back(fmt::format("*{}:aten.*mm.default", module));
    patterns.push_back(fmt::format("*{}:aten.linear.default", module));
  }
  return patterns;
}

std::vector<std::string> AttentionPlaces() {
  std::vector<std::string> patterns;
  for (const std::string& pattern : AttentionPatterns()) {
    patterns.push_back("*:" + pattern);
  }
  return patterns;
}

// Returns the values that operators of PyTorch's models stand for.
std::vector<NamedValue> Values() {
  return {
      {"context", AttentionPlaces()},
      {"key_proj", ProductsOf({".k_proj", ".key", ".wk"})},
      {"mlpwi", ProductsOf({"mlp.c_fc", ".fc1"})},
      {"mlpwi_0", ProductsOf({".gate_proj", ".w1"})},
      {"mlpwi_1", ProductsOf({".up_proj", ".w3"})},
      {"mlpwo", ProductsOf({".down_proj", ".w2", "mlp.c_proj", ".fc2"})},
      {"out_proj",
       ProductsOf({".o_proj", "attn.out_proj", "attn.c_proj", "attention.wo"})},
      {"qkv_proj", ProductsOf({".c_attn", ".qkv_proj", ".query_key_value"})},
      {"query_proj", ProductsOf({".q_proj", ".query", ".wq"})},
      {"value_proj", ProductsOf({".v_proj", ".value", ".wv"})}};
}

// The input of layers, which is kept in any case.
constexpr std::string_view kInput = "decoder_layer_input";

// The other names of the custom policy, which no operator stands for.
constexpr std::array<std::string_view, 11> kOtherValues = {
    "attention_out", "engram",       "indexer_cutoff_threshold",
    "kv_proj",       "kv_wa_proj",   "mla_kv",
    "mla_q",         "moe_mlpwi_0",  "moe_mlpwi_1",
    "moe_mlpwo",     "query_wa_proj"};

struct NamedPolicy {
  std::string_view name;
  std::vector<std::string> kept_values;
  bool is_offloaded = false;
};

std::vector<NamedPolicy> NamedPolicies() {
  const std::vector<std::string> projections = {"key_proj", "qkv_proj",
                                                "query_proj", "value_proj"};
  const auto with = [&](std::initializer_list<const char*> others) {
    std::vector<std::string> names = projections;
    names.insert(names.end(), others.begin(), others.end());
    return names;
  };
  const std::vector<std::string> all =
      with({"mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "out_proj"});
  return {
      {"full", {}},
      {"minimal", all},
      {"minimal_offloaded", all, true},
      {"minimal_with_context",
       with({"context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "out_proj"})},
      {"none", {}},
      {"qkv_proj_offloaded", {"key_proj", "query_proj", "value_proj"}, true},
      {"save_dot_except_mlp", with({"out_proj"})},
      {"save_dot_except_mlpwi", with({"mlpwo", "out_proj"})},
      {"save_dot_with_context_except_mlp", with({"context", "out_proj"})},
      {"save_out_proj", {"out_proj"}},
      {"save_qkv_proj", projections}};
}

Language MaxTextLanguage() {
  return {.may_have_no_unit = false,
          .takes_names = true,
          .may_offload = true,
          .values = Values()};
}

// Returns the places of the trace that a value has.
std::vector<std::string> PlacesOf(const NamedValue& value,
                                  const ConfigNames& names) {
  std::vector<std::string> places;
  for (const std::string& place : names.places) {
    if (MatchesAny(place, value.patterns)) places.push_back(place);
  }
  return places;
}

std::string WriteMaxText(const TrainerPolicy& policy,
                         const ConfigNames& names) {
  if (policy.KeptNames().empty()) return fmt::format("{}: full\n", kPolicyName);
  std::string text = fmt::format("{}: custom\n", kPolicyName);
  for (const NamedValue& value : Values()) {
    const std::vector<std::string> places = PlacesOf(value, names);
    if (places.empty()) continue;
    const std::string_view where =
        std::ranges::includes(policy.saved, places)       ? "device"
        : std::ranges::includes(policy.offloaded, places) ? "offload"
                                                          : "remat";
    text += fmt::format("{}: {}\n", value.name, where);
  }
  return text;
}

// Refuses keys that have the place of a value, and are no names of values.
void RefuseOtherValues(const Config& config) {
  std::vector<std::string> known_names(kOtherValues.begin(),
                                       kOtherValues.end());
  known_names.emplace_back(kInput);
  for (const NamedValue& value : Values()) {
    known_names.emplace_back(value.name);
  }
  for (const std::string& key : config.Keys("")) {
    const bool is_place = config.Is(key, "device") ||
                          config.Is(key, "offload") || config.Is(key, "remat");
    const bool is_known =
        std::ranges::find(known_names, key) != known_names.end();
    if (is_place && !is_known) {
      FailUnknownValue(config, kPolicyName, key, known_names);
    }
  }
}

// The names of values that a policy keeps.
struct KeptValues {
  std::vector<std::string> saved = {};
  std::vector<std::string> offloaded = {};
};

// Reads the values of a custom policy that are kept.
KeptValues ReadValues(const Config& config, ConfigReading& reading) {
  RefuseOtherValues(config);
  KeptValues kept_values;
  const auto place_of = [&](const std::string& name,
                            const std::string& fallback) {
    std::string place = config.Text(name).value_or(fallback);
    if (place != "device" && place != "offload" && place != "remat") {
      FailUnknownValue(config, name, place, {"device", "offload", "remat"});
    }
    return place;
  };
  for (const NamedValue& value : Values()) {
    const std::string place = place_of(value.name, "remat");
    if (place == "device") kept_values.saved.push_back(value.name);
    if (place == "offload") kept_values.offloaded.push_back(value.name);
  }
  for (const std::string_view name : kOtherValues) {
    if (place_of(std::string(name), "remat") == "remat") continue;
    reading.notes.push_back(fmt::format(
        "{}: no operator of the trace stands for it; audited without", name));
  }
  const std::string input(kInput);
  const std::string place = place_of(input, "device");
  if (place == "remat") {
    config.Fail(input, "device or offload, as layers run again from it", place);
  }
  if (place == "offload") {
    reading.notes.push_back(input +
                            ": inputs of layers go to the host, which is not "
                            "simulated: the peak is lower than below");
  }
  return kept_values;
}

// Returns the places of the trace that values have, ascending.
std::vector<std::string> PlacesOf(const std::vector<std::string>& value_names,
                                  const ConfigNames& names) {
  std::set<std::string> all;
  for (const NamedValue& value : Values()) {
    if (std::ranges::find(value_names, value.name) == value_names.end()) {
      continue;
    }
    for (std::string& place : PlacesOf(value, names)) {
      all.insert(std::move(place));
    }
  }
  return {all.begin(), all.end()};
}

ConfigReading ReadMaxText(const Config& config, const ConfigNames& names) {
  ConfigReading reading;
  reading.policy = MaxTextLanguage().Saving({.kind = BlockKind::kAll});
  std::string mode = config.Text(kPolicyName).value_or("full");
  if (mode == "minimal_flash") mode = "minimal_with_context";
  KeptValues kept_values;
  std::vector<std::string> modes = {"custom"};
  bool is_known = mode == "custom";
  if (is_known) kept_values = ReadValues(config, reading);
  for (const NamedPolicy& policy : NamedPolicies()) {
    modes.emplace_back(policy.name);
    if (policy.name != mode) continue;
    is_known = true;
    (policy.is_offloaded ? kept_values.offloaded : kept_values.saved) =
        policy.kept_values;
  }
  if (!is_known) FailUnknownValue(config, kPolicyName, mode, modes);
  reading.policy.saved = PlacesOf(kept_values.saved, names);
  reading.policy.offloaded = PlacesOf(kept_values.offloaded, names);
  reading.notes.emplace_back(
      "MaxText runs on JAX: the step is PyTorch's, which keeps queries and "
      "keys "
      "as products, before their rotation");
  return reading;
}

bool IsLikeMaxText(const Config& config) {
  return config.Has(kPolicyName) || config.Has("base_num_decoder_layers");
}

}  // namespace

Trainer MaxTextTrainer() {
  return {.name = "maxtext",
          .version = "MaxText at commit e591f30c",
          .place = "the YAML configuration",
          .language = MaxTextLanguage(),
          .format = ConfigFormat::kYaml,
          .write = WriteMaxText,
          .read = ReadMaxText,
          .is_like = IsLikeMaxText};
}

}  // namespace acplan::problems
