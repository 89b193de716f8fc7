#include "cli/calculon/llm_text.h"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <string_view>
#include <variant>
#include <vector>

#include "cli/command.h"
#include "cli/terminal/human_numbers.h"
#include "cli/terminal/text.h"
#include "costmodel/calculon/execution/execution_fields.h"
#include "costmodel/calculon/llm/schedule.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::MemoryNeeds;
using costmodel::Rule;
using costmodel::StateSize;
using costmodel::Statistic;

std::string ExecutionText(const costmodel::Execution& execution) {
  const auto fields = FieldsOf(execution);
  std::string text;
  for (size_t i = 0; i < fields.size(); ++i) {
    text += fmt::format("{}'{}': ", i == 0 ? "" : ", ",
                        costmodel::kExecutionKeys[i]);
    if (const bool* flag = std::get_if<bool>(&fields[i])) {
      text += *flag ? "True" : "False";
    } else if (const int64_t* number = std::get_if<int64_t>(&fields[i])) {
      text += fmt::to_string(*number);
    } else {
      text += fmt::format("'{}'", std::get<std::string_view>(fields[i]));
    }
  }
  return "{" + text + "}";
}

std::string Bytes(double bytes) { return HumanBytes(bytes); }

// A kind of state: its size, and the part of it that remains in the first tier
// if it is offloaded.
struct MemoryRow {
  std::string_view name;
  StateSize size;
  bool is_offloaded;
};

std::vector<MemoryRow> MemoryRows(const LlmResult& result) {
  const MemoryNeeds& memory = result.evaluation.memory;
  const costmodel::Execution& execution = result.execution;
  return {
      {"weights", memory.weights, execution.weight_offload},
      {"activations", memory.activations, execution.activations_offload},
      {"checkpoints", memory.checkpoints, execution.activations_offload},
      {"activation gradients",
       {memory.activation_grads, memory.activation_grads},
       false},
      {"weight gradients", memory.weight_grads, execution.optimizer_offload},
      {"optimizer state", memory.optimizer, execution.optimizer_offload},
  };
}

std::string MemoryTable(const LlmResult& result, const Terminal& terminal) {
  using enum Table::Align;
  const MemoryNeeds& memory = result.evaluation.memory;
  const bool has_tier2 = memory.tier2 > 0;
  Table table({kLeft, kRight, kRight});
  table.AddRow({"memory per processor", "tier 1", has_tier2 ? "tier 2" : ""});
  for (const MemoryRow& row : MemoryRows(result)) {
    if (row.size.all == 0) continue;
    table.AddRow({std::string(row.name),
                  Bytes(row.is_offloaded ? row.size.resident : row.size.all),
                  row.is_offloaded ? Bytes(row.size.all) : ""});
  }
  table.AddRule();
  const auto share = [](double used_bytes, double capacity) {
    return fmt::format("{:.1f}%", 100 * used_bytes / capacity);
  };
  table.AddRow(
      {"total", Bytes(memory.tier1), has_tier2 ? Bytes(memory.tier2) : ""});
  table.AddRow({"capacity", Bytes(result.system.mem1.capacity),
                has_tier2 ? Bytes(result.system.mem2.capacity) : ""});
  table.AddRow(
      {"used", share(memory.tier1, result.system.mem1.capacity),
       has_tier2 ? share(memory.tier2, result.system.mem2.capacity) : ""});
  return table.ToString(terminal);
}

std::string EfficiencyTable(const costmodel::Statistics& statistics,
                            const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kLeft});
  table.AddRow({"efficiency", "", ""});
  const auto add = [&](std::string_view name, std::string_view key,
                       std::string_view meaning) {
    table.AddRow({std::string(name),
                  fmt::format("{:.2f}%", 100 * Statistic(statistics, key)),
                  std::string(meaning)});
  };
  add("compute", "compute_efficiency", "of the peak rate, while computing");
  add("system", "system_efficiency", "of the time is computation");
  add("total", "total_efficiency", "of the peak rate, over the batch");
  return table.ToString(terminal);
}

}  // namespace

