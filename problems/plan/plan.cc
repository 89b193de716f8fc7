#include "problems/plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/json_text.h"
#include "graph/profile/model_json.h"
#include "problems/plan/plan_device_json.h"
#include "problems/plan/times_off_json.h"

namespace acplan::problems {

using graph::JsonField;
using graph::OperatorDecision;
using Json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kFormat = "acplan.plan";
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

constexpr std::array kStatuses = {PlanStatus::kOptimal, PlanStatus::kFeasible,
                                  PlanStatus::kInfeasible, PlanStatus::kNoPlan};

double Share(const JsonField& field) {
  const double value = field.Number();
  if (value < 0 || value > 1) field.Fail("a number from 0 to 1");
  return value;
}

std::string OneOf(const JsonField& field,
                  const std::vector<std::string>& known_names) {
  std::string name = field.String();
  if (std::ranges::find(known_names, name) == known_names.end()) {
    field.Fail(fmt::format("\"{}\"", fmt::join(known_names, "\" or \"")));
  }
  return name;
}

constexpr std::array<std::pair<OperatorDecision, std::string_view>, 4>
    kDecisions = {{{OperatorDecision::kSave, "save"},
                   {OperatorDecision::kRecompute, "recompute"},
                   {OperatorDecision::kSkip, "skip"},
                   {OperatorDecision::kOffload, "offload"}}};

OperatorDecision ReadDecision(const JsonField& field) {
  const std::string name = field.String();
  for (const auto& [decision, decision_name] : kDecisions) {
    if (name == decision_name) return decision;
  }
  field.Fail("\"save\", \"recompute\", \"skip\" or \"offload\"");
}

std::string_view NameOf(OperatorDecision decision) {
  return std::ranges::find(
             kDecisions, decision,
             &std::pair<OperatorDecision, std::string_view>::first)
      ->second;
}

std::vector<int32_t> AscendingPlaces(const JsonField& field) {
  std::vector<int32_t> places;
  for (const JsonField& entry : field.Elements()) {
    const auto place =
        static_cast<int32_t>(entry.Int(0, std::numeric_limits<int32_t>::max()));
    if (!places.empty() && place <= places.back()) {
      entry.Fail(fmt::format("an index above {}", places.back()));
    }
    places.push_back(place);
  }
  return places;
}

std::vector<int32_t> ReadResults(const JsonField& field, const PlannedOp& op) {
  if (!graph::Keeps(op.decision)) {
    field.Complain(fmt::format(
        "needs an operator that is saved or offloaded, found one to {}",
        NameOf(op.decision)));
  }
  return AscendingPlaces(field);
}

PlannedOp ReadOp(const JsonField& field) {
  PlannedOp op;
  op.index = static_cast<int>(
      field.Get("index").Int(0, std::numeric_limits<int>::max()));
  op.name = field.Get("name").String();
  op.decision = ReadDecision(field.Get("decision"));
  if (field.Has("results")) op.results = ReadResults(field.Get("results"), op);
  if (field.Has("once")) op.once = field.Get("once").Bool();
  return op;
}

PlannedModule ReadModule(const JsonField& field) {
  PlannedModule module;
  module.fqn = field.Get("fqn").String();
  module.discard_ratio = Share(field.Get("discard_ratio"));
  module.memory_budget = field.Has("memory_budget")
                             ? Share(field.Get("memory_budget"))
                             : 1 - module.discard_ratio;
  if (field.Has("discarded_bytes")) {
    module.discarded_bytes = field.Get("discarded_bytes").Bytes();
  }
  if (field.Has("recompute_ms")) {
    module.recompute_ms = field.Get("recompute_ms").NonNegativeNumber();
  }
  if (field.Has("early_stop")) {
    module.stops_early = field.Get("early_stop").Bool();
  }
  if (field.Has("offloaded_arguments")) {
    module.offloaded_arguments =
        AscendingPlaces(field.Get("offloaded_arguments"));
  }
  if (field.Has("ops")) {
    for (const JsonField& op : field.Get("ops").Elements()) {
      module.ops.push_back(ReadOp(op));
    }
  }
  return module;
}

MemoryOptions ReadMemory(const JsonField& root) {
  MemoryOptions memory;
  if (root.Has("world_size")) {
    memory.world_size = root.Get("world_size").Int(1, kMost);
  }
  const std::string name = root.Get("memory_model").String();
  const std::optional<MemoryModel> model = ParseMemoryModel(name);
  if (!model) {
    root.Get("memory_model").Fail("\"torch\", \"snapshot\" or \"trace\"");
  }
  memory.model = *model;
  if (root.Has("without_states")) {
    memory.without_states = root.Get("without_states").Bool();
  }
  if (root.Has("fsdp_units")) {
    for (const JsonField& unit : root.Get("fsdp_units").Elements()) {
      memory.fsdp_units.push_back(unit.String());
    }
  }
  return memory;
}

PlanStatus ReadStatus(const JsonField& root) {
  if (!root.Has("status")) return PlanStatus::kFeasible;
  const JsonField field = root.Get("status");
  const std::string name = field.String();
  const auto place = std::ranges::find_if(
      kStatuses, [&](PlanStatus status) { return ToString(status) == name; });
  if (place == kStatuses.end()) {
    field.Fail("\"optimal\", \"feasible\", \"infeasible\" or \"no_plan\"");
  }
  return *place;
}

PlanOffload ReadOffload(const JsonField& field) {
  PlanOffload offload{.rates = ReadRates(field),
                      .host_bytes = field.Get("host_bytes").Bytes(),
                      .sent_bytes = field.Get("sent_bytes").Bytes(),
                      .storages = field.Get("storages").Int(0, kMost),
                      .stall_ms = field.Get("stall_ms").NonNegativeNumber()};
  if (field.Has("host_memory_bytes")) {
    offload.host_memory_bytes = field.Get("host_memory_bytes").Bytes();
  }
  return offload;
}

Json ToJson(const PlanOffload& offload) {
  Json json = RatesJson(offload.rates);
  json.update({{"host_bytes", offload.host_bytes},
               {"sent_bytes", offload.sent_bytes},
               {"storages", offload.storages},
               {"stall_ms", offload.stall_ms}});
  if (offload.host_memory_bytes) {
    json["host_memory_bytes"] = *offload.host_memory_bytes;
  }
  return json;
}

PlanHost ReadHost(const JsonField& field) {
  return {.baseline_ms = field.Get("baseline_ms").NonNegativeNumber(),
          .ms = field.Get("ms").NonNegativeNumber(),
          .device_ms = field.Get("device_ms").NonNegativeNumber(),
          .step_ms = field.Get("step_ms").NonNegativeNumber(),
          .least_step_ms = graph::Optional(field, "least_step_ms",
                                           [](const JsonField& least) {
                                             return least.NonNegativeNumber();
                                           })};
}

Json ToJson(const PlanHost& host) {
  Json json = {{"baseline_ms", host.baseline_ms},
               {"ms", host.ms},
               {"device_ms", host.device_ms},
               {"step_ms", host.step_ms}};
  if (host.least_step_ms) json["least_step_ms"] = *host.least_step_ms;
  return json;
}

PlanStreams ReadStreams(const JsonField& field) {
  return {.baseline_ms = field.Get("baseline_ms").NonNegativeNumber(),
          .baseline_exposed_ms =
              field.Get("baseline_exposed_ms").NonNegativeNumber(),
          .communication_ms = field.Get("communication_ms").NonNegativeNumber(),
          .exposed_ms = field.Get("exposed_ms").NonNegativeNumber(),
          .step_ms = field.Get("step_ms").NonNegativeNumber(),
          .least_step_ms = graph::Optional(field, "least_step_ms",
                                           [](const JsonField& least) {
                                             return least.NonNegativeNumber();
                                           })};
}

Json ToJson(const PlanStreams& streams) {
  Json json = {{"baseline_ms", streams.baseline_ms},
               {"baseline_exposed_ms", streams.baseline_exposed_ms},
               {"communication_ms", streams.communication_ms},
               {"exposed_ms", streams.exposed_ms},
               {"step_ms", streams.step_ms}};
  if (streams.least_step_ms) json["least_step_ms"] = *streams.least_step_ms;
  return json;
}

// Returns the plan with its statements about itself as a whole.
Plan WithStatements(Plan plan, const JsonField& root) {
  const auto number = [&](std::string_view key) {
    return root.Has(key) ? root.Get(key).NonNegativeNumber() : kNotStated;
  };
  plan.recompute_ms = number("recompute_ms");
  plan.bound_ms = number("bound_ms");
  plan.gap = number("gap");
  plan.overhead = number("overhead");
  if (root.Has("any_schedule")) {
    const JsonField any = root.Get("any_schedule");
    plan.any_schedule = {
        .bound_ms = any.Get("bound_ms").NonNegativeNumber(),
        .distance = any.Get("distance").NonNegativeNumber(),
        .is_loose = any.Has("loose") && any.Get("loose").Bool()};
  }
  if (root.Has("times_off")) {
    plan.times_off = TimesOffFromJson(root.Get("times_off"));
  }
  if (root.Has("time_errors")) {
    plan.time_errors = graph::ParseTimeErrors(root.Get("time_errors"));
  }
  if (root.Has("offload")) plan.offload = ReadOffload(root.Get("offload"));
  if (root.Has("host")) plan.host = ReadHost(root.Get("host"));
  if (root.Has("streams")) plan.streams = ReadStreams(root.Get("streams"));
  if (root.Has("device")) plan.device = PlanDeviceFromJson(root.Get("device"));
  if (root.Has("peak_bytes")) plan.peak_bytes = root.Get("peak_bytes").Bytes();
  if (root.Has("peak_module")) {
    plan.peak_module = root.Get("peak_module").String();
  }
  if (root.Has("minimum_budget_bytes")) {
    plan.minimum_budget_bytes = root.Get("minimum_budget_bytes").Bytes();
  }
  if (root.Has("fitting_budget_bytes")) {
    plan.fitting_budget_bytes = root.Get("fitting_budget_bytes").Bytes();
  }
  if (root.Has("baseline")) {
    const JsonField baseline = root.Get("baseline");
    plan.baseline = {
        .peak_bytes = baseline.Get("peak_bytes").Bytes(),
        .peak_module = baseline.Get("peak_module").String(),
        .runtime_ms = baseline.Get("runtime_ms").NonNegativeNumber()};
  }
  if (root.Has("solver")) {
    const JsonField solver = root.Get("solver");
    plan.solver = {.name = solver.Get("name").String(),
                   .seconds = solver.Get("seconds").NonNegativeNumber(),
                   .nodes = solver.Get("nodes").Int(0, kMost),
                   .rows = solver.Get("rows").Int(0, kMost),
                   .columns = solver.Get("columns").Int(0, kMost)};
  }
  return plan;
}

std::vector<PlannedModule> ReadModules(const JsonField& modules) {
  std::vector<PlannedModule> result;
  std::unordered_set<std::string> seen_names;
  for (const JsonField& field : modules.Elements()) {
    result.push_back(ReadModule(field));
    if (!seen_names.insert(result.back().fqn).second) {
      field.Get("fqn").Complain(
          fmt::format("module '{}' is listed twice", result.back().fqn));
    }
  }
  return result;
}

template <typename Value>
void State(Json& object, const char* key, Value value) {
  if (value != kNotStated) object[key] = value;
}

Json ToEntry(const PlannedModule& module) {
  Json entry;
  entry["fqn"] = module.fqn;
  entry["discard_ratio"] = module.discard_ratio;
  entry["memory_budget"] = module.memory_budget;
  State(entry, "discarded_bytes", module.discarded_bytes);
  State(entry, "recompute_ms", module.recompute_ms);
  if (!module.stops_early) entry["early_stop"] = false;
  if (!module.offloaded_arguments.empty()) {
    entry["offloaded_arguments"] = module.offloaded_arguments;
  }
  if (module.ops.empty()) return entry;
  entry["ops"] = Json::array();
  for (const PlannedOp& op : module.ops) {
    Json now = {{"index", op.index},
                {"name", op.name},
                {"decision", NameOf(op.decision)}};
    if (op.results) now["results"] = *op.results;
    if (op.once) now["once"] = true;
    entry["ops"].push_back(std::move(now));
  }
  return entry;
}

}  // namespace

