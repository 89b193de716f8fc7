#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "cli/terminal/text.h"
#include "cli/training/strategy_question.h"
#include "tests/cli/cli_test.h"
#include "tests/costmodel/training/training_example.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kModel = ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json";

using LlmSearchTest = CliTest;

std::vector<std::string> SearchWith(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"train", "search", kModel,
                                        "--gpu", "h100",   "--gpus",
                                        "16",    "--gbs",  "64"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST_F(LlmSearchTest, ShowsTheFastestWithinAHundredColumns) {
  const std::string text = AcplanOut(SearchWith({"-t", "4"}));
  EXPECT_THAT(text, HasSubstr("strategies"));
  EXPECT_THAT(text, HasSubstr("recompute"));
  for (const std::string& line : Lines(text)) {
    EXPECT_LE(TextWidth(line), 100U) << line;
  }
}

TEST_F(LlmSearchTest, RowsHaveTheirRanks) {
  const std::vector<std::string> lines =
      Lines(AcplanOut(SearchWith({"-t", "12"})));
  const auto heading = std::ranges::find_if(lines, [](const std::string& line) {
    return line.starts_with(" #  TP");
  });
  ASSERT_GT(lines.end() - heading, 12);
  for (int64_t rank = 1; rank <= 12; ++rank) {
    EXPECT_TRUE(heading[rank].starts_with(fmt::format("{:2}  ", rank)))
        << heading[rank];
  }
}

// Each strategy has an interval; the robust choice has the lowest upper end.
TEST_F(LlmSearchTest, SaysHowSureItIs) {
  const std::string text = AcplanOut(SearchWith({"-t", "3"}));
  EXPECT_THAT(text, HasSubstr("80%: of measured times of this kind"));
  EXPECT_THAT(text, HasSubstr("within measured territory"));
  const json fastest = AcplanJson(SearchWith({"-t", "3", "--json"}));
  const json robust = AcplanJson(SearchWith({"-t", "3", "--json", "--robust"}));
  EXPECT_EQ(fastest["robust"], false);
  EXPECT_EQ(robust["robust"], true);
  const json& interval = fastest["best"][0]["interval"];
  const double seconds = fastest["best"][0]["iteration_s"];
  EXPECT_LT(double(interval["low_s"]), seconds);
  EXPECT_GT(double(interval["high_s"]), seconds);
  EXPECT_LE(double(robust["best"][0]["interval"]["high_s"]),
            double(interval["high_s"]));
  EXPECT_EQ(fastest["measured"]["interval"]["is_measured"], true);
  EXPECT_GE(double(fastest["measured"]["iteration_s"]), seconds);
}

// A plan that is not proven has a mark in its row, which the legend explains.
// The best strategy in Megatron's words is as train plan has it, and no slower than free
// plans say that strategies can be.
TEST_F(LlmSearchTest, PrintsMegatronsFlags) {
  const json search = AcplanJson(SearchWith({"--for", "megatron"}));
  const json& megatron = search["megatron"];
  EXPECT_TRUE(megatron["fits"].get<bool>());
  EXPECT_GE(megatron["iteration_s"].get<double>(),
            search["bound_s"].get<double>() * (1 - 1e-9));
  EXPECT_LE(megatron["rank"], search["best"].size());
  const std::string text = AcplanOut(SearchWith({"--for", "megatron-bridge"}));
  EXPECT_THAT(text, HasSubstr("\nmodel:\n"));
  EXPECT_THAT(text, HasSubstr("(proven)"));
  EXPECT_THAT(
      Acplan(SearchWith({"--for", "megatron", "--recompute", "full"})).err,
      HasSubstr("expected no recomputation with --for"));
}

TEST(StrategyCells, SayWhatIsNotProven) {
  const costmodel::TrainingJob job = costmodel::Llama8B();
  const auto recomputation = [&](double bound) {
    const costmodel::RankedStrategy ranked{
        .strategy = job.strategy, .seconds = 8, .bound = bound};
    return StrategyCells(job, ranked, {})[8];
  };
  EXPECT_EQ(recomputation(8), recomputation(9));
  EXPECT_EQ(recomputation(7.9), recomputation(8) + "? -1.25%");
  EXPECT_THAT(StrategyLegend({}), HasSubstr("plan? -N%: not proven"));
}

// train show has the same figures for a strategy that the search finds.
TEST_F(LlmSearchTest, AnswersAreThoseOfLlmTrain) {
  const json answer = AcplanJson(SearchWith({"-t", "5", "-o", "s.json"}));
  EXPECT_EQ(json::parse(Read("s.json")), answer);
  ASSERT_EQ(answer["best"].size(), 5U);
  double before = 0;
  for (const json& best : answer["best"]) {
    const double seconds = best["iteration_s"];
    EXPECT_GE(seconds, before);
    before = seconds;
    EXPECT_TRUE(best["fits"].get<bool>());
    const json& s = best["strategy"];
    std::vector<std::string> train_command = {"train", "show",  kModel,
                                              "--gpu", "h100",  "--gpus",
                                              "16",    "--gbs", "64"};
    for (const char* key : {"tp", "pp", "vp", "cp", "mbs", "zero"}) {
      train_command.push_back(std::string("--") + key);
      train_command.push_back(s[key].dump());
    }
    train_command.push_back("--recompute");
    train_command.push_back(s["recompute"]);
    for (const auto& [key, value] : s.items()) {
      if (key != "offload_layers" && key != "optimizer_copies" &&
          key != "cp_comm_type" && key != "pp_schedule" &&
          !key.starts_with("counts_")) {
        continue;
      }
      train_command.push_back("--set");
      train_command.push_back(
          key + "=" +
          (value.is_string() ? value.get<std::string>() : value.dump()));
    }
    EXPECT_EQ(AcplanJson(train_command)["iteration_s"], seconds);
  }
}

TEST_F(LlmSearchTest, NoPartOfAnIterationIsLessThanNothing) {
  const json answer = AcplanJson(SearchWith({"-t", "50"}));
  for (const json& best : answer["best"]) {
    for (const auto& [name, seconds] : best["parts_s"].items()) {
      EXPECT_GE(seconds, 0) << name;
    }
  }
}

// The limit holds for strategies and plans alike.
TEST_F(LlmSearchTest, EndsAtTheTimeLimit) {
  const auto search = [&](const char* limit) {
    return std::vector<std::string>{
        "train", "search",       kModel, "--gpu",
        "h100",  "--gpus",       "64",   "--gbs",
        "512",   "--seq",        "8192", "-t",
        "1",     "--time-limit", limit,  "--allocator-loss",
        "0"};
  };
  const Outcome none = Acplan(search("0"));
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("no strategy that fits was found; not all "
                                  "were tried (--time-limit)"));
  const json whole = AcplanJson(search("none"));
  EXPECT_TRUE(whole["proven"].get<bool>());
  EXPECT_TRUE(whole["complete"].get<bool>());
  EXPECT_EQ(whole["unplanned"], 0);
  EXPECT_EQ(whole["best"][0]["strategy"]["recompute"], "plan");
  EXPECT_EQ(whole["bound_s"], whole["best"][0]["iteration_s"]);
  // An answer under a limit is no better, and does not claim to be.
  for (const char* limit : {"0.002", "0.01", "0.03"}) {
    const Outcome outcome = Acplan(search(limit));
    if (outcome.exit_code == 4) continue;
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out,
                AnyOf(HasSubstr("not all strategies were tried (--time-limit)"),
                      HasSubstr("not planned (--time-limit)"),
                      HasSubstr("may have better plan"),
                      HasSubstr("proven for the predictions: no other")));
  }
}

