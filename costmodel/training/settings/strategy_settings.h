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

// What one setting of a strategy says: its value as text, and where it stands, for
// complaints ("strategy.json: tensor_model_parallel_size").
struct StrategySetting {
  std::string value = {};
  std::string place = {};
};

// Settings by acplan's names of them ("tp"), docs/file_formats.md, "Strategy of a
// training run".
using StrategySettings = std::map<std::string, StrategySetting, std::less<>>;

// The settings of a strategy file: a JSON object whose keys are acplan's,
// Megatron-LM's arguments (with - or _) or torchtitan's (alone, or in the
// sections of its configuration). Throws InputError where a key is unknown, says
// what another one says, or is no boolean, number, text or list of texts.
StrategySettings ParseStrategySettings(std::string_view text,
                                       std::string_view file);
// The same of an object inside of a document; `place` stands before its keys in
// complaints.
StrategySettings SettingsOf(const graph::JsonField& object,
                            std::string_view place);

// acplan's name for a key, and its value as acplan writes it; throws InputError
// where the key is unknown, with the nearest ones.
std::pair<std::string, StrategySetting> NamedSetting(std::string_view key,
                                                     std::string_view value,
                                                     std::string place);

// The schedules of pipelines that a search of settings tries: the one that is said,
// all for "any", or those of the software.
std::vector<PipelineSchedule> SearchedSchedules(
    const StrategySettings& settings, const SoftwareStack& stack);

// The job that settings describe: the GPU and software of `systems` that they
// name, the strategy, and what is not said by the defaults of
// docs/file_formats.md. Throws InputError in one line where a value is no such
// value, or settings contradict each other, the model or the GPU.
TrainingJob JobOfSettings(const ModelShape& shape,
                          const StrategySettings& settings,
                          const TrainingSystems& systems);

// The same without rules between degrees, batch and model, for what is searched.
TrainingJob StatedJob(const ModelShape& shape, const StrategySettings& settings,
                      const TrainingSystems& systems);

// Rules beside CheckStrategy's, which measured runs may break where pages tell less
// than all: of schedules, kernels and what a GPU can do. Throws InputError.
void CheckStatedStrategy(const TrainingJob& job);

// Of these rules those that no degree, batch or schedule decides about, so that a job
// which breaks one has no strategy. Throws InputError.
void CheckStatedJob(const TrainingJob& job);

}  // namespace acplan::costmodel
