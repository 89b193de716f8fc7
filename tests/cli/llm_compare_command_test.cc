#include <fmt/format.h>

#include <algorithm>

#include "cli/input/llm_strategies.h"
#include "cli/llm/llm_comparison_text.h"
#include "cli/terminal/text.h"
#include "costmodel/application/model.h"
#include "costmodel/hardware/system.h"
#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kModel = ACPLAN_DATA_DIR "/models/gpt3-175B.json";
const std::string kSystem = ACPLAN_DATA_DIR "/systems/a100_80g.json";
const std::string kFull =
    ACPLAN_DATA_DIR "/validation/seqsel/tab5/gpt3-175B_full.json";
const std::string kSelective =
    ACPLAN_DATA_DIR "/validation/seqsel/tab5/gpt3-175B_seqsel.json";

class LlmCompareCommandTest : public CliTest {
 protected:
  static std::vector<std::string> Compare(
      const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"llm-compare", kModel, kSystem};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // kFull with keys changed.
  void PutExecution(const std::string& name,
                    const std::vector<Edit>& edits) const {
    Put(name, Edited(json::parse(graph::ReadFile(kFull)), edits));
  }
  void PutWithoutMemory(const std::string& name) const {
    PutExecution(name, {{"/activation_recompute", "\"none\""},
                        {"/tensor_par_comm_type", "\"ar\""},
                        {"/microbatch_size", "16"}});
  }
  void PutWithoutNetwork(const std::string& name) const {
    PutExecution(name, {{"/pipeline_par_net", "0"}});
  }
  // Results of a search, the statistics of which are wrong.
  json Results() const {
    const json full = json::parse(graph::ReadFile(kFull));
    const json selective = json::parse(graph::ReadFile(kSelective));
    return {{"0", {{"execution", full}, {"stats", {{"total_time", 1}}}}},
            {"1", {{"execution", selective}, {"stats", {}}}}};
  }
};

TEST_F(LlmCompareCommandTest, SideBySide) {
  const std::string text = AcplanOut(Compare({kFull, kSelective}));
  EXPECT_THAT(text, StartsWith("gpt3-175B on a100_80g, ratios to "
                               "gpt3-175B_full\n\n"));
  EXPECT_THAT(text, ContainsRegex("\n +gpt3-175B_full +gpt3-175B_seqsel\n"));
  EXPECT_THAT(text, ContainsRegex("activation_recompute +full +attn_only\n"));
  EXPECT_THAT(text, Not(HasSubstr("num_procs")));  // the same in both
  EXPECT_THAT(text, Not(HasSubstr("offload")));    // nothing in both
  EXPECT_THAT(text, Not(HasSubstr("missing")));
  EXPECT_THAT(text, Not(HasSubstr("infeasible")));
  // docs/llm_cost_model.md, table 5.
  EXPECT_THAT(text,
              ContainsRegex("total +18[.]14[0-9] s +12[.]99[0-9] s +×0[.]72"));
  EXPECT_THAT(text, ContainsRegex("\n  total +100[.]0% +100[.]0%\n"));
  EXPECT_THAT(text, ContainsRegex("recomputation +[0-9.]+ s +[0-9.]+ m?s"));
}

TEST_F(LlmCompareCommandTest, FiguresAreThoseOfLlm) {
  for (const std::string mode : {"calculon", "corrected"}) {
    const json compared =
        AcplanJson(Compare({kFull, kSelective, "--mode", mode}));
    EXPECT_EQ(compared["format"], "acplan.llm_comparison");
    EXPECT_EQ(compared["corrections"].empty(), mode == "calculon");
    for (size_t i = 0; i < 2; ++i) {
      const json stats = AcplanJson({"llm", kModel, i == 0 ? kFull : kSelective,
                                     kSystem, "--mode", mode});
      const json& one = compared["strategies"][i];
      EXPECT_EQ(one["time"]["total_s"], stats["total_time"]);
      EXPECT_EQ(one["rates"]["samples_per_s"], stats["sample_rate"]);
      EXPECT_EQ(one["memory"]["tier1_bytes"], stats["proc_mem_tier1_cap_req"]);
      EXPECT_EQ(one["status"], "fits");
    }
  }
  const json one = AcplanJson(Compare(
      {kFull, "--mode", "calculon", "--correct", "sharded_checkpoints"}));
  EXPECT_EQ(one["corrections"], json({"sharded_checkpoints"}));
  EXPECT_EQ(AcplanJson(Compare({kFull})),
            AcplanJson(Compare({kFull, "--mode", "corrected"})));
}

