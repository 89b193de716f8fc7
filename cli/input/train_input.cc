#include "cli/input/train_input.h"

#include <fmt/format.h>

#include "cli/input/data_folder.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

struct SettingFlag {
  const char* key;
  const char* names;
  const char* help;
};

// What strategies have in common that a search compares.
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
    {"ep", "--ep,--expert-model-parallel-size", "expert parallelism (1)"},
    {"zero", "--zero",
     "what data parallelism shards: 0 nothing, 1 the optimizer's state "
     "(default), 3 all"},
    {"recompute", "--recompute",
     "none (default), full, full:N (layers of a stage), selective:PARTS, "
     "selective:op (torchtitan's rule), or plan: the best of each stage"},
    {"offload_layers", "--offload-layers",
     "layers of a stage whose activations go to the host (0)"},
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
    const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw InputError(fmt::format("--set: expected KEY=VALUE, found {}",
                                 graph::Quoted(text)));
  }
  const std::string key = text.substr(0, equals);
  return costmodel::NamedSetting(key, text.substr(equals + 1),
                                 "--set: " + graph::OneLine(key));
}

}  // namespace

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
  app.add_option("--strategy", strategy,
                 "settings as acplan, Megatron-LM or torchtitan name them, "
                 "JSON; flags replace them")
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
}

costmodel::ModelShape TrainFlags::ReadModel() const {
  return costmodel::ReadHuggingFaceConfig(config);
}

costmodel::TrainingSystems TrainFlags::ReadSystems() const {
  costmodel::TrainingSystems read = costmodel::ReadTrainingSystems(
      systems.empty() ? DataFolder() / "training" / "systems.json"
                      : std::filesystem::path(systems));
  if (system.empty()) return read;
  const std::vector<costmodel::Accelerator> own =
      costmodel::ReadOwnAccelerators(system);
  read.accelerators.insert(read.accelerators.begin(), own.begin(), own.end());
  return read;
}

costmodel::StrategySettings TrainFlags::ReadSettings() const {
  costmodel::StrategySettings all;
  if (!strategy.empty()) {
    all = costmodel::ParseStrategySettings(graph::ReadFile(strategy), strategy);
  }
  for (const std::string& text : set) {
    auto [key, setting] = ParseSet(text);
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

double TrainFlags::Budget(const costmodel::Accelerator& gpu) const {
  if (budget.empty()) return gpu.memory;
  return static_cast<double>(graph::ParseByteSize(budget, "--budget"));
}

}  // namespace acplan::cli
