#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/training/strategy/training_job.h"
#include "graph/base/json_fields.h"

namespace acplan::costmodel {

// One setting of a strategy: its value as text, and its place, for errors ("strategy.json:
// tensor_model_parallel_size").
struct StrategySetting {
  std::string value = {};
  std::string place = {};
};

// Settings indexed by acplan's names ("tp"), docs/file_formats.md, "Strategy of a training
// run".
using StrategySettings = std::map<std::string, StrategySetting, std::less<>>;

// Parses the settings of a strategy file: a JSON object whose keys are acplan's,
// Megatron-LM's arguments (with - or _) or torchtitan's (alone, or in the sections of its
// configuration). Throws InputError if a key is unknown, gives the same setting as another
// key, or is no boolean, number, text or list of texts.
StrategySettings ParseStrategySettings(std::string_view text,
                                       std::string_view file);
// Reads the settings of an object inside of a document; `place` comes before its keys in
// errors.
StrategySettings SettingsOf(const graph::JsonField& object,
                            std::string_view place);

// Returns acplan's name for a key, and its value as acplan writes it. Throws InputError
// with the nearest names if the key is unknown.
std::pair<std::string, StrategySetting> NamedSetting(std::string_view key,
                                                     std::string_view value,
                                                     std::string place);

// Returns the schedules of pipelines that a search of settings tries: the given one, all
// for "any", or those of the software.
std::vector<PipelineSchedule> SearchedSchedules(
    const StrategySettings& settings, const SoftwareStack& stack);

// Returns the job that settings describe: the GPU and software of `systems` that they name,
// the strategy, and the defaults of docs/file_formats.md for everything else. Throws
// InputError in one line if a value is invalid, or if settings contradict each other, the
// model or the GPU.
TrainingJob JobOfSettings(const ModelShape& shape,
                          const StrategySettings& settings,
                          const TrainingSystems& systems);

// Returns the same job without checking the rules between degrees, batch and model, for
// settings that are searched.
TrainingJob StatedJob(const ModelShape& shape, const StrategySettings& settings,
                      const TrainingSystems& systems);

// Checks rules in addition to CheckStrategy's: those of schedules, kernels and the GPU's
// abilities. Measured runs may break them if pages do not tell everything. Throws
// InputError.
void CheckStatedStrategy(const TrainingJob& job);

// Checks those of these rules that do not depend on degrees, batch or schedule, so that a
// job which breaks one has no strategy. Throws InputError.
void CheckStatedJob(const TrainingJob& job);

}  // namespace acplan::costmodel
