#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/input/data_folder.h"
#include "cli/input/output_files.h"
#include "cli/terminal/text.h"
#include "cli/training/confidence_text.h"
#include "cli/training/train_input.h"
#include "costmodel/training/confidence/error_table.h"
#include "costmodel/training/score/ablation.h"
#include "costmodel/training/score/calibration.h"
#include "costmodel/training/score/decisions.h"
#include "costmodel/training/score/memory_table.h"
#include "costmodel/training/score/score.h"
#include "graph/base/csv_table.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"

namespace acplan::cli {

namespace {

using costmodel::ErrorSummary;
using costmodel::Prediction;
using costmodel::Score;

struct ScoreFlags {
  std::string runs;
  std::string systems;
  std::string baselines;
  std::string output;
  std::string errors;
  std::string calibrate;
  bool ablate = false;
  bool calibrations = false;
  bool json = false;
};

constexpr double kPercent = 100;

std::vector<std::string> Cells(const ErrorSummary& summary) {
  return {summary.name,
          fmt::format("{} of {}", summary.rows, summary.total),
          fmt::format("{:.1f}", kPercent * summary.mean),
          fmt::format("{:.1f}", kPercent * summary.median),
          fmt::format("{:+.1f}", kPercent * summary.worst),
          fmt::format("{:+.1f}", kPercent * summary.bias)};
}

std::string ScoreText(const Score& score, const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight, kRight, kRight});
  table.AddRow({"source", "rows", "mean %", "median", "worst", "bias"});
  for (const ErrorSummary& source : score.sources) table.AddRow(Cells(source));
  if (score.sources.empty()) return table.ToString(terminal);
  table.AddRule();
  table.AddRow(Cells(score.all));
  for (const ErrorSummary& family : score.families) {
    table.AddRow(Cells(family));
  }
  if (score.memory.rows > 0) table.AddRow(Cells(score.memory));
  return table.ToString(terminal) +
         fmt::format("average of {} sources: mean {:.1f} %, median {:.1f} %\n",
                     score.sources.size(), kPercent * score.mean_of_sources,
                     kPercent * score.median_of_sources);
}

nlohmann::ordered_json SummaryJson(const ErrorSummary& summary) {
  return {{"name", summary.name},     {"rows", summary.rows},
          {"total", summary.total},   {"mean", summary.mean},
          {"median", summary.median}, {"worst", summary.worst},
          {"bias", summary.bias}};
}

nlohmann::ordered_json TimeJson(const costmodel::StepTime& time) {
  return {{"compute", time.compute},
          {"recompute", time.recompute},
          {"communication", time.communication},
          {"host", time.host},
          {"bubble", time.bubble},
          {"data_parallel", time.data},
          {"optimizer", time.optimizer},
          {"other", time.other}};
}

// Returns the choices among measured strategies, in a line.
std::string DecisionText(const costmodel::DecisionScore& score) {
  if (score.groups == 0) return "";
  return fmt::format(
             "choices in {} groups of {} strategies: regret {:.1f} % (at "
             "random "
             "{:.1f} "
             "%), within 5 % of\nthe best in {:.0f} % of groups ({:.0f} %), "
             "regret of "
             "the best of three {:.1f} %, Kendall's tau {:.2f}\n",
             score.groups, score.runs, kPercent * score.regret,
             kPercent * score.chance_regret, kPercent * score.good_share,
             kPercent * score.chance_good_share,
             kPercent * score.regret_of_three, score.kendall_tau) +
         fmt::format(
             "regret after the measurement of the two runs that decide {:.1f} "
             "% (expected {:.1f} %),\nof three {:.1f} % ({:.1f} %), of none "
             "{:.1f} % ({:.1f} %)\n",
             kPercent * score.measuring[1].regret,
             kPercent * score.measuring[1].expected_regret,
             kPercent * score.measuring[2].regret,
             kPercent * score.measuring[2].expected_regret,
             kPercent * score.measuring[0].regret,
             kPercent * score.measuring[0].expected_regret);
}

