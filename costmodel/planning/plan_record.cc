#include "costmodel/planning/plan_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "costmodel/execution/execution_fields.h"
#include "costmodel/llm/evaluation.h"
#include "costmodel/llm/records.h"
#include "costmodel/planning/block_operators.h"
#include "graph/base/json_fields.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "acplan.llm_plan";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostCount = int64_t{1} << 31;
constexpr double kTolerance = 1e-9;

constexpr std::array<std::string_view, 3> kStatusNames = {"optimal", "feasible",
                                                          "infeasible"};
constexpr std::array<std::string_view, 2> kModeNames = {"calculon",
                                                        "corrected"};

struct TimeKind {
  std::string_view key;
  double& (*of)(BatchTimes& times);
  bool is_on_link = false;  // and no part of the total
};

// As costmodel/llm/statistics.h names them.
constexpr std::array<TimeKind, 14> kTimeKinds = {{
    {"fw_time", [](BatchTimes& t) -> double& { return t.forward; }},
    {"bw_time", [](BatchTimes& t) -> double& { return t.backward; }},
    {"optim_step_time", [](BatchTimes& t) -> double& { return t.optimizer; }},
    {"recompute_time", [](BatchTimes& t) -> double& { return t.recompute; }},
    {"fw_offload_exposed_time",
     [](BatchTimes& t) -> double& { return t.forward_offload_exposed; }},
    {"bw_offload_exposed_time",
     [](BatchTimes& t) -> double& { return t.backward_offload_exposed; }},
    {"bubble_time", [](BatchTimes& t) -> double& { return t.bubble; }},
    {"recomm_exposed_time",
     [](BatchTimes& t) -> double& { return t.repeated_comm_exposed; }},
    {"tp_comm_exposed_time",
     [](BatchTimes& t) -> double& { return t.tensor_comm_exposed; }},
    {"pp_comm_exposed_time",
     [](BatchTimes& t) -> double& { return t.pipeline_comm; }},
    {"dp_comm_exposed_time",
     [](BatchTimes& t) -> double& { return t.data_parallel.exposed; }},
    {"recomm_link_time",
     [](BatchTimes& t) -> double& { return t.repeated_comm_link; }, true},
    {"tp_comm_link_time",
     [](BatchTimes& t) -> double& { return t.tensor_comm_link; }, true},
    {"dp_comm_link_time",
     [](BatchTimes& t) -> double& { return t.data_parallel.link; }, true},
}};

struct PartKey {
  std::string_view key;
  double MemoryParts::*value;
  bool is_kind = true;
};

constexpr std::array<PartKey, 7> kPartKeys = {{
    {"weights", &MemoryParts::weights},
    {"activations", &MemoryParts::activations},
    {"activation_gradients", &MemoryParts::activation_gradients},
    {"weight_gradients", &MemoryParts::weight_gradients},
    {"optimizer", &MemoryParts::optimizer},
    {"tier1", &MemoryParts::tier1, false},
    {"tier2", &MemoryParts::tier2, false},
}};

bool IsClose(double a, double b) {
  return std::abs(a - b) <= kTolerance * std::max(std::abs(a), std::abs(b));
}

bool CostsNothing(const Operator& op) {
  const RecomputeCosts& repeated = op.recompute;
  return repeated.recompute.time == 0 && repeated.weight_grad.time == 0 &&
         repeated.repeated_comm.base_time == 0 &&
         repeated.repeated_comm.edge_time == 0;
}

std::string OperatorName(const Operator& op) {
  return fmt::format("{}{}", op.name,
                     op.kind == Operator::Kind::kGather ? " gathering" : "");
}

PolicyRecord RecordPolicy(const PolicyShare& share,
                          const BlockOperators& block) {
  PolicyRecord record{.blocks = share.blocks,
                      .kept = {},
                      .recomputed = {},
                      .kept_bytes = KeptBytes(block, share.kept)};
  for (int i = 0; i < static_cast<int>(block.tensors.size()); ++i) {
    if (IsKept(share.kept, i)) record.kept.push_back(TensorName(block, i));
  }
  const std::vector<bool> runs = RunsAgain(block, share.kept);
  for (size_t i = 0; i < runs.size(); ++i) {
    const Operator& op = block.operators[i];
    if (runs[i] && !CostsNothing(op)) {
      record.recomputed.push_back(OperatorName(op));
    }
  }
  return record;
}

