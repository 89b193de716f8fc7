#include "cli/planning/peak_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/message_text.h"
#include "problems/model/memory_model.h"
#include "problems/plan/rank_peak.h"

namespace acplan::cli {

using graph::MemoryKind;
using graph::PeakAccount;
using graph::PeakStorage;
using graph::Trace;

namespace {

constexpr size_t kWidestName = 46;

struct Sum {
  int64_t bytes = 0;
  int64_t fixed_bytes = 0;
  int64_t storages = 0;
  std::map<MemoryKind, int64_t> by_kind = {};
  std::set<graph::ModuleId> modules = {};

  void Add(const PeakStorage& storage) {
    bytes += storage.bytes;
    fixed_bytes += storage.is_fixed ? storage.bytes : 0;
    ++storages;
    by_kind[storage.kind] += storage.bytes;
    modules.insert(storage.module);
  }
};

using NamedSum = std::pair<std::string, Sum>;

template <typename NameOf>
std::vector<NamedSum> SumBy(const PeakAccount& account, NameOf name_of) {
  std::map<std::string, Sum> sums;
  for (const PeakStorage& storage : account.storages) {
    sums[name_of(storage)].Add(storage);
  }
  std::vector<NamedSum> sorted(sums.begin(), sums.end());
  std::ranges::stable_sort(
      sorted, std::ranges::greater(),
      [](const NamedSum& sum) { return sum.second.bytes; });
  return sorted;
}

std::string_view OperatorName(const Trace& trace, graph::OperatorId op) {
  return op == graph::kNone ? std::string_view()
                            : trace.operator_names[trace.operators[op].name];
}

std::string ModuleName(const Trace& trace, graph::ModuleId module) {
  return module == graph::kNone ? std::string() : trace.modules[module].fqn;
}

// Returns a module's name without the root's class, which all names begin with.
std::string ShortName(const Trace& trace, graph::ModuleId module) {
  const std::string name = ModuleName(trace, module);
  const std::string root =
      trace.modules.empty() ? "" : trace.modules.front().fqn + ".";
  return name.starts_with(root) ? name.substr(root.size()) : name;
}

// Returns a name with * for each number that is a component by itself.
std::string Family(std::string_view name) {
  std::string family;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool is_number =
        !part.empty() &&
        std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    family += is_number ? "*" : part;
    if (end < name.size()) family += '.';
    begin = end + 1;
  }
  return family;
}

// Returns a name of at most `widest` columns. Keeps its end, which says most.
std::string Cut(const std::string& name, size_t widest = kWidestName) {
  const std::string line = graph::OneLine(name, name.size());
  return TextWidth(line) <= widest
             ? line
             : "..." + line.substr(line.size() - (widest - 3));
}

// Returns the kind with the most bytes, and the number of others: "saved for
// backward +1".
std::string LargestKinds(const Sum& sum) {
  std::vector<std::pair<int64_t, MemoryKind>> kinds;
  for (const auto& [kind, bytes] : sum.by_kind)
    kinds.emplace_back(-bytes, kind);
  std::ranges::sort(kinds);
  return kinds.size() == 1 ? std::string(ToString(kinds[0].second))
                           : fmt::format("{} +{}", ToString(kinds[0].second),
                                         kinds.size() - 1);
}

std::string SumTable(const std::vector<NamedSum>& sums, size_t top,
                     const std::string& heading, const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kLeft});
  table.AddRow({heading, "bytes", "in every plan", "what"});
  Sum rest;
  for (size_t k = 0; k < sums.size(); ++k) {
    const auto& [name, sum] = sums[k];
    if (k >= top) {
      rest.bytes += sum.bytes;
      rest.fixed_bytes += sum.fixed_bytes;
      continue;
    }
    table.AddRow({Cut(name), graph::FormatBytes(sum.bytes),
                  graph::FormatBytes(sum.fixed_bytes), LargestKinds(sum)});
  }
  if (sums.size() > top) {
    const auto others = static_cast<int64_t>(sums.size() - top);
    table.AddRow(
        {fmt::format("{} other{}", FormatCount(others), others == 1 ? "" : "s"),
         graph::FormatBytes(rest.bytes), graph::FormatBytes(rest.fixed_bytes)});
  }
  return table.ToString(terminal);
}