TEST_F(LlmSearchTest, SaysThatItWasInterrupted) {
  Process process(
      ACPLAN_PROGRAM,
      {"train", "search", ACPLAN_DATA_DIR "/training/models/qwen3-30b-a3b.json",
       "--gpu", "GB200", "--gpus", "12", "--gbs", "96", "--recompute", "plan",
       "--time-limit", "none", "--allocator-loss", "0", "-t", "1000"},
      folder());
  process.WaitUntilItHandles(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  EXPECT_FALSE(process.HasEnded());
  process.Signal(SIGINT);
  const Outcome outcome = process.Wait();
  EXPECT_THAT(outcome.out + outcome.err,
              AnyOf(HasSubstr("may have better plans (interrupted)"),
                    HasSubstr("planned (interrupted)"),
                    HasSubstr("were tried (interrupted)"),
                    HasSubstr("no strategy was planned (interrupted)")));
}

// Strategies without plans come first, and are not all tried then.
TEST_F(LlmSearchTest, CtrlCEndsStrategiesWithoutPlans) {
  for (const char* command : {"search", "fit"}) {
    Process process(
        ACPLAN_PROGRAM,
        {"train", command, ACPLAN_DATA_DIR "/training/models/deepseek-v3.json",
         "--gpu", "GB200", "--gpus", "4096", "--gbs", "16384", "--seq", "4096",
         "--software", "torchtitan", "--offload-layers", "1", "--json", "-o",
         "found.json"},
        folder());
    process.WaitUntilItHandles(SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    process.Signal(SIGINT);
    const Outcome outcome = process.Wait();
    if (outcome.out.empty()) {
      EXPECT_EQ(outcome.exit_code, 4) << command;
      EXPECT_THAT(outcome.err, HasSubstr("not all were tried (interrupted)"));
      EXPECT_FALSE(Exists("found.json"));
      continue;
    }
    EXPECT_THAT(outcome.exit_code, testing::AnyOf(0, 4)) << command;
    EXPECT_EQ(Read("found.json"), outcome.out);
    const json answer = json::parse(outcome.out);
    const json& search =
        answer.contains("tables") ? answer["tables"][0]["rows"][0] : answer;
    EXPECT_FALSE(search["proven"].get<bool>()) << command;
    EXPECT_EQ(search["bound_s"], 0) << command;
    EXPECT_LT(search["strategies"], 24'000'000) << command;
  }
}

// train show takes one of them as a strategy, by its rank.
TEST_F(LlmSearchTest, AnswersAreStrategyFiles) {
  const json answer = AcplanJson(SearchWith({"-t", "3", "-o", "s.json"}));
  for (const char* rank : {"1", "3"}) {
    EXPECT_EQ(AcplanJson({"train show", kModel, "--strategy",
                          std::string("s.json:") + rank})["iteration_s"],
              answer["best"][std::stoul(rank) - 1]["iteration_s"]);
  }
  for (const char* wrong : {"s.json:0", "s.json:4"}) {
    ExpectRefused(Acplan({"train show", kModel, "--strategy", wrong}),
                  {"s.json: rank: expected a whole number from 1 to 3"});
  }
}

TEST_F(LlmSearchTest, SaysWhatTrainingCosts) {
  const json answer =
      AcplanJson(SearchWith({"-t", "1", "--tokens", "1e12", "--price", "2"}));
  const json& best = answer["best"][0];
  const double hours = 1e12 / best["tokens_per_gpu_s"].get<double>() / 3600;
  EXPECT_NEAR(best["gpu_hours"], hours, 1e-9 * hours);
  EXPECT_NEAR(best["cost"], 2 * hours, 1e-9 * hours);
  EXPECT_THAT(AcplanOut(SearchWith({"-t", "1", "--tokens", "1e12"})),
              HasSubstr("GPU-hours: for 1e+12 tokens"));
}

TEST_F(LlmSearchTest, ADegreeThatIsSaidIsKept) {
  const json answer =
      AcplanJson(SearchWith({"--tp", "4", "--pp", "2", "--recompute", "full"}));
  for (const json& best : answer["best"]) {
    EXPECT_EQ(best["strategy"]["tp"], 4);
    EXPECT_EQ(best["strategy"]["pp"], 2);
    EXPECT_THAT(best["strategy"]["recompute"].get<std::string>(),
                HasSubstr("full"));
  }
}

// A schedule is tried if it is given, or if the software has it.
TEST_F(LlmSearchTest, SchedulesAreThoseOfTheSoftwareUnlessSaid) {
  const auto schedules = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"-t", "100", "--recompute", "none", "--pp", "2"});
    std::set<std::string> names;
    const json answer = AcplanJson(SearchWith(more));
    for (const json& best : answer["best"]) {
      names.insert(best["strategy"]["pp_schedule"]);
    }
    return names;
  };
  EXPECT_THAT(schedules({}), testing::ElementsAre("1F1B", "Interleaved1F1B"));
  EXPECT_THAT(schedules({"--pp-schedule", "DualPipe"}),
              testing::ElementsAre("DualPipe"));
  EXPECT_THAT(schedules({"--software", "torchtitan"}),
              testing::Contains("ZBVZeroBubble"));
  EXPECT_THAT(schedules({"--pp-schedule", "any"}),
              testing::IsSupersetOf({"DualPipe", "ZBVZeroBubble", "VHalf"}));
  EXPECT_THAT(schedules({"--pp-schedule", "V-Min"}),
              testing::ElementsAre("VMin"));
}

