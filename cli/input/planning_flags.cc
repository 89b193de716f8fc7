#include "cli/input/planning_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/input/exit_codes.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

using problems::Budget;
using problems::Granularity;
using problems::Tradeoff;

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

bool HasFitsOnly(const graph::Profile& profile) {
  bool has_fit = false;
  for (const graph::Module& module : profile.modules) {
    if (module.sac) return false;
    has_fit |= module.torch_fit.has_value();
  }
  return has_fit;
}

constexpr int64_t kMostPercent = 100;

// Returns whether operators may be skipped.
bool ParseDecisions(const std::string& text, bool is_on_trace) {
  if (text.empty()) return is_on_trace;
  if (text == "save,recompute") return false;
  if (text == "save,recompute,skip" && is_on_trace) return true;
  if (text == "save,recompute,skip") {
    throw InputError(
        "--decisions: expected save,recompute, as skip needs a plan on a trace "
        "under the memory model trace");
  }
  throw InputError(
      fmt::format("--decisions: expected save,recompute or "
                  "save,recompute,skip, found '{}'",
                  graph::OneLine(text)));
}

}  // namespace

Budget ParseBudget(const std::string& text, std::string_view flag,
                   bool may_be_tiny) {
  if (text == "min") return {.kind = Budget::Kind::kMinimum};
  if (text.ends_with('%')) {
    double percent = 0;
    try {
      percent = ParseNumber(text.substr(0, text.size() - 1), flag, 0, 1e6);
    } catch (const InputError&) {
      percent = 0;
    }
    if (percent <= 0) {
      throw InputError(fmt::format(
          "{}: expected a share of the baseline such as 75%, found {}", flag,
          graph::Quoted(text, 100)));
    }
    return {.kind = Budget::Kind::kShare, .share = percent / 100};
  }
  const int64_t bytes = graph::ParseByteSize(text, flag);
  // No model trains in so few bytes: the unit was forgotten.
  if (!may_be_tiny && bytes <= kMostPercent && text == std::to_string(bytes)) {
    throw InputError(
        fmt::format("{}: found {}, which is {} bytes; did you mean {}% (of the "
                    "baseline) or "
                    "{}GiB?",
                    flag, graph::Quoted(text, 100), bytes, bytes, bytes));
  }
  return {.kind = Budget::Kind::kBytes, .bytes = bytes};
}

void RequireMinimum(const problems::LeastAnswer& least) {
  if (least.budget.proven || least.has_plan) return;
  throw LimitError("budget min: " + UnprovenText(least.budget));
}

std::string UnprovenText(const problems::MinimumBudget& minimum) {
  const auto bytes = static_cast<double>(minimum.bytes);
  const double gap =
      bytes > 0 ? 1 - static_cast<double>(minimum.bound_bytes) / bytes : 0;
  const std::string why = LimitText(problems::LimitName(minimum.stopped_by));
  return fmt::format(
      "{}the least budget was proven; some plan fits in {}, none in less than "
      "{} (gap {})",
      minimum.stopped_by == solver::StoppedBy::kUnproven
          ? std::string("the search ended before ")
          : why + " before ",
      FormatBytesExactly(minimum.bytes),
      FormatBytesExactly(minimum.bound_bytes), FormatPercentUp(gap));
}

problems::Engine ParseEngineFlag(const std::string& name) {
  const auto engine = problems::ParseEngine(name);
  if (!engine) {
    throw InputError(
        fmt::format("--engine: expected auto, labels or cbc, found '{}'",
                    graph::OneLine(name)));
  }
  return *engine;
}

double ParseTimeLimit(const std::string& text) {
  return text == "none"
             ? kNoLimit
             : ParseNumber(text, "--time-limit", 0, kNoLimit, "none or ");
}

std::string LimitText(const std::optional<std::string>& limit) {
  if (!limit) return "";
  if (*limit == "interrupted") return *limit;
  if (*limit == "unproven") return "without a proof";
  return fmt::format("stopped by the {} limit", *limit);
}

void PlanningFlags::AddTo(CLI::App& app, double seconds) {
  app.add_option("--reserve", reserve, "part of the budget to keep free")
      ->type_name("SIZE");
  memory.AddTo(app);
  units.AddTo(app);
  patterns.AddTo(app);
  app.add_option("--granularity", granularity,
                 "operator (default): choose modules and the operators that "
                 "each saves; module: choose how much each module discards")
      ->type_name("KIND");
  app.add_option(
         "--tradeoff", tradeoff,
         "recomputation of a module against memory: pareto (default): exact, "
         "from its operators; with module granularity also fit: a fit of "
         "PyTorch's greedy curve, or profile: the fit stored in the profile")
      ->type_name("KIND");
  app.add_option("--decisions", decisions,
                 "choices for an operator: save,recompute or, on traces, "
                 "save,recompute,skip (default there), which does not run an "
                 "operator again if nothing needs its result")
      ->type_name("LIST");
  app.add_option("--engine", engine,
                 "algorithm: auto (default), labels or cbc; both are exact")
      ->type_name("NAME");
  app.add_option("--gap", gap,
                 "stop within this share of the optimum, 0 to 1 (default 0: "
                 "proven optimal)")
      ->type_name("G");
  app.add_option(
         "--time-limit", time_limit,
         fmt::format("stop after S seconds with the best plan so far; none: no "
                     "limit (default none; {:g} if operators may be skipped)",
                     seconds))
      ->type_name("S");
  app.add_option("--seed", seed, "seed of the cbc engine (default 1)")
      ->type_name("N");
}

