#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "cli/planning/allocator_flags.h"
#include "problems/ask.h"
#include "problems/plan/plan.h"

namespace acplan::cli {

// The flags --times-off and --robust: what a plan can lose if run-times are wrong.
struct TimesOffFlags {
  std::string factor;
  bool robust = false;

  void AddTo(CLI::App& app);
  // Returns how wrong run-times may be in a question, or nothing without a flag.
  // `offload` is the value of that flag. Throws InputError.
  std::optional<problems::TimesOffOptions> Parse(
      const problems::Question& question, const std::string& offload,
      const AllocatorFlags& allocator) const;
};

// Returns lines about what a plan can lose; "" if the question does not ask for it.
std::string TimesOffText(const problems::Question& question,
                         const problems::Plan& plan);

}  // namespace acplan::cli
