#include "cli/input/old_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>

namespace acplan::cli {

namespace {

using NameList = std::vector<std::string>;

// Returns the words that stand in the place of each old name.
const std::map<std::string_view, NameList>& NewNames() {
  static const std::map<std::string_view, NameList> names = {
      {"baseline", {"show"}},
      {"compare", {"show"}},
      {"tree", {"show", "--modules"}},
      {"curve", {"module", "curve"}},
      {"ops", {"module", "policy"}},
      {"dataflow", {"module", "dataflow"}},
      {"fit", {"train", "fit"}},
      {"llm-train", {"train", "show"}},
      {"llm-plan", {"train", "plan"}},
      {"llm-search", {"train", "search"}},
      {"llm-compare", {"train", "compare"}},
      {"llm-profile", {"train", "profile"}},
      {"llm-score", {"train", "score"}},
      {"llm", {"calculon", "llm"}},
      {"llm-optimal-execution", {"calculon", "llm-optimal-execution"}},
      {"loe", {"calculon", "loe"}},
      {"llm-all-executions", {"calculon", "llm-all-executions"}},
      {"lae", {"calculon", "lae"}},
      {"llm-merge", {"calculon", "llm-merge"}},
      {"llm-validation", {"calculon", "llm-validation"}},
      {"lv", {"calculon", "lv"}},
      {"llm-parameter-calculator", {"calculon", "llm-parameter-calculator"}},
      {"lpc", {"calculon", "lpc"}},
      {"llm-csv", {"calculon", "llm-csv"}},
      {"llm-heatmap", {"calculon", "llm-heatmap"}},
      {"llm-3dplot", {"calculon", "llm-3dplot"}},
      {"llm-find-huge", {"calculon", "llm-find-huge"}}};
  return names;
}

// Returns the index of the first argument that is no global flag nor its value.
size_t CommandIndex(const std::vector<std::string>& arguments) {
  size_t i = 0;
  while (i < arguments.size() && arguments[i].starts_with('-')) {
    const bool has_value =
        arguments[i] == "--color" || arguments[i] == "--errors";
    i += has_value ? 2 : 1;
  }
  return std::min(i, arguments.size());
}

std::string Note(std::string_view before, const NameList& now) {
  return fmt::format(
      "'acplan {}' is now 'acplan {}'; the next release removes the old name",
      before, fmt::join(now, " "));
}

}  // namespace

RenamedArguments WithNewNames(std::vector<std::string> arguments) {
  const size_t index = CommandIndex(arguments);
  if (index == arguments.size()) return {std::move(arguments), ""};
  const std::string before = arguments[index];
  if (before == "remat") {
    const auto flag = std::ranges::find(arguments, "--any-schedule");
    if (flag == arguments.end()) return {std::move(arguments), ""};
    arguments.erase(flag);
    arguments[index] = "schedule";
    return {std::move(arguments), Note("remat --any-schedule", {"schedule"})};
  }
  const auto names = NewNames().find(before);
  if (names == NewNames().end()) return {std::move(arguments), ""};
  const NameList& now = names->second;
  arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(index));
  arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(index),
                   now.begin(), now.end());
  return {std::move(arguments), Note(before, now)};
}

}  // namespace acplan::cli