TEST_F(LlmCompareCommandTest, TakesResultsOfASearch) {
  Put("best.json", Results().dump());
  const json plain = AcplanJson(Compare({kFull, kSelective}))["strategies"];
  json ranked = AcplanJson(Compare({"best.json", "best.json:1"}))["strategies"];
  EXPECT_EQ(ranked[0]["name"], "best:0");
  EXPECT_EQ(ranked[1]["name"], "best:1");
  for (size_t i = 0; i < 2; ++i) {
    ranked[i]["name"] = plain[i]["name"];
    EXPECT_EQ(ranked[i], plain[i]);
  }
  graph::WriteFile(folder() / "best.json.gz", Results().dump());
  graph::WriteFile(folder() / "full.json.gz", graph::ReadFile(kFull));
  const json packed =
      AcplanJson(Compare({"full.json.gz", "best.json.gz:1"}))["strategies"];
  EXPECT_EQ(packed[0]["name"], "full");
  EXPECT_EQ(packed[1]["name"], "best:1");
  EXPECT_EQ(packed[1]["time"], plain[1]["time"]);
}

TEST_F(LlmCompareCommandTest, TakesWhatASearchWrites) {
  const std::string tiny =
      ACPLAN_TEST_DATA_DIR "/calculon/custom/models/tiny-odd.json";
  AcplanOut({"-v", "ERROR", "loe", tiny, "8", "8", "float16", kSystem,
             "best.json.gz", "-t", "3", "-l", "--mode", "corrected"});
  const json best = json::parse(graph::ReadFile(folder() / "best.json.gz"));
  const json compared =
      AcplanJson({"llm-compare", tiny, kSystem, "best.json.gz:0",
                  "best.json.gz:1", "best.json.gz:2"})["strategies"];
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(compared[rank]["rates"]["samples_per_s"],
              best[std::to_string(rank)]["stats"]["sample_rate"]);
  }
}

TEST_F(LlmCompareCommandTest, NamesThatAreTheSameAreWrittenOut) {
  std::filesystem::create_directory(folder() / "a");
  Put("a/x.json", graph::ReadFile(kFull));
  Put("x.json", graph::ReadFile(kSelective));
  const json compared = AcplanJson(Compare({"a/x.json", "x.json"}));
  EXPECT_EQ(compared["strategies"][0]["name"], "a/x.json");
  EXPECT_EQ(compared["strategies"][1]["name"], "x.json");
}

TEST_F(LlmCompareCommandTest, InfeasibleOnesAreColumns) {
  PutWithoutMemory("wide.json");
  PutWithoutNetwork("near.json");
  const std::string text =
      AcplanOut(Compare({kFull, "wide.json", "near.json"}));
  EXPECT_THAT(text, ContainsRegex("verdict +fits +infeasible +infeasible\n"));
  EXPECT_THAT(text, ContainsRegex("\n    missing +- +[0-9.]+ [GT]iB +-\n"));
  EXPECT_THAT(text, ContainsRegex("\n  tier 1 +[0-9.]+ GiB +[0-9.]+ [GT]iB +"
                                  "×[0-9.]+ +-\n"));
  EXPECT_THAT(text, ContainsRegex("\n  total +18[.]14[0-9] s +- +-\n"));
  EXPECT_THAT(text, ContainsRegex("\nwide: infeasible: tier 1 of a processor's "
                                  "memory has 85899345920 bytes, needed are "
                                  "[0-9]+: [0-9]+ bytes are missing\n"));
  EXPECT_THAT(text,
              testing::EndsWith(
                  "\nnear: infeasible: network tier 0 connects 8 processors, "
                  "tensor_par 8 * pipeline_par 8 on it need 64\n"));
}

