#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

class QuestionFileTest : public CliTest {
 protected:
  static json Question(json keys) {
    keys["format"] = "acplan.question";
    keys["version"] = 1;
    return keys;
  }

  // Returns the plan file that a command answers with, without the time that it
  // took.
  static json Comparable(std::string_view text) {
    json plan = json::parse(text);
    plan.erase("solver");
    return plan;
  }

  Outcome Ask(const std::string& command, const json& keys) const {
    PutFile("question.json", Question(keys).dump());
    return Acplan({command, "--question", "question.json"});
  }

  void ExpectTheSame(const std::vector<std::string>& arguments,
                     const json& keys) const {
    const std::string expected = AcplanOut(arguments);
    const Outcome outcome = Ask(arguments.front(), keys);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(Comparable(outcome.out), Comparable(expected)) << keys;
  }

  void ExpectComplaint(const json& keys, const std::string& complaint) const {
    ExpectRefused(Ask("plan", keys), {"acplan: question.json: " + complaint});
  }

  const json gpt2_ = {{"profile", ProfilePath("gpt2_small")},
                      {"budget", "10GiB"},
                      {"json", true}};

  json Gpt2With(const json& more) const {
    json keys = gpt2_;
    keys.update(more);
    return keys;
  }
};

// An option of a plan, as flags and as keys.
struct Choice {
  std::vector<std::string> flags;
  json keys;
};
const std::vector<std::vector<Choice>>& Choices() {
  const auto unit = [](int k) {
    return fmt::format("GPT2LMHeadModel.transformer.h.{}", k);
  };
  static const std::vector<std::vector<Choice>> choices = {
      {{{"--budget", "10GiB"}, {{"budget", "10GiB"}}},
       {{"--budget", "11811160064"}, {{"budget", 11811160064}}},
       {{"--budget", "70%"}, {{"budget", "70%"}}},
       {{"--budget", "min"}, {{"budget", "min"}}}},
      {{{}, {{"reserve", nullptr}}},
       {{"--reserve", "1MiB"}, {{"reserve", "1MiB"}}},
       {{"--reserve", "0"}, {{"reserve", 0}}}},
      {{{}, json::object()},
       {{"--ac-units", unit(0) + "," + unit(3) + "," + unit(5)},
        {{"ac_units", {unit(0), unit(3), unit(5)}}}},
       {{"--max-units", "9"}, {{"max_units", 9}}}},
      {{{}, json::object()},
       {{"--fsdp-units", unit(2)}, {{"fsdp_units", unit(2)}}}},
      {{{}, json::object()},
       {{"--save", "mm|addmm"}, {{"save", {"mm", "addmm"}}}},
       {{"--recompute", "*dropout*"}, {{"recompute", "*dropout*"}}}},
      {{{}, {{"without_states", false}}},
       {{"--without-states"}, {{"without_states", true}}}},
      {{{}, json::object()}, {{"--gap", "0.25"}, {{"gap", 0.25}}}},
      {{{}, json::object()}, {{"--world-size", "4"}, {{"world_size", 4}}}},
      {{{}, json::object()},
       {{"--time-limit", "none"}, {{"time_limit", "none"}}},
       {{"--time-limit", "30"}, {{"time_limit", 30}}}}};
  return choices;
}

TEST_F(QuestionFileTest, RandomOptionsAreTheirFlags) {
  std::mt19937 random(5);
  for (int k = 0; k < 12; ++k) {
    std::vector<std::string> arguments{"plan", ProfilePath("gpt2_small"),
                                       "--json"};
    json keys = {{"profile", ProfilePath("gpt2_small")}, {"json", true}};
    for (const std::vector<Choice>& of_option : Choices()) {
      const Choice& choice = of_option[random() % of_option.size()];
      arguments.insert(arguments.end(), choice.flags.begin(),
                       choice.flags.end());
      keys.update(choice.keys);
    }
    const Outcome expected = Acplan(arguments);
    const Outcome outcome = Ask("plan", keys);
    EXPECT_EQ(outcome.exit_code, expected.exit_code) << keys;
    if (expected.exit_code == 0 || expected.exit_code == 3) {
      EXPECT_EQ(Comparable(outcome.out), Comparable(expected.out)) << keys;
    }
  }
}

TEST_F(QuestionFileTest, OtherCommandsAndSeveralFiles) {
  AcplanOut(
      {"plan", ProfilePath("gpt2_small"), "--budget", "10GiB", "-o", "a.json"});
  AcplanOut(
      {"plan", ProfilePath("gpt2_small"), "--budget", "12GiB", "-o", "b.json"});
  ExpectTheSame(
      {"show", ProfilePath("gpt2_small"), "a.json", "b.json", "--json"},
      {{"profile", ProfilePath("gpt2_small")},
       {"plan", {"a.json", "b.json"}},
       {"json", true}});
  ExpectTheSame({"show", ProfilePath("gpt2_small"), "--json"},
                {{"profile", ProfilePath("gpt2_small")}, {"json", true}});
}

