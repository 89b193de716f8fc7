#include "cli/terminal/terminal.h"

#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using testing::HasSubstr;
using testing::Not;

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
  EXPECT_THAT(Acplan({"baseline", "missing.json", "-q"}).err,
              HasSubstr("missing.json"));
}

}  // namespace

}  // namespace acplan::cli
