// Tries counts of GPUs one by one, each by a search over all strategies.
// Without given counts these are 1, 2, 4 and so on, times the given degrees, up
// to the first that fits and twice more; then, between the last of these that
// does not fit and the first that does, counts that fill nodes, in order: the
// first that fits is the least.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/input/file_names.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/planning_flags.h"
#include "cli/terminal/text.h"
#include "cli/training/limit_text.h"
#include "cli/training/strategy_question.h"
#include "cli/training/train_input.h"
#include "cli/training/train_show_text.h"
#include "costmodel/training/search/strategy_search.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::StrategySearch;
using costmodel::StrategySettings;
using nlohmann::ordered_json;

constexpr int64_t kMostGpus = 1 << 17;
constexpr size_t kMostRows = 1000;
constexpr int kDoublingsMore = 2;  // beyond the first count that fits

struct FitFlags {
  TrainFlags train;
  std::string time_limit = "10";
  std::string output;
  bool json = false;
};

// The common input of all rows, which differ in GPUs, sequence and batch.
struct FitInput {
  costmodel::ModelShape shape;
  costmodel::TrainingSystems systems;
  StrategySettings settings;
  TrainQuestion question = {};
  double time_limit = 0;
};

struct FitRow {
  costmodel::TrainingJob job;
  StrategySearch search;

  bool Fits() const { return !search.best.empty(); }
  // Returns whether a strategy that might fit was not tried, or not planned in
  // time.
  bool IsUnknown() const {
    return !Fits() && (search.unplanned > 0 || !search.is_complete);
  }
  int64_t Gpus() const { return job.strategy.gpus; }
};

std::vector<std::string> ListOf(const StrategySettings& settings,
                                const std::string& key) {
  const auto setting = settings.find(key);
  if (setting == settings.end()) return {};
  std::vector<std::string> values;
  const std::string& text = setting->second.value;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    values.push_back(fmt::to_string(ParseWhole(
        text.substr(begin, end - begin), setting->second.place, 1, INT32_MAX)));
    begin = end + 1;
  }
  return values;
}

// Returns the choices of a setting: a list of one nothing if it is not set.
std::vector<std::optional<std::string>> ChoicesOf(
    const StrategySettings& settings, const std::string& key) {
  const std::vector<std::string> values = ListOf(settings, key);
  if (values.empty()) return {std::nullopt};
  return {values.begin(), values.end()};
}

// Returns the number of GPUs that the given degrees need together. Counts that
// are no multiple of it have no strategy.
int64_t LeastMultiple(const StrategySettings& settings) {
  constexpr int64_t kMost = int64_t{1} << 31;  // more than a count of GPUs
  int64_t product = 1;
  for (const char* key : {"tp", "pp", "cp"}) {
    const auto said = settings.find(key);
    if (said == settings.end()) continue;
    product =
        std::min(kMost, product * ParseWhole(said->second.value,
                                             said->second.place, 1, INT32_MAX));
  }
  return product;
}

FitRow RowWithoutStrategy(const FitInput& input,
                          const StrategySettings& settings) {
  StrategySettings plain;
  for (const char* key : {"gpu", "gpus", "seq", "gbs", "nvlink_domain"}) {
    const auto said = settings.find(key);
    if (said != settings.end()) plain.insert(*said);
  }
  return {StatedJob(input.shape, plain, input.systems), {}};
}

FitRow Try(const FitInput& input, int64_t gpus) {
  StrategySettings settings = input.settings;
  settings["gpus"] = {fmt::to_string(gpus), "--gpus"};
  if (gpus % LeastMultiple(settings) != 0) {
    return RowWithoutStrategy(input, settings);
  }
  auto [job, space] = AskOfStrategies(input.shape, settings, input.systems);
  StrategySearch search = SearchStrategies(
      job, space, input.question.limit, {.count = 1},
      {.seconds = input.time_limit, .interrupted = &InterruptFlag()});
  return {std::move(job), std::move(search)};
}

