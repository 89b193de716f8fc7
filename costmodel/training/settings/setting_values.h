#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/training/settings/strategy_settings.h"

namespace acplan::costmodel {

// The values of settings, which must outlive this. Each getter throws InputError with the
// setting's place if the value is not of its kind.
class SettingValues {
 public:
  explicit SettingValues(const StrategySettings& settings)
      : settings_(&settings) {}

  bool Has(std::string_view key) const { return settings_->contains(key); }
  // Returns the text; empty if there is none.
  std::string Text(std::string_view key) const;
  // Returns a whole number from 1, or `least`, to 2^31 - 1.
  int64_t Whole(std::string_view key, int64_t fallback,
                int64_t least = 1) const;
  double Number(std::string_view key, double fallback, double least,
                double most) const;
  // Returns a flag, which is written as true, false, 1, 0, True or False.
  bool Flag(std::string_view key, bool fallback) const;
  // Returns the position of the value among these names, in any case; -1 if there is no
  // value.
  int Choice(std::string_view key,
             const std::vector<std::string_view>& names) const;

  [[noreturn]] void Fail(std::string_view key, std::string_view expected) const;

 private:
  const StrategySettings* settings_;
};

// Returns the strategy with the settings of its recomputation.
TrainingStrategy WithSettingsOfRecomputation(TrainingStrategy strategy,
                                             const SettingValues& values);

}  // namespace acplan::costmodel
