#include "cli/report/execution_data.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"

namespace acplan::cli {

using graph::JsonField;
using nlohmann::ordered_json;

namespace {

// A part of the first tier of memory: its name on the page and in Calculon's
// statistics, where "_with_offload" follows it if a setting of the execution
// says that the rest is elsewhere.
struct Space {
  std::string_view name;
  std::string of_stats;
  const char* offload;  // the setting; null: never elsewhere
};
const std::array<Space, 6>& Spaces() {
  static const std::array<Space, 6> spaces = {
      {{"weights", "weight_space", "weight_offload"},
       {"activations", "act_space", "activations_offload"},
       {"checkpoints", "act_checkpoint_size", "activations_offload"},
       {"activation gradients", "act_grad_space", nullptr},
       {"weight gradients", "weight_grad_space", "optimizer_offload"},
       {"optimizer", "optimizer_space", "optimizer_offload"}}};
  return spaces;
}

double BytesOf(const Space& space, const JsonField& entry) {
  const JsonField stats = entry.Get("stats");
  const double all = stats.Get(space.of_stats).NonNegativeNumber();
  // Bytes that are 0, such as checkpoints where none are made, are nowhere.
  if (space.offload == nullptr || all == 0 ||
      !entry.Get("execution").Get(space.offload).Bool()) {
    return all;
  }
  return stats.Get(space.of_stats + "_with_offload").NonNegativeNumber();
}

// The parts of total_time.
constexpr std::array<std::string_view, 11> kTimes = {"fw_time",
                                                     "bw_time",
                                                     "optim_step_time",
                                                     "recompute_time",
                                                     "recomm_exposed_time",
                                                     "fw_offload_exposed_time",
                                                     "bw_offload_exposed_time",
                                                     "bubble_time",
                                                     "tp_comm_exposed_time",
                                                     "pp_comm_exposed_time",
                                                     "dp_comm_exposed_time"};

// The most that any count in a strategy may be.
constexpr int64_t kMostCount = int64_t{1} << 31;

// The settings of the page, each with its key in an execution.
constexpr std::array<std::pair<const char*, const char*>, 7> kSettings = {
    {{"tp", "tensor_par"},
     {"pp", "pipeline_par"},
     {"vp", "pipeline_interleaving"},
     {"dp", "data_par"},
     {"mbs", "microbatch_size"},
     {"gbs", "batch_size"},
     {"gpus", "num_procs"}}};

ordered_json StageJson(const ordered_json& bytes) {
  double total = 0;
  for (const ordered_json& kind : bytes) total += kind.get<double>();
  return {{"bytes", bytes}, {"total_bytes", total}};
}

// Returns only the fullest stage, which the statistics are about.
ordered_json StagesJson(const JsonField& entry) {
  ordered_json bytes = ordered_json::array();
  for (const Space& space : Spaces()) bytes.push_back(BytesOf(space, entry));
  return ordered_json::array({StageJson(bytes)});
}

ordered_json EntryJson(const JsonField& entry) {
  const JsonField execution = entry.Get("execution");
  const JsonField stats = entry.Get("stats");
  ordered_json json;
  for (const auto& [name, key] : kSettings) {
    json["strategy"][name] = execution.Get(key).Int(1, kMostCount);
  }
  json["strategy"]["recompute"] =
      execution.Get("activation_recompute").String();
  json["iteration_s"] = stats.Get("total_time").NonNegativeNumber();
  for (const std::string_view part : kTimes) {
    const std::string key(part);
    json["parts_s"][key.substr(0, key.rfind("_time"))] =
        stats.Get(key).Number();
  }
  json["samples_per_s"] = stats.Get("sample_rate").NonNegativeNumber();
  json["stages"] = StagesJson(entry);
  json["peak_bytes"] = json["stages"].front()["total_bytes"];
  return json;
}

bool IsByRank(const nlohmann::json& document) {
  if (!document.is_object() || !document.contains("0")) return false;
  const nlohmann::json& first = document["0"];
  return first.is_object() && first.contains("execution") &&
         first.contains("stats");
}

}  // namespace

std::optional<ordered_json> ParseExecutions(std::string_view text,
                                            const std::filesystem::path& path) {
  if (text.find("\"sample_rate\"") == std::string_view::npos)
    return std::nullopt;
  const nlohmann::json document = graph::ParseJson(text, path.string());
  if (!IsByRank(document)) return std::nullopt;
  const JsonField root(document, path.string());
  ordered_json json = {{"format", "acplan.report"},
                       {"version", 1},
                       {"source", path.filename().string()},
                       {"model", path.stem().stem().string()},
                       {"stage_kinds", ordered_json::array()},
                       {"best", ordered_json::array()}};
  for (const Space& space : Spaces()) json["stage_kinds"].push_back(space.name);
  for (size_t rank = 0; rank < document.size(); ++rank) {
    json["best"].push_back(EntryJson(root.Get(std::to_string(rank))));
  }
  return json;
}

}  // namespace acplan::cli
