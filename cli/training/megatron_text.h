#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/megatron_recomputation.h"
#include "costmodel/training/training_report.h"

namespace acplan::cli {

// A strategy in the words of Megatron-LM, and of Megatron Bridge, which NeMo is built on.

enum class MegatronProgram { kNone, kMegatron, kBridge };

// Parses --for: "megatron" or "megatron-bridge"; "": none. Throws InputError.
MegatronProgram ParseMegatronProgram(const std::string& name);

// Adds --for.
void AddProgramTo(CLI::App& app, std::string& name, const std::string& effect);

// Throws InputError if the program has no words for the strategy's schedule or operators.
void RequireMegatron(const costmodel::TrainingStrategy& strategy,
                     std::string_view flag);

// Returns lines on the job and its estimates.
std::vector<std::string> MegatronComments(
    const costmodel::MegatronAnswer& answer, std::string_view model,
    double budget);

// Returns an answer and its text as JSON.
nlohmann::ordered_json MegatronJson(const costmodel::MegatronAnswer& answer,
                                    const std::string& text);

// Returns the flags of a launch script, or the keys of a YAML file of overrides, with comments
// before them. The strategy is one that RequireMegatron accepts.
std::string MegatronText(const costmodel::TrainingReport& report,
                         MegatronProgram program,
                         const std::vector<std::string>& comments);

}  // namespace acplan::cli
