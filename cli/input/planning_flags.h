#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/input/flags.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/ask.h"
#include "problems/budget.h"
#include "problems/planner.h"
#include "problems/segment_plans.h"
#include "solver/search.h"

namespace acplan::cli {

// Parses a budget: a size, a share of the bytes that a rank uses without
// checkpointing ("75%"), or the least that any plan needs ("min"). Throws
// InputError that names `flag`. `may_be_tiny`: a number of at most 100 without a unit is no
// error, as for graphs that stand for no model.
problems::Budget ParseBudget(const std::string& text, std::string_view flag,
                             bool may_be_tiny = false);

// Throws LimitError if the minimum is not proven and no plan is known that
// meets it.
void RequireMinimum(const problems::LeastAnswer& least);

// Returns "stopped by the time limit before the least budget was proven; some
// plan fits in 3.00 MiB (...), none in less than 2.90 MiB (..., gap 3.34%)".
std::string UnprovenText(const problems::MinimumBudget& minimum);

// Parses --engine.
problems::Engine ParseEngineFlag(const std::string& name);

// The flags of a planning question, except its budget.
struct PlanningFlags {
  std::string reserve;
  MemoryFlags memory;
  UnitFlags units;
  PatternFlags patterns;
  std::string granularity;
  std::string tradeoff;
  std::string decisions;
  std::string segments;
  std::string engine = "auto";
  std::string gap;
  std::string time_limit;
  std::string seed;

  // Adds the flags. `seconds`: as in Options.
  void AddTo(CLI::App& app, double seconds);
  // Adds --segments to a command that takes it.
  void AddSegmentsTo(CLI::App& app);
  // Returns which segments may be units, with these options. Without the flag:
  // auto if operators may be skipped, on a trace whose simulation checks plans,
  // and any module may be a unit; else none. Throws InputError.
  problems::SegmentChoice Segments(const ProfileInput& input,
                                   const problems::PlanOptions& options) const;
  // Uses the profile's or the trace's defaults for flags that were not given.
  // Without --granularity and --tradeoff the default is operator granularity;
  // but it is module granularity with the profile's fits if the profile has
  // fits and no operators. A question about a trace is answered on its profile
  // if the simulation cannot answer it. If it can, operators may be skipped,
  // and without a time limit the search takes at most `seconds`: such searches
  // find good plans soon, and may prove them late.
  problems::PlanOptions Options(const ProfileInput& input,
                                double seconds) const;
  // Returns the question that the flags ask, with Options(input, seconds), which
  // Ctrl-C interrupts. Refers to the input and the tree of its profile, which
  // must outlive it.
  problems::Question Question(const ProfileInput& input,
                              const graph::ModuleTree& tree,
                              double seconds) const;
  // Returns the limits of a search, which takes at most `seconds` without
  // --time-limit.
  solver::SearchLimits Limits(double seconds) const;
};

// Returns "stopped by the time limit" for a limit as in Plan::limit; empty for
// none.
std::string LimitText(const std::optional<std::string>& limit);

// Parses --time-limit. Returns infinity for none.
double ParseTimeLimit(const std::string& text);

// Returns the choices of a question beyond memory, as part of a heading:
// "operator granularity, save mm, recompute gelu".
std::string ChoiceText(const problems::PlanOptions& options);

}  // namespace acplan::cli
