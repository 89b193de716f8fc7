#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/plan_input.h"
#include "cli/input/planning_flags.h"
#include "cli/input/profile_input.h"
#include "cli/planning/allocator_flags.h"
#include "cli/planning/explain_device.h"
#include "cli/planning/explain_moves.h"
#include "cli/planning/link_flags.h"
#include "cli/planning/peak_text.h"
#include "cli/planning/plan_device.h"
#include "cli/planning/streams_text.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/profile/module_tree.h"
#include "graph/run/data_parallel.h"
#include "graph/trace/peak_account.h"
#include "problems/model/unit_forest.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/plan/rank_peak.h"
#include "problems/planner.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::cli {

using graph::PeakAccount;
using graph::Trace;

namespace {

// The default of --time-limit.
constexpr double kLeastSeconds = 5;

// The most characters of a cause.
constexpr size_t kMostCharacters = 1000;
// An operator and its module stand in one line up to this width.
constexpr size_t kWidthOfPlace = 97;

struct ExplainFlags {
  std::string trace;
  std::string plan;
  std::string budget;
  std::string top = "10";
  std::string output;
  PlanningFlags planning;
  AllocatorFlags allocator;
  LinkFlags link;
  bool json = false;
};

// The peak of a step under some plan, and the trace with the plan's units.
struct Explained {
  Trace trace;
  PeakAccount account;
  std::optional<graph::StreamTimes> streams = {};
};

// The steps of a trace whose runs an explanation compares.
struct StepsOnDevice {
  const Trace* trace = nullptr;
  problems::StepOfPlan baseline;                // without a plan
  std::optional<problems::StepOfPlan> of_plan;  // nothing: no plan is given
  problems::StepOfPlan least;                   // the least budget