std::string MadeBy(const Trace& trace, const PeakStorage& storage) {
  if (storage.op == graph::kNone) return std::string(ToString(storage.phase));
  return fmt::format("{}, {}", OperatorName(trace, storage.op),
                     ToString(storage.phase));
}

// Returns an operator's name and phase without the parts that say least.
std::string ShortMaker(const Trace& trace, const PeakStorage& storage) {
  std::string name = MadeBy(trace, storage);
  for (const std::string_view part : {"aten.", ".default"}) {
    const size_t begin = name.find(part);
    if (begin != std::string::npos) name.erase(begin, part.size());
  }
  return name;
}

// Returns sums by the line of Python that made the storages; "" for those that
// no line made.
std::vector<NamedSum> SumByLine(const Trace& trace,
                                const PeakAccount& account) {
  return SumBy(account, [&](const PeakStorage& storage) {
    return graph::SourceOf(trace, storage.op);
  });
}

nlohmann::ordered_json ToJson(
    const std::array<int64_t, graph::kMemoryKinds>& bytes_by_kind) {
  auto json = nlohmann::ordered_json::object();
  for (size_t k = 0; k < bytes_by_kind.size(); ++k) {
    json[ToString(static_cast<MemoryKind>(k))] = bytes_by_kind[k];
  }
  return json;
}

nlohmann::ordered_json ToJson(const NamedSum& named_sum, const char* key) {
  const auto& [name, sum] = named_sum;
  nlohmann::ordered_json json = {{key, name},
                                 {"bytes", sum.bytes},
                                 {"fixed_bytes", sum.fixed_bytes},
                                 {"storages", sum.storages}};
  auto kinds = nlohmann::ordered_json::object();
  for (const auto& [kind, bytes] : sum.by_kind) kinds[ToString(kind)] = bytes;
  json["by_kind"] = std::move(kinds);
  return json;
}

}  // namespace

std::string PlaceText(const Trace& trace, const PeakAccount& account) {
  if (account.step_id == graph::kNone) return "";
  // The root's name says nothing.
  const std::string module = account.module > graph::ModuleId{0}
                                 ? ShortName(trace, account.module)
                                 : "";
  return fmt::format("{}, {}{}", ToString(account.phase),
                     OperatorName(trace, account.step.op),
                     module.empty() ? "" : " in " + graph::OneLine(module));
}

std::string SourceText(const Trace& trace, graph::OperatorId op) {
  const std::string source = graph::SourceOf(trace, op);
  return source.empty() ? "" : fmt::format("at {}\n", Cut(source, 97));
}

nlohmann::ordered_json ToJson(const Trace& trace, const PeakAccount& account,
                              size_t top) {
  nlohmann::ordered_json json = {{"peak_bytes", account.peak_bytes},
                                 {"fixed_bytes", account.FixedBytes()}};
  if (account.step_id != graph::kNone) {
    json["peak"] = {{"step", account.step_id},
                    {"operator", OperatorName(trace, account.step.op)},
                    {"phase", ToString(account.phase)},
                    {"module", ModuleName(trace, account.module)},
                    {"source", graph::SourceOf(trace, account.step.op)}};
  }
  json["by_kind"] = ToJson(account.ByKind());
  auto& modules = json["modules"] = nlohmann::ordered_json::array();
  for (const NamedSum& sum : SumBy(account, [&](const PeakStorage& storage) {
         return ModuleName(trace, storage.module);
       })) {
    modules.push_back(ToJson(sum, "module"));
  }
  auto& operators = json["operators"] = nlohmann::ordered_json::array();
  std::map<std::string, const PeakStorage*> first;
  for (const PeakStorage& storage : account.storages) {
    first.try_emplace(MadeBy(trace, storage), &storage);
  }
  for (const NamedSum& sum : SumBy(account, [&](const PeakStorage& storage) {
         return MadeBy(trace, storage);
       })) {
    const PeakStorage& first_storage = *first.at(sum.first);
    nlohmann::ordered_json row = {
        {"operator", OperatorName(trace, first_storage.op)},
        {"phase", ToString(first_storage.phase)}};
    row.update(ToJson(sum, "made"));
    row.erase("made");
    operators.push_back(std::move(row));
  }
  auto& lines = json["lines"] = nlohmann::ordered_json::array();
  if (!trace.sources.empty()) {
    for (const NamedSum& sum : SumByLine(trace, account)) {
      lines.push_back(ToJson(sum, "source"));
    }
  }
  auto& storages = json["largest"] = nlohmann::ordered_json::array();
  for (size_t k = 0; k < std::min(top, account.storages.size()); ++k) {
    const PeakStorage& storage = account.storages[k];
    storages.push_back({{"storage", storage.storage},
                        {"bytes", storage.bytes},
                        {"kind", ToString(storage.kind)},
                        {"module", ModuleName(trace, storage.module)},
                        {"operator", OperatorName(trace, storage.op)},
                        {"phase", ToString(storage.phase)},
                        {"source", graph::SourceOf(trace, storage.op)},
                        {"fixed", storage.is_fixed}});
  }
  return json;
}

