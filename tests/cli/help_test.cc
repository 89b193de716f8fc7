#include <fmt/format.h>

#include <cstdlib>
#include <regex>

#include "cli/terminal/help_text.h"
#include "cli/terminal/text.h"
#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;

const std::vector<std::string> kCommands{"plan",
                                         "frontier",
                                         "remat",
                                         "baseline",
                                         "compare",
                                         "check",
                                         "tree",
                                         "curve",
                                         "ops",
                                         "report",
                                         "profile",
                                         "simulate",
                                         "explain",
                                         "dataflow",
                                         "llm",
                                         "llm-profile",
                                         "llm-compare",
                                         "llm-plan",
                                         "llm-train",
                                         "llm-search",
                                         "llm-optimal-execution",
                                         "llm-all-executions",
                                         "llm-merge",
                                         "llm-validation",
                                         "llm-score",
                                         "llm-parameter-calculator",
                                         "llm-csv",
                                         "llm-heatmap",
                                         "llm-3dplot",
                                         "llm-find-huge",
                                         "fit",
                                         "completion",
                                         "man",
                                         "version"};

class HelpTest : public CliTest {
 protected:
  // Makes a folder that looks like a checkout in which acplan is on the PATH.
  HelpTest() {
    std::filesystem::create_directory(folder() / "bin");
    std::filesystem::create_symlink(ACPLAN_PROGRAM, folder() / "bin/acplan");
    std::filesystem::create_directory_symlink(ACPLAN_DATA_DIR,
                                              folder() / "data");
  }

  Outcome Bash(const std::string& script) const {
    const std::string path =
        (folder() / "bin").string() + ":" + std::getenv("PATH");
    return Process("bash", {"-c", script}, folder(),
                   {.environment = {{"PATH", path}}})
        .Wait();
  }

  // Returns the completions that bash has for the last of these words.
  std::vector<std::string> Completions(
      const std::vector<std::string>& words) const {
    std::string quoted;
    for (const std::string& word : words) quoted += " '" + word + "'";
    const Outcome outcome = Bash(fmt::format(
        "source <(acplan completion bash); COMP_WORDS=({}); COMP_CWORD={}; "
        "_acplan; ((${{#COMPREPLY[@]}} == 0)) || printf '%s\\n' "
        "\"${{COMPREPLY[@]}}\"",
        quoted, words.size() - 1));
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, "");
    return Lines(outcome.out);
  }
};

std::vector<std::string> Examples(const std::string& help) {
  std::vector<std::string> examples;
  bool is_example = false;
  for (const std::string& line : Lines(help)) {
    if (is_example && line.starts_with("  ")) {
      const bool goes_on = !examples.empty() && examples.back().ends_with("\\");
      if (goes_on) {
        examples.back() += "\n" + line;
      } else {
        examples.push_back(line.substr(2));
      }
    } else {
      is_example = line == "Example:" || line == "Examples:";
    }
  }
  return examples;
}

TEST_F(HelpTest, EveryCommandExplainsItself) {
  for (const std::string& command : kCommands) {
    const std::string help = AcplanOut({command, "--help"});
    EXPECT_THAT(help, HasSubstr("Usage: acplan " + command));
    EXPECT_EQ(AcplanOut({command, "-h"}), help);
    EXPECT_THAT(Examples(help), Not(IsEmpty())) << command;
    for (const std::string& example : Examples(help)) {
      EXPECT_THAT(example, HasSubstr("acplan " + command));
    }
  }
}

TEST_F(HelpTest, NoLineIsWiderThanATerminal) {
  std::vector<std::string> helps{AcplanOut({"--help"})};
  for (const std::string& command : kCommands) {
    helps.push_back(AcplanOut({command, "--help"}));
  }
  for (const std::string& help : helps) {
    for (const std::string& line : Lines(help)) {
      EXPECT_LE(TextWidth(line), 80u) << line;
      EXPECT_FALSE(line.ends_with(' ')) << line;
    }
  }
}

TEST(WithinHelpColumns, BreaksWhereWhatIsSaidBegins) {
  const std::string words(70, 'w');
  const std::string text = WithinHelpColumns(
      "A sentence of " + words + " in a line\n" + "  --flag VALUE  first " +
      words + " third\n" + "Example:\n  acplan plan " + words + " -o " + words +
      "\n" + words + words + "\n\nshort\n");
  EXPECT_EQ(text, "A sentence of\n  " + words + " in a\n  line\n" +
                      "  --flag VALUE  first\n                " + words +
                      "\n                third\n" +
                      "Example:\n  acplan plan \\\n      " + words +
                      " \\\n      -o " + words + "\n" + words + words +
                      "\n\nshort\n");
}

TEST_F(HelpTest, TheProgramListsItsCommands) {
  const std::string help = AcplanOut({"--help"});
  for (const std::string& command : kCommands) {
    EXPECT_THAT(help, ContainsRegex("\n  " + command + "[ ,]"));
  }
  EXPECT_THAT(Examples(help), Not(IsEmpty()));
}