// Returns the counts of GPUs between these that fill nodes, or are within one.
std::vector<int64_t> CountsBetween(int64_t fails, int64_t fits, int64_t node) {
  std::vector<int64_t> counts;
  const int64_t step = fails < node ? 1 : node;
  for (int64_t gpus = fails + step; gpus < fits; gpus += step) {
    counts.push_back(gpus);
  }
  return counts;
}

bool WasInterrupted() { return InterruptFlag().load(); }

// Returns whether degrees are given, with which more GPUs may hold less.
bool HasDegrees(const StrategySettings& settings) {
  constexpr std::array<const char*, 5> kDegrees = {"tp", "pp", "cp", "ep",
                                                   "etp"};
  return std::ranges::any_of(
      kDegrees, [&](const char* key) { return settings.contains(key); });
}

// Finds the least count of GPUs. Without given degrees, more GPUs hold all that
// fewer do; with them, counts begin with their product.
std::vector<FitRow> FindLeast(const FitInput& input) {
  std::vector<FitRow> rows;
  int more = kDoublingsMore;
  std::optional<size_t> first;
  const int64_t first_count = LeastMultiple(input.settings);
  for (int64_t gpus = first_count; gpus <= kMostGpus && more >= 0; gpus *= 2) {
    if (WasInterrupted()) return rows;
    rows.push_back(Try(input, gpus));
    if (!first && rows.back().Fits()) first = rows.size() - 1;
    if (first) --more;
  }
  if (!first || *first == 0) return rows;
  const int64_t fails = rows[*first - 1].Gpus();
  const int64_t most = rows[*first].Gpus();
  for (const int64_t gpus :
       CountsBetween(fails, most, rows.front().job.cluster.domain)) {
    if (WasInterrupted()) return rows;
    FitRow row = Try(input, gpus);
    // Rows that are not known to fail are shown: the least count that fits may
    // be among them.
    if (!row.Fits() && !row.IsUnknown()) continue;
    const bool fits_here = row.Fits();
    rows.insert(rows.begin() + static_cast<std::ptrdiff_t>(*first),
                std::move(row));
    if (fits_here) break;
    ++*first;
  }
  return rows;
}

// The rows of one sequence and batch.
struct FitTable {
  std::vector<FitRow> rows;
  bool is_least_known = false;  // of all counts, not of these rows
};

std::string CountsText(const FitTable& table) {
  const auto least = std::ranges::find_if(table.rows, &FitRow::Fits);
  const bool is_unknown =
      std::any_of(table.rows.begin(), least, std::mem_fn(&FitRow::IsUnknown));
  if (least == table.rows.end()) {
    return is_unknown ? fmt::format("no count of GPUs was found to fit ({})\n",
                                    EndOfSearch())
                      : "none of these counts of GPUs fits\n";
  }
  if (is_unknown) {
    return fmt::format("smallest count found to fit: {} GPUs ({})\n",
                       FormatCount(least->Gpus()), EndOfSearch());
  }
  if (!table.is_least_known) {
    return fmt::format("smallest of these counts that fits: {} GPUs\n",
                       FormatCount(least->Gpus()));
  }
  return fmt::format(
      "smallest count that fits: {} GPUs, among powers of two and full nodes\n",
      FormatCount(least->Gpus()));
}

std::string FitProofText(const FitTable& fit) {
  if (std::ranges::all_of(
          fit.rows, [](const FitRow& row) { return row.search.is_proven; })) {
    return "proven for the predictions of each row: no other strategy is "
           "predicted "
           "faster";
  }
  if (!std::ranges::all_of(
          fit.rows, [](const FitRow& row) { return row.search.is_complete; })) {
    return fmt::format(
        "not proven: not all strategies of some row were tried ({})",
        EndOfSearch());
  }
  double gap = 0;
  for (const FitRow& row : fit.rows) {
    if (!row.Fits()) continue;
    gap = std::max(gap, 1 - row.search.Bound() / row.search.best[0].seconds);
  }
  return fmt::format(
      "not proven for all rows ({}): other strategies are at most {} faster",
      EndOfSearch(), FormatPercentUp(gap));
}

