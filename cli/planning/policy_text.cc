#include "cli/planning/policy_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "graph/base/message_text.h"

namespace acplan::cli {

using problems::PlannedModule;

namespace {

// More names than this are counted instead of listed.
constexpr size_t kMostNames = 4;
// A list of more different names than this is cut.
constexpr size_t kMostCounted = 8;

// A name with one of its numbers taken out.
struct NumberedName {
  std::string before, after;
  int64_t number;
};

std::vector<NumberedName> NumbersOf(const std::string& fqn) {
  std::vector<NumberedName> names;
  for (size_t begin = 0; begin < fqn.size();) {
    const size_t end = std::min(fqn.find('.', begin), fqn.size());
    const std::string component = fqn.substr(begin, end - begin);
    const bool is_padded = component.size() > 1 && component.front() == '0';
    if (!component.empty() && component.size() < 10 && !is_padded &&
        std::ranges::all_of(component,
                            [](char c) { return c >= '0' && c <= '9'; })) {
      names.push_back(
          {fqn.substr(0, begin), fqn.substr(end), std::stoll(component)});
    }
    begin = end + 1;
  }
  return names;
}

bool DoTheSame(const PlannedModule& a, const PlannedModule& b) {
  return a.ops == b.ops && a.offloaded_arguments == b.offloaded_arguments &&
         a.discarded_bytes == b.discarded_bytes &&
         std::abs(a.recompute_ms - b.recompute_ms) <=
             1e-9 * std::abs(a.recompute_ms) &&
         a.discard_ratio == b.discard_ratio;
}

// Returns the ranges of some numbers: "0-3,7".
std::string Ranges(std::vector<int64_t> numbers) {
  std::ranges::sort(numbers);
  std::vector<std::string> ranges;
  for (size_t i = 0; i < numbers.size();) {
    size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    ranges.push_back(i == j ? fmt::format("{}", numbers[i])
                            : fmt::format("{}-{}", numbers[i], numbers[j]));
    i = j + 1;
  }
  return fmt::format("{}", fmt::join(ranges, ","));
}

std::string Names(const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  if (names.size() <= kMostNames) {
    for (const std::string& name : names) parts.push_back(graph::OneLine(name));
    return fmt::format("{}", fmt::join(parts, ", "));
  }
  std::vector<std::string> order;
  std::map<std::string, size_t> count;
  for (const std::string& name : names) {
    if (++count[name] == 1) order.push_back(name);
  }
  size_t more = names.size();
  for (const std::string& name : order) {
    if (parts.size() == kMostCounted) {
      parts.push_back(fmt::format("{} more", more));
      break;
    }
    more -= count[name];
    parts.push_back(graph::OneLine(name) +
                    (count[name] > 1 ? fmt::format(" × {}", count[name]) : ""));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string Others(size_t n) {
  return fmt::format("{} other{}", n, n == 1 ? "" : "s");
}

// Describes both sides, the shorter one by its names.
std::string SidesText(const std::vector<std::string>& saved,
                      const std::vector<std::string>& recomputed) {
  if (recomputed.empty()) return fmt::format("save {}", Names(saved));
  if (saved.empty()) return fmt::format("recompute {}", Names(recomputed));
  return saved.size() <= recomputed.size()
             ? fmt::format("save {}; recompute {}", Names(saved),
                           Others(recomputed.size()))
             : fmt::format("recompute {}; save {}", Names(recomputed),
                           Others(saved.size()));
}

}  // namespace

std::vector<UnitGroup> GroupUnits(const std::vector<PlannedModule>& units) {
  // For each unit, the number in which most other units differ from it.
  using Key = std::pair<std::string, std::string>;
  std::map<Key, std::vector<size_t>> units_of_name;
  std::vector<std::vector<NumberedName>> numbers;
  for (size_t u = 0; u < units.size(); ++u) {
    numbers.push_back(NumbersOf(units[u].fqn));
    for (const NumberedName& name : numbers[u]) {
      units_of_name[{name.before, name.after}].push_back(u);
    }
  }
  std::vector<UnitGroup> groups;
  std::vector<char> is_grouped(units.size(), 0);
  for (size_t u = 0; u < units.size(); ++u) {
    if (is_grouped[u]) continue;
    UnitGroup group{.name = units[u].fqn, .units = {&units[u]}};
    for (const NumberedName& name : numbers[u]) {
      std::vector<size_t> members;
      for (const size_t v : units_of_name[{name.before, name.after}]) {
        if (!is_grouped[v] && DoTheSame(units[u], units[v]))
          members.push_back(v);
      }
      if (members.size() <= group.units.size()) continue;
      group.units.clear();
      std::vector<int64_t> members_numbers;
      for (const size_t v : members) {
        group.units.push_back(&units[v]);
        for (const NumberedName& other : numbers[v]) {
          if (other.before == name.before && other.after == name.after) {
            members_numbers.push_back(other.number);
          }
        }
      }
      group.name = name.before + Ranges(members_numbers) + name.after;
    }
    for (const PlannedModule* unit : group.units) {
      is_grouped[static_cast<size_t>(unit - units.data())] = 1;
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

namespace {

// Describes what a unit does with its operators.
std::string OperatorsText(const PlannedModule& unit,
                          const graph::SacStatistics& sac) {
  std::vector<char> is_view(unit.ops.size(), 0);
  for (const int op : sac.view_like_ops) is_view[op] = 1;
  std::vector<std::string> saved, recomputed, offloaded;
  size_t skipped_ops = 0;
  for (const problems::PlannedOp& op : unit.ops) {
    if (op.Saves()) {
      saved.push_back(op.name);
    } else if (op.Offloads()) {
      offloaded.push_back(op.name);
    } else if (!is_view[op.index]) {
      if (op.RunsAgain())
        recomputed.push_back(op.name);
      else
        ++skipped_ops;
    }
  }
  if (skipped_ops > 0 || !offloaded.empty()) {
    const bool is_alone =
        saved.empty() && recomputed.empty() && offloaded.empty();
    if (is_alone) return fmt::format("skip all {}", skipped_ops);
    std::vector<std::string> parts;
    if (!offloaded.empty()) {
      parts.push_back(fmt::format("offload {}", Names(offloaded)));
    }
    if (!saved.empty() || !recomputed.empty()) {
      parts.push_back(SidesText(saved, recomputed));
    }
    if (skipped_ops > 0)
      parts.push_back(fmt::format("skip {}", Others(skipped_ops)));
    return fmt::format("{}", fmt::join(parts, "; "));
  }
  if (saved.empty()) {
    return fmt::format("recompute all {}", recomputed.size());
  }
  if (recomputed.empty()) return fmt::format("save all {}", saved.size());
  return SidesText(saved, recomputed);
}

}  // namespace

std::string PolicyText(const PlannedModule& unit,
                       const graph::SacStatistics& sac) {
  const std::string text = OperatorsText(unit, sac);
  const size_t count = unit.offloaded_arguments.size();
  if (count == 0) return text;
  return fmt::format("offload {} argument{}; {}", count, count == 1 ? "" : "s",
                     text);
}

}  // namespace acplan::cli
