#include "cli/training/train_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/input/data_folder.h"
#include "cli/input/file_names.h"
#include "cli/input/flags.h"
#include "cli/input/strategy_argument.h"
#include "costmodel/training/confidence/error_table.h"
#include "costmodel/training/hardware/accelerator.h"
#include "graph/base/byte_size.h"
#include "graph/base/csv_table.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

struct SettingFlag {
  const char* key;
  const char* names;
  const char* help;
};

// The settings that the strategies of a search have in common.
constexpr SettingFlag kCommonFlags[] = {
    {"gpu", "--gpu", "name of a GPU: H100, A100-SXM4-40GB, GB200, ..."},
    {"gpus", "--gpus,--world-size", "number of GPUs"},
    {"seq", "--seq,--seq-length", "tokens per sequence (4096)"},
    {"gbs", "--gbs,--global-batch-size",
     "sequences per iteration (four microbatches for each stage)"},
    {"source_seq", "--source-seq",
     "tokens per sequence that an encoder reads, whose decoder has --seq (as "
     "many, or Whisper's frames)"},
    {"images", "--images",
     "images per sequence, which a vision tower reads (0: text only); a tile "
     "counts as an image"},
    {"image_patches", "--image-patches",
     "patches per image (those of the tower's image size, or 1024)"},
    {"freeze_towers", "--freeze-towers",
     "train projectors and text, but no tower: true or false (default)"},
    {"precision", "--precision",
     "precision of large products: bf16 (default), fp16, fp8_delayed, "
     "fp8_current, fp8_rowwise, fp8_blockwise, mxfp8, nvfp4"},
    {"attention", "--attention,--attention-backend",
     "kernels of attention: auto (default), flash, fused, unfused"},
    {"grad_dtype", "--grad-dtype,--main-grads-dtype",
     "data type of gradients: fp32 (default) or bf16"},
    {"cuda_graphs", "--cuda-graphs",
     "use of CUDA graphs: none (default), partial or full"},
    {"dispatcher", "--dispatcher,--moe-token-dispatcher-type",
     "exchange of tokens between experts: alltoall (default), deepep, "
     "hybridep"},
    {"implementation", "--implementation",
     "whose operators save activations: fused (default: Megatron-Core's) or "
     "eager (Hugging Face modules)"},
    {"software", "--software",
     "generation of software whose speed is assumed: Megatron-Bridge (default; "
     "torchtitan if its keys are used), NeMo 25, torchtitan, ..."},
    {"nvlink_domain", "--nvlink-domain",
     "number of GPUs joined by NVLink (that of the GPU's usual nodes)"},
    {"network_gbs", "--network-gbs",
     "network bandwidth per GPU in one direction, GB/s (that of the GPU's "
     "usual nodes)"},
};

