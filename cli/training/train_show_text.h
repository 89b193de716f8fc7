#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/terminal.h"
#include "cli/training/train_input.h"
#include "costmodel/training/training_report.h"

namespace acplan::cli {

// A part of an iteration's time, with its names in JSON and in tables.
struct TimePart {
  std::string_view name;
  std::string_view text;
  double seconds;
};
std::vector<TimePart> PartsOf(const costmodel::StepTime& time);

// A part of a rank's memory, with its letter in charts.
struct MemoryPart {
  std::string_view name;
  char letter;
  double bytes;
};
std::array<MemoryPart, 7> PartsOf(const costmodel::RankMemory& memory);

// Returns the model, the GPUs and the strategy, in three lines and an empty
// one.
std::string HeadingText(const costmodel::TrainingReport& report,
                        const TrainQuestion& question,
                        const Terminal& terminal);
// Returns the memory of each stage by part, as a table and a chart, and whether
// it fits.
std::string MemoryText(const costmodel::TrainingReport& report,
                       const TrainQuestion& question, const Terminal& terminal);

// Returns whole bytes; if no integer of 64 bits holds them, the number itself.
nlohmann::ordered_json BytesJson(double bytes);

// Returns a report as JSON (docs/file_formats.md, "Training run").
nlohmann::ordered_json ToJson(const costmodel::TrainingReport& report,
                              const TrainQuestion& question);

// Returns tables at most 100 columns wide, and the memory of each stage as a
// chart.
std::string TrainText(const costmodel::TrainingReport& report,
                      const TrainQuestion& question, const Terminal& terminal);

}  // namespace acplan::cli
