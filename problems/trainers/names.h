#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "problems/trainers/trainer.h"

namespace acplan::problems {

// The names that several trainers' configurations have in common.

// Returns shell patterns of the attention operators that trl and axolotl save together.
std::vector<std::string> AttentionPatterns();

// Returns the operators of the trace that match a pattern, ascending.
std::vector<std::string> Matching(const ConfigNames& names,
                                  const std::vector<std::string>& patterns);

// Returns "torch.ops.aten.mm.default".
std::string PythonName(const std::string& operator_name);

// Returns the lines of a Python set of operators, "SAVED = {...}".
std::string SavedSet(const std::vector<std::string>& names);

// Reads the operators of a list or set at a path, as in Python. Throws InputError for
// one that the trace lacks, with the nearest.
std::vector<std::string> ReadSaved(const Config& config, std::string_view path,
                                   const ConfigNames& names);

// Throws InputError for a name at `path` that is none of the known, with the nearest.
[[noreturn]] void FailUnknown(const Config& config, std::string_view path,
                              const std::string& name,
                              const std::vector<std::string>& known_names);

// Throws InputError for a value of a configuration that is none of the trainer's own, with
// the nearest.
[[noreturn]] void FailUnknownValue(const Config& config, std::string_view path,
                                   const std::string& value,
                                   const std::vector<std::string>& values);

// Throws InputError for a key of the table at `path` that is none of the known, with the
// nearest.
void RefuseOtherKeys(const Config& config, std::string_view path,
                     const std::vector<std::string>& known_keys);

// Returns a choice of all blocks, saving nothing.
TrainerPolicy WholeBlocks();

// Reads the classes of a list. Throws InputError for one that the trace lacks.
BlockChoice ReadClasses(const Config& config, std::string_view path,
                        const ConfigNames& names);

// Returns the first of the paths that has a value, or else the first.
std::string_view FirstOf(const Config& config,
                         std::initializer_list<std::string_view> paths);

// Reads the checkpoints of transformers' layers, as all trainers that are built on
// transformers have them: activation_checkpointing or gradient_checkpointing, and the options
// beside it.
ConfigReading ReadLayerCheckpoints(const Config& config, bool is_on_by_default);

// Makes checkpoints reentrant: they run their forward pass to the end.
void SetReentrant(ConfigReading& reading);

// Throws InputError for checkpoints of every n-th layer.
void RefuseEveryNth(const Config& config, const TrainerPolicy& policy);

// Returns the path of the options of these checkpoints.
std::string LayerOptionsPath(const Config& config);

// Throws InputError for checkpoints by FSDP, which are accelerate's.
void RefuseFsdpCheckpoints(const Config& config);

// Returns whether FSDP checkpoints the modules that it wraps.
bool HasFsdpCheckpoints(const Config& config);

// Adds the note that the step is compiled if one of the paths is true.
void NoteCompile(const Config& config,
                 std::initializer_list<std::string_view> paths,
                 ConfigReading& reading);

}  // namespace acplan::problems
