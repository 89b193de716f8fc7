#include "cli/calculon/search_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "cli/input/exit_codes.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/terminal/text.h"
#include "costmodel/calculon/llm/records.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/base/number_limits.h"
#include "graph/base/number_text.h"
#include "graph/base/text_value.h"

namespace acplan::cli {

namespace {

using costmodel::SearchProgress;
using nlohmann::ordered_json;

std::vector<bool> ParseFused(const std::string& text) {
  constexpr std::array<std::string_view, 5> kTrue = {"t", "true", "T", "True",
                                                     "1"};
  constexpr std::array<std::string_view, 5> kFalse = {"f", "false", "F",
                                                      "False", "0"};
  constexpr std::array<std::string_view, 3> kBoth = {"both", "all", "*"};
  if (std::ranges::find(kTrue, text) != kTrue.end()) return {true};
  if (std::ranges::find(kFalse, text) != kFalse.end()) return {false};
  if (std::ranges::find(kBoth, text) != kBoth.end()) return {false, true};
  throw InputError(
      fmt::format("--fused_activation: expected true, false or both, found {}",
                  graph::Quoted(text)));
}

costmodel::Datatype ParseDatatype(const std::string& text) {
  const auto place = std::ranges::find(costmodel::kDatatypeNames, text);
  if (place == costmodel::kDatatypeNames.end()) {
    throw InputError(fmt::format("DATATYPE: expected {}, found {}",
                                 fmt::join(costmodel::kDatatypeNames, ", "),
                                 graph::Quoted(text)));
  }
  return static_cast<costmodel::Datatype>(place -
                                          costmodel::kDatatypeNames.begin());
}

costmodel::SearchShard ParseShard(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos) {
    throw InputError(
        fmt::format("--shard: expected i/n, found {}", graph::Quoted(text)));
  }
  const int count = static_cast<int>(
      ParseWhole(text.substr(slash + 1), "--shard", 1, 1'000'000));
  return {
      static_cast<int>(ParseWhole(text.substr(0, slash), "--shard", 1, count)),
      count};
}

uint64_t Fnv1a(std::string_view bytes) {
  uint64_t hash = 14695981039346656037U;
  for (const char c : bytes) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211U;
  }
  return hash;
}

std::string ProgressText(const SearchProgress& progress, double seconds) {
  const double rate = static_cast<double>(progress.done_count) / seconds;
  return fmt::format(
      "{} of {} executions  {}/s  best {:.6g} samples/s  {:.0f} s left",
      FormatCount(progress.done_count), FormatCount(progress.total),
      FormatCount(static_cast<int64_t>(rate)), progress.best_rate,
      static_cast<double>(progress.total - progress.done_count) / rate);
}

std::string CsvHeading(const ordered_json& entry) {
  std::string text;
  for (const char* part : {"execution", "stats"}) {
    for (const auto& [key, unused] : entry.at(part).items()) text += "," + key;
  }
  return text + "\n";
}

std::string CsvLine(size_t rank, const ordered_json& entry) {
  std::string text = std::to_string(rank);
  for (const char* part : {"execution", "stats"}) {
    const graph::TextValue values =
        graph::ParseTextValue(graph::CompactText(entry.at(part)), "");
    for (const auto& [unused, value] : values.members) {
      text += "," + PythonText(value);
    }
  }
  return text + "\n";
}

}  // namespace

void SearchFlags::AddTo(CLI::App& app, const std::string& output_help,
                        const std::string& debug_help) {
  app.add_option("APPLICATION", application, "model (.json or .json.gz)")
      ->required();
  app.add_option("NUM_PROCS", num_procs, "number of processors")->required();
  app.add_option("MAX_BATCH", max_batch,
                 "largest batch; the search uses the largest multiple of the "
                 "data parallelism up to it")
      ->required();
  app.add_option("DATATYPE", datatype, "float8, float16, float32 or bfloat16")
      ->required();
  app.add_option("SYSTEM", system, "system (.json or .json.gz)")->required();
  MarkAsOutput(app.add_option("OUTPUT", output, output_help)->required());
  app.add_flag("-d,--debug", debug, debug_help);
  app.add_option("-c,--cpus", cpus, "number of threads (default: one per core)")
      ->type_name("N");
  app.add_flag("-n,--noneok", none_ok, "succeed if no execution is feasible");
  app.add_option("-f,--fused_activation", fused_activation,
                 "fused activation: true (default), false or both")
      ->type_name("V");
  app.add_option("--shard", shard,
                 "search the I-th of N parts; llm-merge merges their outputs")
      ->type_name("I/N");
}

costmodel::SearchProblem SearchFlags::Problem(const Terminal& terminal) const {
  costmodel::SearchProblem problem;
  problem.num_procs = ParseWhole(num_procs, "NUM_PROCS", 0, INT32_MAX);
  problem.max_batch = ParseWhole(max_batch, "MAX_BATCH", 0, INT32_MAX);
  problem.datatype = ParseDatatype(datatype);
  problem.fused_activation = ParseFused(fused_activation);
  problem.model = ReadModelInput(application, terminal);
  problem.system = ReadSystemInput(system, terminal);
  if (!problem.system.matrix.Supports(problem.datatype) ||
      !problem.system.vector.Supports(problem.datatype)) {
    throw InputError(
        fmt::format("DATATYPE: expected a type of both engines of {}, found {}",
                    graph::OneLine(system, 400), datatype));
  }
  return problem;
}

