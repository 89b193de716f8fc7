#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/trace/trace.h"
#include "problems/language/language.h"
#include "problems/language/trainer_policy.h"
#include "problems/trainers/config.h"

namespace acplan::problems {

// Trainers, and their configurations as the text of files: TOML, YAML, Python, ... Each
// trainer has a source of its own in this folder, which says what its language is, writes
// a policy, and reads the policy of a whole configuration as people have it.

// The names of a trace that configurations contain.
struct ConfigNames {
  std::vector<std::string> blocks = {};         // without the name of the root
  std::vector<std::string> operators = {};      // that blocks run, ascending
  std::vector<std::string> classes = {};        // of all modules, ascending
  std::vector<std::string> block_classes = {};  // of blocks, ascending
  std::vector<std::string> modules = {};        // the names of all modules
  std::vector<std::string> parts = {};  // of blocks (module_parts.h), ascending
  std::vector<std::string> places =
      {};  // operators of blocks with their places
};
ConfigNames ConfigNamesOf(const graph::Trace& trace,
                          const std::vector<graph::ModuleId>& blocks);

// The policy of a configuration.
struct ConfigReading {
  TrainerPolicy policy = {};
  // Sentences on what a policy does not say: parts of the configuration that change memory
  // or time (offloading, compilation), and choices of the reader.
  std::vector<std::string> notes = {};
};

struct Trainer {
  std::string_view name;  // as --for takes it
  std::string_view
      version;             // the release whose code was read: "axolotl 0.19.0"
  std::string_view place;  // where the text goes, in words
  Language language;
  ConfigFormat format;  // of the text
  // Returns the text, without comments at its top. The policy is one of the language.
  std::string (*write)(const TrainerPolicy& policy, const ConfigNames& names);
  // Reads a configuration of any format. Throws InputError that names the file for a policy
  // that cannot be simulated, and for a name that the trace lacks, with the nearest.
  ConfigReading (*read)(const Config& config, const ConfigNames& names);
  // Returns whether a configuration has a key or name that this trainer's alone have.
  bool (*is_like)(const Config& config);
};

Trainer AccelerateTrainer();
Trainer AxolotlTrainer();
Trainer LightningTrainer();
Trainer MaxTextTrainer();
Trainer MegatronTrainer();
Trainer NemoTrainer();
Trainer PrimeRlTrainer();
Trainer TorchTrainer();
Trainer TorchtitanTrainer();
Trainer TransformersTrainer();
Trainer TrlTrainer();
Trainer VeOmniTrainer();

// Returns all of them, in the order of their names.
std::vector<Trainer> Trainers();

// Returns their names, with commas between.
std::string TrainerNames();

// Throws InputError with the nearest name.
Trainer FindTrainer(std::string_view name, std::string_view flag);

// Returns the trainer that a configuration is for. Throws InputError that asks for `flag` if
// none or several fit.
Trainer DetectTrainer(const Config& config, std::string_view flag);

}  // namespace acplan::problems