void PlanningFlags::AddSegmentsTo(CLI::App& app) {
  app.add_option("--segments", segments,
                 "allow runs of modules, such as h.0-2, as one unit: auto "
                 "(default if operators may be skipped), none, or N: of N "
                 "modules each; on traces only")
      ->type_name("KIND");
}

problems::SegmentChoice PlanningFlags::Segments(
    const ProfileInput& input, const problems::PlanOptions& options) const {
  using problems::SegmentKind;
  const bool is_on_trace =
      input.trace && options.memory.model == problems::MemoryModel::kTrace;
  if (segments.empty()) {
    const bool may_be =
        is_on_trace && options.may_skip && options.ac_units.empty();
    return {.kind = may_be ? SegmentKind::kAuto : SegmentKind::kNone};
  }
  if (segments == "none") return {};
  if (!is_on_trace) {
    throw InputError(
        "--segments: expected none, as segments need a plan on a trace under "
        "the memory model trace");
  }
  if (segments == "auto") return {.kind = SegmentKind::kAuto};
  return {.kind = SegmentKind::kLength,
          .length = static_cast<int32_t>(ParseWhole(
              segments, "--segments", 2, 1'000'000, "auto, none or "))};
}

solver::SearchLimits PlanningFlags::Limits(double seconds) const {
  solver::SearchLimits limits;
  if (!gap.empty()) limits.gap = ParseNumber(gap, "--gap", 0, 1);
  limits.time_limit_s =
      time_limit.empty() ? seconds : ParseTimeLimit(time_limit);
  if (!seed.empty()) {
    limits.seed = static_cast<int>(
        ParseWhole(seed, "--seed", 0, std::numeric_limits<int>::max()));
  }
  return limits;
}

problems::PlanOptions PlanningFlags::Options(const ProfileInput& input,
                                             double seconds) const {
  const graph::Profile& profile = input.profile;
  problems::PlanOptions options;
  options.reserve_bytes = ParseReserve(reserve).value_or(0);
  options.memory = memory.Resolve(input);
  options.ac_units = units.AcUnits();
  options.fsdp_units = units.FsdpUnits();
  options.max_units = units.MaxUnits();
  options.patterns = patterns.Patterns();
  if (!tradeoff.empty()) {
    const auto kind = problems::ParseTradeoff(tradeoff);
    if (!kind) {
      throw InputError(
          fmt::format("--tradeoff: expected pareto, fit or profile, found '{}'",
                      graph::OneLine(tradeoff)));
    }
    options.tradeoff = *kind;
  } else if (granularity.empty() && options.patterns.empty() &&
             HasFitsOnly(profile)) {
    options.tradeoff = Tradeoff::kProfile;
  }
  if (granularity.empty()) {
    options.granularity = options.tradeoff == Tradeoff::kPareto
                              ? Granularity::kOperator
                              : Granularity::kModule;
  } else {
    const auto kind = problems::ParseGranularity(granularity);
    if (!kind) {
      throw InputError(
          fmt::format("--granularity: expected operator or module, found '{}'",
                      graph::OneLine(granularity)));
    }
    options.granularity = *kind;
  }
  options.engine = ParseEngineFlag(engine);
  if (memory.model.empty() && input.trace &&
      (options.granularity == Granularity::kModule ||
       options.engine == problems::Engine::kCbc ||
       options.memory.without_states)) {
    options.memory.model = problems::MemoryModel::kSnapshot;
  }
  options.may_skip = ParseDecisions(
      decisions, options.memory.model == problems::MemoryModel::kTrace);
  if (options.memory.model == problems::MemoryModel::kTrace &&
      options.memory.world_size > 1) {
    options.memory.fsdp_units = options.fsdp_units;
  }
  options.limits = Limits(options.may_skip ? seconds : kNoLimit);
  return options;
}

problems::Question PlanningFlags::Question(const ProfileInput& input,
                                           const graph::ModuleTree& tree,
                                           double seconds) const {
  problems::PlanOptions options = Options(input, seconds);
  options.limits.interrupted = &InterruptFlag();
  return {.profile = &input.profile,
          .tree = &tree,
          .options = options,
          .trace = input.TraceIfAny(),
          .segments = Segments(input, options)};
}

std::string ChoiceText(const problems::PlanOptions& options) {
  std::string text =
      fmt::format("{} granularity", ToString(options.granularity));
  if (options.granularity == Granularity::kModule) {
    text += fmt::format(", trade-off {}", ToString(options.tradeoff));
  }
  const auto add = [&](std::string_view verb,
                       const std::vector<std::string>& patterns) {
    if (!patterns.empty()) {
      text += graph::OneLine(
          fmt::format(", {} {}", verb, fmt::join(patterns, "|")));
    }
  };
  add("save", options.patterns.save);
  add("recompute", options.patterns.recompute);
  return text;
}

}  // namespace acplan::cli
