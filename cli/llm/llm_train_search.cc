#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/llm_input.h"
#include "cli/input/planning_flags.h"
#include "cli/input/train_input.h"
#include "cli/llm/llm_text.h"
#include "cli/llm/llm_train_text.h"
#include "cli/terminal/text.h"
#include "costmodel/training/strategy_search.h"
#include "costmodel/training/training_report.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::StrategySearch;
using costmodel::StrategySettings;
using costmodel::StrategySpace;
using costmodel::TrainingJob;

struct SearchTrainFlags {
  TrainFlags train;
  std::string count = "10";
  std::string time_limit = "10";
  std::string output;
  bool json = false;
};

// A degree that is said is the only one that is tried.
StrategySpace SpaceOf(const TrainingJob& job,
                      const StrategySettings& settings) {
  StrategySpace space = WholeSpace(job);
  const costmodel::TrainingStrategy& s = job.strategy;
  const auto says = [&](std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (settings.contains(key)) return true;
    }
    return false;
  };
  if (says({"tp"})) space.tensor = {s.tensor};
  if (says({"pp"})) space.pipeline = {s.pipeline};
  if (says({"vp", "vp_layers"})) space.chunks = {s.chunks};
  if (says({"cp"})) space.context = {s.context};
  if (says({"ep"})) space.expert = {s.expert};
  if (says({"mbs", "local_batch"})) space.microbatch = {s.microbatch};
  if (says({"zero", "dist_opt", "sharding", "shard_degree"})) {
    space.zero = {s.zero};
  }
  if (says({"recompute", "granularity", "ac_mode"})) {
    space.recomputation = {s.recomputation};
  }
  return space;
}

costmodel::TrainingReport ReportOf(const TrainingJob& job,
                                   const costmodel::RankedStrategy& ranked,
                                   double budget) {
  TrainingJob best = job;
  best.strategy = ranked.strategy;
  return ReportOfTraining(best, budget, costmodel::kLabelsInSearch);
}

// Of a report, what does not need the plan to be made once more.
struct Rates {
  double tokens = 0;  // of a GPU in a second
  double utilisation = 0;
};

Rates RatesOf(const TrainingJob& job, const costmodel::RankedStrategy& ranked) {
  TrainingJob plain = job;
  plain.strategy = ranked.strategy;
  plain.strategy.recomputation = costmodel::Recomputation::kNone;
  plain.strategy.full_layers = 0;
  const costmodel::TrainingReport report = ReportOfTraining(plain);
  const double share = report.time.Total() / ranked.seconds;
  return {.tokens = share * report.TokensPerGpuSecond(),
          .utilisation = share * report.ModelUtilisation()};
}

std::string ProofText(const StrategySearch& search) {
  if (search.is_proven) return "proven: no strategy of these is faster\n";
  if (search.unplanned == 0) {
    return "not proven: some plans may not be the best of their strategy\n";
  }
  return fmt::format(
      "not proven: {} strategies that might be faster with a plan were not "
      "planned (--time-limit)\n",
      FormatCount(search.unplanned));
}

std::string CountText(const StrategySearch& search) {
  return fmt::format(
      "{} strategies, {} evaluated, {} fit, {} planned\n{}"
      "{:.2f} s of a core, {:.2g} million evaluated a second\n\n",
      FormatCount(search.strategies), FormatCount(search.evaluated),
      FormatCount(search.fitting), FormatCount(search.planned),
      ProofText(search), search.core_seconds,
      static_cast<double>(search.evaluated) / 1e6 /
          std::max(search.core_seconds, 1e-9));
}

std::string SearchText(const TrainingJob& job, const StrategySearch& search,
                       const TrainQuestion& question,
                       const Terminal& terminal) {
  using enum Table::Align;
  const costmodel::TrainingStrategy& s = job.strategy;
  std::string text = terminal.Bold(
      fmt::format("{} on {} {}: {} sequences of {} tokens an iteration",
                  question.model, FormatCount(s.gpus), job.cluster.gpu.name,
                  FormatCount(s.global_batch), FormatCount(s.sequence)));
  text += "\n" + CountText(search);
  Table table({kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight,
               kLeft, kRight, kRight, kRight, kRight});
  table.AddRow({"TP", "PP", "VP", "CP", "EP", "DP", "ZeRO", "mbs", "recompute",
                "iteration", "tokens/s", "MFU", "GiB"});
  for (const costmodel::RankedStrategy& ranked : search.best) {
    const Rates rates = RatesOf(job, ranked);
    const costmodel::TrainingStrategy& found = ranked.strategy;
    table.AddRow(
        {fmt::to_string(found.tensor), fmt::to_string(found.pipeline),
         fmt::to_string(found.chunks), fmt::to_string(found.context),
         fmt::to_string(found.expert), fmt::to_string(found.Data()),
         fmt::to_string(found.zero), fmt::to_string(found.microbatch),
         RecomputationText(found), HumanSeconds(ranked.seconds),
         fmt::format("{:.0f}", rates.tokens),
         fmt::format("{:.1f}%", 100 * rates.utilisation),
         fmt::format("{:.1f}", ranked.bytes / (1024.0 * 1024 * 1024))});
  }
  return text + table.ToString(terminal) +
         "tokens/s: of a GPU; MFU: model FLOP utilisation, as llm-train says "
         "it; GiB: of the fullest stage\n";
}