nlohmann::ordered_json DecisionJson(const costmodel::DecisionScore& score) {
  nlohmann::ordered_json measuring = nlohmann::ordered_json::array();
  for (size_t i = 0; i < score.measuring.size(); ++i) {
    measuring.push_back(
        {{"runs", i == 0 ? 0 : i + 1},
         {"regret", score.measuring[i].regret},
         {"expected_regret", score.measuring[i].expected_regret}});
  }
  return {{"groups", score.groups},
          {"runs", score.runs},
          {"regret", score.regret},
          {"regret_of_three", score.regret_of_three},
          {"chance_regret", score.chance_regret},
          {"good_share", score.good_share},
          {"chance_good_share", score.chance_good_share},
          {"kendall_tau", score.kendall_tau},
          {"measuring", std::move(measuring)}};
}

std::string ScoreJson(const Score& score,
                      const costmodel::DecisionScore& decisions,
                      const costmodel::IntervalModel& intervals,
                      const std::vector<costmodel::RunError>& errors,
                      const std::vector<Prediction>& predictions) {
  nlohmann::ordered_json json;
  json["sources"] = nlohmann::ordered_json::array();
  for (const ErrorSummary& source : score.sources) {
    json["sources"].push_back(SummaryJson(source));
  }
  if (!score.sources.empty()) {
    json["all"] = SummaryJson(score.all);
    json["families"] = nlohmann::ordered_json::array();
    for (const ErrorSummary& family : score.families) {
      json["families"].push_back(SummaryJson(family));
    }
    json["mean_of_sources"] = score.mean_of_sources;
    json["median_of_sources"] = score.median_of_sources;
  }
  if (score.memory.rows > 0) json["memory"] = SummaryJson(score.memory);
  json["choices"] = DecisionJson(decisions);
  json["runs"] = nlohmann::ordered_json::array();
  size_t i = 0;  // of the errors, which only predicted runs have
  for (const Prediction& prediction : predictions) {
    nlohmann::ordered_json run = {{"id", prediction.id},
                                  {"measured_s", prediction.measured_seconds}};
    if (prediction.seconds > 0) {
      run["time_s"] = prediction.seconds;
      run["mem_gib"] = prediction.memory_gib;
      run["parts_s"] = TimeJson(prediction.time);
      run["interval"] = ConfidenceJson(intervals.WithoutGroup(errors[i++]),
                                       prediction.seconds);
    } else {
      run["reason"] = prediction.reason;
    }
    json["runs"].push_back(std::move(run));
  }
  return graph::IndentedText(json);
}

std::string PredictionsCsv(const std::vector<Prediction>& predictions) {
  std::string csv = "id,time_s,mem_gib\n";
  for (const Prediction& prediction : predictions) {
    if (prediction.seconds == 0) continue;
    csv += fmt::format("{},{:.6g},{:.6g}\n", graph::CsvCell(prediction.id),
                       prediction.seconds, prediction.memory_gib);
  }
  return csv;
}

