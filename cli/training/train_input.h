#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/terminal/terminal.h"
#include "costmodel/training/settings/strategy_settings.h"

namespace acplan::cli {

// What is asked beside times and memory of a strategy.
struct TrainQuestion {
  std::string model;                    // name of the file
  double budget = 0;                    // bytes of a GPU
  std::optional<double> tokens;         // of the whole training
  std::optional<double> price;          // of a GPU for an hour
  std::vector<std::string> notes = {};  // on what of the model is not counted
};

// A strategy that an argument names, and how tables call it.
struct NamedStrategy {
  std::string name;
  costmodel::StrategySettings settings;
};

// The strategy of an argument: settings ("tp=8,pp=4"), a file of settings, a report
// of train show or a plan of train plan, of which the strategy is read, or what
// train search wrote, FILE:RANK or FILE for the fastest (rank 0). Throws InputError.
NamedStrategy ReadNamedStrategy(const std::string& argument);

// Has the strategy recompute this ("plan", "none"), whatever settings said of it.
void SetRecomputation(const std::string& value,
                      costmodel::StrategySettings& settings);

// What commands on the cost model of training runs ask about: a model, GPUs and a
// strategy, of which flags say what a file does not, or otherwise.
struct TrainFlags {
  std::string config;
  std::string strategy;
  std::string systems;
  std::string system;
  std::string budget;
  std::string tokens;
  std::string price;
  std::map<std::string, std::string>
      settings;  // by acplan's keys; "": not given
  std::vector<std::string> set;

  // `has_strategy`: with the flags of one strategy, else with those that
  // strategies have in common.
  void AddTo(CLI::App& app, bool has_strategy);

  // Warns of what of the file is not counted.
  costmodel::ModelConfig ReadConfig(const Terminal& terminal) const;
  costmodel::ModelShape ReadModel(const Terminal& terminal) const;
  costmodel::TrainingSystems ReadSystems() const;
  // Of the file, then `own`, then of the flags; what comes later replaces what is
  // there.
  costmodel::StrategySettings ReadSettings(
      const costmodel::StrategySettings& own = {}) const;
  // The budget is --budget, else what the GPU has.
  TrainQuestion Question(const costmodel::Accelerator& gpu) const;
};

}  // namespace acplan::cli