TEST_F(LlmCompareCommandTest, NoneIsFeasible) {
  PutWithoutMemory("wide.json");
  PutWithoutNetwork("near.json");
  const Outcome outcome =
      Acplan(Compare({"near.json", "wide.json", "-o", "out.json"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("near: infeasible: "));
  const json strategies = json::parse(Read("out.json"))["strategies"];
  EXPECT_EQ(strategies[0]["status"], "network_too_small");
  EXPECT_EQ(strategies[0]["memory"]["tier1_bytes"], nullptr);
  EXPECT_EQ(strategies[1]["status"], "tier1_too_small");
  EXPECT_EQ(strategies[1]["memory"]["tier1_bytes"].get<double>() +
                strategies[1]["memory"]["tier1_left_bytes"].get<double>(),
            80. * (1 << 30));
  EXPECT_EQ(strategies[1]["time"]["total_s"], nullptr);
  EXPECT_EQ(Acplan(Compare({"wide.json", kFull})).exit_code, 0);
}

TEST_F(LlmCompareCommandTest, WritesFiles) {
  const std::string text = AcplanOut(Compare({kFull, kSelective}));
  for (const std::string name :
       {"out.json", "out.json.gz", "out.csv", "out.csv.gz"}) {
    EXPECT_EQ(AcplanOut(Compare({"-o", name, kFull, kSelective})), text);
  }
  EXPECT_EQ(AcplanOut(Compare({kFull, kSelective, "--json"})),
            Read("out.json"));
  EXPECT_EQ(graph::ReadFile(folder() / "out.json.gz"), Read("out.json"));
  EXPECT_EQ(graph::ReadFile(folder() / "out.csv.gz"), Read("out.csv"));
  EXPECT_NE(Read("out.csv.gz"), Read("out.csv"));
  const std::vector<std::string> lines = Lines(Read("out.csv"));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[0],
              StartsWith("name,status,reason,plan_budget_bytes,num_procs,"));
  EXPECT_THAT(lines[1], StartsWith("gpt3-175B_full,fits,,,64,8,8,1,"));
  EXPECT_THAT(lines[2], StartsWith("gpt3-175B_seqsel,fits,,,64,8,8,1,"));
}

TEST_F(LlmCompareCommandTest, PlansBesideStrategies) {
  const json plan = json::parse(
      AcplanOut({"llm-plan", kModel, kSelective, kSystem, "--budget", "60GiB",
                 "--json", "-o", "plan.json"}));
  AcplanOut({"llm-search", kModel, kSystem, "64", "64", "float16", "-t", "2",
             "-o", "search.json", "--fix", "tensor_par=8", "--fix",
             "pipeline_par=8"});
  const json compared = json::parse(
      AcplanOut(Compare({kSelective, "plan.json", "search.json:1", "--json"})));
  const json& all = compared.at("strategies");
  EXPECT_TRUE(all.at(0).at("plan_budget_bytes").is_null());
  EXPECT_EQ(all.at(1).at("plan_budget_bytes"), 60.0 * (1 << 30));
  EXPECT_EQ(all.at(1).at("time").at("total_s"), plan.at("total_time"));
  double most = 0;
  for (const json& stage : plan.at("stages")) {
    most = std::max(most, stage.at("memory").at("tier1").get<double>());
  }
  EXPECT_EQ(all.at(1).at("memory").at("tier1_bytes"), most);
  EXPECT_EQ(
      all.at(2).at("rates").at("samples_per_s"),
      json::parse(Read("search.json")).at("1").at("stats").at("sample_rate"));
  for (const json& one : all) {
    const json& rates = one.at("rates");
    EXPECT_GE(rates.at("hardware_flops_utilisation"),
              rates.at("model_flops_utilisation"));
  }
  EXPECT_THAT(AcplanOut(Compare({kSelective, "plan.json"})),
              ContainsRegex("activation_recompute +attn_only +plan\n"));
  ExpectRefused(Acplan(Compare({"plan.json", "--mode", "calculon"})),
                {"plan.json", "--mode corrected"});
}

TEST_F(LlmCompareCommandTest, RefusesWhatIsWrong) {
  const auto refused = [&](const std::vector<std::string>& arguments,
                           const std::vector<std::string>& said) {
    std::vector<std::string> with_output = Compare(arguments);
    with_output.insert(with_output.end(), {"-o", "out.json"});
    ExpectRefused(Acplan(with_output), said);
    EXPECT_FALSE(Exists("out.json"));
  };
  Put("best.json", Results().dump());
  Put("none.json", "{}");
  Put("list.json", "[]");
  Put("text.json", "hello");
  Put("fake.json.gz", "{}");
  PutExecution("lacks.json", {{"/training", {}}});
  PutExecution(
      "fifths.json",
      {{"/tensor_par", "5"}, {"/num_procs", "40"}, {"/tensor_par_net", "1"}});
  json wrong = Results();
  wrong["1"]["execution"]["batch_size"] = "64";
  Put("wrong.json", wrong.dump());
  refused({}, {"EXECUTION"});
  refused({kFull, "nope.json"}, {"nope.json: "});
  refused({kFull, "text.txt"}, {"text.txt: expected a name that ends in"});
  refused({kFull, "text.json"}, {"text.json: line 1, column 1"});
  refused({kFull, "list.json"}, {"list.json: expected an object"});
  refused({kFull, "fake.json.gz"}, {"fake.json.gz: expected gzip"});
  refused({kFull, "lacks.json"}, {"lacks.json: expected the key \"training\""});
  refused({kFull, "fifths.json"},
          {"fifths.json: tensor_par: expected a divisor of"});
  refused({kFull, "none.json"}, {"none.json: expected the key \"0\""});
  refused({kFull, "best.json:2"}, {"best.json: expected the key \"2\""});
  refused({kFull, "best.json:"}, {"best.json: expected the key \"\""});
  refused({kFull, "wrong.json:1"},
          {"wrong.json: ", "execution.batch_size: expected a whole number"});
  refused({kFull, kSelective + ":1"},
          {"gpt3-175B_seqsel.json: expected the results of a search"});
  refused({kFull, "--mode", "right"}, {"--mode", "\"right\""});
  refused({kFull, "--correct", "sharded_checkpoint"},
          {"--correct", "nearest: "});
  ExpectRefused(Acplan(Compare({kFull, "-o", "out.txt"})),
                {"out.txt: expected a name that ends in .json"});
  ExpectRefused(Acplan(Compare({kFull, "-o", "no/out.csv"})), {"no/out.csv"});
  ExpectRefused(Acplan(Compare({"best.json:1", "-o", "best.json"})),
                {"best.json: expected another file than the input"});
  EXPECT_EQ(Read("best.json"), Results().dump());
}

TEST_F(LlmCompareCommandTest, OthersWrapIntoAnotherBlock) {
  const Terminal terminal(ColorMode::kNever, true, false);
  const costmodel::Model model = costmodel::ReadModel(kModel);
  const costmodel::System system = costmodel::ReadSystem(kSystem);
  std::vector<costmodel::NamedExecution> strategies;
  for (int i = 0; i < 7; ++i) {
    strategies.push_back(ReadStrategies({i % 2 == 0 ? kFull : kSelective})[0]);
    strategies.back().name = fmt::format("plan-{}", i);
  }
  const std::vector<costmodel::ComparedStrategy> all =
      CompareStrategies(model, system, strategies, {});
  const auto headings = [&](size_t width) {
    std::vector<std::string> found;
    for (const std::string& line :
         Lines(ComparisonText(all, width, terminal))) {
      if (width >= 60) {
        EXPECT_LE(TextWidth(line), width);
      }
      if (line.find("plan-") == std::string::npos) continue;
      std::string names;
      for (const char c : line) {
        if (c >= '0' && c <= '9') names += c;
      }
      found.push_back(names);
    }
    return found;
  };
  using testing::ElementsAre;
  EXPECT_THAT(headings(1000), ElementsAre("0123456"));
  EXPECT_THAT(headings(132), ElementsAre("012345", "6"));
  EXPECT_THAT(headings(80), ElementsAre("012", "345", "6"));
  EXPECT_THAT(headings(1), ElementsAre("0", "1", "2", "3", "4", "5", "6"));
  // Rows are the same in all blocks.
  const std::vector<std::string> lines =
      Lines(ComparisonText(all, 132, terminal));
  const size_t rows = lines.size() / 2;
  for (size_t i = 0; i < rows; ++i) {
    EXPECT_EQ(lines[i].substr(0, 20), lines[i + rows + 1].substr(0, 20));
  }
}

TEST_F(LlmCompareCommandTest, IsAsWideAsTheTerminal) {
  const auto headings = [&](int columns) {
    const Outcome outcome =
        Process("/bin/bash",
                {"-c", fmt::format("stty cols {} <&1 && exec {} --color never "
                                   "llm-compare {} {} {} {}",
                                   columns, ACPLAN_PROGRAM, kModel, kSystem,
                                   kFull, kSelective)},
                folder(), {.out = Stream::kTerminal})
            .Wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return std::ranges::count_if(
        Lines(outcome.out),
        [](const std::string& line) { return line.starts_with("      "); });
  };
  EXPECT_EQ(headings(100), 1);
  EXPECT_EQ(headings(50), 2);
}

}  // namespace

}  // namespace acplan::cli