// Returns a table of other models. They cover fewer rows, so each stands beside
// this model's errors on the same rows.
std::string BaselineText(const std::vector<costmodel::TrainingRun>& runs,
                         const std::vector<Prediction>& ours,
                         const std::string& path, const Terminal& terminal) {
  using enum Table::Align;
  const graph::CsvTable table =
      graph::ParseCsv(graph::ReadFile(path, graph::kMostListBytes), path);
  Table text({kLeft, kRight, kRight, kRight, kRight, kRight, kRight, kRight});
  text.AddRow({"model", "rows", "mean %", "median", "acplan mean",
               "acplan median", "regret %", "acplan"});
  for (const std::string& column : table.columns) {
    if (column == "id" || column == "time_s" ||
        column.find("mem") != std::string::npos) {
      continue;
    }
    const std::vector<Prediction> theirs =
        OtherPredictions(runs, table, column);
    std::vector<Prediction> same = ours;
    for (size_t i = 0; i < ours.size(); ++i) {
      if (theirs[i].seconds == 0) same[i].seconds = 0;
    }
    const Score their_score = ScorePredictions(theirs);
    const Score our_score = ScorePredictions(same);
    if (their_score.sources.empty() || our_score.sources.empty()) continue;
    text.AddRow(
        {column, std::to_string(their_score.all.rows),
         fmt::format("{:.1f}", kPercent * their_score.mean_of_sources),
         fmt::format("{:.1f}", kPercent * their_score.median_of_sources),
         fmt::format("{:.1f}", kPercent * our_score.mean_of_sources),
         fmt::format("{:.1f}", kPercent * our_score.median_of_sources),
         fmt::format("{:.1f}", kPercent * ScoreDecisions(runs, theirs).regret),
         fmt::format("{:.1f}", kPercent * ScoreDecisions(runs, same).regret)});
  }
  return "\nOther models, averaged over the sources that they cover, and "
         "acplan on the same rows:\n" +
         text.ToString(terminal);
}

// Returns a table of the average over sources without each part of the model.
std::string AblationText(const std::vector<costmodel::TrainingRun>& runs,
                         const Score& whole, const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight, kRight, kRight});
  table.AddRow({"without", "mean %", "median", "runs", "their mean %", "with"});
  const auto percent = [](double value) {
    return fmt::format("{:.1f}", kPercent * value);
  };
  table.AddRow({"(complete model)", percent(whole.mean_of_sources),
                percent(whole.median_of_sources), "", "", ""});
  for (const costmodel::AblatedScore& score : costmodel::AblateFeatures(runs)) {
    table.AddRow({std::string(score.feature),
                  percent(score.score.mean_of_sources),
                  percent(score.score.median_of_sources),
                  std::to_string(score.changed_runs),
                  percent(score.error_without), percent(score.error_with)});
  }
  return "\nAverage over sources without one part of the model, and the runs "
         "that the part changes:\n" +
         table.ToString(terminal);
}

// Returns a table of the errors that remain if some runs of a stack calibrate the
// predictions of its others.
std::string CalibrationText(const std::vector<costmodel::TrainingRun>& runs,
                            const Terminal& terminal) {
  using enum Table::Align;
  Table table({kRight, kRight, kRight, kRight});
  table.AddRow({"runs", "predictions", "mean % before", "after"});
  for (const costmodel::CalibrationScore& score :
       costmodel::ScoreCalibrations(runs)) {
    table.AddRow({fmt::to_string(score.runs), fmt::to_string(score.predictions),
                  fmt::format("{:.1f}", kPercent * score.before),
                  fmt::format("{:.1f}", kPercent * score.after)});
  }
  return "\nCalibrated by so many runs of the same source, GPU, precision and "
         "kind of model,\nerrors of the others, averaged over sources:\n" +
         table.ToString(terminal);
}

// Returns the kinds and errors of all runs that were predicted.
std::vector<costmodel::RunError> ErrorsOf(
    const std::vector<costmodel::TrainingRun>& runs,
    const std::vector<Prediction>& predictions) {
  std::vector<costmodel::RunError> errors;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Prediction& prediction = predictions[i];
    if (prediction.seconds == 0) continue;
    errors.push_back(
        {.id = prediction.id,
         .source = prediction.source,
         .group = runs[i].group,
         .kind = prediction.kind,
         .ratio = prediction.measured_seconds / prediction.seconds});
  }
  return errors;
}

// Returns how many of these runs are within the intervals that a user gets.
std::string InsideText(const costmodel::IntervalModel& intervals,
                       const std::vector<costmodel::RunError>& errors) {
  if (errors.empty()) return "";
  const costmodel::Coverage coverage = CoverageOf(intervals, errors);
  return fmt::format(
      "intervals of {:.0f}%: {} of {} runs are inside ({:.1f} %), median width "
      "{:.0f} %\n",
      kPercent * costmodel::kIntervalShare, coverage.inside_runs, coverage.runs,
      kPercent * coverage.Share(), kPercent * coverage.width);
}

