#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/terminal.h"
#include "cli/training/train_input.h"
#include "costmodel/training/training_report.h"

namespace acplan::cli {

// A part of an iteration's time, by its name in JSON and in tables.
struct TimePart {
  std::string_view name;
  std::string_view text;
  double seconds;
};
std::vector<TimePart> PartsOf(const costmodel::StepTime& time);

// A part of a rank's memory, and its letter in charts.
struct MemoryPart {
  std::string_view name;
  char letter;
  double bytes;
};
std::array<MemoryPart, 7> PartsOf(const costmodel::RankMemory& memory);

// What is trained on what and how, in three lines and an empty one.
std::string HeadingText(const costmodel::TrainingReport& report,
                        const TrainQuestion& question,
                        const Terminal& terminal);
// The memory of each stage by part, as a table and a chart, and whether it fits.
std::string MemoryText(const costmodel::TrainingReport& report,
                       const TrainQuestion& question, const Terminal& terminal);

// Whole bytes; where no integer of 64 bits holds them, the number itself.
nlohmann::ordered_json BytesJson(double bytes);

// docs/file_formats.md, "Training run".
nlohmann::ordered_json ToJson(const costmodel::TrainingReport& report,
                              const TrainQuestion& question);

// Tables of at most 100 columns, and the memory of each stage as a chart.
std::string TrainText(const costmodel::TrainingReport& report,
                      const TrainQuestion& question, const Terminal& terminal);

}  // namespace acplan::cli