std::string TimeTable(const costmodel::BatchTimes& times,
                      const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight});
  table.AddRow({"time per batch", "", "share", "on the link"});
  const auto add = [&](std::string_view name, double seconds, double link) {
    if (seconds == 0 && link == 0) return;
    table.AddRow({std::string(name), HumanSeconds(seconds),
                  fmt::format("{:.1f}%", 100 * seconds / times.total),
                  link == 0 ? "" : HumanSeconds(link)});
  };
  add("forward", times.forward, 0);
  add("backward", times.backward, 0);
  add("recomputation", times.recompute, 0);
  add("optimizer step", times.optimizer, 0);
  add("pipeline bubble", times.bubble, 0);
  add("tensor-parallel communication", times.tensor_comm_exposed,
      times.tensor_comm_link);
  add("repeated for recomputation", times.repeated_comm_exposed,
      times.repeated_comm_link);
  add("pipeline communication", times.pipeline_comm, times.pipeline_comm);
  add("data-parallel communication", times.data_parallel.exposed,
      times.data_parallel.link);
  add("forward offload", times.forward_offload_exposed, 0);
  add("backward offload", times.backward_offload_exposed, 0);
  table.AddRule();
  table.AddRow({"total", HumanSeconds(times.total), "100.0%"});
  return table.ToString(terminal);
}

namespace {

std::string CalculonBytes(double value) {
  return HumanNumber(value, HumanUnit::kBytes);
}
std::string CalculonBandwidth(double value) {
  return HumanNumber(value, HumanUnit::kBandwidth);
}
std::string CalculonSeconds(double value) {
  return fmt::format("{:.4f}", value);
}
std::string CalculonShare(double value) {
  return fmt::format("{:.2f}%", value * 100);
}
std::string CalculonRate(double value) { return fmt::format("{:.2f}", value); }

// A line of Calculon's text: a statistic and its format.
struct CalculonLine {
  std::string_view label;
  std::string_view key;
  std::string (*format)(double value);
};
constexpr auto kCalculonLines = std::to_array<CalculonLine>({
    {"Weights", "weight_space", CalculonBytes},
    {"Act", "act_space", CalculonBytes},
    {"Act CP", "act_checkpoint_size", CalculonBytes},
    {"Act grad", "act_grad_space", CalculonBytes},
    {"Weight grad", "weight_grad_space", CalculonBytes},
    {"Optim space", "optimizer_space", CalculonBytes},
    {"Batch FW time", "fw_time", CalculonSeconds},
    {"Batch BW time", "bw_time", CalculonSeconds},
    {"Batch optim time", "optim_step_time", CalculonSeconds},
    {"Batch FW offload overhead", "fw_offload_exposed_time", CalculonSeconds},
    {"Batch BW offload overhead", "bw_offload_exposed_time", CalculonSeconds},
    {"Batch recompute overhead", "recompute_time", CalculonSeconds},
    {"Batch recomm overhead", "recomm_exposed_time", CalculonSeconds},
    {"Batch bubble overhead", "bubble_time", CalculonSeconds},
    {"Batch TP comm overhead", "tp_comm_exposed_time", CalculonSeconds},
    {"Batch PP comm overhead", "pp_comm_exposed_time", CalculonSeconds},
    {"Batch DP comm overhead", "dp_comm_exposed_time", CalculonSeconds},
    {"Batch TP comm time on link", "tp_comm_link_time", CalculonSeconds},
    {"Batch PP comm time on link", "pp_comm_link_time", CalculonSeconds},
    {"Batch DP comm time on link", "dp_comm_link_time", CalculonSeconds},
    {"Batch total time", "total_time", CalculonSeconds},
    {"Activation offload required BW", "act_offload_bw_req", CalculonBandwidth},
    {"Weight offload required BW", "weight_offload_bw_req", CalculonBandwidth},
    {"Optimizer offload required BW", "optim_offload_bw_req",
     CalculonBandwidth},
    {"Total offload required BW", "offload_mem_bw_req", CalculonBandwidth},
    {"Mem tier1 capacity requirement", "proc_mem_tier1_cap_req", CalculonBytes},
    {"Mem tier2 capacity requirement", "proc_mem_tier2_cap_req", CalculonBytes},
    {"Mem tier2 BW for offload", "offload_mem_bw_req", CalculonBandwidth},
    {"Compute efficiency", "compute_efficiency", CalculonShare},
    {"System efficiency", "system_efficiency", CalculonShare},
    {"Total efficiency", "total_efficiency", CalculonShare},
    {"Sample rate", "sample_rate", CalculonRate},
});

}  // namespace