std::string NotRepresentedText(const std::vector<Prediction>& predictions) {
  std::string text;
  for (const Prediction& prediction : predictions) {
    if (prediction.seconds > 0) continue;
    text += fmt::format("not represented: {}: {}\n", prediction.id,
                        prediction.reason);
  }
  return text;
}

std::string MemoryText(const std::vector<ErrorSummary>& errors,
                       const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight, kRight, kRight});
  table.AddRow({"memory", "rows", "mean %", "median", "worst", "bias"});
  for (const ErrorSummary& summary : errors) {
    if (summary.name == "all") table.AddRule();
    table.AddRow(Cells(summary));
  }
  return table.ToString(terminal);
}

std::string MemoryJson(const std::vector<ErrorSummary>& errors,
                       const std::vector<Prediction>& predictions) {
  nlohmann::ordered_json json;
  json["memory"] = nlohmann::ordered_json::array();
  for (const ErrorSummary& summary : errors) {
    json["memory"].push_back(SummaryJson(summary));
  }
  json["runs"] = nlohmann::ordered_json::array();
  for (const Prediction& prediction : predictions) {
    nlohmann::ordered_json run = {{"id", prediction.id},
                                  {"measured_gib", prediction.measured_gib}};
    if (prediction.memory_gib > 0) {
      run["mem_gib"] = prediction.memory_gib;
    } else {
      run["reason"] = prediction.reason;
    }
    json["runs"].push_back(std::move(run));
  }
  return graph::IndentedText(json);
}

std::string MemoryCsv(const std::vector<Prediction>& predictions) {
  std::string csv = "id,mem_gib\n";
  for (const Prediction& prediction : predictions) {
    if (prediction.memory_gib == 0) continue;
    csv += fmt::format("{},{:.6g}\n", graph::CsvCell(prediction.id),
                       prediction.memory_gib);
  }
  return csv;
}

// Refuses flags that need a table of runs.
void RefuseFlagsOfRuns(const ScoreFlags& flags, std::string_view contents) {
  const auto refuse = [&](bool is_given, std::string_view flag) {
    if (!is_given) return;
    throw InputError(
        fmt::format("{}: cannot be combined with {}", flag, contents));
  };
  refuse(!flags.baselines.empty(), "--baselines");
  refuse(flags.ablate, "--ablate");
  refuse(flags.calibrations, "--calibrations");
  refuse(!flags.calibrate.empty(), "--calibrate");
  refuse(!flags.errors.empty(), "--error-table");
}

// Scores intervals on a table of errors.
int ScoreIntervals(const ScoreFlags& flags, const graph::CsvTable& table,
                   const Terminal& terminal) {
  RefuseFlagsOfRuns(flags, "a table of errors");
  if (!flags.output.empty()) {
    throw InputError("-o: cannot be combined with a table of errors");
  }
  const std::vector<costmodel::Coverage> coverages =
      costmodel::CrossValidateIntervals(costmodel::ReadRunErrors(table));
  terminal.Print(flags.json ? CoverageJson(coverages)
                            : CoverageText(coverages, terminal));
  return kExitOk;
}

// Scores a table of readings of memory alone.
int ScoreMemory(const ScoreFlags& flags, const graph::CsvTable& table,
                const costmodel::TrainingSystems& systems,
                const Terminal& terminal) {
  RefuseFlagsOfRuns(flags, "readings of memory");
  const std::vector<Prediction> predictions =
      costmodel::PredictMemoryTable(table, systems);
  const std::vector<ErrorSummary> errors =
      costmodel::SummariseMemory(predictions);
  if (!flags.output.empty()) {
    graph::WriteFile(flags.output, MemoryCsv(predictions));
  }
  if (flags.json) {
    terminal.Print(MemoryJson(errors, predictions));
    return kExitOk;
  }
  std::string text = MemoryText(errors, terminal);
  for (const Prediction& prediction : predictions) {
    if (prediction.memory_gib > 0) continue;
    text += fmt::format("not represented: {}: {}\n", prediction.id,
                        prediction.reason);
  }
  terminal.Print(BrokenLines(text, terminal));
  return kExitOk;
}

