#include "costmodel/training/settings/setting_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <set>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::costmodel {
namespace {

std::string SmallLetters(std::string_view text) {
  std::string small(text);
  for (char& letter : small) {
    if (letter >= 'A' && letter <= 'Z') {
      letter = static_cast<char>(letter - 'A' + 'a');
    }
  }
  return small;
}

std::set<LayerPart> PartsNamed(std::string_view key, std::string_view names,
                               const SettingValues& values) {
  const std::optional<std::set<LayerPart>> parts = LayerPartsNamed(names);
  if (!parts || parts->empty()) {
    values.Fail(key,
                "core_attn, layernorm, mla_up_proj, mlp, moe, moe_act or "
                "shared_experts, "
                "several with + or a comma between them");
  }
  return *parts;
}

TrainingStrategy WithSelective(TrainingStrategy strategy, std::string_view key,
                               std::string_view names,
                               const SettingValues& values) {
  if (names == "op") {
    strategy.recomputation = Recomputation::kOperators;
    return strategy;
  }
  strategy.recomputation = Recomputation::kSelective;
  strategy.parts = PartsNamed(key, names, values);
  return strategy;
}

// Returns the whole number after a word such as "full:", or 0 if the text is another one.
int64_t NumberAfter(std::string_view word, std::string_view text) {
  int64_t number = 0;
  if (!text.starts_with(word)) return 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] =
      std::from_chars(text.data() + word.size(), end, number);
  return error == std::errc() && rest == end ? number : 0;
}

// Applies acplan's own word: none, full, full:N, every:N, selective:PARTS or plan.
TrainingStrategy WithRecompute(TrainingStrategy strategy,
                               const SettingValues& values) {
  const std::string text = values.Text("recompute");
  if (text == "none") return strategy;
  if (text == "plan") {
    strategy.recomputation = Recomputation::kPlan;
    return strategy;
  }
  constexpr std::string_view kSelective = "selective:";
  if (text == "selective") {
    return WithSelective(strategy, "recompute", "core_attn", values);
  }
  if (text.starts_with(kSelective)) {
    return WithSelective(strategy, "recompute",
                         std::string_view(text).substr(kSelective.size()),
                         values);
  }
  strategy.recomputation = Recomputation::kFull;
  if (text == "full") return strategy;
  strategy.full_layers = NumberAfter("full:", text);
  strategy.every_layers = NumberAfter("every:", text);
  if (std::max(strategy.full_layers, strategy.every_layers) < 1) {
    values.Fail("recompute",
                "none, full, full:N (layers per stage), every:N (each N-th "
                "layer), selective:PARTS, selective:op or plan");
  }
  return strategy;
}

// Applies the settings of Megatron-LM: granularity, method, modules, layers.
TrainingStrategy WithGranularity(TrainingStrategy strategy,
                                 const SettingValues& values) {
  if (values.Choice("granularity", {"full", "selective"}) == 1) {
    const bool has = values.Has("modules");
    const std::string modules = has ? values.Text("modules") : "core_attn";
    return WithSelective(strategy, has ? "modules" : "granularity", modules,
                         values);
  }
  strategy.recomputation = Recomputation::kFull;
  const int method = values.Choice("method", {"uniform", "block"});
  const int64_t layers = values.Whole("recompute_layers", 1);
  if (method == 1) {
    strategy.full_layers = layers;
  } else if (layers != 1) {
    values.Fail("recompute_layers",
                "1 with the method uniform (each layer keeps its input); the "
                "method block recomputes this many layers of a stage");
  }
  return strategy;
}

// Applies the settings of torchtitan: mode and option.
TrainingStrategy WithMode(TrainingStrategy strategy,
                          const SettingValues& values) {
  const int mode = values.Choice("ac_mode", {"none", "full", "selective"});
  if (mode == 1) strategy.recomputation = Recomputation::kFull;
  if (mode != 2) return strategy;
  if (values.Has("ac_option") && values.Text("ac_option") != "op") {
    strategy.recomputation = Recomputation::kFull;
    strategy.every_layers = NumberAfter("", values.Text("ac_option"));
    if (strategy.every_layers < 1) {
      values.Fail("ac_option", "op, or N for each N-th layer");
    }
    return strategy;
  }
  strategy.recomputation = Recomputation::kOperators;
  return strategy;
}

}  // namespace

std::string SettingValues::Text(std::string_view key) const {
  const auto entry = settings_->find(key);
  return entry == settings_->end() ? std::string() : entry->second.value;
}

int64_t SettingValues::Whole(std::string_view key, int64_t fallback,
                             int64_t least) const {
  if (!Has(key)) return fallback;
  const std::string text = Text(key);
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value < least ||
      value > INT32_MAX) {
    Fail(key, fmt::format("a whole number from {} to {}", least, INT32_MAX));
  }
  return value;
}

double SettingValues::Number(std::string_view key, double fallback,
                             double least, double most) const {
  if (!Has(key)) return fallback;
  const std::string text = Text(key);
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || !(value >= least) ||
      !(value <= most)) {
    Fail(key, fmt::format("a number from {:g} to {:g}", least, most));
  }
  return value;
}

bool SettingValues::Flag(std::string_view key, bool fallback) const {
  if (!Has(key)) return fallback;
  return Choice(key, {"false", "true", "0", "1"}) % 2 == 1;
}

int SettingValues::Choice(std::string_view key,
                          const std::vector<std::string_view>& names) const {
  if (!Has(key)) return -1;
  const std::string text = SmallLetters(Text(key));
  for (size_t i = 0; i < names.size(); ++i) {
    if (text == SmallLetters(names[i])) return static_cast<int>(i);
  }
  Fail(key, fmt::format("one of {}", fmt::join(names, ", ")));
}

void SettingValues::Fail(std::string_view key,
                         std::string_view expected) const {
  const auto entry = settings_->find(key);
  if (entry == settings_->end()) {
    throw InputError(
        fmt::format("{}: expected {}, found nothing", key, expected));
  }
  throw InputError(fmt::format("{}: expected {}, found {}", entry->second.place,
                               expected, graph::Quoted(entry->second.value)));
}

TrainingStrategy WithSettingsOfRecomputation(TrainingStrategy strategy,
                                             const SettingValues& values) {
  if (values.Has("recompute")) return WithRecompute(strategy, values);
  if (values.Has("granularity")) return WithGranularity(strategy, values);
  if (values.Has("ac_mode")) return WithMode(strategy, values);
  for (const std::string_view key :
       {"method", "modules", "recompute_layers", "ac_option"}) {
    if (values.Has(key)) {
      values.Fail(key, "no value without recompute_granularity or a mode");
    }
  }
  return strategy;
}

}  // namespace acplan::costmodel
