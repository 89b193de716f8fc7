#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "costmodel/training/strategy_settings.h"

namespace acplan::cli {

// What commands on the cost model of training runs ask about: a model, GPUs and a
// strategy, of which flags say what a file does not, or otherwise.
struct TrainFlags {
  std::string config;
  std::string strategy;
  std::string systems;
  std::string system;
  std::string budget;
  std::map<std::string, std::string>
      settings;  // by acplan's keys; "": not given
  std::vector<std::string> set;

  // `has_strategy`: with the flags of one strategy, else with those that
  // strategies have in common.
  void AddTo(CLI::App& app, bool has_strategy);

  costmodel::ModelShape ReadModel() const;
  costmodel::TrainingSystems ReadSystems() const;
  // Of the file, then of the flags, which replace them.
  costmodel::StrategySettings ReadSettings() const;
  // Bytes of a GPU: --budget, else the GPU's.
  double Budget(const costmodel::Accelerator& gpu) const;
};

}  // namespace acplan::cli