int RunScore(const ScoreFlags& flags, const Terminal& terminal) {
  costmodel::TrainingSystems systems =
      costmodel::ReadTrainingSystems(SystemsFile(flags.systems));
  const graph::CsvTable table = graph::ParseCsv(
      graph::ReadFile(flags.runs, graph::kMostListBytes), flags.runs);
  if (costmodel::IsErrorTable(table)) {
    return ScoreIntervals(flags, table, terminal);
  }
  if (costmodel::IsMemoryTable(table)) {
    return ScoreMemory(flags, table, systems, terminal);
  }
  std::string calibration_text;
  if (!flags.calibrate.empty()) {
    const costmodel::Calibration calibration =
        ReadCalibration(flags.calibrate, systems);
    systems = WithCalibration(std::move(systems), calibration);
    calibration_text = TextOf(calibration);
  }
  const std::vector<costmodel::TrainingRun> runs =
      costmodel::ReadRuns(table, systems);
  const std::vector<Prediction> predictions = costmodel::PredictRuns(runs);
  const Score score = ScorePredictions(predictions);
  // Inputs that may be wrong are read before anything is written.
  const std::shared_ptr<const costmodel::IntervalModel> intervals =
      ReadIntervals();
  const costmodel::DecisionScore decisions =
      costmodel::ScoreDecisions(runs, predictions, intervals.get());
  const std::vector<costmodel::RunError> errors = ErrorsOf(runs, predictions);
  std::string text = calibration_text + ScoreText(score, terminal) +
                     InsideText(*intervals, errors) + DecisionText(decisions);
  if (!flags.baselines.empty()) {
    text += BaselineText(runs, predictions, flags.baselines, terminal);
  }
  if (flags.calibrations) text += CalibrationText(runs, terminal);
  if (flags.ablate) text += AblationText(runs, score, terminal);
  text += NotRepresentedText(predictions);
  if (!flags.output.empty()) {
    graph::WriteFile(flags.output, PredictionsCsv(predictions));
  }
  if (!flags.errors.empty()) {
    graph::WriteFile(flags.errors, costmodel::RunErrorsCsv(errors));
  }
  terminal.Print(
      flags.json ? ScoreJson(score, decisions, *intervals, errors, predictions)
                 : BrokenLines(text, terminal));
  return kExitOk;
}

}  // namespace

Command AddTrainScoreCommand(CLI::App& program) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* app = program.add_subcommand(
      "score", "Compare predictions with measured training runs");
  app->add_option("RUNS", flags->runs, "measured runs (.csv or .csv.gz)")
      ->required();
  app->add_option("--systems", flags->systems,
                  "file of GPUs and software (default: training/systems.json "
                  "of the data that came with acplan)")
      ->type_name("JSON");
  app->add_option("--baselines", flags->baselines,
                  "predictions of other models for these runs: CSV with id and "
                  "a column for each model")
      ->type_name("CSV");
  app->add_flag("--calibrations", flags->calibrations,
                "also the error with --calibrate by 1 to 5 runs of the same "
                "stack");
  AddCalibrate(*app, flags->calibrate);
  app->add_flag("--ablate", flags->ablate,
                "also the error without each part of the model");
  AddOutput(*app, flags->output,
            "write the predictions here: id, time_s, mem_gib")
      ->type_name("CSV");
  app->add_option("--error-table", flags->errors,
                  "write the kind of each run and the error of its prediction "
                  "here, a table from which intervals are made")
      ->type_name("CSV");
  app->add_flag("--json", flags->json, "print JSON");
  app->footer(
      "Example:\n  acplan train score example:runs\n"
      "Exit status: 0 scored, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunScore(*flags, terminal);
          }};
}

}  // namespace acplan::cli
