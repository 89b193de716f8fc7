#include "cli/input/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>
#include <unordered_set>

#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/profile/unmatched_patterns.h"

namespace acplan::cli {

namespace {

constexpr std::string_view kNames = "NAMES";

std::string Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return "";
  return std::string(
      text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1));
}

std::vector<std::string> SplitNames(std::string_view text, char separator) {
  std::vector<std::string> names;
  while (true) {
    const size_t end = text.find(separator);
    std::string name = Trimmed(text.substr(0, end));
    if (!name.empty()) names.push_back(std::move(name));
    if (end == std::string_view::npos) return names;
    text.remove_prefix(end + 1);
  }
}

std::vector<std::string> ParsePatterns(const std::vector<std::string>& values,
                                       std::string_view flag) {
  std::vector<std::string> patterns;
  for (std::string_view rest : values) {
    for (bool is_last = false; !is_last;) {
      const size_t end = rest.find('|');
      is_last = end == std::string_view::npos;
      patterns.push_back(Trimmed(rest.substr(0, end)));
      if (patterns.back().empty()) {
        throw InputError(fmt::format("{}: expected a pattern, found ''", flag));
      }
      if (!is_last) rest.remove_prefix(end + 1);
    }
  }
  return patterns;
}

problems::MemoryModel ParseModel(const std::string& name) {
  const auto model = problems::ParseMemoryModel(name);
  if (!model) {
    throw InputError(fmt::format(
        "--memory-model: expected snapshot, torch or trace, found '{}'",
        graph::OneLine(name)));
  }
  return *model;
}

}  // namespace

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.push_back("--" + name);
    }
    for (const std::string& name : option->get_snames()) {
      flags.push_back("-" + name);
    }
  }
  return flags;
}

void RefuseEmptyValues(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_type_name() == kNames) continue;
    if (std::ranges::find(option->results(), "") != option->results().end()) {
      throw InputError(fmt::format("{}: expected a value, found an empty one",
                                   option->get_name()));
    }
  }
}

int64_t ParseWhole(const std::string& text, std::string_view flag,
                   int64_t least, int64_t largest, std::string_view others) {
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      value < least || value > largest) {
    const std::string range =
        largest == std::numeric_limits<int64_t>::max()
            ? fmt::format("of at least {}", least)
            : fmt::format("from {} to {}", least, largest);
    throw InputError(fmt::format("{}: expected {}a whole number {}, found '{}'",
                                 flag, others, range, text));
  }
  return value;
}

double ParseNumber(const std::string& text, std::string_view flag, double least,
                   double largest, std::string_view others) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      !std::isfinite(value) || value < least || value > largest) {
    const std::string range =
        std::isinf(largest) ? fmt::format("of at least {}", least)
                            : fmt::format("from {} to {}", least, largest);
    throw InputError(fmt::format("{}: expected {}a number {}, found '{}'", flag,
                                 others, range, text));
  }
  return value;
}

std::optional<int64_t> ParseReserve(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text == "0") return 0;
  return graph::ParseByteSize(text, "--reserve");
}

std::vector<std::string> ParseNames(const std::vector<std::string>& values,
                                    std::string_view flag) {
  std::vector<std::string> names;
  for (const std::string& value : values) {
    if (!value.starts_with("@")) {
      std::ranges::move(SplitNames(value, ','), std::back_inserter(names));
      continue;
    }
    std::string text;
    try {
      std::error_code ignored;
      if (std::filesystem::file_size(value.substr(1), ignored) == 0) continue;
      text = graph::ReadFile(value.substr(1), graph::kMostListBytes);
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: {}", flag, error.what()));
    }
    for (const std::string& line : SplitNames(text, '\n')) {
      std::ranges::move(SplitNames(line.substr(0, line.find('#')), ','),
                        std::back_inserter(names));
    }
  }
  std::unordered_set<std::string> seen_names;
  std::erase_if(names, [&](const std::string& name) {
    return !seen_names.insert(name).second;
  });
  return names;
}

void MemoryFlags::AddTo(CLI::App& app) {
  app.add_option("--memory-model", model,
                 "trace (default for a trace): simulates the step; snapshot "
                 "(default for a profile with snapshots): measured totals; "
                 "torch: the records of PyTorch's sac_milp")
      ->type_name("MODEL");
  app.add_option("--world-size", world_size,
                 "number of FSDP ranks that share parameters, gradients and "
                 "optimizer state (default 1)")
      ->type_name("N");
  app.add_flag("--without-states", without_states,
               "do not count optimizer state, buffers and inputs (memory model "
               "snapshot)");
}

problems::MemoryOptions MemoryFlags::Resolve(const ProfileInput& input) const {
  const problems::MemoryOptions options = Resolve(problems::MemoryOptions{
      .model = input.trace ? problems::MemoryModel::kTrace
                           : problems::DefaultMemoryModel(input.profile)});
  if (options.model == problems::MemoryModel::kTrace && !input.trace) {
    throw InputError(
        "--memory-model: expected snapshot or torch for a profile, found "
        "trace, which needs a trace as PROFILE");
  }
  return options;
}

problems::MemoryOptions MemoryFlags::Resolve(
    const problems::MemoryOptions& fallback) const {
  problems::MemoryOptions options = fallback;
  if (!model.empty()) options.model = ParseModel(model);
  if (!world_size.empty()) {
    options.world_size =
        ParseWhole(world_size, "--world-size", 1, 1'000'000'000);
  }
  if (without_states) options.without_states = true;
  // The torch model leaves them out in any case.
  if (options.model == problems::MemoryModel::kTorch) {
    options.without_states = false;
  }
  return options;
}

void UnitFlags::AddTo(CLI::App& app) {
  app.add_option("--ac-units", ac_units,
                 "checkpoint only these modules: FQNs as a,b or @FILE; an "
                 "empty list: no restriction")
      ->type_name(std::string(kNames))
      ->allow_extra_args(false);
  app.add_option(
         "--fsdp-units", fsdp_units,
         "FSDP units, as a,b or @FILE: no module above one is checkpointed")
      ->type_name(std::string(kNames))
      ->allow_extra_args(false);
  app.add_option("--max-units", max_units, "checkpoint at most N modules")
      ->type_name("N");
}

std::vector<std::string> UnitFlags::AcUnits() const {
  return ParseNames(ac_units, "--ac-units");
}

std::vector<std::string> UnitFlags::FsdpUnits() const {
  return ParseNames(fsdp_units, "--fsdp-units");
}

std::optional<int> UnitFlags::MaxUnits() const {
  if (max_units.empty()) return std::nullopt;
  return static_cast<int>(
      ParseWhole(max_units, "--max-units", 0, 1'000'000'000));
}

void PatternFlags::AddTo(CLI::App& app) {
  app.add_option("--save", save,
                 "operators that must be saved: shell patterns as a|b")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
  app.add_option("--recompute", recompute,
                 "operators that must be recomputed: shell patterns as a|b")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
}

graph::OperatorPatterns PatternFlags::Patterns() const {
  return {.save = ParsePatterns(save, "--save"),
          .recompute = ParsePatterns(recompute, "--recompute")};
}

void RefuseUnmatched(const graph::OperatorPatterns& patterns,
                     const std::vector<std::string>& names) {
  const std::set<std::string> distinct(names.begin(), names.end());
  graph::RefuseUnmatched(patterns.save, distinct, "--save");
  graph::RefuseUnmatched(patterns.recompute, distinct, "--recompute");
}

}  // namespace acplan::cli
