#pragma once

#include <string>

#include "problems/plan/plan.h"

namespace acplan::cli {

// How a search ended: in a word, and what that says.
struct PlanVerdict {
  std::string word;
  std::string text;
};

PlanVerdict VerdictOn(const problems::Plan& plan);

}  // namespace acplan::cli
