#include "problems/trainers/trainer.h"

#include <fmt/format.h>

#include <set>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"
#include "problems/language/module_parts.h"

namespace acplan::problems {

ConfigNames ConfigNamesOf(const graph::Trace& trace,
                          const std::vector<graph::ModuleId>& blocks) {
  ConfigNames names;
  const std::string root = trace.modules.front().fqn + ".";
  for (const graph::ModuleId block : blocks) {
    const std::string& fqn = trace.modules[block].fqn;
    names.blocks.push_back(fqn.starts_with(root) ? fqn.substr(root.size())
                                                 : fqn);
  }
  std::set<std::string> operators, places;
  for (const graph::ModuleId block : blocks) {
    const graph::CallId call = FirstCallWithGradients(trace, block);
    if (call == graph::kNone) continue;
    for (const graph::OperatorId op : trace.calls[call].Operators()) {
      operators.insert(NameOf(trace, block, op, NameKind::kOperators));
      places.insert(NameOf(trace, block, op, NameKind::kPlaces));
    }
  }
  names.operators.assign(operators.begin(), operators.end());
  names.places.assign(places.begin(), places.end());
  names.parts = PartsOf(trace, blocks);
  std::set<std::string> classes;
  for (const graph::TraceModule& module : trace.modules) {
    classes.insert(module.class_name);
    names.modules.push_back(module.fqn);
  }
  names.classes.assign(classes.begin(), classes.end());
  std::set<std::string> block_classes;
  for (const graph::ModuleId block : blocks) {
    block_classes.insert(trace.modules[block].class_name);
  }
  names.block_classes.assign(block_classes.begin(), block_classes.end());
  return names;
}

std::vector<Trainer> Trainers() {
  return {AccelerateTrainer(),   AxolotlTrainer(),  LightningTrainer(),
          MaxTextTrainer(),      MegatronTrainer(), NemoTrainer(),
          PrimeRlTrainer(),      TorchTrainer(),    TorchtitanTrainer(),
          TransformersTrainer(), TrlTrainer(),      VeOmniTrainer()};
}

std::string TrainerNames() {
  std::string names;
  for (const Trainer& trainer : Trainers()) {
    if (!names.empty()) names += ", ";
    names += trainer.name;
  }
  return names;
}

Trainer FindTrainer(std::string_view name, std::string_view flag) {
  std::vector<std::string> names;
  for (const Trainer& trainer : Trainers()) {
    if (trainer.name == name) return trainer;
    names.emplace_back(trainer.name);
  }
  const std::vector<std::string> near = graph::NearestNames(name, names, 1);
  throw InputError(fmt::format(
      "{}: expected one of {}, found {}{}", flag, fmt::join(names, ", "),
      graph::Quoted(name),
      near.empty() ? "" : fmt::format("; nearest: {}", near.front())));
}

Trainer DetectTrainer(const Config& config, std::string_view flag) {
  std::vector<Trainer> trainers;
  std::vector<std::string_view> names;
  for (const Trainer& trainer : Trainers()) {
    if (!trainer.is_like(config)) continue;
    trainers.push_back(trainer);
    names.push_back(trainer.name);
  }
  if (trainers.size() == 1) return trainers.front();
  throw InputError(fmt::format(
      "{}: expected keys of one trainer, found those of {}; say which with {}",
      config.name(),
      names.empty() ? "none" : fmt::format("{}", fmt::join(names, " and ")),
      flag));
}

}  // namespace acplan::problems