// Offload is tried if it is requested, and then as little as fits.
TEST_F(LlmSearchTest, OffloadIsTriedWhereAny) {
  const auto search = [&](std::vector<std::string> more) {
    more.insert(more.end(),
                {"--recompute", "none", "--pp", "1", "--tp", "1", "--cp", "1",
                 "--zero", "3", "--mbs", "4", "-t", "1"});
    return AcplanJson(SearchWith(more));
  };
  const json any = search({"--offload-layers", "any"})["best"][0];
  const int64_t layers = any["strategy"]["offload_layers"];
  EXPECT_GT(layers, 0);
  const json same = search({"--offload-layers", std::to_string(layers)});
  EXPECT_EQ(same["best"][0]["iteration_s"], any["iteration_s"]);
  EXPECT_EQ(Acplan(SearchWith({"--recompute", "none", "--pp", "1", "--tp", "1",
                               "--cp", "1", "--zero", "3", "--mbs", "4",
                               "--offload-layers", std::to_string(layers - 1)}))
                .exit_code,
            3);
}

// States wait on the host where that is allowed and nothing else fits.
TEST_F(LlmSearchTest, StatesWaitOnTheHostWhereAny) {
  const auto search = [&](const std::string& states) {
    return std::vector<std::string>{
        "train", "search", kModel, "--gpu", "h100", "--gpus",
        "2",     "--gbs",  "2",    "--pp",  "1",    "--tp",
        "1",     "--zero", "1",    "-t",    "1",    "--offload-states",
        states};
  };
  EXPECT_EQ(Acplan(search("false")).exit_code, 3);
  const json any = AcplanJson(search("any"))["best"][0];
  EXPECT_EQ(any["strategy"]["offload_states"], true);
  const json same = AcplanJson(search("true"))["best"][0];
  EXPECT_EQ(same["iteration_s"], any["iteration_s"]);
  for (const char* flag : {"--offload-states", "--offload-layers"}) {
    EXPECT_EQ(
        Acplan({"train", "fit", kModel, "--gpu", "h100", "--gpus", "2", "--gbs",
                "2", "--pp", "1", "--tp", "1", "--zero", "1", flag, "any"})
            .exit_code,
        flag[10] == 's' ? 0 : 3)
        << flag;
  }
}

