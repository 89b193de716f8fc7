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

const std::string kGpt2Trace = ACPLAN_DATA_DIR "/traces/gpt2_small.json.gz";

const std::vector<std::string> kCommands{
    "plan",  "frontier", "check",      "emit",   "audit",
    "show",  "explain",  "simulate",   "report", "profile",
    "remat", "schedule", "completion", "man",    "version"};

const std::vector<std::string> kFolders{"lengths", "module", "train",
                                        "calculon"};

const std::vector<std::string> kCommandsInFolders{
    "lengths plan",
    "lengths simulate",
    "lengths check",
    "lengths explain",
    "lengths report",
    "module curve",
    "module policy",
    "module dataflow",
    "train show",
    "train plan",
    "train search",
    "train fit",
    "train compare",
    "train profile",
    "train score",
    "calculon llm",
    "calculon llm-optimal-execution",
    "calculon llm-all-executions",
    "calculon llm-merge",
    "calculon llm-validation",
    "calculon llm-parameter-calculator",
    "calculon llm-csv",
    "calculon llm-heatmap",
    "calculon llm-3dplot",
    "calculon llm-find-huge"};

std::vector<std::string> AllCommands() {
  std::vector<std::string> commands = kCommands;
  commands.insert(commands.end(), kCommandsInFolders.begin(),
                  kCommandsInFolders.end());
  return commands;
}

