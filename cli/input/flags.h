#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/input/profile_input.h"
#include "graph/profile/sac_statistics.h"
#include "problems/model/memory_model.h"

namespace acplan::cli {

// Returns the names of a command's flags, long and short: "--budget", "-o".
std::vector<std::string> FlagNames(const CLI::App& app);

// Throws InputError if a flag or an argument was given as "", which is a value
// for lists of names only.
void RefuseEmptyValues(const CLI::App& app);

// Parses flag values as the user wrote them into numbers, so that every
// complaint has one form: "--gap: expected a number from 0 to 1, found 'x'".
// For that reason options of CLI11 are strings. CLI11 refuses typed ones while
// it parses arguments, thus before it sees --help and before it reports a
// missing argument, and in other words ("Could not convert: --gap = x").
// `others`: values that may stand there in place of a number, "auto or ".
int64_t ParseWhole(const std::string& text, std::string_view flag,
                   int64_t least, int64_t largest,
                   std::string_view others = "");
double ParseNumber(const std::string& text, std::string_view flag, double least,
                   double largest, std::string_view others = "");

// Parses --reserve: a size, or 0. Returns nothing if it was not given.
std::optional<int64_t> ParseReserve(const std::string& text);

// Parses names given as "a,b" or "@file" (one or more a line, '#' starts a
// comment) in any number of flags. Returns them in order, without duplicates.
std::vector<std::string> ParseNames(const std::vector<std::string>& values,
                                    std::string_view flag);

// The flags --memory-model, --world-size and --without-states.
struct MemoryFlags {
  std::string model;
  std::string world_size;
  bool without_states = false;

  void AddTo(CLI::App& app);
  // Uses the default for a profile or trace if --memory-model was not given.
  // Throws InputError for the trace model without a trace.
  problems::MemoryOptions Resolve(const ProfileInput& input) const;
  // Uses `fallback` for flags that were not given.
  problems::MemoryOptions Resolve(
      const problems::MemoryOptions& fallback) const;
};

// The flags --ac-units, --fsdp-units and --max-units.
struct UnitFlags {
  std::vector<std::string> ac_units;
  std::vector<std::string> fsdp_units;
  std::string max_units;

  void AddTo(CLI::App& app);
  std::vector<std::string> AcUnits() const;
  std::vector<std::string> FsdpUnits() const;
  std::optional<int> MaxUnits() const;
};

// The flags --save and --recompute: shell patterns for operator names,
// "mm|bmm", in any number of flags.
struct PatternFlags {
  std::vector<std::string> save;
  std::vector<std::string> recompute;

  void AddTo(CLI::App& app);
  // Throws InputError for an alternative without a character.
  graph::OperatorPatterns Patterns() const;
};

// Throws InputError that names the nearest operators if a pattern matches none
// of these names.
void RefuseUnmatched(const graph::OperatorPatterns& patterns,
                     const std::vector<std::string>& names);

}  // namespace acplan::cli