TEST_F(HelpTest, EveryExampleRuns) {
  // The examples of check and compare read these; 10GiB and 12GiB are budgets.
  for (const std::string name : {"10GiB", "12GiB"}) {
    AcplanOut({"plan", ProfilePath("gpt2_small"), "--budget", name, "-o",
               name + ".json"});
  }
  AcplanOut({"plan", ProfilePath("gpt2_small"), "--budget", "10GiB", "-o",
             "plan.json"});
  // The examples of the pictures read these.
  const std::filesystem::path results = ACPLAN_TEST_DATA_DIR "/calculon/search";
  PutFile("best.json", graph::ReadFile(results / "S01.json.gz"));
  std::filesystem::copy_file(results / "S09.csv.gz", folder() / "all.csv.gz");
  std::vector<std::string> helps{AcplanOut({"--help"})};
  for (const std::string& command : kCommands) {
    helps.push_back(AcplanOut({command, "--help"}));
  }
  for (const std::string& help : helps) {
    for (const std::string& example : Examples(help)) {
      const Outcome outcome = Bash(example);
      EXPECT_EQ(outcome.exit_code, 0) << example;
      EXPECT_EQ(outcome.err, "") << example;
    }
  }
}

TEST_F(HelpTest, TheCompletionScriptsAreBash) {
  for (const std::string shell : {"bash", "zsh"}) {
    PutFile("completion", AcplanOut({"completion", shell}));
    const Outcome outcome = Bash("bash -n completion");
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_THAT(Read("completion"), HasSubstr("bashcompinit"));
}

TEST_F(HelpTest, CompletesCommands) {
  EXPECT_THAT(Completions({"acplan", "pl"}), ElementsAre("plan"));
  EXPECT_THAT(Completions({"acplan", ""}), IsSupersetOf(kCommands));
  EXPECT_THAT(Completions({"acplan", "op"}), ElementsAre("ops"));
  EXPECT_THAT(Completions({"acplan", "fr"}), ElementsAre("frontier"));
  EXPECT_THAT(Completions({"acplan", "-q", "comp"}),
              ElementsAre("compare", "completion"));
  EXPECT_THAT(Completions({"acplan", "--col"}), ElementsAre("--color"));
}

TEST_F(HelpTest, CompletesTheFlagsOfACommand) {
  EXPECT_THAT(Completions({"acplan", "plan", "--bu"}), ElementsAre("--budget"));
  EXPECT_THAT(Completions({"acplan", "tree", "--d"}), ElementsAre("--depth"));
  EXPECT_THAT(Completions({"acplan", "curve", "--seg"}),
              ElementsAre("--segments"));
  EXPECT_THAT(Completions({"acplan", "ops", "--mem"}),
              ElementsAre("--memory-budget"));
  EXPECT_THAT(Completions({"acplan", "frontier", "--bu"}),
              ElementsAre("--budgets"));
  EXPECT_THAT(Completions({"acplan", "check", "--sa"}), ElementsAre("--save"));
  EXPECT_THAT(Completions({"acplan", "plan", "--gra"}),
              ElementsAre("--granularity"));
  EXPECT_THAT(Completions({"acplan", "lpc", "--al"}),
              ElementsAre("--alignment"));
  EXPECT_THAT(Completions({"acplan", "llm-compare", "--tok"}),
              ElementsAre("--tokens"));
  EXPECT_THAT(Completions({"acplan", "fit", "--tensor-m"}),
              ElementsAre("--tensor-model-parallel-size"));
  EXPECT_THAT(Completions({"acplan", "tree", "--bu"}), IsEmpty());
}

TEST_F(HelpTest, LeavesFilesToTheShell) {
  EXPECT_THAT(Completions({"acplan", "plan", "da"}), IsEmpty());
  EXPECT_THAT(AcplanOut({"completion", "bash"}),
              HasSubstr("complete -o default -F _acplan acplan"));
}

// Runs if zsh is installed.
TEST_F(HelpTest, ZshReadsItsScript) {
  if (Bash("command -v zsh").exit_code != 0) GTEST_SKIP() << "no zsh here";
  PutFile("completion", AcplanOut({"completion", "zsh"}));
  const Outcome outcome =
      Bash("zsh -f -c 'source ./completion && whence _acplan'");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// Returns text as manual pages write it.
std::string Escaped(const std::string& text) {
  return std::regex_replace(text, std::regex("-"), "\\-");
}

// Returns the flags that --help shows.
std::vector<std::string> ShownFlags(const std::string& help) {
  const std::regex flag("^  (?:-[A-Za-z],)?(--[^ ,]+)");
  std::vector<std::string> flags;
  for (const std::string& line : Lines(help)) {
    std::smatch match;
    if (std::regex_search(line, match, flag)) flags.push_back(match[1]);
  }
  return flags;
}

// Every flag that --help shows is in the page of its command.
TEST_F(HelpTest, TheManualHasEveryCommandAndFlag) {
  AcplanOut({"man", "."});
  const std::string page = Read("acplan.1");
  for (const std::string& command : kCommands) {
    EXPECT_THAT(page, HasSubstr(Escaped("acplan-" + command) + "\\fR(1)"));
    const std::string own = Read("acplan-" + command + ".1");
    const std::vector<std::string> flags =
        ShownFlags(AcplanOut({command, "--help"}));
    EXPECT_THAT(flags, Not(IsEmpty()));
    for (const std::string& flag : flags) {
      EXPECT_NE(own.find("\\fB" + Escaped(flag) + "\\fR"), std::string::npos)
          << command << " " << flag;
    }
  }
}

// Runs if groff is installed, as run-tests.sh does.
TEST_F(HelpTest, GroffFindsNothingToWarnOfInTheManual) {
  if (Bash("command -v groff").exit_code != 0) GTEST_SKIP() << "no groff here";
  AcplanOut({"man", "."});
  const Outcome outcome = Bash("groff -man -Tutf8 -ww -z -Kutf8 *.1");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
}

}  // namespace

}  // namespace acplan::cli
