#include "cli/report/search_data.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"

namespace acplan::cli {

using graph::JsonField;
using nlohmann::ordered_json;

namespace {

constexpr std::array<std::string_view, 7> kStageKinds = {
    "parameters", "gradients", "optimizer", "activations",
    "logits",     "working",   "libraries"};

// Returns an object whose values are numbers, text or truth values: the
// settings of a strategy.
ordered_json Scalars(const JsonField& object) {
  ordered_json json = ordered_json::object();
  if (!object.json().is_object()) object.Fail("an object");
  for (const auto& [key, value] : object.json().items()) {
    if (value.is_structured()) object.Get(key).Fail("a number or text");
    json[key] = value;
  }
  return json;
}

ordered_json StageJson(const JsonField& stage) {
  ordered_json json;
  for (const std::string_view kind : kStageKinds) {
    json["bytes"].push_back(
        stage.Get(std::string(kind) + "_bytes").NonNegativeNumber());
  }
  json["total_bytes"] = stage.Get("total_bytes").NonNegativeNumber();
  return json;
}

ordered_json ReportedStrategyJson(const JsonField& report) {
  RequireFormat(report, "acplan.training", 1);
  ordered_json json;
  json["strategy"] = Scalars(report.Get("strategy"));
  json["iteration_s"] = report.Get("iteration_s").NonNegativeNumber();
  json["parts_s"] = ordered_json::object();
  const JsonField parts = report.Get("parts_s");
  const ordered_json names = Scalars(parts);
  for (const auto& [key, value] : names.items()) {
    json["parts_s"][key] = parts.Get(key).Number();
  }
  json["tokens_per_gpu_s"] = report.Get("tokens_per_gpu_s").NonNegativeNumber();
  json["model_utilisation"] =
      report.Get("model_utilisation").NonNegativeNumber();
  json["fits"] = report.Get("fits").Bool();
  json["budget_bytes"] = report.Get("budget_bytes").NonNegativeNumber();
  double most = 0;
  for (const JsonField& stage : report.Get("stages").Elements()) {
    json["stages"].push_back(StageJson(stage));
    most = std::max(most, json["stages"].back()["total_bytes"].get<double>());
  }
  json["peak_bytes"] = most;
  return json;
}

}  // namespace

std::optional<ordered_json> ParseTraining(std::string_view text,
                                          const std::filesystem::path& path) {
  if (text.find("\"acplan.training") == std::string_view::npos)
    return std::nullopt;
  const nlohmann::json document = graph::ParseJson(text, path.string());
  const JsonField root(document, path.string());
  const bool is_search =
      root.Get("format").String() == "acplan.training_search";
  ordered_json json = {
      {"format", "acplan.report"},
      {"version", 1},
      {"source", path.filename().string()},
      {"model", root.Get("model").String()},
      {"budget_bytes", root.Get("budget_bytes").NonNegativeNumber()},
      {"stage_kinds", kStageKinds}};
  std::vector<JsonField> reports{root};
  if (is_search) {
    RequireFormat(root, "acplan.training_search", 1);
    for (const char* key : {"strategies", "evaluated", "fitting"}) {
      json[key] = root.Get(key).NonNegativeNumber();
    }
    reports = root.Get("best").Elements();
  }
  for (const JsonField& report : reports) {
    json["best"].push_back(ReportedStrategyJson(report));
  }
  if (reports.empty()) root.Get("best").Fail("at least one strategy");
  return json;
}

}  // namespace acplan::cli
