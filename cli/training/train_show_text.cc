#include "cli/training/train_show_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/terminal/human_numbers.h"
#include "cli/terminal/text.h"
#include "cli/training/confidence_text.h"
#include "cli/training/limit_text.h"
#include "cli/training/strategy_text.h"
#include "cli/training/tower_text.h"
#include "cli/training/training_plan_text.h"
#include "costmodel/training/layer/rank_parameters.h"
#include "costmodel/training/settings/setting_names.h"
#include "graph/base/byte_size.h"

namespace acplan::cli {

namespace {

using costmodel::RankMemory;
using costmodel::StageContent;
using costmodel::StepTime;
using costmodel::TrainingReport;
using costmodel::TrainingStrategy;
using enum Table::Align;

constexpr double kBytesPerGiB = 1024.0 * 1024 * 1024;
constexpr int kChartColumns = 66;

// Returns how often the FLOPs of the forward pass count: frozen weights have no gradient.
int PassesOf(const TrainingReport& report) {
  return report.job.strategy.lora_rank > 0 ? 2 : 3;
}

costmodel::Confidence ConfidenceOf(const TrainingReport& report,
                                   const TrainQuestion& question) {
  return question.intervals->At(costmodel::KindOfRun(report.job, report.time));
}

std::string TimeText(const TrainingReport& report,
                     const TrainQuestion& question, const Terminal& terminal) {
  const double total = report.time.Total();
  Table table({kLeft, kRight, kRight});
  table.AddRow({"time per iteration", "", "share"});
  for (const TimePart& part : PartsOf(report.time)) {
    if (part.seconds < 1e-9) continue;
    table.AddRow({std::string(part.text), HumanSeconds(part.seconds),
                  fmt::format("{:.1f}%", 100 * part.seconds / total)});
  }
  table.AddRule();
  table.AddRow({"total", HumanSeconds(total), "100.0%"});
  return table.ToString(terminal) +
         (question.calibration ? TextOf(*question.calibration) : "") +
         ConfidenceText(ConfidenceOf(report, question), total) + "\n";
}

std::string RateText(const TrainingReport& report,
                     const TrainQuestion& question, const Terminal& terminal) {
  const double seconds = report.time.Total();
  const double gpus = static_cast<double>(report.job.strategy.gpus);
  Table table({kLeft, kRight, kLeft});
  table.AddRow({"rates", "", ""});
  table.AddRow(
      {"tokens/s/GPU", fmt::format("{:.1f}", report.TokensPerGpuSecond()), ""});
  table.AddRow(
      {"model TFLOP/s/GPU",
       fmt::format("{:.1f}", report.flops.model / seconds / gpus / 1e12),
       fmt::format("{} forward passes, with logits, causal attention",
                   PassesOf(report))});
  table.AddRow({"model utilisation",
                fmt::format("{:.1f}%", 100 * report.ModelUtilisation()),
                fmt::format("of {:g} TFLOP/s in bf16",
                            report.job.cluster.gpu.bf16_rate / 1e12)});
  table.AddRow({"hardware utilisation",
                fmt::format("{:.1f}%", 100 * report.HardwareUtilisation()),
                "including recomputation"});
  if (question.tokens) {
    const double hours = report.GpuHours(*question.tokens);
    table.AddRow({"GPU-hours", fmt::format("{:.0f}", hours),
                  fmt::format("for {:.4g} tokens, {:.1f} days",
                              *question.tokens, hours / gpus / 24)});
    if (question.price) {
      table.AddRow({"cost", fmt::format("{:.0f}", hours * *question.price),
                    fmt::format("at {:g} per GPU-hour", *question.price)});
    }
  } else if (question.price) {
    table.AddRow(
        {"cost", fmt::format("{:.4g}", report.GpuHours(1e9) * *question.price),
         fmt::format("for 10^9 tokens at {:g} per GPU-hour", *question.price)});
  }
  return table.ToString(terminal) + "\n";
}

std::string MemoryTable(const TrainingReport& report,
                        const Terminal& terminal) {
  Table table({kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight,
               kRight, kRight});
  // The table is as wide as a terminal; the key of the chart has the words.
  table.AddRow({"stage", "layers", "params", "grads", "optimizer", "acts",
                "logits", "work", "libs", "GiB"});
  for (size_t i = 0; i < report.stages.size(); ++i) {
    std::vector<std::string> row = {fmt::to_string(i),
                                    fmt::to_string(report.stages[i].Layers())};
    for (const MemoryPart& part : PartsOf(report.memory.stages[i])) {
      row.push_back(fmt::format("{:.2f}", part.bytes / kBytesPerGiB));
    }
    row.push_back(
        fmt::format("{:.2f}", report.memory.stages[i].Total() / kBytesPerGiB));
    table.AddRow(std::move(row));
  }
  return table.ToString(terminal);
}

// Returns a line for each stage: a letter for each part of the GPU's memory,
// and a mark at the budget.
std::string MemoryChart(const TrainingReport& report, double budget) {
  double most = budget;
  for (const RankMemory& memory : report.memory.stages) {
    most = std::max(most, memory.Total());
  }
  const auto column = [&](double bytes) {
    return static_cast<size_t>(std::lround(kChartColumns * bytes / most));
  };
  std::string text;
  for (size_t i = 0; i < report.memory.stages.size(); ++i) {
    std::string bar;
    double sum = 0;
    for (const MemoryPart& part : PartsOf(report.memory.stages[i])) {
      sum += part.bytes;
      bar.resize(std::max(bar.size(), column(sum)), part.letter);
    }
    bar.resize(std::max(bar.size(), column(most) + 1), ' ');
    bar[column(budget)] = '|';
    bar.erase(bar.find_last_not_of(' ') + 1);
    text += fmt::format("{:>5}  {}\n", i, bar);
  }
  std::string key;
  for (const MemoryPart& part : PartsOf(RankMemory())) {
    key +=
        fmt::format("{}{} {}", key.empty() ? "" : ", ", part.letter, part.name);
  }
  return text + fmt::format("{}\n{} a letter; |: the limit, {}\n", key,
                            graph::FormatManyBytes(most / kChartColumns),
                            graph::FormatManyBytes(budget));
}

std::string FitText(const TrainingReport& report, double budget) {
  const size_t stage = report.FullestStage();
  const double bytes = report.memory.stages[stage].Total();
  return fmt::format("{}: stage {} holds {} of {} ({:.1f}%)\n",
                     report.Fits(budget) ? "fits" : "does not fit", stage,
                     graph::FormatManyBytes(bytes),
                     graph::FormatManyBytes(budget), 100 * bytes / budget);
}

nlohmann::ordered_json StageJson(const StageContent& stage,
                                 const RankMemory& memory) {
  nlohmann::ordered_json json = {{"layers", stage.Layers()},
                                 {"has_embedding", stage.has_embedding},
                                 {"has_logits", stage.has_logits}};
  for (const MemoryPart& part : PartsOf(memory)) {
    json[std::string(part.name) + "_bytes"] = BytesJson(part.bytes);
  }
  json["total_bytes"] = BytesJson(memory.Total());
  if (memory.host > 0) json["host_bytes"] = BytesJson(memory.host);
  return json;
}

}  // namespace

std::vector<TimePart> PartsOf(const StepTime& time) {
  return {
      {"compute", "computation", time.compute - time.recompute},
      {"recompute", "recomputation", time.recompute},
      {"tensor_parallel", "tensor-parallel communication, exposed",
       time.exposed.tensor},
      {"context_parallel", "context-parallel communication, exposed",
       time.exposed.context},
      {"expert_parallel", "exchange of tokens, exposed", time.exposed.expert},
      {"pipeline_messages", "messages between stages", time.messages},
      {"sharded_parameters", "gathering and scattering of shards, exposed",
       time.exposed.sharded},
      {"offload", "offload of activations, exposed", time.exposed.offload},
      {"data_parallel", "data-parallel communication, exposed", time.data},
      {"host", "waiting for kernel launches", time.host},
      {"bubble", "pipeline bubble", time.bubble},
      {"optimizer", "optimizer", time.optimizer},
      {"other", "other", time.other},
  };
}

std::array<MemoryPart, 7> PartsOf(const RankMemory& memory) {
  return {{{"parameters", 'P', memory.parameters},
           {"gradients", 'G', memory.gradients},
           {"optimizer", 'O', memory.optimizer + memory.OfUpdate()},
           {"activations", 'A', memory.activations},
           {"logits", 'L', memory.logits},
           {"working", 'W', memory.working},
           {"libraries", 'B', memory.libraries}}};
}

// Returns what is trained in place of the model, in two lines.
std::string AdaptersText(const costmodel::TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  return fmt::format(
      "{}: {:.4g} million parameters of adapters of rank {} are trained{}\n"
      "no measured run of the cost model trains adapters\n",
      s.has_four_bit_base ? "QLoRA" : "LoRA", CountTrainedParameters(job) / 1e6,
      s.lora_rank, s.lora_attention_only ? ", those of attention" : "");
}

double MostHostBytes(const costmodel::StepMemory& memory) {
  double most = 0;
  for (const RankMemory& stage : memory.stages) {
    most = std::max(most, stage.host);
  }
  return most;
}

std::string HeadingText(const TrainingReport& report,
                        const TrainQuestion& question,
                        const Terminal& terminal) {
  const costmodel::TrainingJob& job = report.job;
  const TrainingStrategy& s = job.strategy;
  const double parameters = CountParameters(job.shape) / 1e9;
  const double active = CountActiveParameters(job.shape) / 1e9;
  std::string text = terminal.Bold(
      fmt::format("{} on {} {}: {}", question.model, FormatCount(s.gpus),
                  job.cluster.gpu.name, StrategyText(s)));
  text += "\n" + FitText(report, BudgetOf(question, job));
  text += fmt::format(
      "{:.4g} billion parameters{}, {} sequences of {} tokens per iteration, "
      "{} microbatches of {}\n",
      parameters,
      job.shape.IsMoe() ? fmt::format(" ({:.4g} active)", active)
                        : std::string(),
      FormatCount(s.global_batch), FormatCount(s.sequence),
      FormatCount(s.Microbatches()), s.microbatch);
  text += TowersText(job);
  if (s.lora_rank > 0) text += AdaptersText(job);
  if (s.offloads_states) {
    text += fmt::format(
        "{} of the optimizer's states wait in host memory for each GPU at "
        "most\n",
        graph::FormatManyBytes(MostHostBytes(report.memory)));
  }
  text += fmt::format("{} products, recomputation: {}; software: {}\n\n",
                      costmodel::NameOf(s.precision), RecomputationText(s),
                      job.cluster.stack.name);
  return text;
}

std::string MemoryText(const TrainingReport& report,
                       const TrainQuestion& question,
                       const Terminal& terminal) {
  return MemoryTable(report, terminal) + "\n" +
         MemoryChart(report, BudgetOf(question, report.job)) +
         LimitOfJobText(report.job, question);
}

nlohmann::ordered_json BytesJson(double bytes) {
  if (std::abs(bytes) >= 0x1p63) return bytes;
  return std::llround(bytes);
}

nlohmann::ordered_json ToJson(const TrainingReport& report,
                              const TrainQuestion& question) {
  nlohmann::ordered_json json = {
      {"format", "acplan.training"},
      {"version", 1},
      {"model", question.model},
      {"parameters", CountParameters(report.job.shape)},
      {"active_parameters", CountActiveParameters(report.job.shape)},
      {"notes", question.notes},
      {"strategy", StrategyJson(report.job)},
      {"iteration_s", report.time.Total()}};
  const TrainingStrategy& s = report.job.strategy;
  if (s.lora_rank > 0 || s.freezes_towers) {
    json["trained_parameters"] = CountTrainedParameters(report.job);
  }
  for (const TimePart& part : PartsOf(report.time)) {
    json["parts_s"][std::string(part.name)] = part.seconds;
  }
  if (question.calibration) {
    json["calibration"] = CalibrationJson(*question.calibration);
  }
  json["interval"] =
      ConfidenceJson(ConfidenceOf(report, question), report.time.Total());
  json["tokens_per_gpu_s"] = report.TokensPerGpuSecond();
  json["flop_convention"] = fmt::format(
      "{} x the forward pass: products with logits, causal attention",
      PassesOf(report));
  json["model_flops"] = report.flops.model;
  json["hardware_flops"] = report.flops.hardware;
  json["model_utilisation"] = report.ModelUtilisation();
  json["hardware_utilisation"] = report.HardwareUtilisation();
  if (report.plan) json["plan"] = PlanJson(report);
  nlohmann::ordered_json saved_bytes;
  if (!report.job.shape.IsMoe() || report.job.shape.dense_layers > 0) {
    saved_bytes["dense"] = BytesJson(SavedBytesOfLayer(report.job, false));
  }
  if (report.job.shape.IsMoe()) {
    saved_bytes["moe"] = BytesJson(SavedBytesOfLayer(report.job, true));
  }
  if (!report.plan) json["saved_bytes_of_a_layer"] = std::move(saved_bytes);
  json["budget_bytes"] = BytesJson(BudgetOf(question, report.job));
  json.update(LimitOfJobJson(report.job, question));
  json["fits"] = report.Fits(BudgetOf(question, report.job));
  json["fullest_stage"] = report.FullestStage();
  json["stages"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < report.stages.size(); ++i) {
    json["stages"].push_back(
        StageJson(report.stages[i], report.memory.stages[i]));
  }
  if (question.tokens) {
    json["tokens"] = *question.tokens;
    json["gpu_hours"] = report.GpuHours(*question.tokens);
  }
  if (question.price) {
    json["cost"] =
        report.GpuHours(question.tokens.value_or(1e9)) * *question.price;
  }
  return json;
}

std::string TrainText(const TrainingReport& report,
                      const TrainQuestion& question, const Terminal& terminal) {
  return HeadingText(report, question, terminal) +
         TimeText(report, question, terminal) +
         RateText(report, question, terminal) +
         (report.plan ? PlanText(report, terminal) : std::string()) +
         MemoryText(report, question, terminal);
}

}  // namespace acplan::cli
