#include "problems/plan/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/json_text.h"
#include "problems/plan/plan_device_json.h"

namespace acplan::problems {
namespace {

constexpr std::string_view kTableFormat = "acplan.plan_table";
constexpr int64_t kMostNumber = std::numeric_limits<int64_t>::max();

TableEntry EntryFromJson(const graph::JsonField& field, std::string_view name) {
  const graph::JsonField plan = field.Get("plan");
  return {.longest = field.Get("longest").Int(1, kMostNumber),
          .plan = ParsePlan(plan.json().dump(),
                            fmt::format("{}: an entry's plan", name))};
}

}  // namespace

double PlanTable::Gap() const {
  return recompute_ms > 0
             ? std::max(0.0, (recompute_ms - bound_ms) / recompute_ms)
             : 0;
}

const TableEntry& PlanTable::EntryFor(int64_t length) const {
  const auto entry = std::ranges::find_if(
      entries, [&](const TableEntry& e) { return e.IsFor(length); });
  return entry == entries.end() ? entries.back() : *entry;
}

bool IsPlanTable(std::string_view text) {
  return text.find(fmt::format("\"{}\"", kTableFormat)) !=
         std::string_view::npos;
}

PlanTable ReadPlanTable(const std::filesystem::path& path) {
  return ParsePlanTable(graph::ReadJsonText(path), path.string());
}

PlanTable ParsePlanTable(std::string_view text, std::string_view name) {
  const nlohmann::json document = graph::ParseJson(text, name);
  const graph::JsonField root(document, std::string(name));
  graph::RequireFormat(root, kTableFormat, 1);
  PlanTable table{.model = root.Get("model").String(),
                  .memory_bytes = root.Get("memory_bytes").Bytes(),
                  .reserve_bytes = root.Has("reserve_bytes")
                                       ? root.Get("reserve_bytes").Bytes()
                                       : 0,
                  .device = PlanDeviceFromJson(root.Get("device")),
                  .most_plans = root.Get("most_plans").Int(1, kMostNumber),
                  .recompute_ms = root.Get("recompute_ms").NonNegativeNumber(),
                  .bound_ms = root.Get("bound_ms").NonNegativeNumber(),
                  .seconds = root.Get("seconds").NonNegativeNumber()};
  for (const graph::JsonField& length : root.Get("switches").Elements()) {
    table.switches.push_back(length.Int(1, kMostNumber));
  }
  for (const graph::JsonField& field : root.Get("entries").Elements()) {
    table.entries.push_back(EntryFromJson(field, name));
    if (table.entries.size() > 1 &&
        table.entries.back().longest <=
            table.entries[table.entries.size() - 2].longest) {
      field.Get("longest").Fail("a length above that of the entry before");
    }
  }
  if (table.entries.empty()) root.Get("entries").Fail("at least one entry");
  return table;
}

std::string ToJson(const PlanTable& table) {
  nlohmann::ordered_json root;
  root["format"] = kTableFormat;
  root["version"] = 1;
  root["model"] = table.model;
  root["memory_bytes"] = table.memory_bytes;
  if (table.reserve_bytes > 0) root["reserve_bytes"] = table.reserve_bytes;
  root["device"] = ToJson(table.device);
  root["most_plans"] = table.most_plans;
  root["switches"] = table.switches;
  root["recompute_ms"] = table.recompute_ms;
  root["bound_ms"] = table.bound_ms;
  root["seconds"] = table.seconds;
  root["entries"] = nlohmann::ordered_json::array();
  for (const TableEntry& entry : table.entries) {
    root["entries"].push_back(
        {{"longest", entry.longest},
         {"plan", nlohmann::ordered_json::parse(PlanToJson(entry.plan))}});
  }
  return graph::IndentedText(root);
}

}  // namespace acplan::problems
