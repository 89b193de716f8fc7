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

// Parses a budget: a size, a share of what a rank uses without checkpointing ("75%"), or
// the least that any plan needs ("min"). Throws InputError, naming `flag`.
problems::Budget ParseBudget(const std::string& text, std::string_view flag);

// Throws LimitError where the minimum is not proven and no plan is known that
// meets it.
void RequireMinimum(const problems::LeastAnswer& least);

// "stopped by the time limit before the least budget was proven; some plan fits
// in 3.00 MiB (...), none in less than 2.90 MiB (..., gap 3.34%)".
std::string UnprovenText(const problems::MinimumBudget& minimum);

// --engine.
problems::Engine ParseEngineFlag(const std::string& name);

// The flags of a planning question, but for its budget.
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

  // `seconds`: as Options.
  void AddTo(CLI::App& app, double seconds);
  // --segments, of commands that take it.
  void AddSegmentsTo(CLI::App& app);
  // Which segments may be units, with these options. Without the flag: auto where
  // operators may be skipped, on a trace whose simulation plans are checked by, and
  // any module may be a unit; else none. Throws InputError.
  problems::SegmentChoice Segments(const ProfileInput& input,
                                   const problems::PlanOptions& options) const;
  // Uses the profile's or the trace's defaults for what is not given: without
  // --granularity and --tradeoff, operator granularity; but module granularity
  // with the profile's fits where it has these and no operators. Of a trace what
  // the simulation cannot answer is planned on its profile; what it can, may skip
  // operators, and takes `seconds` at most where no limit is given: such searches
  // find good plans soon, and may prove them late.
  problems::PlanOptions Options(const ProfileInput& input,
                                double seconds) const;
  // Returns the question that the flags ask, with Options(input, seconds), which Ctrl-C
  // interrupts. Refers to the input and the tree of its profile, which must outlive it.
  problems::Question Question(const ProfileInput& input,
                              const graph::ModuleTree& tree,
                              double seconds) const;
  // `seconds`: without --time-limit.
  solver::SearchLimits Limits(double seconds) const;
};

// "stopped by the time limit"; empty for none. As in Plan::limit.
std::string LimitText(const std::optional<std::string>& limit);

// --time-limit: none is infinity.
double ParseTimeLimit(const std::string& text);

// "operator granularity, save mm, recompute gelu": what was asked beyond
// memory, as part of a heading.
std::string ChoiceText(const problems::PlanOptions& options);

}  // namespace acplan::cli