StageRecord RecordStage(const StagePlan& stage, const Execution& execution,
                        const BlockOperators& block) {
  StageRecord record{.stage = stage.stage,
                     .blocks = stage.blocks,
                     .microbatches_in_flight = stage.in_flight,
                     .memory = PartsOf(execution, stage.memory),
                     .seconds = stage.seconds,
                     .recompute_seconds = stage.recompute_seconds,
                     .policies = {}};
  for (const PolicyShare& share : stage.policies) {
    record.policies.push_back(RecordPolicy(share, block));
  }
  return record;
}

ordered_json ToJson(const MemoryParts& memory) {
  ordered_json json;
  for (const PartKey& part : kPartKeys) {
    json[std::string(part.key)] = NumberJson(memory.*part.value);
  }
  return json;
}

ordered_json ToJson(const StageRecord& stage) {
  ordered_json policies = ordered_json::array();
  for (const PolicyRecord& policy : stage.policies) {
    policies.push_back({{"blocks", policy.blocks},
                        {"kept", policy.kept},
                        {"recomputed", policy.recomputed},
                        {"kept_bytes", NumberJson(policy.kept_bytes)}});
  }
  return {{"stage", stage.stage},
          {"blocks", stage.blocks},
          {"microbatches_in_flight", NumberJson(stage.microbatches_in_flight)},
          {"memory", ToJson(stage.memory)},
          {"seconds", NumberJson(stage.seconds)},
          {"recompute_seconds", NumberJson(stage.recompute_seconds)},
          {"policies", std::move(policies)}};
}

ordered_json ToJson(const FixedPolicy& policy) {
  return {{"policy", kRecomputeNames[static_cast<size_t>(policy.recompute)]},
          {"seq_par_ag_redo", policy.seq_par_ag_redo},
          {"memory", ToJson(policy.memory)},
          {"fits", policy.fits},
          {"total_time", NumberJson(policy.total_time)}};
}

template <size_t kCount>
size_t ReadName(const JsonField& field,
                const std::array<std::string_view, kCount>& names) {
  const auto found = std::ranges::find(names, field.String());
  if (found == names.end())
    field.Fail(fmt::format("{}", fmt::join(names, ", ")));
  return static_cast<size_t>(found - names.begin());
}

double ReadPositive(const JsonField& field) {
  const double number = field.NonNegativeNumber();
  if (number == 0) field.Fail("a number above 0");
  return number;
}

void RequireNull(const JsonField& object, std::string_view key,
                 std::string_view where) {
  const JsonField field = object.Get(key);
  if (!field.IsNull()) field.Fail(fmt::format("null {}", where));
}

MemoryParts ReadMemory(const JsonField& field) {
  MemoryParts memory;
  double sum = 0;
  for (const PartKey& part : kPartKeys) {
    memory.*part.value = field.Get(part.key).NonNegativeNumber();
    if (part.is_kind) sum += memory.*part.value;
  }
  if (!IsClose(sum, memory.tier1)) {
    field.Get("tier1").Fail(fmt::format("the sum of its kinds ({})", sum));
  }
  return memory;
}

bool Fits(const PlanRecord& record, const MemoryParts& memory) {
  return memory.tier1 <= record.budget_bytes &&
         memory.tier2 <= record.tier2_bytes;
}

PolicyRecord ReadPolicy(const JsonField& field) {
  return {.blocks = field.Get("blocks").Int(1, kMostCount),
          .kept = field.Get("kept").Strings(),
          .recomputed = field.Get("recomputed").Strings(),
          .kept_bytes = field.Get("kept_bytes").NonNegativeNumber()};
}

StageRecord ReadStage(const JsonField& field, int64_t stage) {
  StageRecord record{
      .stage = field.Get("stage").Int(stage, stage),
      .blocks = field.Get("blocks").Int(1, kMostCount),
      .microbatches_in_flight =
          ReadPositive(field.Get("microbatches_in_flight")),
      .memory = ReadMemory(field.Get("memory")),
      .seconds = field.Get("seconds").NonNegativeNumber(),
      .recompute_seconds = field.Get("recompute_seconds").Number(),
      .policies = {}};
  if (record.recompute_seconds > record.seconds) {
    field.Get("recompute_seconds")
        .Fail(fmt::format("at most seconds ({})", record.seconds));
  }
  int64_t blocks = 0;
  for (const JsonField& policy : field.Get("policies").Elements()) {
    blocks += record.policies.emplace_back(ReadPolicy(policy)).blocks;
  }
  if (blocks != record.blocks) {
    field.Get("blocks").Fail(
        fmt::format("the sum of its policies ({})", blocks));
  }
  return record;
}

