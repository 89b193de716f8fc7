#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <thread>

#include "graph/base/file_io.h"
#include "graph/profile/profile.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

using Row = std::map<std::string, std::string>;

std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells{""};
  for (const char c : line) {
    if (c == ',') {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

// Returns rows by column, with numbers as text.
std::vector<Row> Rows(const std::string& csv) {
  std::vector<Row> rows;
  const std::vector<std::string> lines = Lines(csv);
  const std::vector<std::string> heading = Cells(lines.front());
  for (size_t k = 1; k < lines.size(); ++k) {
    const std::vector<std::string> cells = Cells(lines[k]);
    EXPECT_EQ(cells.size(), heading.size()) << lines[k];
    Row& row = rows.emplace_back();
    for (size_t c = 0; c < cells.size(); ++c) row[heading[c]] = cells[c];
  }
  return rows;
}

// Removes the times, which differ from run to run.
json WithoutEffort(json frontier) {
  for (json& plan : frontier["plans"]) {
    plan["solver"].erase("seconds");
  }
  return frontier;
}

std::string WithoutSeconds(const std::string& csv) {
  std::string text;
  for (const Row& row : Rows(csv)) {
    for (const auto& [name, cell] : row) {
      if (name != "seconds") text += cell + ",";
    }
    text += "\n";
  }
  return text;
}

class FrontierCommandTest : public CliTest {
 protected:
  std::vector<std::string> Frontier(
      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"frontier", profile_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  std::vector<int64_t> BudgetsOf(const std::vector<std::string>& more) const {
    const json frontier = AcplanJson(Frontier(more));
    std::vector<int64_t> budgets;
    for (const json& plan : frontier["plans"]) {
      budgets.push_back(plan["budget_bytes"]);
    }
    return budgets;
  }

  const std::string profile_ = ProfilePath("transformer4");
};

TEST_F(FrontierCommandTest, EveryPlanIsThatOfItsBudget) {
  const std::vector<std::vector<std::string>> questions{
      {},
      {"--granularity", "module"},
      {"--tradeoff", "fit", "--memory-model", "torch", "--world-size", "4"},
      {"--reserve", "100MiB", "--max-units", "3"},
      {"--save", "mm|_scaled*", "--without-states"}};
  for (const std::vector<std::string>& question : questions) {
    SCOPED_TRACE(testing::PrintToString(question));
    std::vector<std::string> arguments{"--points", "5"};
    arguments.insert(arguments.end(), question.begin(), question.end());
    const json frontier = AcplanJson(Frontier(arguments));
    ASSERT_THAT(frontier["plans"], SizeIs(5));
    for (const json& plan : frontier["plans"]) {
      const std::string budget = plan["budget_bytes"].dump();
      std::vector<std::string> alone{"plan", profile_, "--budget", budget};
      alone.insert(alone.end(), question.begin(), question.end());
      const json expected = AcplanJson(alone);
      for (const std::string key :
           {"format", "version", "model", "budget_bytes", "world_size",
            "memory_model", "granularity", "tradeoff", "status", "baseline",
            "caveat"}) {
        EXPECT_EQ(plan[key], expected[key]) << key;
      }
      for (const std::string key : {"reserve_bytes", "without_states"}) {
        EXPECT_EQ(plan.value(key, json()), expected.value(key, json()));
        EXPECT_EQ(plan.value(key, json()), frontier.value(key, json()));
      }
      EXPECT_NEAR(plan["recompute_ms"].get<double>(),
                  expected["recompute_ms"].get<double>(), 1e-8);
    }
  }
}

TEST_F(FrontierCommandTest, CheckAcceptsEveryPlan) {
  for (const std::string name : {"transformer4", "gpt2_small"}) {
    for (const std::string granularity : {"operator", "module"}) {
      const json frontier =
          AcplanJson({"frontier", ProfilePath(name), "--points", "4",
                      "--granularity", granularity});
      for (const json& plan : frontier["plans"]) {
        PutFile("plan.json", plan.dump());
        EXPECT_THAT(AcplanOut({"check", ProfilePath(name), "plan.json",
                               "--budget", plan["budget_bytes"].dump()}),
                    StartsWith("holds: "));
      }
    }
  }
}

TEST_F(FrontierCommandTest, JsonSaysWhatWasAsked) {
  const json frontier = AcplanJson(
      Frontier({"--points", "3", "--reserve", "1MiB", "--without-states"}));
  EXPECT_EQ(frontier["format"], "acplan.frontier");
  EXPECT_EQ(frontier["version"], 1);
  EXPECT_EQ(frontier["model"], "transformer4");
  EXPECT_EQ(frontier["world_size"], 1);
  EXPECT_EQ(frontier["reserve_bytes"], 1 << 20);
  EXPECT_EQ(frontier["without_states"], true);
  EXPECT_EQ(frontier["memory_model"], "snapshot");
  EXPECT_EQ(frontier["granularity"], "operator");
  EXPECT_EQ(frontier["tradeoff"], "pareto");
  EXPECT_TRUE(frontier.contains("caveat"));
  const json& plans = frontier["plans"];
  EXPECT_EQ(plans[0]["budget_bytes"], frontier["minimum_budget_bytes"]);
  EXPECT_EQ(plans[2]["budget_bytes"].get<int64_t>() - (1 << 20),
            frontier["unplanned_peak_bytes"]);
  EXPECT_EQ(plans[2]["recompute_ms"], 0);
  EXPECT_FALSE(
      AcplanJson(Frontier({"--points", "1"})).contains("reserve_bytes"));
}

TEST_F(FrontierCommandTest, Points) {
  EXPECT_THAT(BudgetsOf({}), SizeIs(20));
  EXPECT_THAT(BudgetsOf({"--points", "7"}), SizeIs(7));
  const json frontier = AcplanJson(Frontier({"--points", "1"}));
  ASSERT_THAT(frontier["plans"], SizeIs(1));
  EXPECT_EQ(frontier["plans"][0]["budget_bytes"],
            frontier["minimum_budget_bytes"]);
}

TEST_F(FrontierCommandTest, Budgets) {
  const json frontier = AcplanJson(Frontier({"--points", "2"}));
  const int64_t least = frontier["minimum_budget_bytes"];
  const int64_t most = frontier["unplanned_peak_bytes"];
  EXPECT_THAT(BudgetsOf({"--budgets", "75%, 1.6GiB,min", "--budgets", "100%"}),
              ElementsAre(least, 1'717'986'918, most / 4 * 3, most));
  EXPECT_THAT(
      BudgetsOf({"--budgets", fmt::format("min,{},2GiB,2048MiB", least)}),
      ElementsAre(least, int64_t{2} << 30));
  EXPECT_THAT(BudgetsOf({"--budgets", "100GiB"}),
              ElementsAre(int64_t{100} << 30));
  PutFile("budgets.txt", "2GiB  # as now\n75%\n");
  EXPECT_THAT(BudgetsOf({"--budgets", "@budgets.txt"}), SizeIs(2));
}

TEST_F(FrontierCommandTest, CsvHasTheNumbersOfTheJson) {
  const std::vector<std::string> budgets{"--budgets", "1GiB,min,75%,3GiB"};
  const json frontier = AcplanJson(Frontier(budgets));
  const std::vector<Row> rows =
      Rows(AcplanOut(Frontier({budgets[0], budgets[1], "--csv"})));
  ASSERT_EQ(rows.size(), frontier["plans"].size());
  for (size_t k = 0; k < rows.size(); ++k) {
    const Row& row = rows[k];
    const json& plan = frontier["plans"][k];
    EXPECT_EQ(row.at("budget_bytes"), plan["budget_bytes"].dump());
    EXPECT_EQ(row.at("status"), plan["status"]);
    EXPECT_EQ(row.at("nodes"), plan["solver"]["nodes"].dump());
    EXPECT_DOUBLE_EQ(std::stod(row.at("budget_share")),
                     plan["budget_bytes"].get<double>() /
                         frontier["unplanned_peak_bytes"].get<double>());
    for (const std::string key :
         {"recompute_ms", "bound_ms", "gap", "overhead", "peak_bytes"}) {
      if (plan["status"] == "infeasible") {
        EXPECT_EQ(row.at(key), "");
      } else {
        EXPECT_EQ(std::stod(row.at(key)), plan[key].get<double>()) << key;
      }
    }
    EXPECT_EQ(row.at("units"), plan["status"] == "infeasible"
                                   ? ""
                                   : std::to_string(plan["modules"].size()));
  }
  EXPECT_EQ(rows[0].at("status"), "infeasible");
  EXPECT_EQ(frontier["plans"][0]["minimum_budget_bytes"],
            frontier["minimum_budget_bytes"]);
}

TEST_F(FrontierCommandTest, TheTableHasWhatAPersonNeeds) {
  const std::string out = AcplanOut(
      Frontier({"--budgets", "1GiB,min,80%,3GiB", "--reserve", "16MiB"}));
  EXPECT_THAT(out, StartsWith("transformer4, memory model snapshot\noperator "
                              "granularity\npeak without a plan 2.25 GiB ("));
  EXPECT_THAT(out, AllOf(HasSubstr("\nsmallest feasible budget 1.05 GiB ("),
                         HasSubstr("\n16.00 MiB of each budget stays free\n"),
                         HasSubstr("● optimal\n")));
  EXPECT_THAT(out, ContainsRegex("1\\.00 GiB +44\\.4% +infeasible\n"));
  EXPECT_THAT(out, ContainsRegex("3\\.00 GiB +133\\.3% +2\\.25 GiB +0\\.00 ms "
                                 "+\\+0\\.00% +0  optimal\n"));
  EXPECT_THAT(out, ContainsRegex("\n4 budgets: 3 optimal, 1 infeasible "
                                 "\\([0-9.]+ s, [0-9,]+ labels\\)\nnote: "));
  EXPECT_THAT(AcplanOut(Frontier({"--points", "1"})),
              AllOf(Not(HasSubstr("●")), HasSubstr("\n1 budget: 1 optimal (")));
}

TEST_F(FrontierCommandTest, FilesAreWhatIsPrinted) {
  const std::vector<std::string> points{"--points", "4"};
  const auto extended = [&](std::vector<std::string> more) {
    more.insert(more.begin(), points.begin(), points.end());
    return Frontier(more);
  };
  const json frontier = WithoutEffort(AcplanJson(extended({})));
  const std::string csv = WithoutSeconds(AcplanOut(extended({"--csv"})));

  EXPECT_THAT(AcplanOut(extended({"-o", "f.json"})), HasSubstr("4 budgets: "));
  EXPECT_EQ(WithoutEffort(json::parse(Read("f.json"))), frontier);
  AcplanOut(extended({"-o", "f.json.gz"}));
  EXPECT_EQ(WithoutEffort(json::parse(graph::ReadFile(folder() / "f.json.gz"))),
            frontier);
  AcplanOut(extended({"-o", "f.csv"}));
  EXPECT_EQ(WithoutSeconds(Read("f.csv")), csv);
  AcplanOut(extended({"-o", "f.csv.gz"}));
  EXPECT_EQ(Read("f.csv.gz").substr(0, 2), "\x1f\x8b");
  EXPECT_EQ(WithoutSeconds(graph::ReadFile(folder() / "f.csv.gz")), csv);

  for (const std::string format : {"--csv", "--json"}) {
    for (const std::string name : {"odd.csv", "odd.json", "odd"}) {
      const std::string out = AcplanOut(extended({format, "--output", name}));
      EXPECT_EQ(Read(name), out);
    }
  }
}

TEST_F(FrontierCommandTest, ExitCodes) {
  const auto run = [&](const std::vector<std::string>& more) {
    return Acplan(Frontier(more));
  };
  EXPECT_EQ(run({"--budgets", "1MiB,2GiB"}).exit_code, 0);
  const Outcome infeasible = run({"--budgets", "1MiB,2MiB"});
  EXPECT_EQ(infeasible.exit_code, 3);
  EXPECT_THAT(infeasible.out, HasSubstr("2 budgets: 2 infeasible ("));
  const Outcome limited =
      run({"--budgets", "1MiB,1.3GiB", "--time-limit", "0"});
  EXPECT_EQ(limited.exit_code, 4);
  EXPECT_THAT(limited.out,
              AllOf(ContainsRegex("1\\.30 GiB +[0-9.]+% +no plan\n"),
                    HasSubstr("2 budgets: 1 infeasible, 1 without a plan (")));
  const Outcome some = run({"--points", "3", "--time-limit", "0"});
  EXPECT_EQ(some.exit_code, 0);
  EXPECT_THAT(some.out, HasSubstr("3 budgets: 1 optimal, 2 without a plan ("));
}

TEST_F(FrontierCommandTest, WarnsAsPlanDoes) {
  const Outcome outcome =
      Acplan(Frontier({"--points", "2", "--ac-units",
                       "Transformer.output,Transformer.layers.0"}));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err,
            "acplan: warning: --ac-units: Transformer.output is a leaf; leaves "
            "are never AC units\n");
}

TEST_F(FrontierCommandTest, ProgressIsLoggedOnRequest) {
  const Outcome outcome = Acplan(Frontier({"--points", "3", "-v"}));
  EXPECT_THAT(outcome.err, EndsWith("acplan: 1 of 3 budgets\nacplan: 2 of 3 "
                                    "budgets\nacplan: 3 of 3 budgets\n"));
}

// CBC takes minutes for each of many budgets.
TEST_F(FrontierCommandTest, CtrlCGivesWhatIsKnown) {
  Process process(
      ACPLAN_PROGRAM,
      {"frontier", ProfilePath("llama8b"), "--engine", "cbc", "--tradeoff",
       "profile", "--memory-model", "torch", "--budgets", "47526790574,100%",
       "--json", "-o", "f.json", "--verbose"},
      folder());
  while (process.ErrSoFar().find("searching") == std::string::npos &&
         !process.HasEnded()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_FALSE(process.HasEnded());
  const auto sent_at = std::chrono::steady_clock::now();
  process.Signal(SIGINT);
  const Outcome outcome = process.Wait();
  EXPECT_LT(std::chrono::steady_clock::now() - sent_at,
            std::chrono::seconds(60));
  EXPECT_EQ(outcome.exit_code, 0);  // a budget that fits needs no search
  EXPECT_EQ(Read("f.json"), outcome.out);
  const json plans = json::parse(outcome.out)["plans"];
  ASSERT_THAT(plans, SizeIs(2));
  EXPECT_THAT(plans[0]["status"], AnyOf("feasible", "no_plan"));
  EXPECT_EQ(plans[0]["limit"], "interrupted");
  EXPECT_EQ(plans[1]["status"], "optimal");
}

}  // namespace

}  // namespace acplan::cli