TEST_F(QuestionFileTest, BudgetsOfAFrontier) {
  const Outcome outcome =
      Ask("frontier", {{"profile", ProfilePath("gpt2_small")},
                       {"budgets", {"10GiB", 12884901888, "80%"}},
                       {"json", true}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["plans"].size(), 3);
}

TEST_F(QuestionFileTest, FromTheStandardInput) {
  PutFile("asked", Question(gpt2_).dump());
  const Outcome outcome =
      Acplan({"plan", "--question", "-"}, {.input = folder() / "asked"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["model"], "gpt2_small");
  PutFile("asked", Question(Gpt2With({{"gap", 2}})).dump());
  ExpectRefused(
      Acplan({"plan", "--question", "-"}, {.input = folder() / "asked"}),
      {"acplan: plan: gap: expected a number from 0 to 1, found '2'"});
}

TEST_F(QuestionFileTest, FlagsStandBesideIt) {
  json keys = gpt2_;
  keys.erase("budget");
  PutFile("question.json", Question(keys).dump());
  EXPECT_EQ(Comparable(AcplanOut(
                {"plan", "--budget", "10GiB", "--question=question.json"})),
            Comparable(AcplanOut({"plan", ProfilePath("gpt2_small"), "--budget",
                                  "10GiB", "--json"})));
  PutFile("question.json", Question(gpt2_).dump());
  ExpectRefused(
      Acplan({"plan", "--budget", "3GiB", "--question", "question.json"}),
      {"--budget: expected once, found more often"});
}

TEST_F(QuestionFileTest, ComplaintsNameTheKey) {
  ExpectComplaint(Gpt2With({{"gap", 2}}),
                  "gap: expected a number from 0 to 1, found '2'");
  ExpectComplaint(Gpt2With({{"gap", json::array({1})}}),
                  "gap: expected a number or a text, found an array");
  ExpectComplaint(Gpt2With({{"gap", true}}),
                  "gap: expected a number or a text, found true");
  ExpectComplaint(Gpt2With({{"budget", json::object()}}),
                  "budget: expected a number or a text, found an object");
  ExpectComplaint(Gpt2With({{"world_size", 0}}), "world_size: expected");
  ExpectComplaint(Gpt2With({{"json", 1}}),
                  "json: expected true or false, found 1");
  ExpectComplaint(Gpt2With({{"ac_units", 3}}),
                  "ac_units: expected a string, found 3");
  ExpectComplaint(Gpt2With({{"ac_units", {"a", 3}}}),
                  "ac_units[1]: expected a string, found 3");
  for (const char* name : {"a,b", "@file", "a#b"}) {
    ExpectComplaint(Gpt2With({{"ac_units", {name}}}),
                    "ac_units[0]: expected a name without a comma");
  }
  ExpectComplaint(Gpt2With({{"save", {"zzz"}}}),
                  "save: expected a pattern that matches an operator");
  // Values that the library refuses, and not the flag.
  ExpectComplaint(Gpt2With({{"granularity", "module"}, {"save", {"mm"}}}),
                  "save: ");
  ExpectComplaint(Gpt2With({{"budgt", 1}}),
                  "unknown key \"budgt\"; did you mean budget?");
  ExpectComplaint(Gpt2With({{"question", "q.json"}}), "unknown key");
}

TEST_F(QuestionFileTest, WhatIsNoQuestionIsRefused) {
  for (const auto& [text, complaint] :
       std::vector<std::pair<std::string, std::string>>{
           {"", "question.json: "},
           {"[1]", "expected an object"},
           {"{", "line 1, column 2"},
           {"{}", "format"},
           {R"({"format": "acplan.plan", "version": 1})",
            "format: expected \"acplan.question\", found \"acplan.plan\""},
           {R"({"format": "acplan.question", "version": 2})", "version"}}) {
    PutFile("question.json", text);
    ExpectRefused(Acplan({"plan", "--question", "question.json"}),
                  {"question.json: ", complaint});
  }
  ExpectRefused(Acplan({"plan", "--question", "none.json"}),
                {"none.json: cannot be opened"});
  ExpectRefused(Acplan({"plan", "--question="}),
                {"--question: expected a value"});
  ExpectRefused(Acplan({"plan", "--question"}),
                {"--question: expected a value, found none"});
}

// A file whose name looks like a flag is a file.
TEST_F(QuestionFileTest, ArgumentsAreNoFlags) {
  ExpectRefused(Ask("plan", {{"profile", "--json"}, {"budget", "1GiB"}}),
                {"--json: cannot be opened"});
}

}  // namespace

}  // namespace acplan::cli