std::string_view ToString(PlanStatus status) {
  switch (status) {
    case PlanStatus::kOptimal:
      return "optimal";
    case PlanStatus::kFeasible:
      return "feasible";
    case PlanStatus::kInfeasible:
      return "infeasible";
    case PlanStatus::kNoPlan:
      break;
  }
  return "no_plan";
}

Plan ReadPlan(const std::filesystem::path& path) {
  return ParsePlan(graph::ReadJsonText(path), path.string());
}

Plan ParsePlan(std::string_view text, std::string_view name) {
  const nlohmann::json document = graph::ParseJson(text, name);
  const JsonField root(document, std::string(name));
  graph::RequireFormat(root, kFormat, 1);
  Plan plan;
  plan.model = root.Get("model").String();
  if (root.Has("budget_bytes")) {
    plan.budget_bytes = root.Get("budget_bytes").Bytes();
  }
  if (root.Has("reserve_bytes")) {
    plan.reserve_bytes = root.Get("reserve_bytes").Bytes();
  }
  plan.memory = ReadMemory(root);
  if (root.Has("granularity")) {
    plan.granularity = OneOf(root.Get("granularity"), {"module", "operator"});
  }
  if (root.Has("tradeoff")) {
    plan.tradeoff = OneOf(root.Get("tradeoff"), {"profile", "fit", "pareto"});
  }
  plan.status = ReadStatus(root);
  if (root.Has("limit")) {
    plan.limit = OneOf(root.Get("limit"), {"time", "gap", "nodes", "memory",
                                           "interrupted", "unproven"});
  }
  plan = WithStatements(std::move(plan), root);
  plan.modules = ReadModules(root.Get("modules"));
  return plan;
}