constexpr SettingFlag kStrategyFlags[] = {
    {"mbs", "--mbs,--micro-batch-size", "sequences per microbatch (1)"},
    {"tp", "--tp,--tensor-model-parallel-size",
     "degree of tensor parallelism (1); data parallelism takes the remaining "
     "GPUs"},
    {"sp", "--sp,--sequence-parallel",
     "sequence parallelism beside tensor parallelism: true (default) or false"},
    {"pp", "--pp,--pipeline-model-parallel-size",
     "degree of pipeline parallelism (1)"},
    {"vp", "--vp,--virtual-pipeline-model-parallel-size",
     "chunks per pipeline stage (1)"},
    {"pp_schedule", "--pp-schedule",
     "pipeline schedule: 1F1B, Interleaved1F1B, zero_bubble (ZB-H1), "
     "ZBVZeroBubble, VHalf, VMin or DualPipe"},
    {"cp", "--cp,--context-parallel-size", "degree of context parallelism (1)"},
    {"cp_comm_type", "--cp-comm-type",
     "how ranks of context parallelism exchange keys and values: p2p (default: "
     "a ring), all_gather, a2a"},
    {"ep", "--ep,--expert-model-parallel-size",
     "degree of expert parallelism (1)"},
    {"etp", "--etp,--expert-tensor-parallel-size",
     "number of ranks that share an expert's matrices (1)"},
    {"zero", "--zero",
     "what data parallelism shards: 0 nothing, 1 optimizer state (default), 2 "
     "also gradients, 3 also parameters (FSDP)"},
    {"recompute", "--recompute",
     "recomputation: none (default), full, full:N (layers per stage), "
     "every:N (each N-th layer), "
     "selective:PARTS (core_attn+layernorm+mla_up_proj+mlp+moe+moe_act), "
     "selective:op (torchtitan's rule), or plan: the optimal plan of each "
     "stage"},
    {"offload_layers", "--offload-layers",
     "layers per stage whose activations wait in host memory (0)"},
    {"offload_states", "--offload-states",
     "optimizer states wait in host memory between updates, and updates on the "
     "GPU move them: true or false (default)"},
    {"lora_rank", "--lora-rank",
     "rank of adapters (LoRA) that are trained in place of the model (0: "
     "none)"},
    {"lora_targets", "--lora-targets",
     "products that have adapters: all (default, of layers) or attention"},
    {"base_weights", "--base-weights",
     "frozen weights beside adapters: bf16 (default) or nf4 (QLoRA)"},
    {"hidden_dropout", "--hidden-dropout",
     "dropped share of the outputs of attention and feed-forward (the "
     "configuration's, or 0)"},
    {"attention_dropout", "--attention-dropout",
     "dropped share of the scores of unfused attention (the configuration's, "
     "or 0)"},
    {"overlap_dp", "--overlap-dp,--overlap-grad-reduce",
     "overlap data-parallel communication: true (default) or false"},
    {"overlap_tp", "--overlap-tp,--tp-comm-overlap",
     "overlap tensor-parallel communication: true or false (default)"},
    {"overlap_ep", "--overlap-ep,--overlap-moe-expert-parallel-comm",
     "overlap the exchange of tokens between experts: true or false (default)"},
};

std::string FirstName(std::string_view names) {
  return std::string(names.substr(0, names.find(',')));
}

std::string FlagOf(const std::string& key) {
  for (const SettingFlag& flag : kCommonFlags) {
    if (key == flag.key) return FirstName(flag.names);
  }
  for (const SettingFlag& flag : kStrategyFlags) {
    if (key == flag.key) return FirstName(flag.names);
  }
  return key;
}

std::pair<std::string, costmodel::StrategySetting> ParseSet(
    const std::string& text, std::string_view place) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw InputError(fmt::format("{}: expected KEY=VALUE, found {}", place,
                                 graph::Quoted(text)));
  }
  const std::string key = text.substr(0, equals);
  return costmodel::NamedSetting(
      key, text.substr(equals + 1),
      fmt::format("{}: {}", place, graph::OneLine(key)));
}

costmodel::StrategySettings ParseList(const std::string& list) {
  costmodel::StrategySettings settings;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    auto [key, setting] =
        ParseSet(list.substr(begin, end - begin), graph::OneLine(list));
    settings[key] = std::move(setting);
    begin = end + 1;
  }
  return settings;
}

NamedStrategy ReadStrategyOfSearch(const graph::JsonField& root,
                                   const StrategyFile& strategy_file) {
  const std::vector<graph::JsonField> best = root.Get("best").Elements();
  const std::string rank = strategy_file.rank.value_or("1");
  if (best.empty()) root.Get("best").Fail("at least one strategy");
  // As the table of the search and the page count them, from 1.
  const int64_t row =
      ParseWhole(rank, graph::OneLine(strategy_file.file) + ": rank", 1,
                 static_cast<int64_t>(best.size()));
  const std::string place =
      fmt::format("{}: best.{}.strategy", strategy_file.file, row - 1);
  return {fmt::format("{}:{}", FileStem(strategy_file.file), row),
          costmodel::SettingsOf(
              best[static_cast<size_t>(row - 1)].Get("strategy"), place)};
}

}  // namespace

void AddCalibrate(CLI::App& app, std::string& path) {
  app.add_option("--calibrate", path,
                 "one to five measured runs of your own, as train score reads "
                 "them: predictions are multiplied by what they say")
      ->type_name("CSV");
}

costmodel::Calibration ReadCalibration(
    const std::string& path, const costmodel::TrainingSystems& systems) {
  return costmodel::CalibrateToTable(
      graph::ParseCsv(graph::ReadFile(path, graph::kMostListBytes), path),
      systems);
}

