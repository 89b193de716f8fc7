#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/input/data_folder.h"
#include "cli/input/output_files.h"
#include "cli/terminal/text.h"
#include "costmodel/training/score/ablation.h"
#include "costmodel/training/score/memory_table.h"
#include "costmodel/training/score/score.h"
#include "costmodel/training/score/stack_factors.h"
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
  bool ablate = false;
  bool factors = false;
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

std::string ScoreJson(const Score& score,
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
  json["runs"] = nlohmann::ordered_json::array();
  for (const Prediction& prediction : predictions) {
    nlohmann::ordered_json run = {{"id", prediction.id},
                                  {"measured_s", prediction.measured_seconds}};
    if (prediction.seconds > 0) {
      run["time_s"] = prediction.seconds;
      run["mem_gib"] = prediction.memory_gib;
      run["parts_s"] = TimeJson(prediction.time);
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
  Table text({kLeft, kRight, kRight, kRight, kRight, kRight});
  text.AddRow(
      {"model", "rows", "mean %", "median", "acplan mean", "acplan median"});
  for (const std::string& column : table.columns) {
    if (column == "id" || column == "time_s" ||
        column.find("mem") != std::string::npos) {
      continue;
    }
    const std::vector<Prediction> theirs =
        OtherPredictions(runs, table, column);
    std::vector<Prediction> same;
    for (size_t i = 0; i < ours.size(); ++i) {
      if (theirs[i].seconds > 0) same.push_back(ours[i]);
    }
    const Score their_score = ScorePredictions(theirs);
    const Score our_score = ScorePredictions(same);
    if (their_score.sources.empty() || our_score.sources.empty()) continue;
    text.AddRow(
        {column, std::to_string(their_score.all.rows),
         fmt::format("{:.1f}", kPercent * their_score.mean_of_sources),
         fmt::format("{:.1f}", kPercent * their_score.median_of_sources),
         fmt::format("{:.1f}", kPercent * our_score.mean_of_sources),
         fmt::format("{:.1f}", kPercent * our_score.median_of_sources)});
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

std::string FactorText(const std::vector<costmodel::TrainingRun>& runs,
                       const std::vector<Prediction>& predictions) {
  const Score score =
      ScorePredictions(costmodel::ApplyStackFactors(runs, predictions));
  if (score.sources.empty()) {
    return "\nWith one factor per stack: no stack has runs in both halves\n";
  }
  return fmt::format(
      "\nWith one factor per stack, found on the other half of its runs: mean "
      "{:.1f} %, median {:.1f} %\n({} runs of {} sources have one)\n",
      kPercent * score.mean_of_sources, kPercent * score.median_of_sources,
      score.all.rows, score.sources.size());
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

// Scores a table of readings of memory alone.
int ScoreMemory(const ScoreFlags& flags, const graph::CsvTable& table,
                const costmodel::TrainingSystems& systems,
                const Terminal& terminal) {
  const auto refuse = [](bool is_given, std::string_view flag) {
    if (!is_given) return;
    throw InputError(
        fmt::format("{}: cannot be combined with readings of memory", flag));
  };
  refuse(!flags.baselines.empty(), "--baselines");
  refuse(flags.ablate, "--ablate");
  refuse(flags.factors, "--factors");
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
  const costmodel::TrainingSystems systems =
      costmodel::ReadTrainingSystems(SystemsFile(flags.systems));
  const graph::CsvTable table = graph::ParseCsv(
      graph::ReadFile(flags.runs, graph::kMostListBytes), flags.runs);
  if (costmodel::IsMemoryTable(table)) {
    return ScoreMemory(flags, table, systems, terminal);
  }
  const std::vector<costmodel::TrainingRun> runs =
      costmodel::ReadRuns(table, systems);
  const std::vector<Prediction> predictions = costmodel::PredictRuns(runs);
  const Score score = ScorePredictions(predictions);
  // Inputs that may be wrong are read before anything is written.
  std::string text = ScoreText(score, terminal);
  if (!flags.baselines.empty()) {
    text += BaselineText(runs, predictions, flags.baselines, terminal);
  }
  if (flags.factors) text += FactorText(runs, predictions);
  if (flags.ablate) text += AblationText(runs, score, terminal);
  text += NotRepresentedText(predictions);
  if (!flags.output.empty()) {
    graph::WriteFile(flags.output, PredictionsCsv(predictions));
  }
  terminal.Print(flags.json ? ScoreJson(score, predictions)
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
  app->add_flag("--factors", flags->factors,
                "also the error with one factor per stack, found on one half "
                "of the runs and applied to the other");
  app->add_flag("--ablate", flags->ablate,
                "also the error without each part of the model");
  AddOutput(*app, flags->output,
            "write the predictions here: id, time_s, mem_gib")
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