std::string TableText(const FitTable& fit, const TrainQuestion& question,
                      const Terminal& terminal) {
  std::vector<Table::Align> align = StrategyColumns();
  align.insert(align.begin(), 2, Table::Align::kRight);
  Table table(align);
  std::vector<std::string> heading = StrategyHeadings(question);
  heading.insert(heading.begin(), {"GPUs", "batch"});
  table.AddRow(heading);
  for (const FitRow& row : fit.rows) {
    std::vector<std::string> cells;
    if (row.Fits()) {
      cells = StrategyCells(row.job, row.search.best.front(), question);
    } else {
      cells.resize(8);
      cells.emplace_back(row.IsUnknown()              ? "not known"
                         : row.search.strategies == 0 ? "no strategy"
                                                      : "too large");
    }
    cells.insert(cells.begin(),
                 {fmt::to_string(row.Gpus()),
                  fmt::to_string(row.job.strategy.global_batch)});
    table.AddRow(cells);
  }
  return fmt::format("sequences of {} tokens\n",
                     FormatCount(fit.rows.front().job.strategy.sequence)) +
         table.ToString(terminal) + CountsText(fit) + FitProofText(fit) +
         "\n\n";
}

std::string Text(const std::vector<FitTable>& tables,
                 const TrainQuestion& question, const Terminal& terminal) {
  const costmodel::TrainingJob& job = tables.front().rows.front().job;
  std::string text =
      fmt::format("{} on {}\n{}\n", terminal.Bold(question.model),
                  job.cluster.gpu.name, LimitText(job.cluster.gpu, question));
  for (const FitTable& table : tables) {
    text += TableText(table, question, terminal);
  }
  return text + StrategyLegend(question);
}

ordered_json RowJson(const FitRow& row, const TrainQuestion& question) {
  ordered_json json = {{"gpus", row.Gpus()},
                       {"seq", row.job.strategy.sequence},
                       {"gbs", row.job.strategy.global_batch},
                       {"fits", row.IsUnknown() ? ordered_json(nullptr)
                                                : ordered_json(row.Fits())},
                       {"strategies", row.search.strategies},
                       {"proven", row.search.is_proven},
                       {"bound_s", nullptr},
                       {"best", nullptr}};
  if (std::isfinite(row.search.Bound())) json["bound_s"] = row.search.Bound();
  if (row.Fits()) {
    json["best"] =
        ToJson(ReportOfRanked(row.job, row.search.best.front(), question.limit),
               question);
  }
  return json;
}

ordered_json ToJson(const std::vector<FitTable>& tables,
                    const TrainQuestion& question) {
  ordered_json json = {{"format", "acplan.training_fit"},
                       {"version", 1},
                       {"model", question.model},
                       {"budget_bytes", question.limit.bytes}};
  for (const FitTable& table : tables) {
    ordered_json one = {{"least_gpus", nullptr}};
    for (const FitRow& row : table.rows) {
      if (row.Fits() && one["least_gpus"].is_null()) {
        one["least_gpus"] = row.Gpus();
      }
      one["rows"].push_back(RowJson(row, question));
    }
    json["tables"].push_back(std::move(one));
  }
  return json;
}

FitTable TableOf(const FitInput& input,
                 const std::vector<std::string>& counts) {
  if (counts.empty()) {
    std::vector<FitRow> rows = FindLeast(input);
    return {std::move(rows), !WasInterrupted() && !HasDegrees(input.settings)};
  }
  FitTable table;
  for (const std::string& count : counts) {
    if (WasInterrupted()) break;
    table.rows.push_back(Try(input, std::stoll(count)));
  }
  return table;
}

