#include <fmt/format.h>
#include <gmock/gmock.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/terminal/text.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kModelThatFits =
    ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json";
const std::string kModelOfNodes =
    ACPLAN_DATA_DIR "/training/models/llama-3.1-70b.json";

using FitTest = CliTest;

// A row is the first strategy of train search.
TEST_F(FitTest, ARowIsTheFastestStrategyOfItsCount) {
  const json fit =
      AcplanJson({"train", "fit", kModelThatFits, "--gpu", "h100", "--gpus",
                  "16,8", "--gbs", "64,128", "-o", "f.json"});
  EXPECT_EQ(json::parse(Read("f.json")), fit);
  ASSERT_EQ(fit["tables"].size(), 2U);
  for (const json& table : fit["tables"]) {
    ASSERT_EQ(table["rows"].size(), 2U);
    EXPECT_EQ(table["least_gpus"], 8);
    for (const json& row : table["rows"]) {
      const json search = AcplanJson(
          {"train", "search", kModelThatFits, "--gpu", "h100", "--gpus",
           row["gpus"].dump(), "--gbs", row["gbs"].dump(), "-t", "1"});
      EXPECT_EQ(row["best"], search["best"][0]);
      EXPECT_EQ(row["strategies"], search["strategies"]);
    }
  }
  EXPECT_EQ(fit["tables"][0]["rows"][0]["gpus"], 8);
  EXPECT_EQ(fit["tables"][1]["rows"][0]["gbs"], 128);
}

// Counts are tried by doubling, then full nodes in between: no smaller one of
// these counts fits.
TEST_F(FitTest, FindsTheLeastCount) {
  const auto fit = [&](const std::string& budget) {
    const Outcome outcome =
        Acplan({"train", "fit", kModelOfNodes, "--gpu", "h100", "--seq", "8192",
                "--gbs", "240", "--budget", budget, "--json"});
    EXPECT_EQ(outcome.exit_code, 0);
    return json::parse(outcome.out)["tables"][0];
  };
  EXPECT_EQ(fit("80GiB")["least_gpus"], 16);
  const json less = fit("60GiB");
  const int64_t least = less["least_gpus"];
  EXPECT_GT(least, 16);
  EXPECT_LE(least, 32);
  EXPECT_EQ(least % 8, 0);
  for (int64_t gpus = 8; gpus < least; gpus += 8) {
    const Outcome outcome = Acplan(
        {"train", "search", kModelOfNodes, "--gpu", "h100", "--seq", "8192",
         "--gbs", "240", "--budget", "60GiB", "--gpus", std::to_string(gpus)});
    EXPECT_EQ(outcome.exit_code, 3) << gpus;
  }
}

TEST_F(FitTest, DegreesThatAreSaidDivideTheCounts) {
  const auto counts = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "train", "fit", kModelOfNodes, "--gpu", "h100", "--seq", "8192",
        "--gbs", "48",  "--tp",        "2",     "--pp", "3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::vector<std::pair<int64_t, bool>> rows;
    const json fit = AcplanJson(arguments);
    for (const json& row : fit["tables"][0]["rows"]) {
      EXPECT_EQ(row["strategies"] == 0, row["gpus"].get<int64_t>() % 6 != 0);
      rows.emplace_back(row["gpus"], row["fits"]);
    }
    return rows;
  };
  EXPECT_THAT(
      counts({"--gpus", "24,32,48"}),
      testing::ElementsAre(testing::Pair(24, true), testing::Pair(32, false),
                           testing::Pair(48, true)));
  EXPECT_EQ(counts({}).front().first, 6);
}

