#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json_fwd.hpp>
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
  // Throws InputError for wrong values.
  costmodel::SearchProblem Problem(const Terminal& terminal) const;
  costmodel::SearchOptions Options() const;
  bool IsSharded() const { return !shard.empty(); }
};

// A search's outcome and its time.
struct TimedOutcome {
  costmodel::SearchOutcome outcome;
  double seconds = 0;
};

// Runs a search with a progress line; Ctrl-C ends it.
TimedOutcome RunSearch(const costmodel::SearchOptions& options,
                       const Terminal& terminal,
                       const std::function<costmodel::SearchOutcome(
                           const costmodel::SearchOptions&)>& search);

// Reports "Total executions: ..."; ReportCounts reports the other counts, after
// the search.
void ReportTotal(int64_t total, const Terminal& terminal);
void ReportCounts(const costmodel::SearchCounts& counts, double seconds,
                  const Terminal& terminal);
// Returns the exit code of a search without a feasible execution.
int ReportNone(bool none_ok, const Terminal& terminal);
// Warns if a search was interrupted.
void WarnInterrupted(const TimedOutcome& timed, const Terminal& terminal);
// Returns the exit code of an interrupted search without a result.
int ReportUnfinished(const Terminal& terminal);

// Returns the executions of a search by rank, in the form of files.
nlohmann::ordered_json RankedJson(
    const std::vector<nlohmann::ordered_json>& entries);
std::string RankedCsv(const std::vector<nlohmann::ordered_json>& entries);
// Writes them in the format that the extension of the name says.
void WriteRanked(const std::string& output,
                 const std::vector<nlohmann::ordered_json>& entries);

// The note in the file of a shard, which identifies the search and the part of
// it.
struct ShardNote {
  std::string command;
  std::string search;  // a digest of the search's flags
  costmodel::SearchShard shard;
  int64_t top_n = 1;
  costmodel::SearchCounts counts;
  int64_t executions = 0;  // in the file
  double seconds = 0;
};

inline constexpr std::string_view kShardKey = "acplan.llm_search";

nlohmann::ordered_json ToJson(const ShardNote& note);
ShardNote ParseShardNote(const nlohmann::json& json, const std::string& file);
// Returns a digest of a search. `other_flags` are further flags of its command
// that change the result.
std::string SearchDigest(const SearchFlags& flags,
                         const std::string& other_flags);

}  // namespace acplan::cli
