#include "problems/trainers/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/output_files.h"
#include "cli/input/planning_flags.h"
#include "cli/input/profile_input.h"
#include "cli/planning/plan_device.h"
#include "cli/planning/trainer_flags.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/profile/module_tree.h"
#include "graph/trace/stream_times.h"

namespace acplan::cli {

using problems::Audit;
using problems::ConfigFormat;
using problems::PolicyEffect;

namespace {

// A configuration is written by people.
constexpr size_t kMostConfigBytes = size_t{1} << 20;

struct AuditFlags {
  std::string config;
  std::string trace;
  std::string trainer;
  std::string budget;
  std::string format;
  std::string function;
  TrainerFlags search;
  std::string output;
  bool json = false;
};

struct FormatName {
  std::string_view name;
  std::string_view extension;
  ConfigFormat format;
};
constexpr std::array<FormatName, 6> kFormats = {{
    {"yaml", ".yaml", ConfigFormat::kYaml},
    {"yaml", ".yml", ConfigFormat::kYaml},
    {"toml", ".toml", ConfigFormat::kToml},
    {"json", ".json", ConfigFormat::kJson},
    {"python", ".py", ConfigFormat::kPython},
    {"flags", ".sh", ConfigFormat::kFlags},
}};

ConfigFormat ConfigFormatOf(const AuditFlags& flags) {
  const std::string extension =
      std::filesystem::path(flags.config).extension().string();
  for (const FormatName& format : kFormats) {
    const bool is_it = flags.format.empty() ? format.extension == extension
                                            : format.name == flags.format;
    if (is_it) return format.format;
  }
  if (!flags.format.empty()) {
    throw InputError(fmt::format(
        "--config-format: expected yaml, toml, json, python or flags, found {}",
        graph::Quoted(flags.format)));
  }
  throw InputError(
      fmt::format("{}: expected a name that ends in .yaml, .yml, .toml, .json, "
                  ".py or .sh; or use --config-format",
                  graph::OneLine(flags.config, 400)));
}

problems::Config ReadConfig(const AuditFlags& flags) {
  const ConfigFormat format = ConfigFormatOf(flags);
  return {graph::ReadFile(flags.config, kMostConfigBytes),
          graph::OneLine(flags.config, 400), format, flags.function};
}

// Returns the needs of a run with the policy, if one can be simulated.
std::vector<problems::DeviceNeed> NeedsOfAudit(
    const graph::Trace& trace, const Audit& audit,
    const problems::Question& question) {
  // Runs on the allocator offload nothing.
  if (!HasRun(&trace, question.options.memory) ||
      !audit.reading.policy.offloaded.empty()) {
    return {};
  }
  // Segments are named after their blocks, so that the trace itself has them.
  const bool has_other_trace =
      audit.changed_step != nullptr &&
      audit.reading.policy.blocks.kind != problems::BlockKind::kRuns;
  return problems::NeedsOfPlan(
      has_other_trace ? audit.changed_step->trace : trace, audit.modules,
      graph::AllocatorConfig().version);
}

std::string RerunText(const PolicyEffect& effect) {
  return fmt::format(
      "recomputes {} a step (+{}){}", FormatMs(effect.recompute_ms),
      FormatPercentUp(effect.overhead),
      effect.stall_ms > 0
          ? fmt::format(", waits {} for the link", FormatMs(effect.stall_ms))
          : "");
}

PolicyEffect EffectOfPlan(const problems::Plan& plan) {
  return {.peak_bytes = plan.peak_bytes,
          .recompute_ms = plan.recompute_ms,
          .overhead = plan.overhead,
          .stall_ms = plan.offload ? plan.offload->stall_ms : 0};
}

// Returns a row on a policy within the budget, and how much less it recomputes.
std::string PolicyRow(std::string_view title, const PolicyEffect& effect,
                      const Audit& audit) {
  const double less_ms = audit.effect.CostMs() - effect.CostMs();
  const std::string difference = less_ms > 0   ? FormatMs(less_ms) + " less"
                                 : less_ms < 0 ? FormatMs(-less_ms) + " more"
                                               : "as much";
  return fmt::format("{:<16}peak {}, {}: {}\n", title,
                     graph::FormatBytes(effect.peak_bytes), RerunText(effect),
                     difference);
}

// Returns the row of the best policy or plan that a search found.
std::string FoundRow(std::string_view title, const problems::Plan& plan,
                     const Audit& audit) {
  std::string row = PolicyRow(title, EffectOfPlan(plan), audit);
  if (plan.status == problems::PlanStatus::kOptimal) return row;
  row.pop_back();
  return row + fmt::format("; not proven, at least {} are needed\n",
                           FormatMs(plan.bound_ms));
}

std::string UnitsText(const Audit& audit) {
  const problems::TrainerPolicy& policy = audit.reading.policy;
  if (audit.modules.empty()) return "no checkpoints";
  std::string text = fmt::format("{} unit{}", audit.modules.size(),
                                 audit.modules.size() == 1 ? "" : "s");
  if (policy.KeptNames().empty()) text += ", everything runs again";
  if (!policy.saved.empty()) {
    std::vector<std::string> names;
    for (const std::string& name : policy.saved) {
      names.push_back(problems::QualifiedName(name));
    }
    text += fmt::format(", saved: {}", fmt::join(names, ", "));
    if (policy.product_period > 1) {
      text +=
          fmt::format(", of products all but one in {}", policy.product_period);
    }
  }
  if (!policy.offloaded.empty()) {
    text += fmt::format(", offloaded: {}", fmt::join(policy.offloaded, ", "));
  }
  if (!policy.stops_early) text += ", to the end of each unit";
  return text;
}

std::string_view LimitName(const AuditFlags& flags) {
  return flags.search.allocator.device_memory.empty() ? "budget" : "device";
}

std::string BestChangeText(const AuditFlags& flags, const Audit& audit) {
  if (!audit.change.best) {
    return audit.fits
               ? fmt::format("none of {} helps\n", audit.change.change_count)
               : fmt::format("none of {} reaches the {}\n",
                             audit.change.change_count, LimitName(flags));
  }
  return fmt::format("{} (the best of {})\n", audit.change.best->change.words,
                     audit.change.change_count);
}

std::string AuditText(const AuditFlags& flags, const problems::Trainer& trainer,
                      const Audit& audit,
                      const std::vector<problems::DeviceNeed>& needs,
                      const Terminal& terminal) {
  std::string text = fmt::format(
      "{}: {} ({} by {})\n", graph::OneLine(flags.config, 400), trainer.version,
      trainer.name, flags.trainer.empty() ? "its keys" : "--for");
  text += fmt::format("policy          {}\n", UnitsText(audit));
  text += fmt::format(
      "peak            {}{}, {}\n", graph::FormatBytes(audit.effect.peak_bytes),
      audit.fits ? ""
                 : fmt::format(", more than the {} of {}", LimitName(flags),
                               graph::FormatBytes(audit.budget_bytes)),
      RerunText(audit.effect));
  text += fmt::format("no checkpoints  peak {}\n",
                      graph::FormatBytes(audit.baseline_bytes));
  if (!audit.best.text.empty()) {
    text += FoundRow("its language", audit.best.plan, audit);
  } else {
    text += fmt::format("its language    no policy found within the {}\n",
                        LimitName(flags));
  }
  if (audit.best.free_plan.HasPlan()) {
    text += FoundRow("acplan plan", audit.best.free_plan, audit);
  } else {
    text += fmt::format("acplan plan     no plan found within the {}\n",
                        LimitName(flags));
  }
  text += "single change   " + BestChangeText(flags, audit);
  if (audit.change.best)
    text += PolicyRow("", audit.change.best->effect, audit);
  if (audit.broken_rule) {
    text +=
        fmt::format("{}: {}\n", terminal.Yellow("broken"), *audit.broken_rule);
  }
  for (const std::string& note : audit.reading.notes) {
    text += "note: " + note + "\n";
  }
  return text + NeedsText(needs, terminal);
}

nlohmann::ordered_json EffectJson(const PolicyEffect& effect) {
  nlohmann::ordered_json json{{"peak_bytes", effect.peak_bytes},
                              {"recompute_ms", effect.recompute_ms},
                              {"overhead", effect.overhead}};
  if (effect.stall_ms > 0) json["stall_ms"] = effect.stall_ms;
  return json;
}

std::string AuditJson(const problems::Trainer& trainer, const Audit& audit,
                      const std::vector<problems::DeviceNeed>& needs) {
  using Json = nlohmann::ordered_json;
  Json root{{"format", "acplan.audit"},
            {"version", 1},
            {"trainer", trainer.name},
            {"checked_against", trainer.version}};
  root.update(EffectJson(audit.effect));
  root["baseline_peak_bytes"] = audit.baseline_bytes;
  root["budget_bytes"] = audit.budget_bytes;
  root["fits"] = audit.fits;
  root["units"] = Json::array();
  for (const problems::PlannedModule& module : audit.modules) {
    root["units"].push_back(module.fqn);
  }
  root["saved"] = audit.reading.policy.saved;
  if (!audit.reading.policy.offloaded.empty()) {
    root["offloaded"] = audit.reading.policy.offloaded;
  }
  root["reruns"] = audit.reruns;
  root["stops_early"] = audit.reading.policy.stops_early;
  if (audit.broken_rule) root["broken_rule"] = *audit.broken_rule;
  root["notes"] = audit.reading.notes;
  if (!audit.best.text.empty()) {
    root["language"] = EffectJson(EffectOfPlan(audit.best.plan));
    root["language"]["status"] = ToString(audit.best.plan.status);
    root["language"]["text"] = audit.best.text;
  }
  if (audit.best.free_plan.HasPlan()) {
    root["plan"] = EffectJson(EffectOfPlan(audit.best.free_plan));
    root["plan"]["status"] = ToString(audit.best.free_plan.status);
  }
  root["changes_tried"] = audit.change.change_count;
  if (audit.change.best) {
    root["change"] = {{"words", audit.change.best->change.words}};
    root["change"].update(EffectJson(audit.change.best->effect));
    if (!audit.changed_text.empty()) {
      root["change"]["text"] = audit.changed_text;
    }
  }
  if (audit.device) {
    root["device"] = {{"allocator", audit.device->allocator},
                      {"optimizer_state",
                       audit.device->makes_state_first ? "first" : "update"},
                      {"reserved_bytes", audit.device->reserved_bytes},
                      {"least_device_bytes", audit.device->least_device_bytes}};
  }
  if (!needs.empty()) root["on_device"] = NeedsJson(needs);
  return graph::IndentedText(root);
}

// Returns the limit that the flags ask for.
problems::AuditLimit LimitOf(const AuditFlags& flags, const ProfileInput& input,
                             const problems::PlanOptions& options) {
  const AllocatorFlags& allocator = flags.search.allocator;
  if (flags.budget.empty() && allocator.FirstGiven().empty()) return {};
  if (IsForDevice(flags.budget, allocator)) {
    return ParseDevice(allocator, input, options);
  }
  const problems::Budget budget = ParseBudget(flags.budget, "--budget");
  if (budget.kind == problems::Budget::Kind::kMinimum) {
    throw InputError("--budget: expected a size or a share, found min");
  }
  return budget;
}

int RunAudit(const AuditFlags& flags, const Terminal& terminal) {
  const problems::Config config = ReadConfig(flags);
  problems::Trainer trainer =
      flags.trainer.empty() ? problems::DetectTrainer(config, "--for")
                            : problems::FindTrainer(flags.trainer, "--for");
  ProfileInput input = ReadProfileOrTrace(flags.trace);
  if (!input.trace) {
    throw InputError(fmt::format("{}: expected a trace, found a profile",
                                 graph::OneLine(flags.trace, 400)));
  }
  // Policies and plans are compared by their recomputation.
  input.trace->host.reset();
  graph::MergeStreams(*input.trace);
  const graph::ModuleTree tree(input.profile);
  const problems::Question question =
      flags.search.planning.Question(input, tree, TrainerFlags::kSeconds);
  trainer = flags.search.WithLink(std::move(trainer), question.options,
                                  DeviceOf(input));
  const Audit audit =
      AuditConfig(question, trainer, config, flags.search.blocks,
                  LimitOf(flags, input, question.options));
  const std::vector<problems::DeviceNeed> needs =
      NeedsOfAudit(*input.trace, audit, question);
  const std::string json = AuditJson(trainer, audit, needs);
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(flags.json ? json
                            : BrokenLines(AuditText(flags, trainer, audit,
                                                    needs, terminal),
                                          terminal));
  if (audit.fits) return kExitOk;
  return terminal.Explain(
      fmt::format("the configuration needs more than the {}", LimitName(flags)),
      kExitFailure);
}

}  // namespace

Command AddAuditCommand(CLI::App& program) {
  auto flags = std::make_shared<AuditFlags>();
  CLI::App* app = program.add_subcommand(
      "audit", "Judge the checkpoints of a trainer's configuration");
  app->add_option("CONFIG", flags->config,
                  "the trainer's configuration: YAML, TOML, JSON, Python or a "
                  "shell script with flags, by the end of its name")
      ->required();
  app->add_option("--trace", flags->trace,
                  "trace of the model (.json or .json.gz)")
      ->type_name("TRACE")
      ->required();
  app->add_option(
         "--for", flags->trainer,
         "trainer, if its keys do not say which: " + problems::TrainerNames())
      ->type_name("NAME");
  app->add_option("--budget", flags->budget,
                  "compare at this peak memory of a rank (1.6GiB, 1600MB, "
                  "bytes, or 75%: of the peak without checkpoints), and not at "
                  "the configuration's own")
      ->type_name("SIZE");
  app->add_option("--config-format", flags->format,
                  "format of CONFIG: yaml, toml, json, python or flags")
      ->type_name("NAME");
  app->add_option("--function", flags->function,
                  "read only this function of a Python file, and the functions "
                  "of the file that it calls")
      ->type_name("NAME");
  flags->search.AddTo(*app,
                      "compare on a device with this memory, or on a GPU of "
                      "this name: runs of steps on PyTorch's allocator decide");
  AddOutput(*app, flags->output, "write the audit as JSON here");
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  app->footer(
      "Example:\n  acplan audit config.yaml --trace "
      "example:traces/gpt2_small\n"
      "Exit status: 0 the configuration was judged, 1 it does not fit in the "
      "budget or the device, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunAudit(*flags, terminal);
          }};
}

}  // namespace acplan::cli