std::string_view CaveatOf(const Plan& plan) {
  if (!plan.device) return Caveat(plan.memory.model);
  if (plan.device->gpu) {
    return "PyTorch's allocator is simulated on live tensors, exact to the "
           "byte for plans that were traced again; --reserve keeps room for "
           "workspaces of cuDNN, communication buffers and other processes";
  }
  return "PyTorch's allocator is simulated on live tensors, exact to the byte "
         "for plans that were traced again; --reserve keeps room for CUDA's "
         "own memory, workspaces of cuDNN and communication buffers";
}

std::string PlanToJson(const Plan& plan) {
  Json root;
  root["format"] = kFormat;
  root["version"] = 1;
  root["model"] = plan.model;
  root["budget_bytes"] = plan.budget_bytes;
  if (plan.reserve_bytes > 0) root["reserve_bytes"] = plan.reserve_bytes;
  root["world_size"] = plan.memory.world_size;
  root["memory_model"] = ToString(plan.memory.model);
  if (plan.memory.without_states) root["without_states"] = true;
  if (!plan.memory.fsdp_units.empty()) {
    root["fsdp_units"] = plan.memory.fsdp_units;
  }
  root["granularity"] = plan.granularity;
  root["tradeoff"] = plan.tradeoff;
  root["status"] = ToString(plan.status);
  if (plan.limit) root["limit"] = *plan.limit;
  State(root, "recompute_ms", plan.recompute_ms);
  State(root, "bound_ms", plan.bound_ms);
  State(root, "gap", plan.gap);
  State(root, "overhead", plan.overhead);
  if (plan.any_schedule) {
    root["any_schedule"] = {{"bound_ms", plan.any_schedule->bound_ms},
                            {"distance", plan.any_schedule->distance}};
    if (plan.any_schedule->is_loose) root["any_schedule"]["loose"] = true;
  }
  if (plan.times_off) root["times_off"] = ToJson(*plan.times_off);
  if (plan.time_errors) {
    root["time_errors"] = graph::TimeErrorsJson(*plan.time_errors);
  }
  if (plan.offload) root["offload"] = ToJson(*plan.offload);
  if (plan.host) root["host"] = ToJson(*plan.host);
  if (plan.streams) root["streams"] = ToJson(*plan.streams);
  if (plan.device) root["device"] = ToJson(*plan.device);
  State(root, "peak_bytes", plan.peak_bytes);
  if (!plan.peak_module.empty()) root["peak_module"] = plan.peak_module;
  if (plan.minimum_budget_bytes) {
    root["minimum_budget_bytes"] = *plan.minimum_budget_bytes;
  }
  if (plan.fitting_budget_bytes) {
    root["fitting_budget_bytes"] = *plan.fitting_budget_bytes;
  }
  if (plan.baseline.peak_bytes != kNotStated) {
    root["baseline"] = {{"peak_bytes", plan.baseline.peak_bytes},
                        {"peak_module", plan.baseline.peak_module},
                        {"runtime_ms", plan.baseline.runtime_ms}};
  }
  root["caveat"] = CaveatOf(plan);
  root["modules"] = Json::array();
  for (const PlannedModule& module : plan.modules) {
    root["modules"].push_back(ToEntry(module));
  }
  root["solver"] = {{"name", plan.solver.name},
                    {"seconds", plan.solver.seconds},
                    {"nodes", plan.solver.nodes},
                    {"rows", plan.solver.rows},
                    {"columns", plan.solver.columns}};
  return graph::IndentedText(root);
}

}  // namespace acplan::problems
