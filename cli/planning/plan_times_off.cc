#include "cli/planning/plan_times_off.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "cli/input/flags.h"
#include "cli/terminal/text.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

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

// Returns the line above the bounds.
std::string FactorsText(const graph::ByKind<double>& factors) {
  constexpr std::string_view kAgainst =
      "against the best plan for the true ones:";
  if (problems::AreEqual(factors)) {
    return fmt::format("run-times off by up to {:g}, {}\n", factors.front(),
                       kAgainst);
  }
  std::vector<std::string> parts;
  for (size_t kind = 0; kind < graph::kOperatorKinds; ++kind) {
    parts.push_back(fmt::format(
        "{} {:.2f}", ToString(static_cast<graph::OperatorKind>(kind)),
        factors[kind]));
  }
  return fmt::format(
      "run-times off as far as measured ones, {}\n  factors: {}\n", kAgainst,
      fmt::join(parts, ", "));
}

}  // namespace

void TimesOffFlags::AddTo(CLI::App& app) {
  app.add_option(
         "--times-off", factor,
         "also print how much longer a step can take than with the best plan "
         "if run-times are off by up to a factor F, by kind of operator and by "
         "operator; 'measured': by what nine in ten measured operators of "
         "their kind are off; on traces")
      ->type_name("F|measured");
  app.add_flag("--robust", robust,
               "find the plan that loses least if run-times of kinds of "
               "operators are off by up to --times-off (default 1.5)");
}

std::optional<problems::TimesOffOptions> TimesOffFlags::Parse(
    const problems::Question& question, const std::string& offload,
    const AllocatorFlags& allocator) const {
  constexpr double kMostFactor = 100;
  if (factor.empty() && !robust) return std::nullopt;
  const std::string flag = factor.empty() ? "--robust" : "--times-off";
  if (question.options.memory.model != problems::MemoryModel::kTrace) {
    throw InputError(flag +
                     ": needs a plan on a trace, under the memory model trace");
  }
  if (!offload.empty()) {
    throw InputError(flag +
                     ": cannot be combined with --offload, whose bound is for "
                     "these run-times");
  }
  if (robust && !allocator.device_memory.empty()) {
    throw InputError("--robust: needs --budget");
  }
  problems::TimesOffOptions times_off{.is_robust = robust};
  if (factor == "measured") {
    const graph::DeviceInfo& device = question.trace->device;
    const auto factors = problems::MeasuredFactors(device);
    if (!factors) {
      throw InputError(fmt::format(
          "--times-off: expected a factor, found measured: {}",
          device.time_errors
              ? "no operators were measured on " + graph::OneLine(device.name)
              : "the trace does not say how far its times are off"));
    }
    times_off.factors = *factors;
  } else if (!factor.empty()) {
    times_off.factors = problems::EqualFactors(
        ParseNumber(factor, "--times-off", 1, kMostFactor, "measured or "));
  }
  return times_off;
}

std::string TimesOffText(const problems::Question& question,
                         const problems::Plan& plan) {
  if (!question.times_off) return "";
  if (!plan.times_off && plan.streams && plan.HasPlan()) {
    return "run-times off: not compared, as other streams hide a part of what "
           "runs again\n";
  }
  if (!plan.times_off) {
    return plan.host && plan.HasPlan()
               ? "run-times off: not compared, as steps of such plans wait for "
                 "the host (--without-host compares the device's times)\n"
               : "";
  }
  const problems::TimesOff& off = *plan.times_off;
  std::string text =
      FactorsText(off.factors) +
      fmt::format("  by kind of operator: {}\n  by operator: {}\n",
                  RegretText(off.by_kind), RegretText(off.by_operator));
  if (off.least_step) {
    text += fmt::format(
        "robust: no plan's worst step by kind is less than {} longer\n",
        FormatPercentUp(*off.least_step));
  }
  return text;
}

}  // namespace acplan::cli
