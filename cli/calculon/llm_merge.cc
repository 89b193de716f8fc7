#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/calculon/search_flags.h"
#include "cli/command.h"
#include "cli/input/file_names.h"
#include "cli/input/output_files.h"
#include "costmodel/calculon/llm/records.h"
#include "graph/base/file_io.h"
#include "graph/base/file_lines.h"
#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/base/number_limits.h"
#include "graph/base/number_text.h"

namespace acplan::cli {

namespace {

using nlohmann::ordered_json;

struct MergeFlags {
  std::vector<std::string> files;  // the last one is the output
  bool none_ok = false;
};

constexpr size_t kPiece = size_t{1} << 20;
constexpr std::string_view kRate = "sample_rate";
constexpr std::string_view kListsAll = "llm-all-executions";
constexpr std::string_view kListsBest = "llm-optimal-execution";

// The output of a shard.
struct ShardFile {
  std::string name;
  ShardNote note;
};

[[noreturn]] void RefuseShard(const std::string& name,
                              std::string_view expected) {
  throw InputError(
      fmt::format("{}: expected {}", graph::OneLine(name, 400), expected));
}

bool IsCsv(const std::string& name) {
  return name.ends_with(".csv") || name.ends_with(".csv.gz");
}

void RequireCount(const std::string& name, std::string_view what,
                  int64_t expected, int64_t count) {
  if (expected == count) return;
  RefuseShard(name, fmt::format("{} {}, as in its note, found {}", expected,
                                what, count));
}

// Refuses a note of another command than `command`, be it in a CSV file or in a
// JSON one, which only this command writes.
void RequireCommand(const std::string& name, const ShardNote& note,
                    std::string_view command) {
  if (note.command == command) return;
  RefuseShard(name, fmt::format("a note of {}, found one of {}", command,
                                graph::Quoted(note.command)));
}

// Reads the note of a CSV file, which has a heading, a row for each execution,
// and the note.
ShardNote ReadCsvNote(const std::string& name) {
  const std::string start = fmt::format("#{} ", kShardKey);
  std::string last;
  int64_t lines = 0;
  graph::ForEachLine(name, [&](std::string_view line) {
    if (lines == 0 && line != costmodel::CsvHeading()) {
      RefuseShard(name, "the columns that llm-all-executions writes");
    }
    last = line;
    ++lines;
  });
  if (!last.starts_with(start)) {
    RefuseShard(name, "the output of a search with --shard");
  }
  const ShardNote note =
      ParseShardNote(graph::ParseJson(last.substr(start.size()), name), name);
  RequireCommand(name, note, kListsAll);
  RequireCount(name, "rows", note.executions, lines - 2);
  RequireCount(name, "rows", note.counts.good, lines - 2);
  return note;
}

void RequireEntry(const graph::JsonField& entry) {
  const graph::JsonField execution = entry.Get("execution");
  if (!execution.json().is_object()) execution.Fail("an object");
  const graph::JsonField rate = entry.Get("stats").Get(kRate);
  if (!rate.json().is_number()) rate.Fail("a number");
}

ShardNote ReadJsonNote(const std::string& name) {
  const nlohmann::json document =
      graph::ParseJson(graph::ReadJsonText(name), name);
  const graph::JsonField root(document, name);
  const ShardNote note = ParseShardNote(root.Get(kShardKey).json(), name);
  for (const auto& [key, unused] : document.items()) {
    if (key != kShardKey) RequireEntry(root.Get(key));
  }
  RequireCommand(name, note, kListsBest);
  RequireCount(name, "executions", note.executions,
               static_cast<int64_t>(document.size()) - 1);
  return note;
}

// Returns the shards in order. Throws InputError if they are not all the shards
// of one search.
std::vector<ShardFile> ReadShards(const std::vector<std::string>& names) {
  // The note of a file is at its end, so files are read twice.
  for (const std::string& name : names) {
    if (graph::IsPipeOrDevice(name)) {
      RefuseShard(name, "a file, found a pipe or a device");
    }
  }
  std::vector<ShardFile> shards;
  for (const std::string& name : names) {
    shards.push_back(
        {name, IsCsv(name) ? ReadCsvNote(name) : ReadJsonNote(name)});
  }
  std::ranges::stable_sort(shards, {}, [](const ShardFile& shard) {
    return shard.note.shard.index;
  });
  const ShardNote& first = shards.front().note;
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardNote& note = shards[i].note;
    if (note.search != first.search || note.command != first.command ||
        note.top_n != first.top_n || note.shard.count != first.shard.count) {
      RefuseShard(
          shards[i].name,
          fmt::format("a shard of the same search as {}", shards.front().name));
    }
    if (note.shard.index != static_cast<int>(i) + 1) {
      RefuseShard(shards[i].name,
                  fmt::format("shard {} of {} next, found {}", i + 1,
                              first.shard.count, note.shard.index));
    }
  }
  if (shards.size() != static_cast<size_t>(first.shard.count)) {
    RefuseShard(
        shards.back().name,
        fmt::format("{} shards, found {}", first.shard.count, shards.size()));
  }
  return shards;
}

ShardNote Total(const std::vector<ShardFile>& shards) {
  ShardNote total = shards.front().note;
  total.counts = {};
  for (const ShardFile& shard : shards) {
    total.counts.total += shard.note.counts.total;
    total.counts.good += shard.note.counts.good;
    total.counts.bad += shard.note.counts.bad;
    total.executions += shard.note.executions;
    total.seconds = std::max(total.seconds, shard.note.seconds);
    if (std::max(total.counts.total, total.counts.good + total.counts.bad) >
        graph::kMostExactInteger) {
      RefuseShard(shard.name, fmt::format("counts that sum up to {} at most",
                                          graph::kMostExactInteger));
    }
  }
  return total;
}

double RateOf(const ordered_json& entry) {
  return entry.at("stats").at(std::string(kRate)).get<double>();
}

std::vector<ordered_json> MergeBest(const std::vector<ShardFile>& shards,
                                    const ShardNote& total) {
  std::vector<ordered_json> entries;
  for (const ShardFile& shard : shards) {
    ordered_json json =
        graph::ParseOrderedJson(graph::ReadJsonText(shard.name));
    json.erase(std::string(kShardKey));
    for (auto& [unused, entry] : json.items()) entries.push_back(entry);
  }
  std::ranges::stable_sort(entries,
                           [](const ordered_json& a, const ordered_json& b) {
                             return RateOf(a) > RateOf(b);
                           });
  if (entries.size() > static_cast<size_t>(total.top_n)) {
    entries.resize(static_cast<size_t>(total.top_n));
  }
  return entries;
}

void MergeRows(const std::vector<ShardFile>& shards,
               const std::string& output) {
  graph::FileWriter file(output);
  file.Append(costmodel::CsvHeading() + "\n");
  for (const ShardFile& shard : shards) {
    int64_t number = 0;
    std::string rows;
    graph::ForEachLine(shard.name, [&](std::string_view line) {
      const int64_t row = number++;
      if (row < 1 || row > shard.note.counts.good) return;
      rows += line;
      rows += '\n';
      if (rows.size() < kPiece) return;
      file.Append(rows);
      rows.clear();
    });
    file.Append(rows);
  }
  file.Commit();
}

int RunMerge(const MergeFlags& flags, const Terminal& terminal) {
  if (flags.files.size() < 2) {
    throw InputError("expected the outputs of shards and an OUTPUT");
  }
  const std::string& output = flags.files.back();
  const std::vector<std::string> inputs(flags.files.begin(),
                                        flags.files.end() - 1);
  const std::vector<ShardFile> shards = ReadShards(inputs);
  const ShardNote total = Total(shards);
  const bool lists_all = total.command == kListsAll;
  RequireExtension(output, lists_all
                               ? std::vector<std::string>{".csv", ".csv.gz"}
                               : std::vector<std::string>{".json", ".json.gz",
                                                          ".csv", ".csv.gz"});
  ReportTotal(total.counts.total, terminal);
  ReportCounts(total.counts, total.seconds, terminal);
  if (total.counts.good == 0) {
    const int exit_code = ReportNone(flags.none_ok, terminal);
    if (exit_code != kExitOk) return exit_code;
  }
  if (lists_all) {
    MergeRows(shards, output);
  } else {
    const std::vector<ordered_json> best = MergeBest(shards, total);
    if (!best.empty()) {
      terminal.Report(
          ResultLevel::kInfo,
          "Best sample rate: " +
              graph::FloatText(
                  best.front().at("stats").at("sample_rate").get<double>()));
    }
    WriteRanked(output, best);
  }
  terminal.Report(ResultLevel::kInfo, "Output: " + output);
  return kExitOk;
}

}  // namespace

Command AddLlmMergeCommand(CLI::App& program) {
  auto flags = std::make_shared<MergeFlags>();
  CLI::App* app = program.add_subcommand(
      "llm-merge", "Merge the outputs of a search with --shard");
  MarkAsOutput(
      app->add_option("FILES", flags->files,
                      "the outputs of all shards, then the file to write")
          ->required());
  app->add_flag("-n,--noneok", flags->none_ok,
                "succeed if no execution is feasible");
  app->footer(
      "Example:\n  acplan calculon llm-merge part1.json part2.json best.json\n"
      "Exit status: 0 merged, 2 bad input, 3 nothing is feasible.");
  return {app, [flags](const Terminal& terminal) {
            return RunMerge(*flags, terminal);
          }};
}

}  // namespace acplan::cli