// A strategy that the search had no time for is not called impossible.
TEST_F(LlmSearchTest, SaysWhereTheLimitLeftNothing) {
  const Outcome outcome = Acplan(
      {"train", "search", ACPLAN_DATA_DIR "/training/models/deepseek-v3.json",
       "--gpu", "h800", "--gpus", "2048", "--gbs", "15360", "--pp", "16",
       "--ep", "8", "--cp", "1", "--recompute", "plan", "--time-limit", "0"});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("not all were tried (--time-limit)"));
}

// The plans written are those that many labels found: the search is for a layer
// with many policies, and a limit mostly ends it.
TEST_F(LlmSearchTest, TextAndJsonTellTheSamePlansWhereALimitMayEndThem) {
  bool has_plan = false;
  // A busy machine finds no plan in the shortest time.
  for (const char* limit : {"0.7", "2", "6"}) {
    const std::string text =
        AcplanOut({"train", "search",
                   ACPLAN_TEST_DATA_DIR "/../fuzz/seeds/small_config.json",
                   "--gpu", "GB200", "--gpus", "12", "--time-limit", limit,
                   "-t", "5", "-o", "s.json"});
    const json answer = json::parse(Read("s.json"));
    double before = 0;
    for (const json& best : answer["best"]) {
      const double seconds = best["iteration_s"];
      EXPECT_GE(seconds, before);
      before = seconds;
      EXPECT_THAT(text, HasSubstr(fmt::format("{:.3f} ms", 1e3 * seconds)));
      has_plan |= best["strategy"]["recompute"] == "plan";
    }
    if (has_plan) break;
  }
  EXPECT_TRUE(has_plan);
}