// Makes a table for each sequence and batch. Counts of GPUs, sequences and
// batches are lists here.
std::vector<FitTable> Survey(FitInput input) {
  std::vector<std::string> counts = ListOf(input.settings, "gpus");
  std::ranges::sort(counts, {},
                    [](const std::string& count) { return std::stoll(count); });
  const auto sequences = ChoicesOf(input.settings, "seq");
  const auto batches = ChoicesOf(input.settings, "gbs");
  if (sequences.size() * batches.size() * std::max<size_t>(1, counts.size()) >
      kMostRows) {
    throw InputError(fmt::format(
        "--gpus, --seq, --gbs: expected at most {} rows in all", kMostRows));
  }
  std::vector<FitTable> tables;
  for (const auto& sequence : sequences) {
    for (const auto& batch : batches) {
      if (sequence) input.settings["seq"].value = *sequence;
      if (batch) input.settings["gbs"].value = *batch;
      FitTable table = TableOf(input, counts);
      if (!table.rows.empty()) tables.push_back(std::move(table));
    }
  }
  return tables;
}

// Returns the question, which is the same in all rows, as is the GPU, whose
// memory is the budget.
TrainQuestion QuestionOf(const FitFlags& flags, const FitInput& input) {
  StrategySettings settings = {{"gpus", {"1", "--gpus"}}};
  const auto gpu = input.settings.find("gpu");
  if (gpu != input.settings.end()) settings.insert(*gpu);
  const costmodel::TrainingJob job =
      StatedJob(input.shape, settings, input.systems);
  return flags.train.Question(job.cluster.gpu);
}

int RunFit(const FitFlags& flags, const Terminal& terminal) {
  if (!flags.output.empty()) {
    RequireExtension(flags.output, {".json", ".json.gz"});
  }
  FitInput input{.shape = flags.train.ReadModel(terminal),
                 .systems = flags.train.ReadSystems(),
                 .settings = flags.train.ReadSettings(),
                 .time_limit = ParseTimeLimit(flags.time_limit)};
  input.question = QuestionOf(flags, input);
  const std::vector<FitTable> tables = Survey(input);
  if (tables.empty()) throw LimitError("interrupted before the first row");
  if (WasInterrupted()) terminal.Warn("interrupted: rows are missing");
  const std::string json = graph::IndentedText(ToJson(tables, input.question));
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(
      flags.json
          ? json
          : BrokenLines(Text(tables, input.question, terminal), terminal));
  const auto has = [&](bool (FitRow::*what)() const) {
    return std::ranges::any_of(tables, [&](const FitTable& table) {
      return std::ranges::any_of(table.rows, what);
    });
  };
  if (has(&FitRow::Fits)) return kExitOk;
  if (has(&FitRow::IsUnknown)) {
    return terminal.Explain(
        fmt::format("nothing was found to fit ({})", EndOfSearch()),
        kExitLimit);
  }
  return terminal.Explain("infeasible: nothing fits", kExitInfeasible);
}

}  // namespace

Command AddTrainFitCommand(CLI::App& program) {
  auto flags = std::make_shared<FitFlags>();
  CLI::App* app =
      program.add_subcommand("fit",
                             "Find how many GPUs a model needs, and the "
                             "fastest strategy for each count");
  flags->train.AddTo(*app, true);
  app->add_option("--time-limit", flags->time_limit,
                  "seconds for each row (10); none: no limit")
      ->type_name("S");
  AddOutput(*app, flags->output, "write the reports here (.json or .json.gz)");
  app->add_flag("--json", flags->json, "print JSON");
  app->footer(
      "Examples:\n  acplan train fit example:llama-3.1-70b "
      "--gpu H100 --seq 8192 --gbs 128\n  acplan train fit "
      "example:llama-3.1-8b --gpu A100 --gpus 4,8 --seq "
      "4096,16384\n--gpus, --seq and --gbs are lists here.\nExit status: 0 "
      "some row fits, 2 bad input, 3 no row fits, 4 a limit or Ctrl-C ended "
      "the search before that was known.");
  return {app, [flags](const Terminal& terminal) {
            return RunFit(*flags, terminal);
          }};
}

}  // namespace acplan::cli