void ReadStages(const JsonField& root, PlanRecord& record) {
  const JsonField field = root.Get("stages");
  for (const JsonField& element : field.Elements()) {
    record.stages.push_back(
        ReadStage(element, static_cast<int64_t>(record.stages.size())));
    const MemoryParts& memory = record.stages.back().memory;
    if (record.status != PlanStatus::kInfeasible && !Fits(record, memory)) {
      element.Get("memory").Complain(fmt::format(
          "expected at most {} bytes in tier1 and {} in tier2, found {} and {}",
          record.budget_bytes, record.tier2_bytes, memory.tier1, memory.tier2));
    }
  }
  const auto stages = static_cast<int64_t>(record.stages.size());
  if (!record.is_corrected
          ? stages > 0
          : stages < 1 || stages > record.execution.pipeline_par) {
    field.Fail(record.is_corrected
                   ? fmt::format("1 to {} stages (pipeline_par)",
                                 record.execution.pipeline_par)
                   : "no stages in mode calculon");
  }
}

FixedPolicy ReadFixedPolicy(const JsonField& field, const PlanRecord& record) {
  FixedPolicy policy{.recompute = static_cast<Recompute>(
                         ReadName(field.Get("policy"), kRecomputeNames)),
                     .seq_par_ag_redo = field.Get("seq_par_ag_redo").Bool(),
                     .memory = ReadMemory(field.Get("memory")),
                     .fits = field.Get("fits").Bool(),
                     .total_time = std::numeric_limits<double>::infinity()};
  if (!IsAllowed(record.execution, policy.recompute, policy.seq_par_ag_redo)) {
    field.Get("seq_par_ag_redo").Fail("what the execution may have, false");
  }
  if (policy.fits != Fits(record, policy.memory)) {
    field.Get("fits").Fail(
        fmt::format("{} by its memory", Fits(record, policy.memory)));
  }
  const JsonField time = field.Get("total_time");
  if (policy.fits || !time.IsNull()) policy.total_time = ReadPositive(time);
  return policy;
}

void ReadFixed(const JsonField& root, PlanRecord& record) {
  for (const JsonField& field : root.Get("fixed").Elements()) {
    const FixedPolicy policy = ReadFixedPolicy(field, record);
    if (std::ranges::any_of(record.fixed, [&](const FixedPolicy& other) {
          return other.recompute == policy.recompute &&
                 other.seq_par_ag_redo == policy.seq_par_ag_redo;
        })) {
      field.Get("policy").Fail("every policy once");
    }
    record.fixed.push_back(policy);
  }
}

BatchTimes ReadTimes(const JsonField& root) {
  BatchTimes times;
  times.total = ReadPositive(root.Get("total_time"));
  const JsonField kinds = root.Get("times");
  double sum = 0;
  for (const TimeKind& kind : kTimeKinds) {
    const double seconds = kinds.Get(kind.key).Number();
    kind.of(times) = seconds;
    if (!kind.is_on_link) sum += seconds;
  }
  if (!IsClose(sum, times.total)) {
    root.Get("total_time").Fail(fmt::format("the sum of its kinds ({})", sum));
  }
  return times;
}

void ReadBound(const JsonField& root, PlanRecord& record) {
  if (!record.is_corrected) {
    RequireNull(root, "bound", "in mode calculon");
    return;
  }
  const JsonField field = root.Get("bound");
  record.bound = field.NonNegativeNumber();
  const bool is_met = record.times.total <= *record.bound * (1 + kTolerance);
  if (*record.bound > record.times.total * (1 + kTolerance)) {
    field.Fail(fmt::format("at most total_time ({})", record.times.total));
  }
  if (is_met != (record.status == PlanStatus::kOptimal)) {
    root.Get("status").Fail(
        fmt::format("{} by bound and total_time",
                    is_met ? kStatusNames[0] : kStatusNames[1]));
  }
}

void ReadAnswer(const JsonField& root, PlanRecord& record) {
  if (record.status == PlanStatus::kInfeasible) {
    for (const std::string_view key :
         {"total_time", "bound", "sample_rate", "times"}) {
      RequireNull(root, key, "where the status is infeasible");
    }
    return;
  }
  record.times = ReadTimes(root);
  ReadBound(root, record);
  const JsonField rate = root.Get("sample_rate");
  if (!IsClose(ReadPositive(rate), record.SampleRate())) {
    rate.Fail(fmt::format("batch_size / total_time ({})", record.SampleRate()));
  }
}

