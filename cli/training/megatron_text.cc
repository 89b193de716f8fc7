#include "cli/training/megatron_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/terminal/human_numbers.h"
#include "cli/training/strategy_text.h"
#include "cli/training/train_show_text.h"
#include "costmodel/training/settings/setting_names.h"
#include "costmodel/training/strategy/layout_text.h"
#include "costmodel/training/strategy/stage_layout.h"
#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

using costmodel::PipelineSchedule;
using costmodel::Recomputation;
using costmodel::TrainingJob;
using costmodel::TrainingStrategy;

namespace {

// A key of Megatron-Core, the table in which Megatron Bridge has it, and its value; "true" for
// a flag without one.
struct Setting {
  std::string_view table;
  std::string key;
  std::string value;
};

class Settings {
 public:
  explicit Settings(const TrainingJob& job) : job_(job), s_(job.strategy) {
    AddDegrees();
    AddPipeline();
    AddSharding();
    AddRecomputation();
    AddNumber("train", "micro_batch_size", s_.microbatch);
    AddNumber("train", "global_batch_size", s_.global_batch);
    AddNumber("model", "seq_length", s_.sequence);
  }

  const std::vector<Setting>& all() const { return all_; }

 private:
  void Add(std::string_view table, std::string key, std::string value) {
    all_.push_back({table, std::move(key), std::move(value)});
  }
  void AddNumber(std::string_view table, std::string key, int64_t number) {
    Add(table, std::move(key), fmt::to_string(number));
  }
  void AddIf(bool is_needed, std::string key, int64_t number) {
    if (is_needed) AddNumber("model", std::move(key), number);
  }

  void AddDegrees() {
    AddNumber("model", "tensor_model_parallel_size", s_.tensor);
    if (s_.tensor > 1 && s_.sequence_parallel) {
      Add("model", "sequence_parallel", "true");
    }
    AddNumber("model", "pipeline_model_parallel_size", s_.pipeline);
    AddNumber("model", "context_parallel_size", s_.context);
    if (s_.context > 1) {
      using enum costmodel::ContextExchange;
      Add("model", "cp_comm_type",
          s_.context_exchange == kRing        ? "p2p"
          : s_.context_exchange == kAllGather ? "all_gather"
                                              : "a2a");
    }
    AddIf(job_.shape.IsMoe(), "expert_model_parallel_size", s_.expert);
    AddIf(job_.shape.IsMoe(), "expert_tensor_parallel_size", s_.expert_tensor);
  }

  // A layout says everything about stages; without one, layers are divided evenly.
  void AddPipeline() {
    if (s_.pipeline == 1) return;
    const std::vector<int64_t> pieces = costmodel::PiecesOfChunks(job_);
    std::vector<int64_t> layers = pieces;
    --layers.front();
    layers.back() -= 1 + job_.shape.mtp_layers;
    const bool is_even =
        job_.shape.mtp_layers == 0 &&
        std::ranges::count(layers, layers.front()) == std::ssize(layers);
    if (!is_even) {
      Add("model", "pipeline_model_parallel_layout",
          costmodel::LayoutText(pieces, job_.shape));
    } else if (s_.chunks > 1) {
      AddNumber("model", "virtual_pipeline_model_parallel_size", s_.chunks);
    }
  }

  void AddSharding() {
    if (s_.zero == 0) return;
    Add("ddp", "use_distributed_optimizer", "true");
    if (s_.optimizer_copies > 1) {
      AddNumber("ddp", "num_distributed_optimizer_instances",
                s_.optimizer_copies);
    }
    if (s_.zero == 1) return;
    Add("ddp", "use_megatron_fsdp", "true");
    Add("ddp", "data_parallel_sharding_strategy",
        s_.zero == 2 ? "optim_grads" : "optim_grads_params");
  }

  void AddRecomputation() {
    if (s_.offloaded_layers > 0) {
      AddNumber("model", "cpu_offloading_num_layers", s_.offloaded_layers);
    }
    if (s_.recomputation == Recomputation::kNone) return;
    const bool is_full = s_.recomputation == Recomputation::kFull;
    Add("model", "recompute_granularity", is_full ? "full" : "selective");
    if (!is_full) {
      std::string names = costmodel::NamesOf(s_.parts);
      std::ranges::replace(names, '+', ' ');
      Add("model", "recompute_modules", std::move(names));
      return;
    }
    // Megatron-Core counts the layers of each chunk.
    Add("model", "recompute_method", s_.full_layers > 0 ? "block" : "uniform");
    AddNumber("model", "recompute_num_layers",
              s_.full_layers > 0 ? s_.full_layers / s_.chunks : 1);
  }

