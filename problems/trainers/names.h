#pragma once

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

// Reads the operators of a list or set under a key, as in Python. Throws InputError for
// one that the trace lacks, with the nearest.
std::vector<std::string> ReadSaved(const ConfigText& text, std::string_view key,
                                   const ConfigNames& names);

// Throws InputError for a name under `key` that is none of the known, with the nearest.
[[noreturn]] void FailUnknown(const ConfigText& text, std::string_view key,
                              const std::string& name,
                              const std::vector<std::string>& known_names);

// Returns a choice of all blocks, saving nothing.
TrainerPolicy WholeBlocks();

// Reads the classes of a list. Throws InputError for one that the trace lacks.
BlockChoice ReadClasses(const ConfigText& text, std::string_view key,
                        const ConfigNames& names);

}  // namespace acplan::problems
