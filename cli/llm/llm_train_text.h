#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/terminal/terminal.h"
#include "costmodel/training/training_report.h"

namespace acplan::cli {

// What is asked beside the report.
struct TrainQuestion {
  std::string model;             // name of the file
  double budget = 0;             // bytes of a GPU
  std::optional<double> tokens;  // of the whole training
  std::optional<double> price;   // of a GPU for an hour
};

// "TP 8, PP 2 x 4 chunks, DP 4, ZeRO 1".
std::string StrategyText(const costmodel::TrainingStrategy& strategy);
// "none", "full of 3 layers", "core_attn, moe_act", "op".
std::string RecomputationText(const costmodel::TrainingStrategy& strategy);

// The settings that say a strategy, docs/file_formats.md.
nlohmann::ordered_json ToJson(const costmodel::TrainingJob& job);

// docs/file_formats.md, "What llm-train prints".
nlohmann::ordered_json ToJson(const costmodel::TrainingReport& report,
                              const TrainQuestion& question);

// Tables of at most 100 columns, and the memory of each stage as a chart.
std::string TrainText(const costmodel::TrainingReport& report,
                      const TrainQuestion& question, const Terminal& terminal);

}  // namespace acplan::cli
