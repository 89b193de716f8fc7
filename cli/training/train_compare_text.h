#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/terminal/terminal.h"
#include "cli/training/train_input.h"
#include "costmodel/training/training_report.h"

namespace acplan::cli {

// A strategy of a comparison with its name and the model's report on it.
struct ComparedTraining {
  std::string name;
  TrainQuestion question;
  costmodel::TrainingReport report;
};

// Returns the comparison as JSON (docs/file_formats.md, "Comparison").
// Requires at least one strategy.
nlohmann::ordered_json ComparisonJson(
    const std::vector<ComparedTraining>& compared);

// Returns the differences between the settings, then times, rates and memory,
// with a column for each strategy, in tables at most 100 columns wide.
std::string ComparisonText(const std::vector<ComparedTraining>& compared,
                           const Terminal& terminal);

}  // namespace acplan::cli
