#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kGolden = ACPLAN_TEST_DATA_DIR "/calculon/";

std::string Data(const std::string& name) {
  return (name.starts_with("custom/") ? kGolden : ACPLAN_DATA_DIR "/") + name;
}

class SearchCommandsTest : public CliTest {
 protected:
  // Returns a search for the model of 126 million parameters on four
  // processors.
  std::vector<std::string> Search(const std::string& command,
                                  const std::string& output,
                                  std::vector<std::string> flags = {}) const {
    std::vector<std::string> arguments = {
        command,   Data("models/megatron-126M.json"),           "4",   "4",
        "float16", Data("custom/systems/a100_80g_nomem2.json"), output};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return arguments;
  }
};

bool IsTimed(const std::string& line) {
  return line.starts_with("Calculation rate: ") || line.starts_with("Output: ");
}

std::vector<std::string> UntimedLines(const std::string& text) {
  std::vector<std::string> lines = Lines(text);
  std::erase_if(lines, IsTimed);
  return lines;
}

// Returns the content of a search's file in either format: equal numbers are
// equal.
json Content(const std::string& text, bool is_json) {
  if (is_json) return json::parse(text);
  json rows = json::array();
  for (const std::string& line : Lines(text)) {
    json row = json::array();
    size_t begin = 0;
    while (begin <= line.size()) {
      const size_t comma = std::min(line.find(',', begin), line.size());
      const std::string cell = line.substr(begin, comma - begin);
      char* end = nullptr;
      const double number = std::strtod(cell.c_str(), &end);
      if (*end == '\0' && !cell.empty()) {
        row.push_back(number);
      } else {
        row.push_back(cell);
      }
      begin = comma + 1;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST_F(SearchCommandsTest, GoldenSearches) {
  for (const char* id : {"S01", "S02", "S05", "S06", "S07", "S09", "S10", "S12",
                         "S18", "A01", "A04", "A05"}) {
    const json meta =
        json::parse(graph::ReadFile(kGolden + "search/" + id + ".meta.json"));
    const std::string extension = meta.at("output_ext");
    const std::string output = fmt::format("{}.{}", id, extension);
    const json& given_args = meta.at("args");
    std::vector<std::string> arguments = {
        "calculon",    meta.at("command"), Data(given_args[0]), given_args[1],
        given_args[2], given_args[3],      Data(given_args[4]), output};
    for (const json& flag : meta.at("flags")) arguments.push_back(flag);
    const Outcome outcome = Acplan(arguments);
    const bool is_crash = meta.at("exit") == 1;
    EXPECT_EQ(outcome.exit_code, meta.at("exit") == 255 ? 3 : 0) << id;
    EXPECT_EQ(UntimedLines(outcome.out), UntimedLines(meta.at("stdout"))) << id;
    if (is_crash || meta.at("output").is_null()) {
      EXPECT_EQ(Exists(output), is_crash) << id;
      continue;
    }
    EXPECT_THAT(outcome.out, HasSubstr("Output: " + output + "\n"));
    if (meta.at("command") == "lae") continue;  // rows: GoldenSearch.SameRows
    const bool is_json = extension.starts_with("json");
    EXPECT_TRUE(Content(graph::ReadFile(folder() / output), is_json) ==
                Content(graph::ReadFile(fmt::format(
                            "{}search/{}.{}.gz", kGolden, id,
                            extension.substr(0, extension.find('.')))),
                        is_json))
        << id;
  }
}

TEST_F(SearchCommandsTest, TheUnevenModelHasBadExecutions) {
  const std::string out =
      AcplanOut({"calculon", "loe", Data("custom/models/uneven-ff.json"), "4",
                 "4", "bfloat16", Data("custom/systems/nomem2_1net.json"),
                 "best.json", "-m", "--no-tp-overlap", "--no-dp-overlap"});
  EXPECT_THAT(Lines(out), Contains("Total executions: 319"));
  EXPECT_EQ(
      json::parse(Read("best.json")).at("0").at("execution")["tensor_par"], 1);
}

TEST_F(SearchCommandsTest, NothingFeasible) {
  const std::vector<std::string> none = {
      "calculon", "loe",      Data("models/megatron-1T.json"),        "2",
      "2",        "bfloat16", Data("custom/systems/nomem2_1net.json")};
  const auto extended = [&](std::vector<std::string> more) {
    more.insert(more.begin(), none.begin(), none.end());
    return Acplan(more);
  };
  EXPECT_EQ(extended({"best.json"}).exit_code, 3);
  EXPECT_FALSE(Exists("best.json"));
  EXPECT_EQ(extended({"best.json", "-n"}).exit_code, 0);
  EXPECT_EQ(Read("best.json"), "{}");
  EXPECT_EQ(extended({"best.csv", "-n"}).exit_code, 0);
  EXPECT_EQ(Lines(Read("best.csv")).size(), 1);
  EXPECT_THAT(Read("best.csv"), StartsWith(",num_procs,"));
  // No processors, no batch.
  for (const auto& [procs, batch] :
       std::vector<std::pair<std::string, std::string>>{{"0", "2"},
                                                        {"2", "0"}}) {
    const Outcome outcome = Acplan({"calculon", "loe", none[2], procs, batch,
                                    "bfloat16", none[6], "no.json"});
    EXPECT_EQ(outcome.exit_code, 3);
    EXPECT_THAT(outcome.out,
                HasSubstr("No acceptable configurations found :("));
  }
}

TEST_F(SearchCommandsTest, DebugCountsAndWritesNothing) {
  const std::string out =
      AcplanOut(Search("calculon loe", "best.json", {"-d"}));
  EXPECT_THAT(Lines(out), Contains("Good executions: 0"));
  EXPECT_FALSE(Exists("best.json"));
  AcplanOut(Search("calculon loe", "best.json"));
  const std::string output = AcplanOut(Search("calculon loe", "best.json"));
  EXPECT_EQ(Lines(out).front(), Lines(output).front());
  const std::string all = AcplanOut(Search("calculon lae", "all.csv", {"-d"}));
  EXPECT_FALSE(Exists("all.csv"));
  EXPECT_THAT(all, Not(HasSubstr("Good executions: 0")));
}

TEST_F(SearchCommandsTest, ThreadsChangeNothing) {
  AcplanOut(Search("calculon loe", "one.json", {"-c", "1", "-t", "30", "-l"}));
  AcplanOut(Search("calculon loe", "four.json", {"-c", "4", "-t", "30", "-l"}));
  EXPECT_TRUE(Read("one.json") == Read("four.json"));
  AcplanOut(Search("calculon lae", "one.csv", {"-c", "1"}));
  AcplanOut(Search("calculon lae", "four.csv", {"-c", "4"}));
  EXPECT_TRUE(Read("one.csv") == Read("four.csv"));
}

TEST_F(SearchCommandsTest, FourShardsAreOneSearch) {
  for (const std::string extension : {"json", "csv.gz"}) {
    const std::string whole = "whole." + extension;
    AcplanOut(Search("calculon loe", whole, {"-t", "40", "-f", "both"}));
    std::vector<std::string> merge = {"calculon", "llm-merge"};
    for (const char* shard : {"3", "1", "4", "2"}) {
      const std::string part = fmt::format("part{}.json.gz", shard);
      AcplanOut(Search(
          "calculon loe", part,
          {"-t", "40", "-f", "both", "--shard", fmt::format("{}/4", shard)}));
      merge.push_back(part);
    }
    const std::string merged = "merged." + extension;
    merge.push_back(merged);
    const std::string out = AcplanOut(merge);
    EXPECT_TRUE(Read(whole) == Read(merged));
    EXPECT_EQ(UntimedLines(out),
              UntimedLines(AcplanOut(
                  Search("calculon loe", whole, {"-t", "40", "-f", "both"}))));
  }
}

TEST_F(SearchCommandsTest, FourShardsOfAllExecutions) {
  AcplanOut(Search("calculon lae", "whole.csv.gz"));
  std::vector<std::string> merge = {"calculon", "llm-merge"};
  for (const char* shard : {"2", "1", "4", "3"}) {
    const std::string part = fmt::format("part{}.csv.gz", shard);
    AcplanOut(
        Search("calculon lae", part, {"--shard", fmt::format("{}/4", shard)}));
    merge.push_back(part);
  }
  merge.push_back("merged.csv.gz");
  merge.insert(merge.begin(), {"-v", "WARNING"});
  EXPECT_EQ(AcplanOut(merge), "");
  EXPECT_TRUE(Read("whole.csv.gz") == Read("merged.csv.gz"));
}

TEST_F(SearchCommandsTest, ShardsKeepTheOrderOfEqualRates) {
  const std::vector<std::string> flags = {"-t", "3000"};
  AcplanOut(Search("calculon loe", "whole.json", flags));
  std::vector<std::string> merge = {"calculon", "llm-merge"};
  for (int shard = 1; shard <= 7; ++shard) {
    std::vector<std::string> more = flags;
    more.insert(more.end(), {"--shard", fmt::format("{}/7", shard)});
    merge.push_back(fmt::format("part{}.json", shard));
    AcplanOut(Search("calculon loe", merge.back(), more));
  }
  merge.push_back("merged.json");
  AcplanOut(merge);
  EXPECT_TRUE(Read("whole.json") == Read("merged.json"));
}

TEST_F(SearchCommandsTest, ShardsThatWereChanged) {
  AcplanOut(Search("calculon loe", "1.json", {"-t", "3", "--shard", "1/2"}));
  AcplanOut(Search("calculon loe", "2.json", {"-t", "3", "--shard", "2/2"}));
  const auto refuse = [&](const std::string& pointer, const json& value,
                          const std::vector<std::string>& said) {
    json part = json::parse(Read("2.json"));
    part[json::json_pointer(pointer)] = value;
    graph::WriteFile(folder() / "bad.json", part.dump());
    ExpectRefused(
        Acplan({"calculon", "llm-merge", "1.json", "bad.json", "out.json"}),
        said);
  };
  refuse("/1/stats/sample_rate", nullptr, {"bad.json", "sample_rate"});
  refuse("/1/stats", 3, {"bad.json", "stats"});
  refuse("/1/execution", 3, {"bad.json", "execution"});
  refuse("/1", json::array(), {"bad.json", "an object"});
  refuse("/3", json::parse(Read("2.json")).at("2"),
         {"bad.json", "3 executions, as in its note, found 4"});

  AcplanOut(Search("calculon lae", "1.csv", {"--shard", "1/2"}));
  AcplanOut(Search("calculon lae", "2.csv", {"--shard", "2/2"}));
  const std::string text = Read("2.csv");
  const size_t second = text.find('\n') + 1;
  graph::WriteFile(
      folder() / "bad.csv",
      text.substr(0, second) + text.substr(text.find('\n', second) + 1));
  ExpectRefused(
      Acplan({"calculon", "llm-merge", "1.csv", "bad.csv", "out.csv"}),
      {"bad.csv", "rows, as in its note, found"});
  EXPECT_FALSE(Exists("out.csv"));
}

// A note names the command that wrote the file, which determines how the rest is
// read.
TEST_F(SearchCommandsTest, ShardsWithTheNoteOfAnotherFile) {
  AcplanOut(Search("calculon lae", "1.csv", {"--shard", "1/1"}));
  AcplanOut(Search("calculon loe", "1.json", {"-t", "3", "--shard", "1/1"}));
  const auto refuse = [&](const std::string& file, const std::string& find,
                          const std::string& replace,
                          const std::vector<std::string>& said) {
    std::string text = Read(file);
    const size_t at = text.find(find);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, find.size(), replace);
    graph::WriteFile(folder() / ("bad" + file), text);
    ExpectRefused(Acplan({"calculon", "llm-merge", "bad" + file, "out" + file}),
                  said);
    EXPECT_FALSE(Exists("out" + file));
  };
  refuse("1.csv", "llm-all-executions", "llm-optimal-execution",
         {"bad1.csv: expected a note of llm-all-executions, found one of "
          "\"llm-optimal-execution\""});
  refuse("1.json", "llm-optimal-execution", "llm-all-executions",
         {"bad1.json: expected a note of llm-optimal-execution"});
  refuse("1.csv", "num_procs,tensor_par", "tensor_par,num_procs",
         {"bad1.csv: expected the columns that llm-all-executions writes"});
  refuse("1.csv", "\"good\":", "\"good\":9007199254740992,\"bad\":1,\"g\":",
         {"bad1.csv"});
}

TEST_F(SearchCommandsTest, ShardsMustBelongTogether) {
  const auto make = [&](const std::string& name, const std::string& shard,
                        std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--shard", shard});
    AcplanOut(Search("calculon loe", name, more));
  };
  make("1.json", "1/2");
  make("2.json", "2/2");
  make("3.json", "3/3");
  make("other.json", "2/2", {"-f", "both"});
  AcplanOut(Search("calculon loe", "whole.json"));
  AcplanOut({"calculon", "llm-merge", "1.json", "2.json", "merged.json"});
  const auto refuse = [&](const std::vector<std::string>& files,
                          const std::vector<std::string>& said) {
    std::vector<std::string> arguments = {"calculon", "llm-merge"};
    arguments.insert(arguments.end(), files.begin(), files.end());
    ExpectRefused(Acplan(arguments), said);
  };
  refuse({"1.json", "out.json"}, {"1.json", "2 shards, found 1"});
  refuse({"1.json", "1.json", "out.json"}, {"shard 2 of 2 next, found 1"});
  refuse({"2.json", "out.json"}, {"shard 1 of 2 next, found 2"});
  refuse({"1.json", "other.json", "out.json"}, {"same search"});
  refuse({"1.json", "3.json", "out.json"}, {"same search"});
  refuse({"whole.json", "out.json"}, {"whole.json", "acplan.llm_search"});
  refuse({"1.json", "2.json", "1.json"}, {"a file other than the input"});
  refuse({"1.json", "2.json", "out.txt"}, {"out.txt", ".csv"});
  refuse({"1.json"}, {"OUTPUT"});
  EXPECT_FALSE(Exists("out.json"));
}

TEST_F(SearchCommandsTest, WrongArguments) {
  struct Case {
    std::vector<std::string> arguments;
    std::vector<std::string> said;
  };
  const std::string model = Data("models/megatron-126M.json");
  const std::string system = Data("systems/a100_80g.json");
  const std::vector<Case> cases = {
      {{"calculon", "loe", model, "x", "4", "float16", system, "o.json"},
       {"NUM_PROCS"}},
      {{"calculon", "loe", model, "-4", "4", "float16", system, "o.json"},
       {"4"}},
      {{"calculon", "loe", model, "4", "4.5", "float16", system, "o.json"},
       {"MAX_BATCH"}},
      {{"calculon", "loe", model, "4", "4", "fp16", system, "o.json"},
       {"DATATYPE", "float8, float16, float32, bfloat16", "\"fp16\""}},
      {{"calculon", "loe", model, "4", "4", "float8", system, "o.json"},
       {"DATATYPE", "a100_80g.json", "float8"}},
      {{"calculon", "loe", model, "4", "4", "float16", system, "o.txt"},
       {"o.txt", ".csv"}},
      {{"calculon", "loe", model, "4", "4", "float16", system, "none/o.json"},
       {"none/"}},
      {{"calculon", "loe", model, "4", "4", "float16", system, "o.json", "-t",
        "0"},
       {"--top-n"}},
      {{"calculon", "loe", model, "4", "4", "float16", system, "o.json", "-c",
        "0"},
       {"--cpus"}},
      {{"calculon", "loe", model, "4", "4", "float16", system, "o.json", "-f",
        "maybe"},
       {"--fused_activation", "\"maybe\""}},
      {{"calculon", "loe", model, "4", "4", "float16", system, "o.json",
        "--shard", "3"},
       {"--shard", "i/n"}},
      {{"calculon", "loe", model, "4", "4", "float16", system, "o.json",
        "--shard", "3/2"},
       {"--shard", "1 to 2"}},
      {{"calculon", "loe", model, "4", "4", "float16", system, "o.csv",
        "--shard", "1/2"},
       {"o.csv", ".json"}},
      {{"calculon", "loe", model, "4", "4", "float16", system}, {"OUTPUT"}},
      {{"calculon", "lae", model, "4", "4", "float16", system, "o.json"},
       {".csv"}},
      {{"calculon", "lae", model, "4", "4", "float16", system, "o.csv", "-m"},
       {"-m"}},
      {{"calculon", "loe", "none.json", "4", "4", "float16", system, "o.json"},
       {"none.json"}},
  };
  for (const Case& one : cases) {
    ExpectRefused(Acplan(one.arguments), one.said);
  }
}

TEST_F(SearchCommandsTest, CtrlCWritesTheBestSoFar) {
  Process process(
      ACPLAN_PROGRAM,
      {"calculon", "loe", Data("models/megatron-1T.json"), "61440", "61440",
       "float16", Data("custom/systems/roofline_4dt_3net.json"), "best.json",
       "-f", "both", "--verbose", "-c", "1"},
      folder());
  while (process.ErrSoFar().find(" executions ") == std::string::npos &&
         !process.HasEnded()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_FALSE(process.HasEnded());
  process.Signal(SIGINT);
  const Outcome outcome = process.Wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("samples/s"));
  EXPECT_THAT(outcome.err, HasSubstr("interrupted after"));
  EXPECT_THAT(outcome.out, HasSubstr("Best sample rate: "));
  EXPECT_EQ(json::parse(Read("best.json")).size(), 1);
}

}  // namespace

}  // namespace acplan::cli