std::string TextOf(const costmodel::Calibration& calibration) {
  const std::string factors =
      calibration.IsOneFactor()
          ? fmt::format("x {:.3f}", calibration.computation)
          : fmt::format(
                "computation x {:.3f}, communication x {:.3f}, host x "
                "{:.3f}",
                calibration.computation, calibration.communication,
                calibration.host);
  return fmt::format(
      "calibrated by {} {}: {}; their error {:.1f} %, {} {:.1f} %\n",
      calibration.runs, calibration.runs == 1 ? "run" : "runs", factors,
      100 * calibration.error_before,
      calibration.runs == 1 ? "calibrated" : "each from the others",
      100 * calibration.error_after);
}

std::shared_ptr<const costmodel::IntervalModel> ReadIntervals() {
  const std::string path = RunErrorsFile().string();
  return std::make_shared<const costmodel::IntervalModel>(
      costmodel::ReadRunErrors(
          graph::ParseCsv(graph::ReadFile(path, graph::kMostListBytes), path)));
}

double BudgetOf(const TrainQuestion& question,
                const costmodel::TrainingJob& job) {
  return costmodel::PyTorchBytes(question.limit, job);
}

NamedStrategy ReadNamedStrategy(const std::string& argument) {
  if (IsSettingList(argument)) {
    return {graph::OneLine(argument, 400), ParseList(argument)};
  }
  const StrategyFile strategy_file = SplitStrategyArgument(argument);
  const nlohmann::json document = graph::ParseJson(
      graph::ReadJsonText(strategy_file.file), strategy_file.file);
  const graph::JsonField root(document, strategy_file.file);
  const std::string format = document.is_object() && root.Has("format")
                                 ? root.Get("format").String()
                                 : "";
  if (format == "acplan.training_search") {
    return ReadStrategyOfSearch(root, strategy_file);
  }
  if (strategy_file.rank) {
    root.Complain(
        fmt::format("expected a file of train search for rank {}, found {}",
                    graph::Quoted(*strategy_file.rank),
                    format.empty() ? "settings" : graph::Quoted(format)));
  }
  const std::string stem = graph::OneLine(FileStem(strategy_file.file), 400);
  if (format == "acplan.training" || format == "acplan.training_plan") {
    return {stem, costmodel::SettingsOf(root.Get("strategy"),
                                        strategy_file.file + ": strategy")};
  }
  return {stem, costmodel::SettingsOf(root, strategy_file.file)};
}

void SetRecomputation(const std::string& value,
                      costmodel::StrategySettings& settings) {
  for (const char* key : {"granularity", "method", "recompute_layers",
                          "modules", "ac_mode", "ac_option"}) {
    settings.erase(key);
  }
  settings["recompute"] = {value, "recompute"};
}

void TrainFlags::AddTo(CLI::App& app, bool has_strategy) {
  app.add_option("CONFIG", config,
                 "model: config.json of Hugging Face transformers (.json or "
                 ".json.gz)")
      ->required();
  const auto add = [&](const SettingFlag& flag) {
    app.add_option(flag.names, settings[flag.key], flag.help)
        ->type_name("VALUE");
  };
  for (const SettingFlag& flag : kCommonFlags) add(flag);
  if (has_strategy) {
    for (const SettingFlag& flag : kStrategyFlags) add(flag);
  }
  app.add_option(
         "--strategy", strategy,
         "file of settings, named as in acplan, Megatron-LM or torchtitan, or "
         "a file that train show, train plan or train search (FILE:RANK from "
         "1, or FILE for the fastest) wrote; flags replace its settings")
      ->type_name("JSON");
  app.add_option("--set", set,
                 "any setting without a flag of its own; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--systems", systems,
                 "file of GPUs and software (default: training/systems.json of "
                 "the data that came with acplan)")
      ->type_name("JSON");
  app.add_option("--system", system,
                 "your own GPU, as python -m acplan measure-system writes it; "
                 "the default for --gpu")
      ->type_name("JSON");
  app.add_option(
         "--budget", budget,
         "memory that PyTorch may use on a GPU: 70GiB (default: what the GPU "
         "offers, less CUDA context and NCCL's buffers)")
      ->type_name("SIZE");
  app.add_option("--allocator-loss", allocator_loss,
                 "share of its memory that PyTorch's allocator cannot use for "
                 "tensors at the peak (0.065; --budget leaves it out)")
      ->type_name("X");
  AddCalibrate(app, calibrate);
  app.add_option("--tokens", tokens,
                 "tokens of the whole training: prints its GPU-hours")
      ->type_name("N");
  app.add_option("--price", price,
                 "price of a GPU-hour: prints the cost of the training, or of "
                 "10^9 tokens")
      ->type_name("X");
}

