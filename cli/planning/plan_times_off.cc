#include "cli/planning/plan_times_off.h"

#include <fmt/format.h>

#include "cli/input/flags.h"
#include "cli/terminal/text.h"
#include "graph/base/input_error.h"

namespace acplan::cli {
namespace {

std::string RegretText(const problems::RegretBounds& bounds) {
  std::string text = fmt::format("a step takes at most {} longer",
                                 FormatPercentUp(bounds.upper.step));
  if (bounds.upper.recomputation) {
    text += fmt::format(" (recomputation {})",
                        FormatPercentUp(*bounds.upper.recomputation));
  }
  if (bounds.lower && bounds.lower->step < bounds.upper.step) {
    text += fmt::format(", for some run-times {}",
                        FormatPercentUp(bounds.lower->step));
  }
  return text;
}

}  // namespace

void TimesOffFlags::AddTo(CLI::App& app) {
  app.add_option(
         "--times-off", factor,
         "also print how much longer a step can take than with the best plan "
         "if run-times are off by up to a factor F, by kind of operator and by "
         "operator; on traces")
      ->type_name("F");
  app.add_flag("--robust", robust,
               "find the plan that loses least if run-times of kinds of "
               "operators are off by up to --times-off (default 1.5)");
}

std::optional<problems::TimesOffOptions> TimesOffFlags::Parse(
    const problems::PlanOptions& options, const std::string& offload,
    const AllocatorFlags& allocator) const {
  constexpr double kMostFactor = 100;
  if (factor.empty() && !robust) return std::nullopt;
  const std::string flag = factor.empty() ? "--robust" : "--times-off";
  if (options.memory.model != problems::MemoryModel::kTrace) {
    throw InputError(flag +
                     ": needs a plan on a trace, under the memory model trace");
  }
  if (!offload.empty()) {
    throw InputError(
        flag +
        ": cannot be combined with --offload, as no bound is known "
        "for plans with offload");
  }
  if (robust && !allocator.device_memory.empty()) {
    throw InputError("--robust: needs --budget");
  }
  problems::TimesOffOptions times_off{.is_robust = robust};
  if (!factor.empty()) {
    times_off.factor = ParseNumber(factor, "--times-off", 1, kMostFactor);
  }
  return times_off;
}

std::string TimesOffText(const problems::Question& question,
                         const problems::Plan& plan) {
  if (!question.times_off || !plan.times_off) return "";
  const problems::TimesOff& off = *plan.times_off;
  std::string text = fmt::format(
      "run-times off by up to {:g}, against the best plan for the true ones:\n"
      "  by kind of operator: {}\n  by operator: {}\n",
      off.factor, RegretText(off.by_kind), RegretText(off.by_operator));
  if (off.least_step) {
    text += fmt::format(
        "robust: no plan's worst step by kind is less than {} longer\n",
        FormatPercentUp(*off.least_step));
  }
  return text;
}

}  // namespace acplan::cli
