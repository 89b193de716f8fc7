#include "costmodel/search/execution_filter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"

namespace acplan::costmodel {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

[[noreturn]] void Refuse(std::string_view flag, std::string_view expected,
                         std::string_view found) {
  throw InputError(fmt::format("{}: expected {}, found {}", flag, expected,
                               graph::Quoted(std::string(found))));
}

int64_t ParseNumber(std::string_view text, std::string_view flag) {
  int64_t number = -1;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 ||
      number > kMost) {
    Refuse(flag, "a whole number or a range like 1..8", text);
  }
  return number;
}

KeyFilter::Range ParseRange(std::string_view text, std::string_view flag) {
  const size_t dots = text.find("..");
  if (dots == std::string_view::npos) {
    const int64_t number = ParseNumber(text, flag);
    return {number, number};
  }
  const std::string_view low = text.substr(0, dots);
  const std::string_view high = text.substr(dots + 2);
  if (low.empty() && high.empty()) Refuse(flag, "a range like 1..8", text);
  const KeyFilter::Range range = {
      low.empty() ? 0 : ParseNumber(low, flag),
      high.empty() ? kMost : ParseNumber(high, flag)};
  if (range.low > range.high) Refuse(flag, "a range that ascends", text);
  return range;
}

// The names that a key chooses from.
std::span<const std::string_view> NamesOf(std::string_view key) {
  if (key == "datatype") return kDatatypeNames;
  if (key == "attention_type") return kAttentionTypeNames;
  if (key == "activation_recompute") return kRecomputeNames;
  if (key == "tensor_par_comm_type") return kTensorCommTypeNames;
  return kTensorOverlapNames;
}

void AddValue(std::string_view text, std::string_view flag, KeyFilter& filter) {
  const ExecutionField kind = FieldsOf(Execution())[filter.key];
  if (std::holds_alternative<int64_t>(kind)) {
    filter.ranges.push_back(ParseRange(text, flag));
  } else if (std::holds_alternative<bool>(kind)) {
    if (text != "true" && text != "false") Refuse(flag, "true or false", text);
    filter.truths.push_back(text == "true");
  } else {
    const auto names = NamesOf(kExecutionKeys[filter.key]);
    const auto found = std::ranges::find(names, text);
    if (found == names.end()) {
      Refuse(flag, fmt::format("{}", fmt::join(names, ", ")), text);
    }
    filter.names.push_back(*found);
  }
}

}  // namespace

bool KeyFilter::Allows(const ExecutionField& field) const {
  if (const auto* number = std::get_if<int64_t>(&field)) {
    return std::ranges::any_of(ranges, [&](const Range& range) {
      return range.low <= *number && *number <= range.high;
    });
  }
  if (const bool* truth = std::get_if<bool>(&field)) {
    return std::ranges::find(truths, *truth) != truths.end();
  }
  return std::ranges::find(names, std::get<std::string_view>(field)) !=
         names.end();
}

KeyFilter ParseKeyFilter(std::string_view text, std::string_view flag) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    Refuse(flag, "KEY=VALUE,...", text);
  }
  const std::string_view key = text.substr(0, equals);
  const auto found = std::ranges::find(kExecutionKeys, key);
  if (found == kExecutionKeys.end()) {
    const std::vector<std::string> near = graph::NearestNames(
        std::string(key),
        std::vector<std::string>(kExecutionKeys.begin(), kExecutionKeys.end()),
        1);
    Refuse(
        flag,
        "a key of an execution" +
            (near.empty() ? "" : fmt::format(" (did you mean {}?)", near[0])),
        key);
  }
  KeyFilter filter;
  filter.key = static_cast<size_t>(found - kExecutionKeys.begin());
  std::string_view rest = text.substr(equals + 1);
  while (true) {
    const size_t comma = rest.find(',');
    AddValue(rest.substr(0, comma), flag, filter);
    if (comma == std::string_view::npos) return filter;
    rest.remove_prefix(comma + 1);
  }
}

bool Passes(const std::vector<KeyFilter>& filters, const Execution& execution) {
  if (filters.empty()) return true;
  const auto fields = FieldsOf(execution);
  return std::ranges::all_of(filters, [&](const KeyFilter& filter) {
    return filter.Allows(fields[filter.key]);
  });
}

std::vector<KeyFilter> FiltersOn(const std::vector<KeyFilter>& filters,
                                 const std::vector<std::string_view>& keys) {
  std::vector<KeyFilter> chosen;
  for (const KeyFilter& filter : filters) {
    if (std::ranges::find(keys, kExecutionKeys[filter.key]) != keys.end()) {
      chosen.push_back(filter);
    }
  }
  return chosen;
}

}  // namespace acplan::costmodel
