#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/terminal/terminal.h"
#include "costmodel/training/confidence/intervals.h"
#include "costmodel/training/memory/memory_limit.h"
#include "costmodel/training/score/calibration.h"
#include "costmodel/training/settings/strategy_settings.h"

namespace acplan::cli {

// The parts of a question beside times and memory of a strategy.
struct TrainQuestion {
  std::string model;                    // name of the file
  costmodel::MemoryLimit limit = {};    // of a GPU
  std::optional<double> tokens;         // of the whole training
  std::optional<double> price;          // of a GPU for an hour
  std::vector<std::string> notes = {};  // on parts of the model that are not
                                        // counted
  // The calibration of the predictions; empty without one.
  std::optional<costmodel::Calibration> calibration;
  // The errors of measured runs.
  std::shared_ptr<const costmodel::IntervalModel> intervals;
};

// Adds --calibrate.
void AddCalibrate(CLI::App& app, std::string& path);
// Reads the runs of --calibrate.
costmodel::Calibration ReadCalibration(
    const std::string& path, const costmodel::TrainingSystems& systems);
// Returns the factors and errors of a calibration, in a line.
std::string TextOf(const costmodel::Calibration& calibration);

// Reads the errors of measured runs that came with the program.
std::shared_ptr<const costmodel::IntervalModel> ReadIntervals();

// Returns the bytes that PyTorch may have on a rank of the job.
double BudgetOf(const TrainQuestion& question,
                const costmodel::TrainingJob& job);

// A strategy that an argument names, with its name in tables.
struct NamedStrategy {
  std::string name;
  costmodel::StrategySettings settings;
};

// Returns the strategy of an argument: settings ("tp=8,pp=4"), a file of settings, a report
// of train show or a plan of train plan, of which the strategy is read, or what
// train search wrote, FILE:RANK, from 1, or FILE for the fastest. Throws InputError.
NamedStrategy ReadNamedStrategy(const std::string& argument);

// Sets the strategy's recomputation ("plan", "none") in place of the settings'
// own.
void SetRecomputation(const std::string& value,
                      costmodel::StrategySettings& settings);

// The flags of commands on the cost model of training runs: a model, GPUs and a
// strategy. Flags complete a file's settings, or override them.
struct TrainFlags {
  std::string config;
  std::string strategy;
  std::string systems;
  std::string system;
  std::string budget;
  std::string allocator_loss;
  std::string tokens;
  std::string price;
  std::string calibrate;
  std::map<std::string, std::string>
      settings;  // by acplan's keys; "": not given
  std::vector<std::string> set;

  // Adds the flags: if `has_strategy`, those of one strategy, else those that
  // strategies have in common.
  void AddTo(CLI::App& app, bool has_strategy);

  // Warns of parts of the file that are not counted.
  costmodel::ModelConfig ReadConfig(const Terminal& terminal) const;
  costmodel::ModelShape ReadModel(const Terminal& terminal) const;
  // Returns the GPUs and software, calibrated if runs are given.
  costmodel::TrainingSystems ReadSystems() const;
  costmodel::TrainingSystems ReadUncalibratedSystems() const;
  // Returns the settings of the file, then `own`, then those of the flags;
  // later ones replace earlier ones.
  costmodel::StrategySettings ReadSettings(
      const costmodel::StrategySettings& own = {}) const;
  // Returns the question. The limit is --budget, else what the GPU offers.
  TrainQuestion Question(const costmodel::Accelerator& gpu) const;
};

}  // namespace acplan::cli