  const problems::StepOfPlan& StepUnder(problems::ProgramPlan plan) const {
    if (plan == problems::ProgramPlan::kNone) return baseline;
    return plan == problems::ProgramPlan::kGiven ? *of_plan : least;
  }
};

// The run on a device, with the steps that it is about.
struct OnDevice {
  std::unique_ptr<StepsOnDevice> steps;
  DeviceExplanation explanation;
};

// The memory that no plan changes.
struct Staying {
  graph::PeakFloor floor;
  // Modules that could not be units, and the bytes that therefore stay.
  std::vector<problems::WarningsByType::Entry> no_units = {};
};

struct Explanation {
  Explained baseline;
  Explained least;
  int64_t world_size = 1;
  problems::MinimumBudget minimum;
  std::optional<Explained> under_plan;
  std::optional<int64_t> budget_bytes;  // without the reserve
  Staying staying;
  std::optional<OnDevice> on_device = {};
  std::optional<MovesExplanation> moves = {};
  size_t top = 0;
};

Explained ExplainUnder(const Trace& trace,
                       const std::vector<graph::CheckpointedModule>& modules,
                       const problems::MemoryOptions& memory) {
  return {.trace = trace,
          .account = problems::AccountForPeakOfRank(trace, modules, memory),
          .streams = StreamTimesOf(&trace, modules)};
}

Explained ExplainPlan(const ProfileInput& input, const problems::Plan& plan,
                      const std::string& path,
                      const problems::MemoryOptions& memory,
                      const Terminal& terminal) {
  if (QuestionText(plan.memory) != QuestionText(memory)) {
    terminal.Warn(fmt::format("{} was planned for {}, and is shown under {}",
                              path, QuestionText(plan.memory),
                              QuestionText(memory)));
  }
  const ProfileInput with_segments = WithSegmentsOf(input, plan, path);
  try {
    return ExplainUnder(
        *with_segments.trace,
        problems::CheckpointedModules(*with_segments.trace, plan.modules),
        memory);
  } catch (const InputError& error) {
    throw NamingFile(error, path);
  }
}

void RequireTraceModel(const problems::PlanOptions& options) {
  if (options.memory.model != problems::MemoryModel::kTrace) {
    throw InputError(
        "--memory-model: expected trace, the only model that explain knows");
  }
}

// Returns the device to explain, or nothing: the one that is given, or the budget if
// live bytes are within it and a run with the defaults does not end.
std::optional<int64_t> DeviceToExplain(const Explanation& answer,
                                       const ExplainedProgram& explained,
                                       const AllocatorQuestion& question) {
  if (question.device_bytes || !answer.budget_bytes) {
    return question.device_bytes;
  }
  const Explained& step =
      answer.under_plan ? *answer.under_plan : answer.baseline;
  if (step.account.peak_bytes > *answer.budget_bytes) return std::nullopt;
  const graph::TrainingRun run =
      explained.run_of({.plan = explained.program.plan, .setting = {}});
  const bool ends = graph::RunOnDevice(run, {}, *answer.budget_bytes).Fits();
  return ends ? std::nullopt : answer.budget_bytes;
}

// Refers to the steps, which must outlive it.
ExplainedProgram ProgramOf(const StepsOnDevice& steps,
                           const problems::DeviceSetting& setting) {
  using enum problems::DeviceLever;
  ExplainedProgram explained{
      .program = {.plan = steps.of_plan ? problems::ProgramPlan::kGiven
                                        : problems::ProgramPlan::kNone,
                  .setting = setting},
      .run_of =
          [&steps](const problems::DeviceProgram& program) {
            return problems::RunOf(*steps.trace, steps.StepUnder(program.plan),
                                   program.Options());
          },
      .steps = {},
      .plans = {kLeastBudget}};
  const problems::StepOfPlan& step = steps.StepUnder(explained.program.plan);
  explained.steps.shapes = {
      {.trace = step.with_segments ? &*step.with_segments : steps.trace,
       .step = &step.step}};
  if (steps.of_plan) explained.plans = {kNoPlan, kLeastBudget};
  return explained;
}

std::optional<OnDevice> ExplainOnDevice(
    const ExplainFlags& flags, const ProfileInput& input,
    const Explanation& answer, const std::optional<problems::Plan>& plan,
    problems::StepOfPlan least) {
  const AllocatorQuestion question = flags.allocator.Question();
  const graph::Trace& trace = *input.trace;
  OnDevice on_device{.steps = std::make_unique<StepsOnDevice>(),
                     .explanation = {}};
  *on_device.steps = {.trace = &trace,
                      .baseline = problems::LiveStep(trace, {}),
                      .of_plan = {},
                      .least = std::move(least)};
  if (plan) {
    on_device.steps->of_plan = problems::LiveStep(trace, plan->modules);
  }
  const ExplainedProgram explained = ProgramOf(
      *on_device.steps,
      {.allocator = flags.allocator.allocator.empty()
                        ? "native"
                        : flags.allocator.allocator,
       .config = question.config,
       .makes_state_first = question.makes_state_first.value_or(false),
       .ddp = flags.allocator.ddp});
  const std::optional<int64_t> device_bytes =
      DeviceToExplain(answer, explained, question);
  if (!device_bytes) return std::nullopt;
  on_device.explanation = ExplainDevice(explained, *device_bytes);
  return on_device;
}

// Returns whether a run on a device may be explained. Throws InputError for flags of
// the device that cannot be followed.
bool WantsDevice(const ExplainFlags& flags, const ProfileInput& input,
                 const problems::MemoryOptions& memory) {
  const bool is_given = !flags.allocator.device_memory.empty();
  if (!is_given && !flags.allocator.FirstGiven().empty()) {
    throw InputError(
        fmt::format("{}: needs --device-memory", flags.allocator.FirstGiven()));
  }
  if (is_given) RequireRun(input, memory);
  const graph::RunOptions run = flags.allocator.Question().run;
  if (is_given && run.ddp) {
    graph::RequireDataParallel(*input.TraceIfAny(), *run.ddp, "--ddp");
  }
  return is_given ||
         (!flags.budget.empty() && HasRun(input.TraceIfAny(), memory));
}

Explanation ExplanationOf(const ExplainFlags& flags, const ProfileInput& input,
                          const Terminal& terminal) {
  const graph::ModuleTree tree(input.profile);
  const problems::Question question =
      flags.planning.Question(input, tree, kLeastSeconds);
  RequireTraceModel(question.options);
  const bool wants_device = WantsDevice(flags, input, question.options.memory);
  const problems::Families families = BuildFamilies(question);
  const problems::PlanningProblem& problem = families.front().problem;
  const problems::LeastOfFamilies least =
      LeastPlan(families, question.options.limits);
  RequireMinimum(least.least);
  const auto [trace, modules] = UnitsOf(families, least);
  const problems::MemoryOptions& memory = question.options.memory;
  Explanation answer{.baseline = ExplainUnder(*input.trace, {}, memory),
                     .least = ExplainUnder(*trace, modules, memory),
                     .world_size = memory.world_size,
                     .minimum = least.least.budget,
                     .under_plan = {},
                     .budget_bytes = {},
                     .staying = {FindPeakFloorOfRank(*input.trace, memory)},
                     .moves = ExplainMoves(flags.link, input, problem)};
  // The search may have stopped before it proved as much.
  answer.minimum.bound_bytes =
      std::max(answer.minimum.bound_bytes,
               answer.staying.floor.bytes + question.options.reserve_bytes);
  if (const auto* trace_problem =
          std::get_if<problems::TraceProblem>(&problem.formulation)) {
    answer.staying.no_units = trace_problem->no_units.entries();
  }
  std::optional<problems::Plan> plan;
  if (!flags.plan.empty()) {
    plan = ReadAnswer(flags.plan, input.profile);
    answer.under_plan = ExplainPlan(input, *plan, flags.plan, memory, terminal);
  }
  if (!flags.budget.empty()) {
    const problems::Budget budget = ParseBudget(flags.budget, "--budget");
    // The least budget of plans with runs of modules, found above.
    answer.budget_bytes = budget.kind == problems::Budget::Kind::kMinimum
                              ? answer.least.account.peak_bytes
                              : budget.Bytes(problem.unplanned_peak_bytes) -
                                    question.options.reserve_bytes;
  }
  if (wants_device && !(plan && plan->offload)) {
    answer.on_device =
        ExplainOnDevice(flags, input, answer, plan,
                        {.with_segments = *trace,
                         .step = graph::Simulator(*trace).Live(modules)});
  }
  answer.top =
      static_cast<size_t>(ParseWhole(flags.top, "--top", 1, 1'000'000));
  return answer;
}

std::string ToJson(const Explanation& answer) {
  const auto peak = [&](const Explained& step) {
    nlohmann::ordered_json account =
        cli::ToJson(step.trace, step.account, answer.top);
    if (step.streams) account["streams"] = cli::ToJson(*step.streams);
    return account;
  };
  nlohmann::ordered_json json = {{"format", "acplan.explanation"},
                                 {"version", 1},
                                 {"model", answer.baseline.trace.model.name},
                                 {"world_size", answer.world_size}};
  if (answer.budget_bytes) {
    json["budget_bytes"] = *answer.budget_bytes;
    json["fits"] = answer.least.account.peak_bytes <= *answer.budget_bytes;
  }
  json["floor_bytes"] = answer.staying.floor.bytes;
  json["baseline"] = peak(answer.baseline);
  json["least"] = {{"proven", answer.minimum.proven},
                   {"bound_bytes", answer.minimum.bound_bytes}};
  json["least"].update(peak(answer.least));
  if (answer.under_plan) json["planned"] = peak(*answer.under_plan);
  if (answer.on_device) {
    json["device"] = cli::ToJson(answer.on_device->explanation);
  }
  if (answer.moves) json["moves"] = cli::ToJson(*answer.moves);
  json["no_units"] = nlohmann::ordered_json::array();
  for (const auto& entry : answer.staying.no_units) {
    json["no_units"].push_back({{"modules", entry.Modules()},
                                {"count", entry.modules},
                                {"why", entry.text},
                                {"bytes", entry.bytes}});
  }
  return graph::IndentedText(json);
}

std::string KindTable(const Explanation& answer, const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight});
  const auto row = [&](std::string name, auto value) {
    std::vector<std::string> cells = {std::move(name),
                                      value(answer.baseline.account)};
    if (answer.under_plan) cells.push_back(value(answer.under_plan->account));
    cells.push_back(value(answer.least.account));
    table.AddRow(std::move(cells));
  };
  std::vector<std::string> heading = {"", "without a plan", "least budget"};
  if (answer.under_plan) heading.insert(heading.begin() + 2, "the plan");
  table.AddRow(std::move(heading));
  row("peak", [](const PeakAccount& account) {
    return graph::FormatBytes(account.peak_bytes);
  });
  for (size_t k = 0; k < graph::kMemoryKinds; ++k) {
    const auto kind = static_cast<graph::MemoryKind>(k);
    if (kind == graph::MemoryKind::kGathered && answer.world_size == 1)
      continue;
    row(fmt::format("  {}", ToString(kind)), [&](const PeakAccount& account) {
      return graph::FormatBytes(account.ByKind()[k]);
    });
  }
  row("kept by every plan", [](const PeakAccount& account) {
    return graph::FormatBytes(account.FixedBytes());
  });
  return table.ToString(terminal);
}

