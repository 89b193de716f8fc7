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
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
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
    {"gpus", "--gpus,--world-size", "how many GPUs"},
    {"seq", "--seq,--seq-length", "tokens of a sequence (4096)"},
    {"gbs", "--gbs,--global-batch-size", "sequences of an iteration"},
    {"precision", "--precision",
     "of the large products: bf16 (default), fp16, fp8_delayed, fp8_current, "
     "fp8_rowwise, fp8_blockwise, mxfp8, nvfp4"},
    {"attention", "--attention,--attention-backend",
     "auto (default), flash, fused, unfused"},
    {"grad_dtype", "--grad-dtype,--main-grads-dtype",
     "of gradients: fp32 (default) or bf16"},
    {"cuda_graphs", "--cuda-graphs", "none (default), partial or full"},
    {"dispatcher", "--dispatcher,--moe-token-dispatcher-type",
     "of experts: alltoall (default), deepep, hybridep"},
    {"implementation", "--implementation",
     "fused (default: Megatron-Core), or eager (Hugging Face modules)"},
    {"software", "--software",
     "whose speed counts: Megatron-Bridge (default), NeMo 25, torchtitan, ..."},
    {"nvlink_domain", "--nvlink-domain", "GPUs that NVLink joins (the GPU's)"},
    {"network_gbs", "--network-gbs",
     "of the network, GB/s a GPU in one direction (the GPU's)"},
};

constexpr SettingFlag kStrategyFlags[] = {
    {"mbs", "--mbs,--micro-batch-size", "sequences of a microbatch (1)"},
    {"tp", "--tp,--tensor-model-parallel-size", "tensor parallelism (1)"},
    {"sp", "--sp,--sequence-parallel",
     "true (default) or false: sequence parallelism beside it"},
    {"pp", "--pp,--pipeline-model-parallel-size", "pipeline parallelism (1)"},
    {"vp", "--vp,--virtual-pipeline-model-parallel-size",
     "chunks of a stage (1)"},
    {"pp_schedule", "--pp-schedule",
     "1F1B, Interleaved1F1B, zero_bubble (ZB-H1), ZBVZeroBubble or DualPipe"},
    {"cp", "--cp,--context-parallel-size", "context parallelism (1)"},
    {"cp_comm_type", "--cp-comm-type",
     "how it exchanges keys and values: p2p (default: a ring), all_gather, "
     "a2a"},
    {"ep", "--ep,--expert-model-parallel-size", "expert parallelism (1)"},
    {"etp", "--etp,--expert-tensor-parallel-size",
     "ranks that share an expert's matrices (1)"},
    {"zero", "--zero",
     "what data parallelism shards: 0 nothing, 1 the optimizer's state "
     "(default), 3 all"},
    {"recompute", "--recompute",
     "none (default), full, full:N (layers of a stage), selective:PARTS, "
     "selective:op (torchtitan's rule), or plan: the best of each stage"},
    {"offload_layers", "--offload-layers",
     "layers of a stage whose activations go to the host (0)"},
    {"hidden_dropout", "--hidden-dropout",
     "of attention's and the feed-forward's output (the configuration's, or "
     "0)"},
    {"attention_dropout", "--attention-dropout",
     "of scores, where attention is unfused (the configuration's, or 0)"},
    {"overlap_dp", "--overlap-dp,--overlap-grad-reduce",
     "true (default) or false: data-parallel communication"},
    {"overlap_tp", "--overlap-tp,--tp-comm-overlap",
     "true or false (default): tensor-parallel communication"},
    {"overlap_ep", "--overlap-ep,--overlap-moe-expert-parallel-comm",
     "true or false (default): exchange of tokens"},
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

NamedStrategy ReadNamedStrategy(const std::string& argument) {
  if (IsSettingList(argument)) {
    return {graph::OneLine(argument, 400), ParseList(argument)};
  }
  const StrategyFile strategy_file = SplitStrategyArgument(argument);
  const nlohmann::json document =
      graph::ParseJson(graph::ReadFile(strategy_file.file), strategy_file.file);
  const graph::JsonField root(document, strategy_file.file);
  const std::string format = document.is_object() && root.Has("format")
                                 ? root.Get("format").String()
                                 : "";
  if (format == "acplan.training_search") {
    return ReadStrategyOfSearch(root, strategy_file);
  }
  if (strategy_file.rank) {
    root.Complain(fmt::format(
        "expected what train search wrote, of which {} is a rank, found {}",
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
         "settings as acplan, Megatron-LM or torchtitan name them, "
         "JSON, or what train show, train plan or train search (FILE:RANK) "
         "wrote; flags replace them")
      ->type_name("JSON");
  app.add_option("--set", set,
                 "any other of these settings; may be given more than once")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--systems", systems,
                 "GPUs and software, JSON (default: training/systems.json of "
                 "the data that came with acplan)")
      ->type_name("JSON");
  app.add_option("--system", system,
                 "one's own GPU, as python -m acplan measure-system wrote it; "
                 "where no --gpu is said, it is meant")
      ->type_name("JSON");
  app.add_option("--budget", budget,
                 "memory of a GPU in place of what it has: 70GiB")
      ->type_name("SIZE");
  app.add_option("--tokens", tokens,
                 "of the whole training: GPU-hours are told")
      ->type_name("N");
  app.add_option("--price", price, "of a GPU for an hour: cost is told")
      ->type_name("X");
}

costmodel::ModelConfig TrainFlags::ReadConfig(const Terminal& terminal) const {
  const std::string text = graph::ReadFile(config);
  const nlohmann::json document = graph::ParseJson(text, config);
  if (document.is_object() && !document.contains("model_type") &&
      document.contains("num_blocks")) {
    throw InputError(fmt::format(
        "{}: expected a config.json of Hugging Face transformers, found a "
        "model of Calculon's, which llm and llm-optimal-execution read",
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
  costmodel::TrainingSystems read =
      costmodel::ReadTrainingSystems(SystemsFile(systems));
  if (system.empty()) return read;
  const std::vector<costmodel::Accelerator> own =
      costmodel::ReadOwnAccelerators(system);
  read.accelerators.insert(read.accelerators.begin(), own.begin(), own.end());
  return read;
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
  return {.model = FileStem(config),
          .budget = budget.empty() ? gpu.memory
                                   : static_cast<double>(graph::ParseByteSize(
                                         budget, "--budget")),
          .tokens = positive(tokens, "--tokens"),
          .price = positive(price, "--price")};
}

}  // namespace acplan::cli
