#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/training/settings/strategy_settings.h"

namespace acplan::costmodel {

// Values of settings, which must outlive this; each getter throws InputError
// with the setting's place where it is no such value.
class SettingValues {
 public:
  explicit SettingValues(const StrategySettings& settings)
      : settings_(&settings) {}

  bool Has(std::string_view key) const { return settings_->contains(key); }
  // Empty where there is none.
  std::string Text(std::string_view key) const;
  // From 1 to 2^31 - 1, or from `least`.
  int64_t Whole(std::string_view key, int64_t fallback,
                int64_t least = 1) const;
  double Number(std::string_view key, double fallback, double least,
                double most) const;
  // true, false, 1, 0, True or False.
  bool Flag(std::string_view key, bool fallback) const;
  // The position of the value among these names, whatever their case; -1: none.
  int Choice(std::string_view key,
             const std::vector<std::string_view>& names) const;

  [[noreturn]] void Fail(std::string_view key, std::string_view expected) const;

 private:
  const StrategySettings* settings_;
};

// What settings say of recomputation, and of the rest of a strategy.
TrainingStrategy WithSettingsOfRecomputation(TrainingStrategy strategy,
                                             const SettingValues& values);

}  // namespace acplan::costmodel
