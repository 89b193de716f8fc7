#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/file_names.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/planning_flags.h"
#include "cli/terminal/human_numbers.h"
#include "cli/terminal/text.h"
#include "cli/training/confidence_text.h"
#include "cli/training/limit_text.h"
#include "cli/training/megatron_text.h"
#include "cli/training/strategy_question.h"
#include "cli/training/train_input.h"
#include "cli/training/train_show_text.h"
#include "costmodel/training/search/strategy_search.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"

namespace acplan::cli {

namespace {

using costmodel::StrategySearch;
using costmodel::TrainingJob;

struct LlmSearchFlags {
  TrainFlags train;
  std::string count = "10";
  std::string time_limit = "30";
  std::string program;
  std::string output;
  bool is_robust = false;
  bool json = false;
};

// The column of intervals, after that of the time.
constexpr std::ptrdiff_t kIntervalColumn = 11;

std::string CountText(const StrategySearch& search, bool is_robust) {
  return fmt::format(
      "{} strategies, {} evaluated, {} fit, {} planned\n{}{:.2f} s of CPU "
      "time, {:.2g} million evaluated per second\n\n",
      FormatCount(search.strategies), FormatCount(search.evaluated),
      FormatCount(search.fitting), FormatCount(search.plan_count),
      ProofText(search, is_robust) + "\n", search.core_seconds,
      static_cast<double>(search.evaluated) / 1e6 /
          std::max(search.core_seconds, 1e-9));
}

std::string SearchText(const TrainingJob& job, const StrategySearch& search,
                       const TrainQuestion& question, bool is_robust,
                       const Terminal& terminal) {
  const costmodel::TrainingStrategy& s = job.strategy;
  std::string text = terminal.Bold(
      fmt::format("{} on {} {}: {} sequences of {} tokens per iteration",
                  question.model, FormatCount(s.gpus), job.cluster.gpu.name,
                  FormatCount(s.global_batch), FormatCount(s.sequence)));
  text += "\n";
  if (question.calibration) text += TextOf(*question.calibration);
  text += LimitText(job.cluster.gpu, question) + CountText(search, is_robust);
  std::vector<Table::Align> align = StrategyColumns();
  align.insert(align.begin(), Table::Align::kRight);
  align.insert(align.begin() + kIntervalColumn, Table::Align::kRight);
  Table table(std::move(align));
  const auto add = [&](std::string rank, std::vector<std::string> cells,
                       std::string interval) {
    cells.insert(cells.begin(), std::move(rank));
    cells.insert(cells.begin() + kIntervalColumn, std::move(interval));
    table.AddRow(std::move(cells));
  };
  add("#", StrategyHeadings(question), "80% ");
  for (size_t i = 0; i < search.best.size(); ++i) {
    const costmodel::Confidence confidence =
        question.intervals->At(costmodel::KindOfRanked(job, search.best[i]));
    add(fmt::to_string(i + 1), StrategyCells(job, search.best[i], question),
        IntervalCell(confidence.interval) +
            (confidence.IsMeasured() ? " " : "?"));
  }
  return text + table.ToString(terminal) + StrategyLegend(question) +
         "80%: of measured times of this kind, relative to the prediction; ?: "
         "no measured run\nis near\n\n" +
         MeasuredText(job, search, question) +
         NextRunsText(job, search, *question.intervals);
}

nlohmann::ordered_json SearchJson(const TrainingJob& job,
                                  const StrategySearch& search,
                                  const TrainQuestion& question,
                                  bool is_robust) {
  nlohmann::ordered_json json = {{"format", "acplan.training_search"},
                                 {"version", 1},
                                 {"model", question.model},
                                 {"budget_bytes", question.limit.bytes},
                                 {"strategies", search.strategies},
                                 {"evaluated", search.evaluated},
                                 {"fitting", search.fitting},
                                 {"planned", search.plan_count},
                                 {"unplanned", search.unplanned},
                                 {"complete", search.is_complete},
                                 {"proven", search.is_proven},
                                 {"bound_s", search.Bound()},
                                 {"robust", is_robust}};
  json["best"] = nlohmann::ordered_json::array();
  for (const costmodel::RankedStrategy& ranked : search.best) {
    json["best"].push_back(
        ToJson(ReportOfRanked(job, ranked, question.limit), question));
  }
  json["next_runs"] = NextRunsJson(job, search, *question.intervals);
  if (search.measured) {
    json["measured"] =
        ToJson(ReportOfRanked(job, *search.measured, question.limit), question);
  } else {
    json["measured"] = nullptr;
  }
  return json;
}

// Returns whether some strategy of the settings fits; the limit is `limit`, or
// else what the GPU offers.
bool SomeFits(const LlmSearchFlags& flags,
              const costmodel::StrategySettings& settings,
              std::optional<costmodel::MemoryLimit> limit,
              const Terminal& terminal) {
  constexpr double kMostSeconds = 2;
  const auto [job, space] = AskOfStrategies(
      flags.train.ReadModel(terminal), settings, flags.train.ReadSystems());
  if (!limit) limit = flags.train.Question(job.cluster.gpu).limit;
  return !SearchStrategies(
              job, space, *limit, {.count = 1},
              {.seconds = kMostSeconds, .interrupted = &InterruptFlag()})
              .best.empty();
}

// Returns the least memory of a GPU, to half a percent, in which some strategy
// was found to fit.
double LeastBytes(const LlmSearchFlags& flags,
                  const costmodel::StrategySettings& settings,
                  costmodel::MemoryLimit limit, const Terminal& terminal) {
  constexpr double kPrecision = 1.005;
  double fails = limit.bytes;
  do {
    fails = limit.bytes;
    limit.bytes *= 2;
  } while (!SomeFits(flags, settings, limit, terminal) &&
           !InterruptFlag().load());
  double fits = limit.bytes;
  while (fits > kPrecision * fails && !InterruptFlag().load()) {
    limit.bytes = (fits + fails) / 2;
    (SomeFits(flags, settings, limit, terminal) ? fits : fails) = limit.bytes;
  }
  return fits;
}

// Returns what is left for tensors if PyTorch's allocator has so many bytes.
double TensorBytes(const costmodel::MemoryLimit& limit, double bytes) {
  return (1 - limit.allocator_loss) * bytes;
}

// Returns the memory that lacks, and with what a strategy fits: more GPUs, the smallest larger
// one, or states on the host.
std::string WaysOutText(const LlmSearchFlags& flags, const TrainingJob& job,
                        const TrainQuestion& question,
                        const Terminal& terminal) {
  constexpr int kMostDoublings = 10;
  costmodel::StrategySettings settings = flags.train.ReadSettings();
  const double least = LeastBytes(flags, settings, question.limit, terminal);
  std::string text =
      fmt::format(": the least is about {}, {} too much",
                  graph::FormatManyBytes(TensorBytes(question.limit, least)),
                  graph::FormatManyBytes(TensorBytes(
                      question.limit, least - question.limit.bytes)));
  int64_t gpus = job.strategy.gpus;
  for (int i = 0; i < kMostDoublings; ++i) {
    gpus *= 2;
    settings["gpus"] = {fmt::to_string(gpus), "--gpus"};
    if (!SomeFits(flags, settings, question.limit, terminal)) continue;
    text += fmt::format("; --gpus {} fits", gpus);
    break;
  }
  settings["gpus"] = {fmt::to_string(job.strategy.gpus), "--gpus"};
  const std::vector<costmodel::Accelerator> gpus_by_size = [&] {
    std::vector<costmodel::Accelerator> all =
        flags.train.ReadSystems().accelerators;
    std::ranges::stable_sort(all, {}, &costmodel::Accelerator::memory);
    return all;
  }();
  for (const costmodel::Accelerator& gpu : gpus_by_size) {
    if (!flags.train.budget.empty() || gpu.memory < least) continue;
    settings["gpu"] = {gpu.name, "--gpu"};
    if (!SomeFits(flags, settings, std::nullopt, terminal)) continue;
    text += fmt::format("; --gpu {} fits", gpu.name);
    break;
  }
  settings["gpu"] = {job.cluster.gpu.name, "--gpu"};
  settings["offload_states"] = {"any", "--offload-states"};
  if (flags.program.empty() &&
      SomeFits(flags, settings, question.limit, terminal)) {
    text += "; --offload-states any fits";
  }
  return text +
         "; python -m acplan what-fits tries optimizers, precisions and "
         "adapters";
}

// Leaves out what Megatron-LM has no words for. Plans stay: no recomputation of the same
// strategy is faster, so that a search with them is a bound.
void KeepMegatron(const costmodel::StrategySettings& settings,
                  costmodel::StrategySpace& space) {
  using enum costmodel::PipelineSchedule;
  for (const char* key : {"recompute", "granularity", "ac_mode"}) {
    const auto setting = settings.find(key);
    if (setting == settings.end()) continue;
    throw InputError(fmt::format(
        "{}: expected no recomputation with --for, which chooses it",
        setting->second.place));
  }
  std::erase_if(space.schedules, [](costmodel::PipelineSchedule schedule) {
    return schedule != kOneForwardOneBackward && schedule != kInterleaved;
  });
  std::erase(space.recomputation, costmodel::Recomputation::kOperators);
  space.has_states_offload = false;
}

// The best strategy in Megatron's words among those that a search found.
struct MegatronChoice {
  costmodel::MegatronAnswer answer = {};
  double budget = 0;
  size_t rank = 0;  // from 1; 0: none fits
};
MegatronChoice ChooseForMegatron(const TrainingJob& job,
                                 const StrategySearch& search,
                                 const TrainQuestion& question) {
  MegatronChoice choice;
  for (size_t i = 0; i < search.best.size(); ++i) {
    TrainingJob one = job;
    one.strategy = search.best[i].strategy;
    const double budget = BudgetOf(question, one);
    costmodel::MegatronAnswer answer = costmodel::BestOfMegatron(one, budget);
    const bool is_better =
        answer.fits &&
        (choice.rank == 0 ||
         answer.report.time.Total() < choice.answer.report.time.Total());
    if (is_better) choice = {std::move(answer), budget, i + 1};
  }
  return choice;
}

std::string ChoiceText(const MegatronChoice& choice,
                       const StrategySearch& search, MegatronProgram program,
                       const TrainQuestion& question) {
  std::vector<std::string> comments =
      MegatronComments(choice.answer, question.model, choice.budget);
  const double seconds = choice.answer.report.time.Total();
  comments.push_back(fmt::format(
      "strategy {} of {} by the time with a free plan, which is {}; {}",
      choice.rank, search.best.size(),
      HumanSeconds(search.best[choice.rank - 1].seconds),
      search.is_proven && seconds <= search.best.back().seconds
          ? "no strategy is faster in Megatron's words (proven)"
          : "not proven: others were not tried in Megatron's words (more with "
            "-t)"));
  return MegatronText(choice.answer.report, program, comments);
}

int PrintForMegatron(const LlmSearchFlags& flags, MegatronProgram program,
                     const TrainingJob& job, const StrategySearch& search,
                     const Terminal& terminal) {
  const TrainQuestion question = flags.train.Question(job.cluster.gpu);
  const MegatronChoice choice = ChooseForMegatron(job, search, question);
  if (choice.rank == 0) {
    return terminal.Complain(
        fmt::format("none of the {} best strategies fits without a free plan; "
                    "try more with -t",
                    search.best.size()),
        kExitInfeasible);
  }
  const std::string text = ChoiceText(choice, search, program, question);
  nlohmann::ordered_json json =
      SearchJson(job, search, question, flags.is_robust);
  json["megatron"] = MegatronJson(choice.answer, text);
  json["megatron"]["rank"] = choice.rank;
  const std::string file = graph::IndentedText(json);
  if (!flags.output.empty()) graph::WriteFile(flags.output, file);
  terminal.Print(flags.json ? file : text);
  return kExitOk;
}

// Says why no strategy was found. Returns the exit code.
int WithoutStrategy(const LlmSearchFlags& flags, const TrainingJob& job,
                    const TrainQuestion& question, const StrategySearch& search,
                    const Terminal& terminal) {
  if (!search.is_complete) {
    return terminal.Complain(
        fmt::format("no strategy that fits was found; not all were tried ({})",
                    EndOfSearch()),
        kExitLimit);
  }
  if (search.strategies == 0) {
    throw InputError(
        "expected settings that some strategy can have, found none (train show "
        "prints the rule that a strategy breaks)");
  }
  if (search.unplanned > 0) {
    return terminal.Complain(
        fmt::format(
            "no strategy was planned ({}): {} strategies might fit with a plan",
            EndOfSearch(), FormatCount(search.unplanned)),
        kExitLimit);
  }
  return terminal.Complain(
      fmt::format("none of {} strategies fits in {} per GPU{}",
                  FormatCount(search.strategies),
                  graph::FormatManyBytes(
                      TensorBytes(question.limit, question.limit.bytes)),
                  WaysOutText(flags, job, question, terminal)),
      kExitInfeasible);
}

int RunLlmSearch(const LlmSearchFlags& flags, const Terminal& terminal) {
  if (!flags.output.empty()) {
    RequireExtension(flags.output, {".json", ".json.gz"});
  }
  const int64_t count = ParseWhole(flags.count, "-t", 1, 10000);
  const double time_limit = ParseTimeLimit(flags.time_limit);
  const costmodel::StrategySettings settings = flags.train.ReadSettings();
  const MegatronProgram program = ParseMegatronProgram(flags.program);
  auto [job, space] = AskOfStrategies(flags.train.ReadModel(terminal), settings,
                                      flags.train.ReadSystems());
  if (program != MegatronProgram::kNone) {
    RequireMegatron(job.strategy, "--for");
    KeepMegatron(settings, space);
  }
  const TrainQuestion question = flags.train.Question(job.cluster.gpu);
  const StrategySearch search = SearchStrategies(
      job, space, question.limit,
      {.count = static_cast<size_t>(count),
       .intervals = question.intervals.get(),
       .is_robust = flags.is_robust},
      {.seconds = time_limit, .interrupted = &InterruptFlag()});
  if (search.best.empty()) {
    return WithoutStrategy(flags, job, question, search, terminal);
  }
  if (program != MegatronProgram::kNone) {
    return PrintForMegatron(flags, program, job, search, terminal);
  }
  const std::string json = flags.json || !flags.output.empty()
                               ? graph::IndentedText(SearchJson(
                                     job, search, question, flags.is_robust))
                               : "";
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(flags.json ? json
                            : BrokenLines(SearchText(job, search, question,
                                                     flags.is_robust, terminal),
                                          terminal));
  return kExitOk;
}

}  // namespace

Command AddTrainSearchCommand(CLI::App& program) {
  auto flags = std::make_shared<LlmSearchFlags>();
  CLI::App* app = program.add_subcommand(
      "search", "Find the fastest training strategies that fit");
  flags->train.AddTo(*app, true);
  app->add_option("-t", flags->count, "number of strategies (10)")
      ->type_name("N");
  app->add_option("--time-limit", flags->time_limit,
                  "seconds for the search (30); none: no limit")
      ->type_name("S");
  app->add_flag("--robust", flags->is_robust,
                "rank strategies by their worst case, the end of the interval "
                "of 80%, in place of the prediction");
  AddProgramTo(*app, flags->program,
               "print the best of these strategies with recomputation that "
               "this program can say");
  AddOutput(*app, flags->output, "write the reports here (.json or .json.gz)");
  app->add_flag("--json", flags->json, "print JSON");
  app->footer(
      "Example:\n  acplan train search example:llama-3.1-8b "
      "--gpu H100 --gpus 64 --gbs 512 --seq 8192\nExit status: 0 a strategy "
      "was found, 2 bad input, 3 no strategy fits, 4 a limit was hit before "
      "one was found.");
  return {app, [flags](const Terminal& terminal) {
            return RunLlmSearch(*flags, terminal);
          }};
}

}  // namespace acplan::cli
