#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

const std::string kModel = ACPLAN_DATA_DIR "/models/megatron-22B.json";
const std::string kSystem = ACPLAN_DATA_DIR "/systems/a100_80g.json";
const std::string kH200 = ACPLAN_DATA_DIR "/systems/h200_141g_nvl8.json";

class FitCommandTest : public CliTest {
 protected:
  static std::vector<std::string> Fit(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"fit", kModel, kSystem, "16"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(FitCommandTest, SaysWhatFitsAndHow) {
  const std::vector<std::string> lines = Lines(AcplanOut(Fit({})));
  const json answer = AcplanJson(Fit({}));
  EXPECT_THAT(
      lines[0],
      AllOf(StartsWith("megatron-22B on 16 a100_80g, sequence 2,048, batch 16, "
                       "microbatch 1, float16: "),
            HasSubstr("divisions fit without recomputation"),
            HasSubstr("; fastest: tensor ")));
  ASSERT_EQ(answer["rows"].size(), answer["divisions"]);
  EXPECT_EQ(lines.size(), 3 + answer["rows"].size());
  EXPECT_EQ(answer["rows"][0]["status"], "keeps_all");
  int64_t sum = 0;
  for (const auto& [status, count] : answer["counts"].items()) {
    sum += count.get<int64_t>();
  }
  EXPECT_EQ(sum, answer["divisions"]);
}

TEST_F(FitCommandTest, ARowThatFitsIsWithinTheBudget) {
  for (const std::string budget : {"80GiB", "30GiB", "12GiB"}) {
    const json answer = AcplanJson(
        Fit({"--budget", budget, "--microbatch", "2", "--batch", "64"}));
    EXPECT_EQ(answer["batch_size"], 64);
    for (const json& row : answer["rows"]) {
      const std::string status = row["status"];
      if (status == "none") {
        EXPECT_GT(row["missing_bytes"].get<int64_t>() +
                      row["missing_second_tier_bytes"].get<int64_t>(),
                  0);
        continue;
      }
      EXPECT_EQ(row["changes"].empty(), status != "changes");
      bool keeps_all = true;
      bool recomputes = false;
      for (const json& stage : row["stages"]) {
        EXPECT_LE(stage["peak_bytes"], answer["capacity_bytes"]);
        keeps_all &= stage["all_kept_bytes"] <= answer["capacity_bytes"];
        recomputes |= !stage["recomputed"].empty();
      }
      EXPECT_EQ(keeps_all, status == "keeps_all");
      if (status != "changes") {
        EXPECT_EQ(recomputes, !keeps_all);
      }
    }
  }
}

// The cost model says the same as a row that recomputes nothing.
TEST_F(FitCommandTest, AgreesWithTheCostModel) {
  json system = json::parse(graph::ReadFile(kSystem));
  system["mem1"]["GiB"] = 1000;
  Put("system.json", system.dump());
  const json answer =
      AcplanJson({"fit", kModel, "system.json", "16", "--tensor-par", "1"});
  ASSERT_EQ(answer["counts"]["keeps_all"], answer["divisions"]);
  for (const json& row : answer["rows"]) {
    Put("execution.json", row["execution"].dump());
    const json statistics = AcplanJson({"llm", kModel, "execution.json",
                                        "system.json", "--mode", "corrected"});
    EXPECT_NEAR(row["batch_seconds"].get<double>(),
                statistics["total_time"].get<double>(), 1e-9);
    EXPECT_NEAR(row["stages"][0]["peak_bytes"].get<double>(),
                statistics["proc_mem_tier1_cap_req"].get<double>(), 2);
  }
}

TEST_F(FitCommandTest, FlagsChangeTheQuestion) {
  const json answer =
      AcplanJson({"fit", kModel, kH200, "16", "--seq", "4096", "--tensor-par",
                  "2..4", "--pipeline-par", "1,2", "--microbatch", "2"});
  EXPECT_EQ(answer["seq_size"], 4096);
  EXPECT_EQ(answer["datatype"], "bfloat16");
  EXPECT_EQ(answer["batch_size"], 32);
  EXPECT_EQ(answer["microbatch_size"], 2);
  std::set<std::pair<int64_t, int64_t>> degrees;
  for (const json& row : answer["rows"]) {
    degrees.emplace(row["execution"]["tensor_par"],
                    row["execution"]["pipeline_par"]);
  }
  EXPECT_THAT(degrees, testing::ElementsAre(std::pair(2, 1), std::pair(2, 2),
                                            std::pair(4, 1), std::pair(4, 2)));
  EXPECT_EQ(AcplanJson({"fit", kModel, kH200, "8", "--datatype",
                        "float16"})["datatype"],
            "float16");
}

// A sequence that tensor parallelism does not split is reduced as a whole.
TEST_F(FitCommandTest, AnOddSequenceFitsToo) {
  const json odd = AcplanJson(Fit({"--seq", "2047"}));
  int split = 0;
  for (const json& row : odd.at("rows")) {
    const json& strategy = row.at("execution");
    if (strategy.at("tensor_par") == 1) continue;
    ++split;
    EXPECT_EQ(strategy.at("tensor_par_comm_type"), "ar");
    EXPECT_NE(row.at("status"), "none");
  }
  EXPECT_GT(split, 3);
}

TEST_F(FitCommandTest, AtMostTwentyRowsButAllWithAll) {
  const std::vector<std::string> arguments = {"fit", kModel, kSystem, "64"};
  const size_t rows = AcplanJson(arguments)["rows"].size();
  ASSERT_GT(rows, 20);
  std::vector<std::string> all = arguments;
  all.emplace_back("--all");
  EXPECT_THAT(Lines(AcplanOut(all)), SizeIs(3 + rows));
  const std::vector<std::string> lines = Lines(AcplanOut(arguments));
  EXPECT_THAT(lines, SizeIs(3 + 20 + 1));
  EXPECT_EQ(lines.back(), std::to_string(rows - 20) + " more rows: --all");
}

TEST_F(FitCommandTest, WritesWhatItPrints) {
  const std::string printed = AcplanOut(Fit({"--json", "-o", "out.json"}));
  EXPECT_EQ(json::parse(Read("out.json")), json::parse(printed));
  AcplanOut(Fit({"-o", "out.csv"}));
  AcplanOut(Fit({"-o", "out.csv.gz"}));
  EXPECT_EQ(graph::ReadFile(folder() / "out.csv.gz"), Read("out.csv"));
  const std::vector<std::string> lines = Lines(Read("out.csv"));
  EXPECT_THAT(lines, SizeIs(1 + json::parse(printed)["rows"].size()));
  const auto commas = [](const std::string& line) {
    return std::ranges::count(line, ',');
  };
  for (const std::string& line : lines) {
    EXPECT_EQ(commas(line), commas(lines[0])) << line;
  }
}

TEST_F(FitCommandTest, WhatDoesNotSplitTheBatchIsTold) {
  EXPECT_THAT(AcplanOut(Fit({"--batch", "4"})),
              HasSubstr("more divisions do not divide the batch of 4"));
  EXPECT_THAT(AcplanOut(Fit({})), Not(HasSubstr("do not divide")));
}

TEST_F(FitCommandTest, ThreeWhereNothingFits) {
  const Outcome outcome = Acplan(Fit({"--budget", "1GiB", "-o", "out.json"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("nothing fits: tensor "),
                                 HasSubstr("lacks "), HasSubstr("weights ")));
  EXPECT_EQ(json::parse(Read("out.json"))["counts"]["recomputes"], 0);
}

TEST_F(FitCommandTest, TellsHowManyProcessorsWouldDo) {
  const std::string model = ACPLAN_DATA_DIR "/models/turing-530B.json";
  const Outcome outcome =
      Acplan({"fit", model, kSystem, "8", "--budget", "20GiB"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, HasSubstr(" would be enough\n"));
}

TEST_F(FitCommandTest, CtrlCAnswersWithWhatIsKnown) {
  Process process(ACPLAN_PROGRAM,
                  {"fit", ACPLAN_DATA_DIR "/models/megatron-1T.json", kSystem,
                   "61440", "--microbatch", "27720", "--verbose"},
                  folder());
  while (process.ErrSoFar().find("planning ") == std::string::npos &&
         !process.HasEnded()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_FALSE(process.HasEnded());
  process.Signal(SIGINT);
  const Outcome outcome = process.Wait();
  EXPECT_THAT(outcome.err, HasSubstr("interrupted after "));
  EXPECT_THAT(outcome.exit_code, testing::AnyOf(0, 4));
  EXPECT_EQ(outcome.out.empty(), outcome.exit_code == 4);
}

TEST_F(FitCommandTest, RefusesBadFlags) {
  ExpectRefused(Acplan({"fit", kModel, kSystem}), {"PROCS"});
  ExpectRefused(Acplan({"fit", kModel, kSystem, "0"}), {"PROCS", "'0'"});
  ExpectRefused(Acplan({"fit", kModel, kSystem, "x"}), {"PROCS", "'x'"});
  ExpectRefused(Acplan(Fit({"more"})), {"'more'"});
  ExpectRefused(Acplan(Fit({"--batch", "0"})), {"--batch", "'0'"});
  ExpectRefused(Acplan(Fit({"--batch", "1.5"})), {"--batch", "'1.5'"});
  ExpectRefused(Acplan(Fit({"--batch", "6", "--microbatch", "4"})),
                {"--batch", "as 4", "found 6"});
  ExpectRefused(Acplan(Fit({"--microbatch", "1000000000"})),
                {"--microbatch", "'1000000000'"});
  ExpectRefused(Acplan(Fit({"--seq", "0"})), {"--seq", "'0'"});
  ExpectRefused(Acplan(Fit({"--microbatch", "-1"})), {"--microbatch", "'-1'"});
  ExpectRefused(Acplan(Fit({"--datatype", "int8"})),
                {"--datatype", "float16", "\"int8\""});
  ExpectRefused(Acplan(Fit({"--datatype", "bfloat16"})),
                {"--datatype", "a100_80g.json", "\"bfloat16\""});
  ExpectRefused(Acplan(Fit({"--tensor-par", "3"})),
                {"--tensor-par", "1, 2, 4, 8, 16", "\"3\""});
  ExpectRefused(Acplan(Fit({"--tensor-par", "a"})), {"--tensor-par", "\"a\""});
  ExpectRefused(Acplan(Fit({"--tensor-par", "8..2"})),
                {"--tensor-par", "ascends"});
  ExpectRefused(Acplan(Fit({"--tensor-par", "8", "--pipeline-par", "4"})),
                {"--pipeline-par", "1, 2", "\"4\""});
  ExpectRefused(Acplan(Fit({"--budget", "10 parsecs"})), {"--budget"});
  ExpectRefused(Acplan(Fit({"--budget", ""})), {"--budget"});
}

TEST_F(FitCommandTest, RefusesBadFiles) {
  ExpectRefused(Acplan({"fit", "no.json", kSystem, "8"}), {"no.json"});
  ExpectRefused(Acplan({"fit", kModel, "no.json", "8"}), {"no.json"});
  ExpectRefused(Acplan({"fit", kSystem, kModel, "8"}), {"a100_80g.json"});
  ExpectRefused(Acplan({"fit", "model.txt", kSystem, "8"}), {".json"});
  Put("bad.json", "{");
  ExpectRefused(Acplan({"fit", "bad.json", kSystem, "8"}), {"bad.json"});
  ExpectRefused(Acplan(Fit({"-o", "out.txt"})), {"out.txt", ".csv"});
  ExpectRefused(Acplan(Fit({"-o", "none/out.csv"})), {"none/out.csv"});
  Put("model.json", graph::ReadFile(kModel));
  ExpectRefused(Acplan({"fit", "model.json", kSystem, "8", "-o", "model.json"}),
                {"model.json", "another file"});
}

}  // namespace

}  // namespace acplan::cli
