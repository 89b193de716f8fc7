#include "problems/trainers/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "graph/base/input_error.h"
#include "problems/language/language.h"
#include "problems/language/ties.h"

namespace acplan::problems {
namespace {

// Returns the language with the policy's own choice of blocks among its choices.
Language LanguageWith(const Trainer& trainer, const TrainerPolicy& policy) {
  Language language = trainer.language;
  const BlockKind kind = policy.blocks.kind;
  if (kind != BlockKind::kNone &&
      std::ranges::find(language.blocks, kind) == language.blocks.end()) {
    language.blocks.push_back(kind);
  }
  return language;
}

void RefuseNested(const graph::Trace& trace, const BlockChoice& blocks,
                  const Config& config) {
  if (blocks.kind != BlockKind::kClasses) return;
  size_t count = 0;
  for (const graph::ModuleId module : trace.modules.ids()) {
    const bool is_chosen =
        std::ranges::binary_search(blocks.classes,
                                   trace.modules[module].class_name) &&
        FirstCallWithGradients(trace, module) != graph::kNone;
    if (is_chosen) ++count;
  }
  if (count == UnitModules(trace, {}, blocks).size()) return;
  throw InputError(fmt::format(
      "{}: expected classes of which none is inside another one, as nested "
      "checkpoints are not simulated, found {}",
      config.name(), fmt::join(blocks.classes, ", ")));
}

// axolotl refuses to save products with LoRA.
void RefuseNeverSaved(const graph::Trace& trace, const Language& language,
                      const TrainerPolicy& policy, const Trainer& trainer,
                      const Config& config) {
  for (const std::string& name : policy.saved) {
    const bool is_refused =
        MatchesAny(name, language.never_saved) ||
        (HasLora(trace) && MatchesAny(name, language.never_saved_with_lora));
    if (!is_refused) continue;
    throw InputError(fmt::format(
        "{}: expected operators that {} may save, found {}, which it refuses "
        "{}",
        config.name(), trainer.name, QualifiedName(name),
        HasLora(trace) ? "with LoRA" : "to save"));
  }
}

std::string TextOf(const Trainer& trainer, const TrainerPolicy& policy,
                   const ConfigNames& names) {
  std::string text = trainer.write(policy, names);
  const Config config(text, std::string(trainer.name), trainer.format);
  return trainer.read(config, names).policy == policy ? text : "";
}

}  // namespace

Audit AuditConfig(const Question& question, const Trainer& trainer,
                  const Config& config, const std::string& blocks,
                  const std::optional<Budget>& budget) {
  const Question plain = WithoutSkips(question);
  const Families families = BuildFamilies(plain);
  const PlanningProblem& problem = families.front().problem;
  const std::vector<graph::ModuleId> block_modules =
      BlocksOf(*question.trace, blocks);
  const ConfigNames names = ConfigNamesOf(*question.trace, block_modules);
  Audit audit{.reading = trainer.read(config, names),
              .baseline_bytes = problem.unplanned_peak_bytes};
  const TrainerPolicy& policy = audit.reading.policy;
  Trainer widened = trainer;
  widened.language = LanguageWith(trainer, policy);
  RefuseNested(*question.trace, policy.blocks, config);
  RefuseNeverSaved(*question.trace, widened.language, policy, trainer, config);
  const RestrictedTrace restriction =
      Restrict(problem, widened.language, block_modules);
  const std::optional<PolicyEffect> effect = EffectOf(restriction, policy);
  if (!effect) {
    throw InputError(fmt::format(
        "{}: expected a policy that PyTorch runs: {}", config.name(),
        BrokenRuleOf(restriction, widened.language, policy)
            .value_or("it refuses this one")));
  }
  audit.effect = *effect;
  audit.reruns = RerunsByName(restriction.trace_problem().simulator.Simulate(
                                  PlannedUnitsOf(restriction, policy)),
                              *question.trace);
  audit.modules = ModulesOf(restriction, policy);
  audit.broken_rule = BrokenRuleOf(restriction, widened.language, policy);
  const int64_t reserve_bytes = problem.options.reserve_bytes;
  const int64_t need_bytes = effect->peak_bytes + reserve_bytes;
  audit.budget_bytes =
      budget ? budget->Bytes(problem.unplanned_peak_bytes) : need_bytes;
  audit.fits = need_bytes <= audit.budget_bytes;
  audit.change = FindBestChange(restriction, widened.language, policy, *effect,
                                audit.budget_bytes - reserve_bytes);
  if (audit.change.best) {
    audit.changed_text =
        TextOf(trainer, audit.change.best->change.policy, names);
  }
  audit.best = Emit(question, {.bytes = audit.budget_bytes}, widened, blocks);
  return audit;
}

}  // namespace acplan::problems