// Modules of Hugging Face run on one GPU each.
TEST_F(LlmSearchTest, KeepsWhatAnImplementationCannotOutOfTheSearch) {
  const json answer = AcplanJson(SearchWith({"--implementation", "eager"}));
  EXPECT_FALSE(answer["best"].empty());
  for (const json& best : answer["best"]) {
    EXPECT_EQ(best["strategy"]["tp"], 1);
    EXPECT_EQ(best["strategy"]["pp"], 1);
  }
  ExpectRefused(Acplan(SearchWith({"--implementation", "eager", "--tp", "2"})),
                {"expected settings that some strategy can have, found none"});
}

TEST_F(LlmSearchTest, ANumberOfLayersThatIsSaidIsKept) {
  for (const char* layers : {"full:3", "every:2"}) {
    const json answer = AcplanJson(SearchWith({"--recompute", layers}));
    EXPECT_FALSE(answer["best"].empty());
    for (const json& best : answer["best"]) {
      EXPECT_EQ(best["strategy"]["recompute"], layers);
    }
  }
}

TEST_F(LlmSearchTest, RefusesWhatNoStrategyMakesPossible) {
  ExpectRefused(Acplan(SearchWith({"--precision", "nvfp4"})),
                {"precision: H100-SXM5 has no products in this precision"});
  ExpectRefused(Acplan(SearchWith({"--dispatcher", "deepep"})),
                {"dispatcher: expected alltoall"});
  ExpectRefused(Acplan(SearchWith({"--recompute", "selective:moe"})),
                {"recompute: expected parts of the model"});
}

// The command finds a strategy if it is given what the line names.
TEST_F(LlmSearchTest, SaysWhatFitsIfNothingDoes) {
  const auto search = [](const std::string& gpu, const std::string& gpus,
                         std::vector<std::string> more) {
    std::vector<std::string> arguments = {"train", "search", kModel, "--gpu",
                                          gpu,     "--gpus", gpus,   "--gbs",
                                          "8",     "--seq",  "4096"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const Outcome none = Acplan(search("h100", "1", {}));
  EXPECT_EQ(none.exit_code, 3);
  std::smatch match;
  const std::regex line(
      "the least is about ([0-9.]+) GiB, [0-9.]+ GiB too much; --gpus ([0-9]+) "
      "fits; --gpu ([A-Z0-9-]+) fits; --offload-states any fits; python -m "
      "acplan what-fits");
  ASSERT_TRUE(std::regex_search(none.err, match, line)) << none.err;
  EXPECT_EQ(Acplan(search("h100", match[2], {})).exit_code, 0);
  EXPECT_EQ(Acplan(search(match[3], "1", {})).exit_code, 0);
  EXPECT_EQ(Acplan(search("h100", "1", {"--offload-states", "any"})).exit_code,
            0);
  const double least = std::stod(match[1]);
  EXPECT_EQ(Acplan(search("h100", "1",
                          {"--budget", fmt::format("{}GiB", least + 0.01)}))
                .exit_code,
            0);
  EXPECT_EQ(Acplan(search("h100", "1",
                          {"--budget", fmt::format("{}GiB", 0.99 * least)}))
                .exit_code,
            3);
}

TEST_F(LlmSearchTest, WrongInputIsALine) {
  ExpectRefused(Acplan({"train", "search"}), {"CONFIG"});
  ExpectRefused(Acplan(SearchWith({"-t", "0"})), {"-t: expected"});
  ExpectRefused(Acplan(SearchWith({"--sp", "false"})), {"--sp: expected true"});
  ExpectRefused(Acplan(SearchWith({"--tp", "x"})), {"--tp: expected a whole"});
  ExpectRefused(Acplan(SearchWith({"-o", "s.csv"})), {"s.csv"});
  ExpectRefused(Acplan(SearchWith({"--set", "pp_schedule=GPipe"})),
                {"pp_schedule: expected one of 1F1B", "GPipe"});
  ExpectRefused(Acplan(SearchWith({"--set", "first_layers=3"})),
                {"first_layers: expected no value in a search"});
  const Outcome outcome = Acplan(SearchWith({"--budget", "1GiB"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("fits in 1.00 GiB per GPU"));
}

}  // namespace

}  // namespace acplan::cli
