#include "cli/terminal/terminal.h"

#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

class TerminalTest : public CliTest {
 protected:
  std::string Plan(std::vector<std::string> more,
                   const RunOptions& options = {}) const {
    std::vector<std::string> arguments{"plan", ProfilePath("transformer4"),
                                       "--budget", "2GiB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Acplan(arguments, options).out;
  }
};

constexpr const char* kEscape = "\033[";

TEST_F(TerminalTest, ColorsOnATerminalOnly) {
  EXPECT_THAT(Plan({}), Not(HasSubstr(kEscape)));
  EXPECT_THAT(Plan({"--color", "auto"}), Not(HasSubstr(kEscape)));
  EXPECT_THAT(Plan({}, {.out = Stream::kTerminal}), HasSubstr(kEscape));
  EXPECT_THAT(Plan({"--color=never"}, {.out = Stream::kTerminal}),
              Not(HasSubstr(kEscape)));
  EXPECT_THAT(Plan({"--color", "always"}), HasSubstr("\033[32moptimal\033[0m"));
}

TEST_F(TerminalTest, NoColorAndDumbTerminals) {
  EXPECT_THAT(
      Plan({}, {.out = Stream::kTerminal, .environment = {{"NO_COLOR", "1"}}}),
      Not(HasSubstr(kEscape)));
  EXPECT_THAT(
      Plan({}, {.out = Stream::kTerminal, .environment = {{"NO_COLOR", ""}}}),
      HasSubstr(kEscape));
  EXPECT_THAT(Plan({"--color", "always"}, {.environment = {{"NO_COLOR", "1"}}}),
              HasSubstr(kEscape));
  EXPECT_THAT(
      Plan({}, {.out = Stream::kTerminal, .environment = {{"TERM", "dumb"}}}),
      Not(HasSubstr(kEscape)));
}

TEST_F(TerminalTest, JsonHasNoColors) {
  EXPECT_THAT(Plan({"--color=always", "--json"}), Not(HasSubstr(kEscape)));
}

TEST_F(TerminalTest, GlobalFlagsMayStandBeforeTheCommand) {
  EXPECT_THAT(AcplanOut({"--color", "always", "plan",
                         ProfilePath("transformer4"), "--budget", "2GiB"}),
              HasSubstr(kEscape));
}

TEST_F(TerminalTest, QuietSilencesWarnings) {
  std::vector<std::string> arguments{
      "plan",       ProfilePath("transformer4"),
      "--budget",   "2GiB",
      "--ac-units", "Transformer.output,Transformer.layers.0"};
  EXPECT_EQ(Acplan(arguments).err,
            "acplan: warning: --ac-units: Transformer.output is a leaf; leaves "
            "are never AC units\n");
  arguments.emplace_back("-q");
  EXPECT_EQ(Acplan(arguments).err, "");
  arguments.back() = "--quiet";
  EXPECT_EQ(Acplan(arguments).err, "");
}

TEST_F(TerminalTest, QuietDoesNotSilenceErrors) {
  EXPECT_THAT(Acplan({"show", "missing.json", "-q"}).err,
              HasSubstr("missing.json"));
}

class JsonErrorsTest : public CliTest {
 protected:
  // Returns the only line on stderr of a run with --errors json.
  json Said(std::vector<std::string> arguments, int exit_code) const {
    arguments.insert(arguments.end(), {"--errors", "json"});
    const Outcome outcome = Acplan(arguments);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    EXPECT_THAT(Lines(outcome.err), SizeIs(1)) << outcome.err;
    return json::parse(outcome.err);
  }

  const std::string profile_ = ProfilePath("transformer4");
};

TEST_F(JsonErrorsTest, AreThoseOfTheText) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"show", "missing \"x\".json"},
           {"show", profile_, "--bogus"},
           {"show"},
           {"plan", profile_, "--budget", "two"},
           {"plan", profile_, "--budget", "2GiB", "--ac-units", "a\nb"},
           {"plam"}}) {
    const Outcome text = Acplan(arguments);
    const json said = Said(arguments, 2);
    EXPECT_EQ(said.at("exit_code"), 2);
    EXPECT_EQ("acplan: " + said.at("error").get<std::string>() + "\n",
              text.err);
    EXPECT_THAT(said, SizeIs(2));
  }
}

TEST_F(JsonErrorsTest, TheFlagMayStandAnywhere) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"--errors", "json", "show", "missing.json"},
           {"--errors=json", "show", "missing.json"},
           {"show", "--errors=json", "missing.json"},
           {"--errors", "json", "-v", "INFO", "calculon", "llm", "a.json",
            "b.json", "c.json"}}) {
    const Outcome outcome = Acplan(arguments);
    EXPECT_THAT(json::parse(outcome.err).at("error").get<std::string>(),
                HasSubstr("cannot be opened"));
  }
  EXPECT_EQ(Acplan({"version", "--errors", "xml"}).err,
            "acplan: --errors: expected text or json, found 'xml'\n");
}

TEST_F(JsonErrorsTest, WarningsAreObjectsToo) {
  const json said = Said({"plan", profile_, "--budget", "2GiB", "--ac-units",
                          "Transformer.output,Transformer.layers.0"},
                         0);
  EXPECT_EQ(said.at("warning"),
            "--ac-units: Transformer.output is a leaf; leaves are never AC "
            "units");
}

TEST_F(JsonErrorsTest, TellWhatTheResultsSay) {
  const json infeasible = Said({"plan", profile_, "--budget", "1MiB"}, 3);
  EXPECT_THAT(
      infeasible.at("error").get<std::string>(),
      AllOf(StartsWith("infeasible: no plan fits in 1.00 MiB (1,048,576 "
                       "bytes)\nthe smallest feasible budget: "),
            Not(testing::EndsWith("\n"))));
  EXPECT_EQ(infeasible.at("exit_code"), 3);
  EXPECT_THAT(Acplan({"plan", profile_, "--budget", "1MiB"}).err, IsEmpty());

  EXPECT_THAT(Said({"frontier", profile_, "--budgets", "1MiB"}, 3)
                  .at("error")
                  .get<std::string>(),
              StartsWith("no plan: "));
  AcplanOut({"plan", profile_, "--budget", "2GiB", "-o", "plan.json"});
  EXPECT_THAT(Said({"check", profile_, "plan.json", "--budget", "1GiB"}, 1)
                  .at("error")
                  .get<std::string>(),
              StartsWith("broken: "));
}

TEST_F(JsonErrorsTest, SuccessSaysNothing) {
  EXPECT_EQ(AcplanOut({"show", profile_, "--errors", "json"}),
            AcplanOut({"show", profile_}));
}

}  // namespace

}  // namespace acplan::cli
