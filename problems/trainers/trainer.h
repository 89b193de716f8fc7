#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/trace/trace.h"
#include "problems/language/language.h"
#include "problems/language/trainer_policy.h"
#include "problems/trainers/config_text.h"

namespace acplan::problems {

// Trainers, and their configurations as the text of files: TOML, YAML or Python. Each
// trainer has a source of its own in this folder, which says what its language is, writes
// a policy and reads it back.

// The names of a trace that configurations contain.
struct ConfigNames {
  std::vector<std::string> blocks = {};     // without the name of the root
  std::vector<std::string> operators = {};  // that blocks run, ascending
  std::vector<std::string> classes = {};    // of all modules, ascending
};
ConfigNames ConfigNamesOf(const graph::Trace& trace,
                          const std::vector<graph::ModuleId>& blocks);

struct Trainer {
  std::string_view name;  // as --for takes it
  std::string_view
      version;             // the release whose code was read: "axolotl 0.19.0"
  std::string_view place;  // where the text goes, in words
  Language language;
  // Returns the text, without comments at its top. The policy is one of the language.
  std::string (*write)(const TrainerPolicy& policy, const ConfigNames& names);
  // Throws InputError that names the file for a configuration that is no policy of the
  // language, and for a name that the trace lacks, with the nearest.
  TrainerPolicy (*read)(const ConfigText& text, const ConfigNames& names);
};

Trainer AccelerateTrainer();
Trainer AxolotlTrainer();
Trainer LightningTrainer();
Trainer PrimeRlTrainer();
Trainer TorchTrainer();
Trainer TorchtitanTrainer();
Trainer TransformersTrainer();
Trainer TrlTrainer();

// Returns all of them, in the order of their names.
std::vector<Trainer> Trainers();

// Throws InputError with the nearest name.
Trainer FindTrainer(std::string_view name, std::string_view flag);

}  // namespace acplan::problems