costmodel::ModelConfig TrainFlags::ReadConfig(const Terminal& terminal) const {
  const std::string text = graph::ReadJsonText(config);
  const nlohmann::json document = graph::ParseJson(text, config);
  if (document.is_object() && !document.contains("model_type") &&
      document.contains("num_blocks")) {
    throw InputError(fmt::format(
        "{}: expected a config.json of Hugging Face transformers, found a "
        "model for Calculon, which calculon llm and llm-optimal-execution read",
        graph::OneLine(config, 400)));
  }
  costmodel::ModelConfig read = costmodel::ParseModelConfig(text, config);
  for (const std::string& note : read.notes) {
    terminal.Warn(fmt::format("{}: {}", graph::OneLine(config, 400), note));
  }
  return read;
}

costmodel::ModelShape TrainFlags::ReadModel(const Terminal& terminal) const {
  return ReadConfig(terminal).shape;
}

costmodel::TrainingSystems TrainFlags::ReadSystems() const {
  costmodel::TrainingSystems read = ReadUncalibratedSystems();
  if (calibrate.empty()) return read;
  const costmodel::Calibration calibration = ReadCalibration(calibrate, read);
  return WithCalibration(std::move(read), calibration);
}

costmodel::TrainingSystems TrainFlags::ReadUncalibratedSystems() const {
  costmodel::TrainingSystems read =
      costmodel::ReadTrainingSystems(SystemsFile(systems));
  if (!system.empty()) {
    const std::vector<costmodel::Accelerator> own =
        costmodel::ReadOwnAccelerators(system);
    read.accelerators.insert(read.accelerators.begin(), own.begin(), own.end());
  }
  return costmodel::WithOffers(std::move(read),
                               graph::ReadDeviceTable(DevicesFile()));
}

costmodel::StrategySettings TrainFlags::ReadSettings(
    const costmodel::StrategySettings& own) const {
  costmodel::StrategySettings all;
  if (!strategy.empty()) all = ReadNamedStrategy(strategy).settings;
  for (const auto& [key, setting] : own) all[key] = setting;
  for (const std::string& text : set) {
    auto [key, setting] = ParseSet(text, "--set");
    all[key] = std::move(setting);
  }
  for (const auto& [key, value] : settings) {
    if (!value.empty()) all[key] = {value, FlagOf(key)};
  }
  if (!system.empty() && !all.contains("gpu")) {
    all["gpu"] = {costmodel::ReadOwnAccelerators(system).front().name,
                  "--system"};
  }
  return all;
}

TrainQuestion TrainFlags::Question(const costmodel::Accelerator& gpu) const {
  const auto positive = [](const std::string& text, std::string_view flag) {
    return text.empty() ? std::nullopt
                        : std::optional(ParseNumber(text, flag, 1e-9, 1e18));
  };
  costmodel::MemoryLimit limit = costmodel::LimitOfGpu(gpu);
  if (!allocator_loss.empty()) {
    limit.allocator_loss =
        ParseNumber(allocator_loss, "--allocator-loss", 0, .9);
  }
  if (!budget.empty()) {
    limit = {static_cast<double>(graph::ParseByteSize(budget, "--budget"))};
  }
  std::optional<costmodel::Calibration> calibration;
  if (!calibrate.empty()) {
    calibration = ReadCalibration(calibrate, ReadUncalibratedSystems());
  }
  return {.model = FileStem(config),
          .limit = limit,
          .tokens = positive(tokens, "--tokens"),
          .price = positive(price, "--price"),
          .notes = {},
          .calibration = calibration,
          .intervals = ReadIntervals()};
}

}  // namespace acplan::cli
