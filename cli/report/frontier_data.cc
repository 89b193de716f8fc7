#include "cli/report/frontier_data.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/input/plan_input.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/json_text.h"

namespace acplan::cli {

using nlohmann::ordered_json;

ordered_json FrontierJson(const std::vector<problems::Plan>& plans,
                          int64_t unplanned_peak_bytes) {
  ordered_json json = {{"unplanned_peak_bytes", unplanned_peak_bytes},
                       {"points", ordered_json::array()}};
  for (const problems::Plan& plan : plans) {
    ordered_json point = {{"budget_bytes", plan.budget_bytes},
                          {"status", ToString(plan.status)},
                          {"seconds", plan.solver.seconds}};
    if (plan.HasPlan()) {
      point["peak_bytes"] = plan.peak_bytes;
      point["recompute_ms"] = plan.recompute_ms;
      point["bound_ms"] = plan.bound_ms;
      point["overhead"] = plan.overhead;
      point["units"] = plan.modules.size();
    }
    json["points"].push_back(std::move(point));
  }
  return json;
}

ordered_json ReadFrontier(const std::filesystem::path& path,
                          std::string_view model) {
  const nlohmann::json document =
      graph::ParseJson(graph::ReadJsonText(path), path.string());
  const graph::JsonField root(document, path.string());
  RequireFormat(root, "acplan.frontier", 1);
  std::vector<problems::Plan> plans;
  for (const graph::JsonField& entry : root.Get("plans").Elements()) {
    plans.push_back(
        problems::ParsePlan(graph::CompactText(entry.json()), path.string()));
    RequireModel(plans.back(), model, path);
  }
  return FrontierJson(plans, root.Get("unplanned_peak_bytes").Bytes());
}

}  // namespace acplan::cli
