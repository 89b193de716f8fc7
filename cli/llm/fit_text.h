#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/terminal/terminal.h"
#include "costmodel/search/fit_survey.h"

namespace acplan::cli {

// A question whether a model fits, and its answer.
struct FitResult {
  std::string model;  // names of the files
  std::string system;
  costmodel::FitProblem problem;
  costmodel::FitSurvey survey;
};

// docs/command_line.md says what is in these.
nlohmann::ordered_json ToJson(const FitResult& result);
std::string ToCsv(const FitResult& result);

// A sentence that sums it up, and a table of the first `max_rows` rows.
std::string ToText(const FitResult& result, size_t max_rows,
                   const Terminal& terminal);

}  // namespace acplan::cli