std::string PeakHeading(const std::string& what, const Explained& step,
                        const Terminal& terminal) {
  std::string place = PlaceText(step.trace, step.account);
  const size_t module = place.rfind(" in ");
  if (TextWidth(place) > kWidthOfPlace && module != std::string::npos) {
    place[module] = '\n';
  }
  return fmt::format("\n{}: {}\nat {}\n{}", terminal.Bold(what),
                     FormatBytesExactly(step.account.peak_bytes), place,
                     SourceText(step.trace, step.account.step.op));
}

// Returns the line about the budget; "" without a budget.
std::string BudgetText(const Explanation& answer) {
  if (!answer.budget_bytes) return "";
  const int64_t budget = *answer.budget_bytes;
  const int64_t least = answer.least.account.peak_bytes;
  if (answer.baseline.account.peak_bytes <= budget) {
    return fmt::format("\n{} is enough without a plan\n",
                       FormatBytesExactly(budget));
  }
  if (least <= budget) {
    return fmt::format("\n{} is enough with a plan: acplan plan finds it\n",
                       FormatBytesExactly(budget));
  }
  const bool is_proven =
      answer.minimum.proven || budget < answer.staying.floor.bytes;
  return fmt::format("\n{} is {} less than the least {}\n",
                     FormatBytesExactly(budget),
                     graph::FormatBytes(least - budget),
                     is_proven ? "that any plan needs"
                               : "budget that was found, which is not proven");
}