std::string SearchJson(const TrainingJob& job, const StrategySearch& search,
                       const TrainQuestion& question) {
  nlohmann::ordered_json json = {{"format", "acplan.training_search"},
                                 {"version", 1},
                                 {"model", question.model},
                                 {"budget_bytes", question.budget},
                                 {"strategies", search.strategies},
                                 {"evaluated", search.evaluated},
                                 {"fitting", search.fitting},
                                 {"planned", search.planned},
                                 {"unplanned", search.unplanned},
                                 {"proven", search.is_proven}};
  json["best"] = nlohmann::ordered_json::array();
  for (const costmodel::RankedStrategy& ranked : search.best) {
    json["best"].push_back(
        ToJson(ReportOf(job, ranked, question.budget), question));
  }
  return json.dump(2) + "\n";
}

// What a strategy may say and the space of strategies has not.
void RefuseUnsearched(const StrategySettings& settings) {
  for (const char* key :
       {"pp_schedule", "first_layers", "last_layers", "counts_embedding",
        "counts_logits", "etp", "optimizer_copies", "replicate_degree"}) {
    const auto found = settings.find(key);
    if (found == settings.end()) continue;
    throw InputError(fmt::format(
        "{}: expected none in a search, which does not vary it (llm-train "
        "reads it); found {}",
        found->second.place, graph::Quoted(found->second.value)));
  }
}

int RunSearch(const SearchTrainFlags& flags, const Terminal& terminal) {
  if (!flags.output.empty()) {
    CheckResultOutput(flags.output, {".json", ".json.gz"},
                      {flags.train.config, flags.train.strategy});
  }
  const int64_t count = ParseWhole(flags.count, "-t", 1, 10000);
  const double time_limit = ParseTimeLimit(flags.time_limit);
  const costmodel::TrainingSystems systems = flags.train.ReadSystems();
  const StrategySettings settings = flags.train.ReadSettings();
  if (const auto sp = settings.find("sp");
      sp != settings.end() && sp->second.value != "true") {
    throw InputError(fmt::format(
        "{}: expected true, as searches have sequence parallelism beside "
        "tensor parallelism; found {}",
        sp->second.place, graph::Quoted(sp->second.value)));
  }
  RefuseUnsearched(settings);
  const TrainingJob job = StatedJob(flags.train.ReadModel(), settings, systems);
  const TrainQuestion question{.model = FileStem(flags.train.config),
                               .budget = flags.train.Budget(job.cluster.gpu),
                               .tokens = {},
                               .price = {}};
  const StrategySearch search = SearchStrategies(
      job, SpaceOf(job, settings), question.budget, static_cast<size_t>(count),
      {.seconds = time_limit, .interrupted = &InterruptFlag()});
  if (search.best.empty()) {
    return terminal.Complain(
        fmt::format("none of {} strategies fits {} a GPU",
                    FormatCount(search.strategies),
                    graph::FormatManyBytes(question.budget)),
        kExitInfeasible);
  }
  const std::string json = flags.json || !flags.output.empty()
                               ? SearchJson(job, search, question)
                               : "";
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(flags.json ? json
                            : SearchText(job, search, question, terminal));
  return kExitOk;
}

}  // namespace

Command AddLlmTrainSearchCommand(CLI::App& program) {
  auto flags = std::make_shared<SearchTrainFlags>();
  CLI::App* app = program.add_subcommand(
      "llm-train-search",
      "The fastest strategies of training a Hugging Face model that fit");
  flags->train.AddTo(*app, true);
  app->add_option("-t", flags->count, "how many (10)")->type_name("N");
  app->add_option("--time-limit", flags->time_limit,
                  "seconds for plans of recomputation, or none (10)")
      ->type_name("S");
  app->add_option("-o,--output", flags->output,
                  "write the reports (.json or .json.gz)")
      ->type_name("FILE");
  app->add_flag("--json", flags->json, "print JSON");
  app->footer(
      "Example:\n  acplan llm-train-search data/training/models/"
      "llama-3.1-8b.json --gpu H100 --gpus 64 --gbs 512 --seq 8192\n"
      "Exit status: 0 found, 2 bad input, 3 nothing fits.");
  return {app, [flags](const Terminal& terminal) {
            return RunSearch(*flags, terminal);
          }};
}

}  // namespace acplan::cli