class HelpTest : public CliTest {
 protected:
  // Makes an empty folder, outside of the source tree, with acplan on the PATH.
  HelpTest() {
    std::filesystem::create_directory(folder() / "bin");
    std::filesystem::create_symlink(ACPLAN_PROGRAM, folder() / "bin/acplan");
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
  for (const std::string& command : AllCommands()) {
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
  for (const std::string& command : AllCommands()) {
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
  for (const std::string& folder : kFolders) {
    EXPECT_THAT(help, ContainsRegex("\n  " + folder + " "));
  }
  // It fits a screen.
  EXPECT_LE(Lines(help).size(), 45U);
  EXPECT_THAT(Examples(help), Not(IsEmpty()));
}

TEST_F(HelpTest, AFolderListsItsCommands) {
  for (const std::string& folder : kFolders) {
    const std::string help = AcplanOut({folder, "--help"});
    for (const std::string& command : kCommandsInFolders) {
      if (!command.starts_with(folder)) continue;
      EXPECT_THAT(
          help,
          ContainsRegex("\n  " + command.substr(folder.size() + 1) + "[ ,]"));
    }
    // Without a command, that is what was wrong.
    const Outcome outcome = Acplan({folder});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err, help);
  }
}

// Old names work for one release.
TEST_F(HelpTest, OldNamesSayTheNewOnes) {
  const auto note = [&](const std::vector<std::string>& before,
                        const std::vector<std::string>& now,
                        const std::string& names) {
    const Outcome old = Acplan(before);
    EXPECT_EQ(old.exit_code, 0);
    EXPECT_EQ(old.out, AcplanOut(now));
    EXPECT_EQ(old.err, "acplan: warning: " + names +
                           "; the next release removes the old name\n");
  };
  const std::string profile = ProfilePath("transformer4");
  note({"baseline", profile}, {"show", profile},
       "'acplan baseline' is now 'acplan show'");
  note({"--color", "never", "tree", profile}, {"show", "--modules", profile},
       "'acplan tree' is now 'acplan show --modules'");
  note({"lpc", ACPLAN_DATA_DIR "/models/gpt3-13B.json"},
       {"calculon", "lpc", ACPLAN_DATA_DIR "/models/gpt3-13B.json"},
       "'acplan lpc' is now 'acplan calculon lpc'");
  const std::string graph = ACPLAN_DATA_DIR "/joint/gpt2_tiny.json.gz";
  note({"dataflow", ACPLAN_DATA_DIR "/dataflow/gpt2_tiny.json.gz"},
       {"module", "dataflow", ACPLAN_DATA_DIR "/dataflow/gpt2_tiny.json.gz"},
       "'acplan dataflow' is now 'acplan module dataflow'");
  EXPECT_EQ(Acplan({"-q", "baseline", profile}).err, "");
  const Outcome schedule =
      Acplan({"remat", graph, "--any-schedule", "--budget", "100%", "--json"});
  EXPECT_EQ(schedule.exit_code, 0);
  EXPECT_THAT(schedule.err, HasSubstr("is now 'acplan schedule'"));
}

TEST_F(HelpTest, TorchRunsThePythonPackage) {
  std::filesystem::create_directories(folder() / "packages/acplan");
  PutFile("packages/acplan/__init__.py", "");
  PutFile("packages/acplan/__main__.py",
          "import sys\nprint(sys.argv)\nsys.exit(3)\n");
  const auto run = [&](const std::string& packages) {
    return Bash("PYTHONPATH=" + packages + " acplan torch trace --help -o x");
  };
  const Outcome with_package = run("packages");
  EXPECT_EQ(with_package.out,
            "['acplan torch', 'trace', '--help', '-o', 'x']\n");
  EXPECT_EQ(with_package.exit_code, 3);
  const Outcome missing = Bash(
      "mkdir -p broken/acplan; echo 'import no_such_package' > "
      "broken/acplan/__init__.py; PYTHONPATH=broken acplan torch trace");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("has no package no_such_package\n"));
}

TEST_F(HelpTest, EveryExampleRuns) {
  // The examples of check and compare read these; 10GiB and 12GiB are budgets.
  for (const std::string name : {"10GiB", "12GiB"}) {
    AcplanOut({"plan", ProfilePath("gpt2_small"), "--budget", name, "-o",
               name + ".json"});
  }
  AcplanOut({"plan", ProfilePath("gpt2_small"), "--budget", "10GiB", "-o",
             "plan.json"});
  // The example of a plan for a device reads this, that of audit the next.
  AcplanOut(
      {"plan", kGpt2Trace, "--device-memory", "8GiB", "-o", "device.json"});
  PutFile("config.yaml", "base_model: gpt2\ngradient_checkpointing: true\n");
  // The examples of lengths read these.
  for (const std::string name : {"short.json", "long.json"}) {
    std::filesystem::copy_file(ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz",
                               folder() / name);
  }
  PutFile("lengths.txt", "128\n512\n");
  // The examples of the pictures read these.
  const std::filesystem::path results = ACPLAN_TEST_DATA_DIR "/calculon/search";
  PutFile("best.json", graph::ReadFile(results / "S01.json.gz"));
  std::filesystem::copy_file(results / "S09.csv.gz", folder() / "all.csv.gz");
  std::vector<std::string> helps{AcplanOut({"--help"})};
  for (const std::string& command : AllCommands()) {
    helps.push_back(AcplanOut({command, "--help"}));
  }
  for (const std::string& help : helps) {
    for (const std::string& example : Examples(help)) {
      if (example.starts_with("acplan torch")) continue;
      const Outcome outcome = Bash(example);
      EXPECT_EQ(outcome.exit_code, 0) << example;
      EXPECT_EQ(outcome.err, "") << example;
    }
  }
}

TEST_F(HelpTest, BundledFilesHaveNames) {
  const std::string text = AcplanOut({"show", ProfilePath("llama8b")});
  for (const std::string name :
       {"llama8b", "profiles/llama8b", "llama8b.json.gz"}) {
    EXPECT_EQ(AcplanOut({"show", "example:" + name}), text);
  }
  const auto error = [&](const std::string& name) {
    const Outcome outcome = Acplan({"show", "example:" + name});
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(error("gpt2_small"),
              HasSubstr("expected one file, found example:profiles/gpt2_small, "
                        "example:traces/gpt2_small\n"));
  EXPECT_THAT(error("lama8b"), HasSubstr("did you mean example:llama8b?"));
  EXPECT_THAT(error(""), HasSubstr("no bundled file has this name"));
  // An output is a file of this name.
  AcplanOut({"plan", ProfilePath("transformer4"), "--budget", "90%", "-o",
             "example:llama8b.json"});
  EXPECT_FALSE(Read("example:llama8b.json").empty());
}

TEST_F(HelpTest, TheManualMakesItsFolder) {
  AcplanOut({"man", "pages/man1"});
  EXPECT_FALSE(Read("pages/man1/acplan.1").empty());
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
  EXPECT_THAT(Completions({"acplan", ""}), IsSupersetOf(kFolders));
  EXPECT_THAT(Completions({"acplan", "fr"}), ElementsAre("frontier"));
  EXPECT_THAT(Completions({"acplan", "-q", "comp"}), ElementsAre("completion"));
  EXPECT_THAT(Completions({"acplan", "--col"}), ElementsAre("--color"));
  EXPECT_THAT(Completions({"acplan", "module", ""}),
              ElementsAre("curve", "policy", "dataflow"));
  EXPECT_THAT(Completions({"acplan", "train", "s"}),
              ElementsAre("show", "search", "score"));
}

TEST_F(HelpTest, CompletesTheFlagsOfACommand) {
  EXPECT_THAT(Completions({"acplan", "plan", "--bu"}), ElementsAre("--budget"));
  EXPECT_THAT(Completions({"acplan", "show", "--d"}), ElementsAre("--depth"));
  EXPECT_THAT(Completions({"acplan", "module", "curve", "--seg"}),
              ElementsAre("--segments"));
  EXPECT_THAT(Completions({"acplan", "module", "policy", "--mem"}),
              ElementsAre("--memory-budget"));
  EXPECT_THAT(Completions({"acplan", "frontier", "--bu"}),
              ElementsAre("--budgets"));
  EXPECT_THAT(Completions({"acplan", "check", "--sa"}), ElementsAre("--save"));
  EXPECT_THAT(Completions({"acplan", "plan", "--gra"}),
              ElementsAre("--granularity"));
  EXPECT_THAT(Completions({"acplan", "calculon", "lpc", "--al"}),
              ElementsAre("--alignment"));
  EXPECT_THAT(Completions({"acplan", "train", "compare", "--tok"}),
              ElementsAre("--tokens"));
  EXPECT_THAT(Completions({"acplan", "train", "fit", "--tensor-m"}),
              ElementsAre("--tensor-model-parallel-size"));
  EXPECT_THAT(Completions({"acplan", "show", "--bu"}), IsEmpty());
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
  for (const std::string& command : AllCommands()) {
    const std::string name =
        "acplan-" + std::regex_replace(command, std::regex(" "), "-");
    EXPECT_THAT(page, HasSubstr(Escaped(name) + "\\fR(1)"));
    const std::string own = Read(name + ".1");
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
