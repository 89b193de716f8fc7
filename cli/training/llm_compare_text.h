#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/terminal/terminal.h"
#include "cli/training/train_input.h"
#include "costmodel/training/training_report.h"

namespace acplan::cli {

// A strategy that is compared, by its name, and all that the model says of it.
struct ComparedTraining {
  std::string name;
  TrainQuestion question;
  costmodel::TrainingReport report;
};

// docs/file_formats.md, "Comparison". One strategy at least.
nlohmann::ordered_json ComparisonJson(
    const std::vector<ComparedTraining>& compared);

// What differs between the settings, then times, rates and memory, a column a
// strategy, in tables of at most 100 columns.
std::string ComparisonText(const std::vector<ComparedTraining>& compared,
                           const Terminal& terminal);

}  // namespace acplan::cli