// The least count known to fit is not called the least if fewer might fit.
TEST_F(FitTest, TheLeastIsNotKnownWhereFewerMightFit) {
  for (const char* limit : {"0.0005", "0.002", "0.01", "none"}) {
    const std::vector<std::string> arguments = {
        "train",
        "fit",
        ACPLAN_DATA_DIR "/training/models/llama-3.1-405b.json",
        "--gpu",
        "a100",
        "--gbs",
        "3",
        "--allocator-loss",
        "0",
        "--time-limit",
        limit,
        "-o",
        "fit.json"};
    const Outcome outcome = Acplan(arguments);
    bool may_fewer_fit = false;
    std::optional<int64_t> least;
    const json fit = json::parse(Read("fit.json"));
    for (const json& row : fit["tables"][0]["rows"]) {
      if (least) continue;
      if (row["fits"].is_null()) may_fewer_fit = true;
      if (row["fits"] == true) least = row["gpus"];
    }
    EXPECT_EQ(outcome.exit_code, least ? 0 : 4);
    EXPECT_THAT(
        outcome.out,
        HasSubstr(!least ? "no count of GPUs was found to fit (--time-limit)"
                  : may_fewer_fit
                      ? fmt::format("smallest count found to fit: {} GPUs",
                                    FormatCount(*least))
                      : fmt::format("smallest count that fits: {} GPUs",
                                    FormatCount(*least))));
    if (std::string(limit) == "none") {
      EXPECT_EQ(least, 96);
      EXPECT_FALSE(may_fewer_fit);
    }
  }
}

TEST_F(FitTest, ShowsItWithinAHundredColumns) {
  const std::string text = AcplanOut(
      {"train", "fit", kModelOfNodes, "--gpu", "h100", "--seq", "8192,131072",
       "--gbs", "128", "--price", "2", "--allocator-loss", "0"});
  for (const char* part :
       {"sequences of 131,072 tokens", "smallest count that fits: 16", "cost",
        "too large\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  for (const std::string& line : Lines(text)) {
    EXPECT_LE(TextWidth(line), 100U) << line;
  }
}

TEST_F(FitTest, WhatFitsNowhereExitsThree) {
  const Outcome outcome =
      Acplan({"train", "fit", kModelOfNodes, "--gpu", "h100", "--gpus", "1,2"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, HasSubstr("none of these counts of GPUs fits"));
}

// A strategy that the search had no time for is not called impossible.
TEST_F(FitTest, SaysWhatTheTimeLimitLeftUnknown) {
  const Outcome outcome =
      Acplan({"train",
              "fit",
              ACPLAN_DATA_DIR "/training/models/deepseek-v3.json",
              "--gpu",
              "h800",
              "--gpus",
              "2048",
              "--gbs",
              "15360",
              "--set",
              "pp=16",
              "--set",
              "ep=8",
              "--cp",
              "1",
              "--recompute",
              "plan",
              "--time-limit",
              "0",
              "-o",
              "f.json"});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.out, HasSubstr("not known"));
  EXPECT_THAT(outcome.out, HasSubstr("no count of GPUs was found to fit"));
  const json row = json::parse(Read("f.json"))["tables"][0]["rows"][0];
  EXPECT_TRUE(row["fits"].is_null());
}

TEST_F(FitTest, WrongInputIsALine) {
  ExpectRefused(Acplan({"train", "fit"}), {"CONFIG"});
  ExpectRefused(Acplan({"train", "fit", kModelThatFits}),
                {"gpu: expected a GPU"});
  ExpectRefused(Acplan({"train", "fit", kModelThatFits, "--gpu", "h100",
                        "--gpus", "8,x"}),
                {"--gpus: expected a whole number", "found 'x'"});
  ExpectRefused(
      Acplan({"train", "fit", kModelThatFits, "--gpu", "h100", "--gpus", "8,"}),
      {"--gpus: expected a whole number"});
  ExpectRefused(Acplan({"train", "fit", kModelThatFits, "--gpu", "h100",
                        "--gpus", "8", "--set", "first_layers=3"}),
                {"first_layers: expected no value in a search"});
  ExpectRefused(
      Acplan({"train", "fit", kModelThatFits, "--gpu", "h100", "-o", "f.csv"}),
      {"f.csv"});
}

}  // namespace

}  // namespace acplan::cli