std::string CalculonText(const LlmResult& result,
                         const costmodel::Statistics& statistics,
                         const graph::TextValue& system) {
  const costmodel::Model& model = result.model;
  const costmodel::Execution& execution = result.execution;
  std::string text = fmt::format(
      "{}\n"
      "blocks={}, hidden={}, feedforward={}\n"
      "num attn heads: {}, attn_size={}\n"
      "Run on {} processors with:\n"
      "TP={}\nPP={}\nDP={}\n"
      "Blocks per processor: {}\n"
      "Execution: {};\n"
      "System: {};\n",
      std::string(80, '='), model.num_blocks, model.hidden, model.feedforward,
      model.attn_heads, model.attn_size, execution.num_procs,
      execution.tensor_par, execution.pipeline_par, execution.data_par,
      BlocksPerProcessor(model, execution), ExecutionText(execution),
      PythonText(system));
  for (const CalculonLine& line : kCalculonLines) {
    text += fmt::format("{}: {};\n", line.label,
                        line.format(Statistic(statistics, line.key)));
  }
  return text;
}

std::string LlmHeading(const costmodel::Execution& execution,
                       const std::string& model, const std::string& system,
                       const Terminal& terminal) {
  return fmt::format(
      "{} on {}: {} processors, tensor {} x pipeline {} x data {}\n",
      terminal.Bold(graph::OneLine(model)), graph::OneLine(system),
      FormatCount(execution.num_procs), execution.tensor_par,
      execution.pipeline_par, execution.data_par);
}

std::string LlmTable(const LlmResult& result,
                     const costmodel::Statistics& statistics,
                     const std::string& model, const std::string& system,
                     const Terminal& terminal) {
  const costmodel::Execution& execution = result.execution;
  std::string text = LlmHeading(execution, model, system, terminal);
  text += fmt::format(
      "{} samples per batch in {}: {}\n\n", FormatCount(execution.batch_size),
      HumanSeconds(result.evaluation.times.total),
      terminal.Bold(fmt::format("{:.4g} samples/s",
                                Statistic(statistics, "sample_rate"))));
  return text + TimeTable(result.evaluation.times, terminal) + "\n" +
         MemoryTable(result, terminal) + "\n" +
         EfficiencyTable(statistics, terminal);
}

namespace {

std::string InfeasibleText(const LlmResult& result) {
  const MemoryNeeds& memory = result.evaluation.memory;
  const auto needs = [](int tier, double needed_bytes, double capacity) {
    return fmt::format("Mem tier{} needs {} but only has {}", tier,
                       Bytes(needed_bytes), Bytes(capacity));
  };
  switch (result.evaluation.verdict.rule) {
    case Rule::kMem1:
      return needs(1, memory.tier1, result.system.mem1.capacity);
    case Rule::kMem2:
      return needs(2, memory.tier2, result.system.mem2.capacity);
    default:
      return DescribeInfeasible(result.evaluation.verdict);
  }
}

std::string InfeasibleNumbers(const LlmResult& result) {
  const Rule rule = result.evaluation.verdict.rule;
  if (rule != Rule::kMem1 && rule != Rule::kMem2) {
    return DescribeNumbers(result.evaluation.verdict, result.model,
                           result.system, result.execution);
  }
  const bool is_tier1 = rule == Rule::kMem1;
  std::string parts;
  for (const MemoryRow& row : MemoryRows(result)) {
    const double size =
        is_tier1 ? (row.is_offloaded ? row.size.resident : row.size.all)
                 : (row.is_offloaded ? row.size.all : 0);
    if (size == 0) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : " + ", row.name,
                         Bytes(size));
  }
  const MemoryNeeds& memory = result.evaluation.memory;
  return fmt::format(
      "memory tier {} of a processor has {:.0f} bytes, {:.0f} are needed: {}",
      is_tier1 ? 1 : 2,
      is_tier1 ? result.system.mem1.capacity : result.system.mem2.capacity,
      is_tier1 ? memory.tier1 : memory.tier2, parts);
}

}  // namespace

int ReportInfeasible(const LlmResult& result, const Terminal& terminal) {
  terminal.Print(fmt::format("ERROR: {}\n", InfeasibleText(result)));
  return terminal.Complain("infeasible: " + InfeasibleNumbers(result),
                           kExitInfeasible);
}

}  // namespace acplan::cli