namespace {

// Returns a table of lines of Python; "" for a trace that has none.
std::string LineTable(const Trace& trace, const PeakAccount& account,
                      size_t top, const Terminal& terminal) {
  if (trace.sources.empty()) return "";
  std::vector<NamedSum> lines = SumByLine(trace, account);
  for (auto& [name, sum] : lines) {
    if (name.empty()) name = "(of no line)";
  }
  return "\n" + SumTable(lines, top, "by line that made it", terminal);
}

}  // namespace

std::string ContentsText(const Trace& trace, const PeakAccount& account,
                         size_t top, const Terminal& terminal) {
  std::vector<NamedSum> modules =
      SumBy(account, [&](const PeakStorage& storage) {
        const std::string name = ShortName(trace, storage.module);
        return name.empty() ? "(outside all modules)" : Family(name);
      });
  for (auto& [name, sum] : modules) {
    if (sum.modules.size() > 1) {
      name += fmt::format(" (of {})", sum.modules.size());
    }
  }
  return SumTable(modules, top, "by module", terminal) + "\n" +
         SumTable(SumBy(account,
                        [&](const PeakStorage& storage) {
                          return ShortMaker(trace, storage);
                        }),
                  top, "by what made it", terminal) +
         LineTable(trace, account, top, terminal);
}

std::string InfeasibleText(const problems::Families& families,
                           const solver::SearchLimits& limits) {
  const problems::PlanOptions& options = families.front().problem.options;
  if (options.memory.model != problems::MemoryModel::kTrace) return "";
  // At least a moment, at most as long as the search for a plan by default.
  constexpr double kLeastSeconds = 1;
  constexpr double kMostSeconds = 5;
  solver::SearchLimits least_limits = limits;
  least_limits.time_limit_s =
      std::clamp(limits.time_limit_s, kLeastSeconds, kMostSeconds);
  const problems::LeastOfFamilies least = LeastPlan(families, least_limits);
  // The plan of a search that was cut short may not be the one that the answer names.
  if (InterruptFlag()) return "";
  if (!least.least.has_plan) return "";
  const auto [trace, modules] = UnitsOf(families, least);
  const PeakAccount account =
      problems::AccountForPeakOfRank(*trace, modules, options.memory);
  std::vector<std::string> kinds;
  const auto by_kind = account.ByKind();
  std::vector<size_t> order(by_kind.size());
  for (size_t k = 0; k < order.size(); ++k) order[k] = k;
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](size_t k) { return by_kind[k]; });
  for (const size_t k : order) {
    if (by_kind[k] == 0 || kinds.size() == 3) break;
    kinds.push_back(fmt::format("{} {}", ToString(static_cast<MemoryKind>(k)),
                                graph::FormatBytes(by_kind[k])));
  }
  std::string most;
  const auto sums_by_maker = SumBy(account, [&](const PeakStorage& storage) {
    return storage.is_fixed && storage.kind != MemoryKind::kParameter
               ? MadeBy(*trace, storage)
               : std::string();
  });
  for (const auto& [name, sum] : sums_by_maker) {
    if (name.empty()) continue;
    most = fmt::format("; most is from {}: {}", name,
                       graph::FormatBytes(sum.bytes));
    break;
  }
  return fmt::format(
      "its peak is at {}\n{}in memory there: {}\nevery plan keeps {} of it{}\n",
      PlaceText(*trace, account), SourceText(*trace, account.step.op),
      fmt::join(kinds, ", "), graph::FormatBytes(account.FixedBytes()), most);
}

}  // namespace acplan::cli