costmodel::SearchOptions SearchFlags::Options() const {
  costmodel::SearchOptions options;
  if (!cpus.empty()) {
    options.threads = static_cast<int>(ParseWhole(cpus, "--cpus", 1, 4096));
  }
  if (!shard.empty()) options.shard = ParseShard(shard);
  return options;
}

TimedOutcome RunSearch(const costmodel::SearchOptions& options,
                       const Terminal& terminal,
                       const std::function<costmodel::SearchOutcome(
                           const costmodel::SearchOptions&)>& search) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  ProgressLine line(terminal);
  costmodel::SearchOptions watched = options;
  watched.interrupt = &InterruptFlag();
  watched.on_progress = [&](const SearchProgress& progress) {
    const double elapsed = seconds();
    line.Show(elapsed, [&] { return ProgressText(progress, elapsed); });
  };
  costmodel::SearchOutcome outcome = search(watched);
  return {std::move(outcome), seconds()};
}

void ReportTotal(int64_t total, const Terminal& terminal) {
  terminal.Report(ResultLevel::kInfo,
                  fmt::format("Total executions: {}", total));
}

void ReportCounts(const costmodel::SearchCounts& counts, double seconds,
                  const Terminal& terminal) {
  terminal.Report(
      ResultLevel::kInfo,
      fmt::format(
          "Good executions: {}\nBad executions: {}\n"
          "Calculation rate: {:.2f} calcs/sec",
          counts.good, counts.bad,
          seconds > 0 ? static_cast<double>(counts.total) / seconds : 0.0));
}

int ReportNone(bool none_ok, const Terminal& terminal) {
  terminal.Report(none_ok ? ResultLevel::kInfo : ResultLevel::kCritical,
                  "No acceptable configurations found :(");
  return none_ok
             ? kExitOk
             : terminal.Explain("no execution is feasible", kExitInfeasible);
}

int ReportUnfinished(const Terminal& terminal) {
  return terminal.Explain("interrupted before the first result", kExitLimit);
}

void WarnInterrupted(const TimedOutcome& timed, const Terminal& terminal) {
  if (!timed.outcome.was_interrupted) return;
  terminal.Warn(fmt::format("interrupted after {} executions",
                            FormatCount(timed.outcome.counts.total)));
}

ordered_json RankedJson(const std::vector<ordered_json>& entries) {
  ordered_json json = ordered_json::object();
  for (size_t rank = 0; rank < entries.size(); ++rank) {
    json[std::to_string(rank)] = entries[rank];
  }
  return json;
}

std::string RankedCsv(const std::vector<ordered_json>& entries) {
  if (entries.empty()) return "," + costmodel::CsvHeading() + "\n";
  std::string text = CsvHeading(entries.front());
  for (size_t rank = 0; rank < entries.size(); ++rank) {
    text += CsvLine(rank, entries[rank]);
  }
  return text;
}

void WriteRanked(const std::string& output,
                 const std::vector<ordered_json>& entries) {
  const bool is_json =
      output.ends_with(".json") || output.ends_with(".json.gz");
  graph::WriteFile(output, is_json
                               ? costmodel::ResultText(RankedJson(entries),
                                                       output.ends_with(".gz"))
                               : RankedCsv(entries));
}

ordered_json ToJson(const ShardNote& note) {
  return {{"version", 1},
          {"command", note.command},
          {"search", note.search},
          {"shard", {note.shard.index, note.shard.count}},
          {"top_n", note.top_n},
          {"total", note.counts.total},
          {"good", note.counts.good},
          {"bad", note.counts.bad},
          {"executions", note.executions},
          {"seconds", note.seconds}};
}

ShardNote ParseShardNote(const nlohmann::json& json, const std::string& file) {
  constexpr int64_t kMost = graph::kMostExactInteger;
  const graph::JsonField root(json, file);
  root.Get("version").Int(1, 1);
  ShardNote note;
  note.command = root.Get("command").String();
  note.search = root.Get("search").String();
  const graph::JsonField shard = root.Get("shard");
  const std::vector<graph::JsonField> parts = shard.Elements();
  if (parts.size() != 2) shard.Fail("a number and a count");
  note.shard.count = static_cast<int>(parts[1].Int(1, 1'000'000));
  note.shard.index = static_cast<int>(parts[0].Int(1, note.shard.count));
  note.top_n = root.Get("top_n").Int(1, kMost);
  note.counts = {root.Get("total").Int(0, kMost),
                 root.Get("good").Int(0, kMost), root.Get("bad").Int(0, kMost)};
  note.executions = root.Get("executions").Int(0, kMost);
  note.seconds = root.Get("seconds").NonNegativeNumber();
  return note;
}

std::string SearchDigest(const SearchFlags& flags,
                         const std::string& other_flags) {
  std::string text;
  for (const std::string& part :
       {graph::ReadJsonText(flags.application),
        graph::ReadJsonText(flags.system), flags.num_procs, flags.max_batch,
        flags.datatype, flags.fused_activation, other_flags}) {
    text += '\0' + part;
  }
  return fmt::format("{:016x}", Fnv1a(text));
}

}  // namespace acplan::cli