// Returns the lines about modules that could not be units; "" if all that the
// flags allow could be.
std::string NoUnitsText(const Explanation& answer) {
  std::string text;
  for (const auto& entry : answer.staying.no_units) {
    if (text.empty()) {
      text =
          "\nmodules that could not be units, with the activations that "
          "therefore stay:\n";
    }
    text += fmt::format("{}: {}: {}\n", graph::OneLine(entry.Modules()),
                        graph::FormatBytes(entry.bytes),
                        graph::OneLine(entry.text, kMostCharacters));
  }
  return text;
}

std::string ToText(const Explanation& answer, const Terminal& terminal) {
  std::string text =
      terminal.Bold(graph::OneLine(answer.baseline.trace.model.name)) +
      (answer.world_size == 1
           ? ""
           : fmt::format(", a rank of {}", FormatCount(answer.world_size))) +
      "\n\n" + KindTable(answer, terminal) + BudgetText(answer);
  const auto add = [&](const std::string& what, const Explained& step) {
    text += PeakHeading(what, step, terminal) + "\n" +
            ContentsText(step.trace, step.account, answer.top, terminal) +
            StreamsText("its step", step.streams);
  };
  add("without a plan", answer.baseline);
  if (answer.under_plan) add("the plan", *answer.under_plan);
  add(answer.minimum.proven ? "the least budget, proven"
                            : "the least budget found",
      answer.least);
  const Trace& trace = answer.baseline.trace;
  if (answer.staying.floor.op != graph::kNone) {
    text += fmt::format(
        "\nno plan needs less than {}: so much is in memory under every plan\n"
        "while {} runs\n{}",
        graph::FormatBytes(answer.staying.floor.bytes),
        trace.operator_names[trace.operators[answer.staying.floor.op].name],
        SourceText(trace, answer.staying.floor.op));
  }
  if (answer.on_device) {
    text += cli::ToText(answer.on_device->explanation, answer.top, terminal);
  }
  if (answer.moves) text += cli::ToText(*answer.moves);
  return text + NoUnitsText(answer);
}

int RunExplain(const ExplainFlags& flags, const Terminal& terminal) {
  const ProfileInput input = ReadProfileOrTrace(flags.trace);
  if (!input.trace) {
    throw InputError(
        fmt::format("{}: expected a trace, found a profile, which does not "
                    "list the storages in memory",
                    graph::OneLine(flags.trace)));
  }
  const Explanation answer = ExplanationOf(flags, input, terminal);
  if (!flags.output.empty()) graph::WriteFile(flags.output, ToJson(answer));
  terminal.Print(flags.json ? ToJson(answer)
                            : BrokenLines(ToText(answer, terminal), terminal));
  return kExitOk;
}

}  // namespace

Command AddExplainCommand(CLI::App& program) {
  auto flags = std::make_shared<ExplainFlags>();
  CLI::App* app = program.add_subcommand(
      "explain", "Show what uses the memory of a traced step at its peak");
  app->add_option("TRACE", flags->trace, "trace (.json or .json.gz)")
      ->required();
  app->add_option("--plan", flags->plan,
                  "also show the peak under this plan file")
      ->type_name("FILE");
  app->add_option(
         "--budget", flags->budget,
         "also print whether SIZE is enough, and how many bytes are missing: "
         "1.6GiB, 1600MB, bytes; 75%: of the peak without a plan")
      ->type_name("SIZE");
  app->add_option("--top", flags->top,
                  "rows of each table, and storages listed in the JSON")
      ->type_name("N")
      ->capture_default_str();
  flags->planning.AddTo(*app, kLeastSeconds);
  flags->planning.AddSegmentsTo(*app);
  flags->allocator.AddTo(
      *app,
      "also explain a run on a device of which PyTorch may use SIZE, and what "
      "would change it");
  flags->allocator.AddOptimizerStateTo(*app, "update");
  flags->allocator.AddDdpTo(*app);
  flags->link.AddTo(*app, "inputs of blocks",
                    "; by default that of the trace's device");
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  AddOutput(*app, flags->output, "write JSON here");
  app->footer(
      "Example:\n  acplan explain example:traces/gpt2_small --budget "
      "3GiB\nExit status: 0 explained, 2 bad input, 4 a limit was hit before a "
      "feasible budget was found.");
  return {app, [flags](const Terminal& terminal) {
            return RunExplain(*flags, terminal);
          }};
}

}  // namespace acplan::cli
