#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/plan_input.h"
#include "cli/input/planning_flags.h"
#include "cli/input/profile_input.h"
#include "cli/planning/allocator_flags.h"
#include "cli/planning/peak_place.h"
#include "cli/planning/plan_device.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/check/device_rules.h"
#include "problems/check/plan_check.h"
#include "problems/plan/device_run.h"
#include "problems/plan/plan.h"
#include "problems/plan/plan_device_json.h"
#include "problems/planner.h"

namespace acplan::cli {

namespace {

struct CheckInput {
  std::string profile;
  std::string plan;
  std::string budget;
  AllocatorFlags allocator;
  std::string reserve;
  MemoryFlags memory;
  UnitFlags units;
  PatternFlags patterns;
  bool json = false;
};

// Returns the question that a plan with these rules answers.
problems::PlanOptions QuestionOf(const problems::Plan& plan,
                                 const problems::PlanRules& rules) {
  using problems::Granularity;
  using problems::Tradeoff;
  const Granularity granularity =
      problems::ParseGranularity(plan.granularity).value();
  return {.granularity = granularity,
          .tradeoff = granularity == Granularity::kOperator
                          ? Tradeoff::kPareto
                          : problems::ParseTradeoff(plan.tradeoff).value(),
          .reserve_bytes = plan.reserve_bytes,
          .memory = plan.memory,
          .ac_units = rules.ac_units,
          .fsdp_units = rules.fsdp_units,
          .max_units = rules.max_units,
          .patterns = rules.patterns};
}

void CheckPatterns(const graph::Profile& profile, const problems::Plan& plan,
                   const graph::OperatorPatterns& patterns) {
  if (patterns.empty()) return;
  if (plan.granularity != ToString(problems::Granularity::kOperator)) {
    throw InputError(fmt::format(
        "{}: needs a plan at operator granularity, found one at {} granularity",
        patterns.save.empty() ? "--recompute" : "--save", plan.granularity));
  }
  std::vector<std::string> names;
  for (const graph::Module& module : profile.modules) {
    if (!module.sac) continue;
    names.insert(names.end(), module.sac->func_names.begin(),
                 module.sac->func_names.end());
  }
  RefuseUnmatched(patterns, names);
}

int64_t ResolveBudget(const problems::Budget& budget, const ProfileInput& input,
                      const graph::ModuleTree& tree, const problems::Plan& plan,
                      const problems::PlanRules& rules) {
  if (budget.kind == problems::Budget::Kind::kBytes) return budget.bytes;
  const problems::PlanningProblem problem = BuildPlanningProblem(
      input.profile, tree, QuestionOf(plan, rules), input.TraceIfAny());
  if (budget.kind == problems::Budget::Kind::kShare) {
    return budget.Bytes(problem.unplanned_peak_bytes);
  }
  solver::SearchLimits limits;
  limits.interrupted = &InterruptFlag();
  const problems::LeastAnswer least = LeastPlan(problem, limits);
  RequireMinimum(least);
  return least.budget.bytes;
}

int64_t RoomOf(const problems::Plan& plan) {
  return plan.budget_bytes - plan.reserve_bytes;
}

// The budget that a plan states, less its reserve, if it states one for the question
// that is checked.
using StatedRoom = std::optional<int64_t>;

StatedRoom StatedRoomOf(const problems::Plan& plan, const CheckInput& flags) {
  const bool is_of_question =
      flags.memory.Resolve(plan.memory) == plan.memory && plan.budget_bytes > 0;
  if (!is_of_question) return std::nullopt;
  return RoomOf(plan);
}

// Returns the plan for the question: flags that were given replace its memory and its
// reserve.
problems::Plan WithFlags(problems::Plan plan, const CheckInput& flags,
                         const ProfileInput& input) {
  const problems::MemoryOptions memory = flags.memory.Resolve(plan.memory);
  // The plan's statements about memory hold for its own question only.
  if (memory != plan.memory) {
    plan.peak_bytes = problems::kNotStated;
    plan.peak_module.clear();
    plan.baseline.peak_bytes = problems::kNotStated;
  }
  plan.memory = memory;
  RequireTrace(memory, input, flags.plan);
  plan.reserve_bytes = ParseReserve(flags.reserve).value_or(plan.reserve_bytes);
  return plan;
}

problems::PlanRules ReadRules(const CheckInput& flags,
                              const ProfileInput& input,
                              const graph::ModuleTree& tree,
                              const problems::Plan& plan) {
  problems::PlanRules rules{.ac_units = flags.units.AcUnits(),
                            .fsdp_units = flags.units.FsdpUnits(),
                            .max_units = flags.units.MaxUnits(),
                            .patterns = flags.patterns.Patterns()};
  FindModules(input.profile, tree, rules.ac_units, "--ac-units");
  FindModules(input.profile, tree, rules.fsdp_units, "--fsdp-units");
  CheckPatterns(input.profile, plan, rules.patterns);
  return rules;
}

// Returns the device for which to check the plan.
// Flags that were given replace what the plan states.
problems::PlanDevice DeviceOf(const CheckInput& flags,
                              const problems::Plan& plan,
                              const problems::DeviceChoice& choice) {
  const problems::DeviceSetting& setting = choice.settings.front();
  problems::PlanDevice device{
      .allocator = setting.allocator,
      .torch_version = fmt::format("{}.{}", setting.config.version.major,
                                   setting.config.version.minor),
      .makes_state_first = setting.makes_state_first,
      .ddp = setting.ddp,
      .allocated_bytes = problems::kNotStated,
      .reserved_bytes = problems::kNotStated,
      .least_device_bytes = problems::kNotStated,
      .retries = problems::kNotStated};
  if (!plan.device) return device;
  if (flags.allocator.allocator.empty()) {
    device.allocator = plan.device->allocator;
  }
  if (flags.allocator.torch_version.empty()) {
    device.torch_version = plan.device->torch_version;
  }
  if (flags.allocator.optimizer_state.empty()) {
    device.makes_state_first = plan.device->makes_state_first;
  }
  if (flags.allocator.ddp.empty()) device.ddp = plan.device->ddp;
  const bool is_as_stated =
      choice.memory_bytes == plan.budget_bytes && flags.reserve.empty() &&
      device.allocator == plan.device->allocator &&
      device.torch_version == plan.device->torch_version &&
      device.makes_state_first == plan.device->makes_state_first &&
      device.ddp == plan.device->ddp;
  return is_as_stated ? *plan.device : device;
}

void RequireRoom(const CheckInput& flags, const problems::Plan& plan) {
  if (plan.reserve_bytes < plan.budget_bytes) return;
  throw InputError(fmt::format(
      "{}: expected less than the budget ({}), found {}",
      flags.reserve.empty() ? flags.plan + ": reserve_bytes" : "--reserve",
      graph::FormatBytes(plan.budget_bytes),
      graph::FormatBytes(plan.reserve_bytes)));
}

// The first rule that a plan breaks, and the effect of the plan; a plan that
// breaks no rule has an effect.
struct CheckAnswer {
  std::optional<std::string> broken;
  std::optional<problems::PlanEffect> effect;
  std::string peak_place = {};
  // The plan with the device for which it was judged, and what a run of it takes
  // there; nothing without a device, or if the run does not end on it.
  std::optional<problems::Plan> on_device = {};
  // A plan for a device whose run there says nothing about the memory that was asked.
  bool is_without_its_device = false;
  // The needs of a run of the plan, if one can be simulated.
  std::vector<problems::DeviceNeed> needs = {};
};

// Returns the version whose allocator runs the plan: the one of the flags, of the
// plan, or the newest.
graph::PyTorchVersion VersionOf(const CheckInput& flags,
                                const problems::Plan& plan) {
  if (flags.allocator.torch_version.empty() && plan.device) {
    return graph::ParsePyTorchVersion(plan.device->torch_version,
                                      flags.plan + ": device: torch_version");
  }
  return flags.allocator.Question().config.version;
}

problems::DeviceSetting SettingOf(const problems::PlanDevice& device) {
  return {.allocator = device.allocator,
          .config = graph::ParseAllocatorConfig(
              device.allocator, "plan: device: allocator",
              graph::ParsePyTorchVersion(device.torch_version,
                                         "plan: device: torch_version")),
          .makes_state_first = device.makes_state_first,
          .ddp = device.ddp};
}

// Returns the plan with what its run takes on the device that it names, or nothing
// if the run does not end there.
std::optional<problems::Plan> RunOnDevice(const graph::Trace& trace,
                                          problems::Plan plan) {
  const problems::PlanDevice stated = *plan.device;
  const problems::DeviceSetting setting = SettingOf(stated);
  plan.device = FindDeviceUse(
      RunOf(trace, problems::LiveStep(trace, plan.modules), setting), setting,
      RoomOf(plan));
  if (!plan.device) return std::nullopt;
  plan.device->default_least_device_bytes = stated.default_least_device_bytes;
  plan.device->default_recompute_ms = stated.default_recompute_ms;
  plan.device->gpu = stated.gpu;
  return plan;
}

// Adds the run on the device that was asked for; or else on the one that the plan of
// the file is for, which a budget does not replace, and the rule that it breaks there.
void JudgeOnDevice(const ProfileInput& input, const problems::Plan& stated,
                   const problems::Plan& plan, CheckAnswer& answer) {
  if (plan.device) {
    answer.on_device = RunOnDevice(*input.trace, plan);
    return;
  }
  if (!stated.device) return;
  if (stated.memory != plan.memory ||
      !HasRun(input.TraceIfAny(), plan.memory)) {
    answer.is_without_its_device = true;
    return;
  }
  const auto broken = BrokenDeviceRule(*input.trace, stated);
  if (broken && !answer.broken) {
    answer.broken = fmt::format("on the device of {} that the plan is for: {}",
                                graph::FormatBytes(RoomOf(stated)), *broken);
  }
  answer.on_device = RunOnDevice(*input.trace, stated);
}

CheckAnswer Check(const CheckInput& flags, const ProfileInput& input,
                  const problems::Plan& stated, const problems::Plan& plan,
                  const problems::PlanRules& rules) {
  const StatedRoom room = StatedRoomOf(stated, flags);
  CheckAnswer answer;
  try {
    answer.broken =
        FirstBrokenRule(input.profile, plan, rules, input.TraceIfAny());
    answer.effect = ComputeEffect(input.profile, plan.modules, plan.memory,
                                  plan.tradeoff, input.TraceIfAny());
    answer.peak_place = PeakPlace(input.TraceIfAny(), plan, plan.memory,
                                  answer.effect->peak_module);
  } catch (const InputError& error) {
    // The effect of a unit that breaks a rule may be impossible to compute.
    if (!answer.broken) throw NamingFile(error, flags.plan);
  }
  if (answer.effect && !plan.offload &&
      HasRun(input.TraceIfAny(), plan.memory)) {
    answer.needs = problems::NeedsOfPlan(*input.trace, plan.modules,
                                         VersionOf(flags, stated));
  }
  // Sums of records are rounded, a simulated step has whole bytes.
  const int64_t rounding =
      plan.memory.model == problems::MemoryModel::kTrace ? 0 : 1;
  if (!answer.broken && room && answer.effect->peak_bytes > *room + rounding) {
    answer.broken =
        fmt::format("the plan says that it fits {} bytes; its peak is {}",
                    *room, answer.effect->peak_bytes);
  }
  if (!answer.effect) return answer;
  try {
    JudgeOnDevice(input, stated, plan, answer);
  } catch (const InputError& error) {
    throw NamingFile(error, flags.plan);
  }
  return answer;
}

std::string ToJson(const problems::Plan& plan, const CheckAnswer& answer) {
  nlohmann::ordered_json json;
  json["holds"] = !answer.broken;
  if (answer.broken) json["broken_rule"] = *answer.broken;
  json["memory_model"] = ToString(plan.memory.model);
  json["world_size"] = plan.memory.world_size;
  json["caveat"] = Caveat(plan.memory.model);
  json["budget_bytes"] = plan.budget_bytes;
  json["reserve_bytes"] = plan.reserve_bytes;
  if (answer.effect) {
    json["peak_bytes"] = answer.effect->peak_bytes;
    json["peak_module"] = answer.effect->peak_module;
    json["recompute_ms"] = answer.effect->recompute_ms;
  }
  if (answer.on_device) {
    json["device"] = {{"memory_bytes", RoomOf(*answer.on_device)}};
    json["device"].update(problems::ToJson(*answer.on_device->device));
  }
  if (!answer.needs.empty()) json["on_device"] = NeedsJson(answer.needs);
  return graph::IndentedText(json);
}

// Returns the lines on the device for which the plan was judged.
std::string JudgedText(const CheckAnswer& answer) {
  if (answer.is_without_its_device) {
    return "the device that the plan is for was not judged: its run has other "
           "memory than was asked for\n";
  }
  if (!answer.on_device) return "";
  return fmt::format("device          {}, {}\n",
                     graph::FormatBytes(RoomOf(*answer.on_device)),
                     SettingText(SettingOf(*answer.on_device->device))) +
         DeviceText(*answer.on_device);
}

std::string ToText(const problems::Plan& plan, const CheckAnswer& answer,
                   const Terminal& terminal) {
  if (answer.broken) {
    return fmt::format("{}: {}\n", terminal.Yellow("broken"), *answer.broken) +
           JudgedText(answer) + NeedsText(answer.needs, terminal);
  }
  const problems::PlanEffect& effect = *answer.effect;
  return fmt::format(
             "{}: {} unit{}, peak {}, {} below the budget; recomputes {}\n"
             "peak at {}\n",
             terminal.Green("holds"), plan.modules.size(),
             plan.modules.size() == 1 ? "" : "s",
             graph::FormatBytes(effect.peak_bytes),
             graph::FormatBytes(plan.budget_bytes - effect.peak_bytes),
             FormatMs(effect.recompute_ms), answer.peak_place) +
         JudgedText(answer) + NeedsText(answer.needs, terminal) +
         NoteOn(CaveatOf(plan), terminal);
}

int RunCheck(const CheckInput& flags, const Terminal& terminal) {
  const bool is_for_device = IsForDevice(flags.budget, flags.allocator);
  const problems::Budget budget = is_for_device
                                      ? problems::Budget()
                                      : ParseBudget(flags.budget, "--budget");
  ProfileInput input = ReadProfileOrTrace(flags.profile);
  problems::Plan plan = ReadAnswer(flags.plan, input.profile);
  const problems::Plan stated = plan;
  plan = WithFlags(std::move(plan), flags, input);
  input = WithSegmentsOf(std::move(input), plan, flags.plan);
  const graph::ModuleTree tree(input.profile);
  const problems::PlanRules rules = ReadRules(flags, input, tree, plan);
  if (is_for_device) {
    const problems::DeviceChoice choice =
        ParseDevice(flags.allocator, input, QuestionOf(plan, rules));
    plan.device = DeviceOf(flags, plan, choice);
    plan.device->gpu = choice.gpu;
    plan.budget_bytes = choice.memory_bytes;
  } else {
    plan.device.reset();
    plan.budget_bytes = ResolveBudget(budget, input, tree, plan, rules);
  }
  RequireRoom(flags, plan);
  const CheckAnswer answer = Check(flags, input, stated, plan, rules);
  terminal.Print(flags.json ? ToJson(plan, answer)
                            : BrokenLines(NamedDeviceText(flags.allocator) +
                                              ToText(plan, answer, terminal),
                                          terminal));
  return answer.broken
             ? terminal.Explain("broken: " + *answer.broken, kExitFailure)
             : kExitOk;
}

}  // namespace

Command AddCheckCommand(CLI::App& program) {
  auto flags = std::make_shared<CheckInput>();
  CLI::App* app = program.add_subcommand(
      "check", "Check a plan against a profile and a budget");
  app->add_option("PROFILE", flags->profile,
                  "profile or trace (.json or .json.gz)")
      ->required();
  app->add_option("PLAN", flags->plan, "plan file")->required();
  app->add_option(
         "--budget", flags->budget,
         "limit of a rank's peak memory: 1.6GiB, 1600MB, bytes; 75%: of the "
         "peak without a plan; min: the smallest budget that some plan meets")
      ->type_name("SIZE");
  flags->allocator.AddTo(*app,
                         "in place of a budget: the device memory that PyTorch "
                         "may use, or the name of a GPU (less CUDA's context); "
                         "simulates a run of the plan's steps on it");
  flags->allocator.AddOptimizerStateTo(*app, "the plan's, or update");
  flags->allocator.AddDdpTo(*app);
  app->add_option("--reserve", flags->reserve,
                  "part of the budget to keep free")
      ->type_name("SIZE");
  flags->memory.AddTo(*app);
  flags->units.AddTo(*app);
  flags->patterns.AddTo(*app);
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  app->footer(
      "The defaults of memory model, world size and reserve are those of the "
      "plan.\n"
      "Example:\n  acplan check example:profiles/gpt2_small plan.json "
      "--budget 10GiB\n"
      "  acplan check example:traces/gpt2_small device.json "
      "--device-memory 8GiB\n"
      "Exit status: 0 the plan holds, 1 it breaks a rule, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunCheck(*flags, terminal);
          }};
}

}  // namespace acplan::cli