void CheckFixedChoice(const JsonField& root, const PlanRecord& record) {
  if (record.is_corrected) return;
  if (record.status == PlanStatus::kOptimal) {
    root.Get("status").Fail("feasible or infeasible in mode calculon");
  }
  const std::optional<FixedPolicy> best = FastestThatFits(record.fixed);
  if (best.has_value() != (record.status == PlanStatus::kFeasible)) {
    root.Get("status").Fail(fmt::format(
        "{} by its fixed policies", best ? kStatusNames[1] : kStatusNames[2]));
  }
  if (best && !IsClose(best->total_time, record.times.total)) {
    root.Get("total_time")
        .Fail(fmt::format("that of the fastest fixed policy that fits ({})",
                          best->total_time));
  }
}

PlanRecord RecordQuestion(const System& system, const Execution& execution) {
  PlanRecord record;
  record.execution = execution;
  record.budget_bytes = std::min(system.mem1.capacity, kMostPlanBudget);
  record.tier2_bytes = std::min(system.mem2.capacity, kMostPlanBudget);
  return record;
}

}  // namespace

PlanRecord RecordPlan(const Model& model, const System& system,
                      const Execution& execution, const StrategyPlan& plan) {
  PlanRecord record = RecordQuestion(system, execution);
  const BlockOperators block = ListOperators(model, system, execution);
  for (const StagePlan& stage : plan.stages) {
    record.stages.push_back(RecordStage(stage, execution, block));
  }
  record.fixed =
      EvaluateFixedPolicies(model, system, execution, AllCorrections());
  if (plan.verdict.Fits()) {
    record.status =
        plan.IsOptimal() ? PlanStatus::kOptimal : PlanStatus::kFeasible;
    record.times = plan.times;
    record.bound = plan.bound;
  }
  return record;
}

PlanRecord RecordFixedChoice(const Model& model, const System& system,
                             const Execution& execution) {
  PlanRecord record = RecordQuestion(system, execution);
  record.is_corrected = false;
  record.fixed = EvaluateFixedPolicies(model, system, execution, {});
  if (const auto best = FastestThatFits(record.fixed)) {
    record.status = PlanStatus::kFeasible;
    record.times =
        Evaluate(model, system, WithPolicy(execution, *best), {}).times;
  }
  return record;
}

ordered_json ToJson(const PlanRecord& record) {
  const bool has_plan = record.status != PlanStatus::kInfeasible;
  ordered_json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"application", record.application},
      {"system", record.system},
      {"mode", kModeNames[record.is_corrected ? 1 : 0]},
      {"execution", ToJson(record.execution)},
      {"status", kStatusNames[static_cast<size_t>(record.status)]},
      {"budget_bytes", NumberJson(record.budget_bytes)},
      {"tier2_bytes", NumberJson(record.tier2_bytes)},
      {"total_time", has_plan ? NumberJson(record.times.total) : nullptr},
      {"bound", record.bound ? NumberJson(*record.bound) : nullptr},
      {"sample_rate", has_plan ? NumberJson(record.SampleRate()) : nullptr},
      {"times", nullptr},
      {"stages", ordered_json::array()},
      {"fixed", ordered_json::array()}};
  if (has_plan) {
    BatchTimes times = record.times;
    for (const TimeKind& kind : kTimeKinds) {
      json["times"][std::string(kind.key)] = NumberJson(kind.of(times));
    }
  }
  for (const StageRecord& stage : record.stages) {
    json["stages"].push_back(ToJson(stage));
  }
  for (const FixedPolicy& policy : record.fixed) {
    json["fixed"].push_back(ToJson(policy));
  }
  return json;
}

PlanRecord ParsePlanRecord(std::string_view text, std::string_view file) {
  const nlohmann::json document = graph::ParseJson(text, file);
  const JsonField root(document, std::string(file));
  graph::RequireFormat(root, kFormat, kVersion);
  PlanRecord record;
  record.application = root.Get("application").String();
  record.system = root.Get("system").String();
  record.is_corrected = ReadName(root.Get("mode"), kModeNames) == 1;
  record.execution = ParseExecution(root.Get("execution"));
  if (!record.execution.training) {
    root.Get("execution").Get("training").Fail("true");
  }
  record.status =
      static_cast<PlanStatus>(ReadName(root.Get("status"), kStatusNames));
  record.budget_bytes = ReadPositive(root.Get("budget_bytes"));
  record.tier2_bytes = root.Get("tier2_bytes").NonNegativeNumber();
  ReadAnswer(root, record);
  ReadStages(root, record);
  ReadFixed(root, record);
  CheckFixedChoice(root, record);
  return record;
}

}  // namespace acplan::costmodel
