#include "problems/trainers/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "graph/base/input_error.h"
#include "problems/language/language.h"
#include "problems/language/ties.h"
#include "problems/trainers/device_emit.h"

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

void RefuseNested(const graph::Trace& trace,
                  const std::vector<graph::ModuleId>& block_modules,
                  const BlockChoice& blocks, const Config& config) {
  // Runs are of no trace yet, and never nested.
  if (blocks.kind == BlockKind::kRuns ||
      CountOfUnits(trace, block_modules, blocks) ==
          UnitModules(trace, block_modules, blocks).size()) {
    return;
  }
  throw InputError(fmt::format(
      "{}: expected {} of which none is inside another one, as nested "
      "checkpoints are not simulated, found {}",
      config.name(), blocks.kind == BlockKind::kClasses ? "classes" : "modules",
      fmt::join(
          blocks.kind == BlockKind::kClasses ? blocks.classes : blocks.parts,
          ", ")));
}

// axolotl refuses to save products with LoRA.
void RefuseNeverSaved(const graph::Trace& trace, const Language& language,
                      const TrainerPolicy& policy, const Trainer& trainer,
                      const Config& config) {
  for (const std::string& name : policy.KeptNames()) {
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

// Runs of blocks that are not called one right after the other are no units.
void RequireRuns(const RestrictedTrace& restriction, const BlockChoice& blocks,
                 const Config& config) {
  if (ChangeOf(blocks).IsNone() || restriction.StepOf(blocks) != nullptr) {
    return;
  }
  throw InputError(fmt::format(
      "{}: expected blocks that are called one right after the other, as runs "
      "of {} are one unit each",
      config.name(), blocks.period));
}

// Compares the policy with better ones within the limit.
void Compare(const Question& question, const LanguageProblem& language,
             const Trainer& trainer, const AuditLimit& limit, Audit& audit) {
  const RestrictedTrace& restriction = language.restriction;
  const TrainerPolicy& policy = audit.reading.policy;
  const int64_t reserve_bytes = question.options.reserve_bytes;
  const int64_t need_bytes = audit.effect.peak_bytes + reserve_bytes;
  PolicyLimit policy_limit;
  audit.budget_bytes = need_bytes;
  if (const auto* budget = std::get_if<Budget>(&limit)) {
    audit.budget_bytes = budget->Bytes(language.problem().unplanned_peak_bytes);
  } else if (const auto* device = std::get_if<DeviceChoice>(&limit)) {
    audit.budget_bytes = device->memory_bytes;
    audit.device = DeviceOfPolicy(restriction, policy, *device, reserve_bytes);
    policy_limit.fits = [&restriction, device,
                         reserve_bytes](const TrainerPolicy& other) {
      return DeviceOfPolicy(restriction, other, *device, reserve_bytes)
          .has_value();
    };
  }
  policy_limit.usable_bytes = audit.budget_bytes - reserve_bytes;
  audit.fits = policy_limit.Allows(policy, audit.effect);
  audit.change = FindBestChange(restriction, trainer.language, policy,
                                audit.effect, policy_limit);
}

}  // namespace

Audit AuditConfig(const Question& question, const Trainer& trainer,
                  const Config& config, const std::string& blocks,
                  const AuditLimit& limit) {
  const std::vector<graph::ModuleId> block_modules =
      BlocksLike(*question.trace, blocks);
  const ConfigNames names = ConfigNamesOf(*question.trace, block_modules);
  Audit audit{.reading = trainer.read(config, names)};
  const TrainerPolicy& policy = audit.reading.policy;
  Trainer widened = trainer;
  widened.language = LanguageWith(trainer, policy);
  RefuseNested(*question.trace, block_modules, policy.blocks, config);
  RefuseNeverSaved(*question.trace, widened.language, policy, trainer, config);
  const LanguageProblem language =
      BuildLanguageProblem(question, widened.language, blocks);
  const RestrictedTrace& restriction = language.restriction;
  RequireRuns(restriction, policy.blocks, config);
  audit.baseline_bytes = language.problem().unplanned_peak_bytes;
  const std::optional<PolicyEffect> effect = EffectOf(restriction, policy);
  if (!effect) {
    throw InputError(fmt::format(
        "{}: expected a policy that PyTorch runs: {}", config.name(),
        BrokenRuleOf(restriction, widened.language, policy)
            .value_or("it refuses this one")));
  }
  audit.effect = *effect;
  if (!policy.offloaded.empty() && !restriction.link) {
    audit.reading.notes.emplace_back(
        "what is offloaded is away from the device as in acplan's own plans; "
        "the time of its copies is counted with --offload RATE alone");
  }
  audit.reruns =
      RerunsByName(restriction.TraceProblemOf(policy.blocks)
                       .simulator.Simulate(PlannedUnitsOf(restriction, policy)),
                   *question.trace);
  audit.changed_step = restriction.StepOf(policy.blocks);
  audit.modules = ModulesOf(restriction, policy);
  audit.broken_rule = BrokenRuleOf(restriction, widened.language, policy);
  Compare(question, language, widened, limit, audit);
  if (audit.change.best) {
    audit.changed_text =
        TextOf(trainer, audit.change.best->change.policy, names);
  }
  const auto* device = std::get_if<DeviceChoice>(&limit);
  audit.best =
      device != nullptr
          ? EmitForDevice(question, *device, widened, blocks)
          : Emit(question, {.bytes = audit.budget_bytes}, widened, blocks);
  return audit;
}

}  // namespace acplan::problems
