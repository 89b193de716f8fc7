#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "costmodel/calculon/llm/evaluation.h"
#include "costmodel/calculon/llm/records.h"
#include "costmodel/calculon/llm/statistics.h"
#include "costmodel/calculon/search/search.h"
#include "graph/base/file_io.h"
#include "tests/costmodel/calculon/golden_data.h"

namespace acplan::costmodel {
namespace {

using nlohmann::json;

struct GoldenSearch {
  std::string id;
  bool lists_all = false;
  SearchProblem problem;
  SearchOptions options;
  SearchCounts counts;
};

GoldenSearch ReadSearch(const std::string& id) {
  const json meta =
      json::parse(graph::ReadFile(GoldenFile("search/" + id + ".meta.json")));
  GoldenSearch search;
  search.id = id;
  search.lists_all = meta.at("command") == "lae";
  const json& arguments = meta.at("args");
  search.problem.model = GoldenModel(arguments[0]);
  search.problem.num_procs = std::stoll(arguments[1].get<std::string>());
  search.problem.max_batch = std::stoll(arguments[2].get<std::string>());
  const auto datatype =
      std::ranges::find(kDatatypeNames, arguments[3].get<std::string>());
  search.problem.datatype =
      static_cast<Datatype>(datatype - kDatatypeNames.begin());
  search.problem.system = GoldenSystem(arguments[4]);
  const json& flags = meta.at("flags");
  for (size_t i = 0; i < flags.size(); ++i) {
    const std::string flag = flags[i];
    if (flag == "-m") search.options.breaks_microbatches = true;
    if (flag == "-t") {
      search.options.top_n = std::stoll(flags[i + 1].get<std::string>());
    }
    if (flag == "-f") search.problem.fused_activation = {flags[i + 1] != "0"};
    if (flag == "--no-tp-overlap") search.problem.allows_tensor_overlap = false;
    if (flag == "--no-dp-overlap") search.problem.allows_data_overlap = false;
  }
  if (!meta.at("total").is_null()) {
    search.counts = {meta.at("total").get<int64_t>(),
                     meta.at("good").get<int64_t>(),
                     meta.at("bad").get<int64_t>()};
  }
  return search;
}

std::vector<std::string> Split(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream text(line);
  for (std::string cell; std::getline(text, cell, ',');) cells.push_back(cell);
  return cells;
}

std::vector<std::vector<std::string>> ReadCsv(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    rows.push_back(Split(line));
  }
  return rows;
}

// Returns whether cells are equal as text or, within 1e-9, as numbers.
bool AreEqual(const std::vector<std::string>& ours,
              const std::vector<std::string>& theirs) {
  return std::ranges::equal(ours, theirs,
                            [](const std::string& a, const std::string& b) {
                              if (a == b) return true;
                              char* end_a = nullptr;
                              char* end_b = nullptr;
                              const double x = std::strtod(a.c_str(), &end_a);
                              const double y = std::strtod(b.c_str(), &end_b);
                              return *end_a == '\0' && *end_b == '\0' &&
                                     std::abs(x - y) <= 1e-9 * std::abs(y);
                            });
}

std::vector<std::string> RowOf(const GoldenSearch& search,
                               const Candidate& candidate) {
  const SearchProblem& problem = search.problem;
  return Split(CsvRow(
      candidate.execution,
      ComputeStatistics(
          problem.model, problem.system, candidate.execution,
          Evaluate(problem.model, problem.system, candidate.execution))));
}

class GoldenSearches : public testing::TestWithParam<const char*> {};

TEST_P(GoldenSearches, SameCounts) {
  GoldenSearch search = ReadSearch(GetParam());
  const SearchOutcome outcome = FindBest(search.problem, search.options);
  EXPECT_EQ(outcome.counts, search.counts);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenSearches,
                         testing::Values("A01", "A04", "A05", "S01", "S02",
                                         "S05", "S06", "S07", "S09", "S10",
                                         "S12", "S18"),
                         [](const auto& one) { return one.param; });

TEST(GoldenSearch, SameBestInTheSameOrder) {
  for (const char* id : {"S01", "S10", "S12", "S18"}) {
    const GoldenSearch search = ReadSearch(id);
    const SearchOutcome outcome = FindBest(search.problem, search.options);
    const json expected = json::parse(
        graph::ReadFile(GoldenFile("search/" + search.id + ".json.gz")));
    ASSERT_EQ(outcome.best.size(), expected.size()) << id;
    for (size_t rank = 0; rank < outcome.best.size(); ++rank) {
      const Candidate& candidate = outcome.best[rank];
      const json& theirs = expected.at(std::to_string(rank));
      EXPECT_EQ(json(ToJson(candidate.execution)), theirs.at("execution"))
          << id << " " << rank;
      const Statistics statistics = ComputeStatistics(
          search.problem.model, search.problem.system, candidate.execution,
          Evaluate(search.problem.model, search.problem.system,
                   candidate.execution));
      for (const std::string_view name : kStatisticNames) {
        EXPECT_TRUE(IsClose(Statistic(statistics, name),
                            theirs.at("stats").at(std::string(name))))
            << id << " " << rank << " " << name;
      }
    }
  }
}

TEST(GoldenSearch, SameTables) {
  for (const char* id : {"S02", "S09"}) {
    const GoldenSearch search = ReadSearch(id);
    const SearchOutcome outcome = FindBest(search.problem, search.options);
    const auto expected =
        ReadCsv(graph::ReadFile(GoldenFile("search/" + search.id + ".csv.gz")));
    EXPECT_EQ(expected.front(), Split("," + CsvHeading()));
    ASSERT_EQ(outcome.best.size() + 1, expected.size()) << id;
    for (size_t rank = 0; rank < outcome.best.size(); ++rank) {
      std::vector<std::string> row = RowOf(search, outcome.best[rank]);
      row.insert(row.begin(), std::to_string(rank));
      EXPECT_TRUE(AreEqual(row, expected[rank + 1])) << id << " " << rank;
    }
  }
}

// Returns rows by execution: our rows are in the order of the space.
std::map<std::vector<std::string>, std::vector<std::string>> ByExecution(
    const std::vector<std::vector<std::string>>& rows) {
  std::map<std::vector<std::string>, std::vector<std::string>> map;
  for (const std::vector<std::string>& row : rows) {
    map[{row.begin(), row.begin() + kExecutionKeys.size()}] = row;
  }
  return map;
}

TEST(GoldenSearch, SameRows) {
  for (const char* id : {"A01", "A05"}) {
    const GoldenSearch search = ReadSearch(id);
    std::string text = CsvHeading() + "\n";
    const SearchOutcome outcome =
        ListAll(search.problem, search.options,
                [&](const std::string& rows) { text += rows; });
    EXPECT_EQ(outcome.counts, search.counts);
    const auto ours = ByExecution(ReadCsv(text));
    const auto theirs = ByExecution(ReadCsv(
        graph::ReadFile(GoldenFile("search/" + search.id + ".sorted.csv.gz"))));
    ASSERT_EQ(std::ssize(ours), search.counts.good + 1);  // and the heading
    ASSERT_GT(theirs.size(), ours.size() / 13);  // every twelfth is kept
    for (const auto& [execution, row] : theirs) {
      const auto at = ours.find(execution);
      ASSERT_NE(at, ours.end());
      EXPECT_TRUE(AreEqual(at->second, row)) << id;
    }
  }
}

// Its feedforward of 2730 is no multiple of 4.
TEST(GoldenSearch, ATensorParallelismThatDoesNotDivideIsBad) {
  const GoldenSearch search = ReadSearch("S16");
  const SearchOutcome outcome = FindBest(search.problem, search.options);
  EXPECT_GT(outcome.counts.good, 0);
  EXPECT_GT(outcome.counts.bad, 0);
  EXPECT_LT(outcome.best.front().execution.tensor_par, 4);
}

}  // namespace
}  // namespace acplan::costmodel