  const TrainingJob& job_;
  const TrainingStrategy& s_;
  std::vector<Setting> all_;
};

std::string FlagsText(const std::vector<Setting>& settings) {
  std::string text = "MEGATRON_ARGS=(\n";
  for (const Setting& setting : settings) {
    // The flag of chunks has a name of its own.
    std::string flag = setting.key == "virtual_pipeline_model_parallel_size"
                           ? "num_virtual_stages_per_pipeline_rank"
                           : setting.key;
    std::ranges::replace(flag, '_', '-');
    text += "    --" + flag;
    const bool has_quotes = setting.value.find('|') != std::string::npos;
    if (setting.value != "true") {
      text += has_quotes ? fmt::format(" \"{}\"", setting.value)
                         : " " + setting.value;
    }
    text += "\n";
  }
  return text + ")\n";
}

std::string YamlText(const std::vector<Setting>& settings) {
  std::string text;
  for (const std::string_view table : {"model", "ddp", "train"}) {
    std::string lines;
    for (const Setting& setting : settings) {
      if (setting.table != table) continue;
      std::string value = setting.value;
      if (setting.key == "recompute_modules") {
        std::string names = value;
        for (size_t at = 0; (at = names.find(' ', at)) != std::string::npos;) {
          names.replace(at, 1, ", ");
          at += 2;
        }
        value = "[" + names + "]";
      } else if (value.find('|') != std::string::npos) {
        value = "\"" + value + "\"";
      }
      lines += fmt::format("  {}: {}\n", setting.key, value);
    }
    if (!lines.empty()) text += fmt::format("{}:\n{}", table, lines);
  }
  return text;
}

}  // namespace

MegatronProgram ParseMegatronProgram(const std::string& name) {
  if (name.empty()) return MegatronProgram::kNone;
  if (name == "megatron") return MegatronProgram::kMegatron;
  if (name == "megatron-bridge") return MegatronProgram::kBridge;
  throw InputError(
      fmt::format("--for: expected megatron or megatron-bridge, found {}",
                  graph::Quoted(name)));
}

void AddProgramTo(CLI::App& app, std::string& name, const std::string& effect) {
  app.add_option("--for", name,
                 effect +
                     ": megatron (flags of Megatron-LM) or "
                     "megatron-bridge (YAML of NeMo's Megatron Bridge)")
      ->type_name("NAME");
}

void RequireMegatron(const TrainingStrategy& strategy, std::string_view flag) {
  using enum PipelineSchedule;
  if (strategy.schedule != kOneForwardOneBackward &&
      strategy.schedule != kInterleaved) {
    throw InputError(fmt::format(
        "{}: expected the schedule 1F1B or Interleaved1F1B, as Megatron-LM has "
        "no other",
        flag));
  }
  if (strategy.lora_rank > 0) {
    throw InputError(
        fmt::format("{}: expected lora_rank 0, as Megatron-LM has no adapters; "
                    "found {}",
                    flag, strategy.lora_rank));
  }
  if (strategy.offloads_states) {
    throw InputError(fmt::format(
        "{}: expected offload_states false, as Megatron-LM updates states that "
        "are on the host there; found true",
        flag));
  }
  if (strategy.images > 0 || strategy.source > 0) {
    throw InputError(fmt::format(
        "{}: expected images 0 and no encoder, as Megatron-LM's flags for "
        "decoders have neither",
        flag));
  }
  if (strategy.implementation == costmodel::Implementation::kEager) {
    throw InputError(fmt::format(
        "{}: expected the implementation fused, found eager", flag));
  }
}

std::vector<std::string> MegatronComments(
    const costmodel::MegatronAnswer& answer, std::string_view model,
    double budget) {
  const costmodel::TrainingReport& report = answer.report;
  const TrainingStrategy& s = report.job.strategy;
  return {fmt::format("{} on {} {}, {} sequences of {} tokens per iteration",
                      model, s.gpus, report.job.cluster.gpu.name,
                      s.global_batch, s.sequence),
          "for Megatron-Core 0.20.0; Megatron Bridge has the same keys",
          fmt::format("estimated: iteration {}, fullest stage {} of {}",
                      HumanSeconds(report.time.Total()),
                      graph::FormatManyBytes(report.memory.Worst().Total()),
                      graph::FormatManyBytes(budget))};
}

nlohmann::ordered_json MegatronJson(const costmodel::MegatronAnswer& answer,
                                    const std::string& text) {
  const costmodel::TrainingReport& report = answer.report;
  return {{"recompute", RecomputationText(report.job.strategy)},
          {"iteration_s", report.time.Total()},
          {"total_bytes", BytesJson(report.memory.Worst().Total())},
          {"fits", answer.fits},
          {"tried", answer.tried_count},
          {"text", text}};
}

std::string MegatronText(const costmodel::TrainingReport& report,
                         MegatronProgram program,
                         const std::vector<std::string>& comments) {
  std::string text;
  for (const std::string& line : comments) text += "# " + line + "\n";
  const std::vector<Setting> settings = Settings(report.job).all();
  return text + (program == MegatronProgram::kMegatron ? FlagsText(settings)
                                                       : YamlText(settings));
}

}  // namespace acplan::cli
