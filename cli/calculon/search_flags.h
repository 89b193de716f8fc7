#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/calculon/llm_input.h"
#include "cli/terminal/terminal.h"
#include "costmodel/calculon/search/search.h"

namespace acplan::cli {

// The flags that all searches share.
struct SearchFlags {
  std::string application;
  std::string num_procs;
  std::string max_batch;
  std::string datatype;
  std::string system;
  std::string output;
  std::string cpus;
  std::string fused_activation = "true";
  std::string shard;
  bool debug = false;
  bool none_ok = false;

  void AddTo(CLI::App& app, const std::string& output_help,
             const std::string& debug_help);
  // Throws InputError for what is wrong.
  costmodel::SearchProblem Problem(const Terminal& terminal) const;
  costmodel::SearchOptions Options() const;
  bool IsSharded() const { return !shard.empty(); }
};

// A search and how long it took.
struct TimedOutcome {
  costmodel::SearchOutcome outcome;
  double seconds = 0;
};

// Runs a search with a progress line; Ctrl-C ends it.
TimedOutcome RunSearch(const costmodel::SearchOptions& options,
                       const Terminal& terminal,
                       const std::function<costmodel::SearchOutcome(
                           const costmodel::SearchOptions&)>& search);

// "Total executions: ...", and what follows after the search.
void ReportTotal(int64_t total, const Terminal& terminal);
void ReportCounts(const costmodel::SearchCounts& counts, double seconds,
                  const Terminal& terminal);
// Exit code of a search without a feasible execution.
int ReportNone(bool none_ok, const Terminal& terminal);
// Warns where a search was interrupted.
void WarnInterrupted(const TimedOutcome& timed, const Terminal& terminal);
// Exit code of an interrupted search without a result.
int ReportUnfinished(const Terminal& terminal);

// The executions of a search by rank, as files have them.
nlohmann::ordered_json RankedJson(
    const std::vector<nlohmann::ordered_json>& entries);
std::string RankedCsv(const std::vector<nlohmann::ordered_json>& entries);
// Writes them in the format that the name says.
void WriteRanked(const std::string& output,
                 const std::vector<nlohmann::ordered_json>& entries);

// The note in the file of a shard that tells what the shard is part of.
struct ShardNote {
  std::string command;
  std::string search;  // a digest of what is searched, and how
  costmodel::SearchShard shard;
  int64_t top_n = 1;
  costmodel::SearchCounts counts;
  int64_t executions = 0;  // in the file
  double seconds = 0;
};

inline constexpr std::string_view kShardKey = "acplan.llm_search";

nlohmann::ordered_json ToJson(const ShardNote& note);
ShardNote ParseShardNote(const nlohmann::json& json, const std::string& file);
// `other_flags`: flags of a command that change its result.
std::string SearchDigest(const SearchFlags& flags,
                         const std::string& other_flags);

}  // namespace acplan::cli
