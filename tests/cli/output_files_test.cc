#include "cli/input/output_files.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/input/data_folder.h"
#include "graph/base/input_error.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using testing::HasSubstr;

constexpr char kTracedStep[] = ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz";
constexpr char kModelConfig[] =
    ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json";

class OutputFilesTest : public CliTest {
 protected:
  // Expects that the file "f.json" is kept: the arguments name it as an input
  // and as an output.
  void ExpectKept(const std::string& content,
                  const std::vector<std::string>& arguments,
                  const std::string& said) const {
    SCOPED_TRACE(testing::PrintToString(arguments));
    PutFile("f.json", content);
    ExpectRefused(Acplan(arguments), {said});
    EXPECT_EQ(Read("f.json"), content);
  }
};

// The complaint of a library about these flags.
class Flags {
 public:
  Flags() {
    app_.add_option("--systems", systems_)->type_name("JSON");
    app_.add_option("--name", name_)->type_name("VALUE");
    app_.add_option("INPUTS", inputs_);
    AddOutput(app_, output_, "");
  }

  std::string ErrorOf(std::vector<std::string> arguments,
                      const std::string& log = "") {
    std::ranges::reverse(arguments);
    app_.parse(std::move(arguments));
    try {
      CheckOutputs(app_, log);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

 private:
  CLI::App app_ = CLI::App("");
  std::string systems_ = {};
  std::string name_ = {};
  std::string output_ = {};
  std::vector<std::string> inputs_ = {};
};

TEST_F(OutputFilesTest, ListsThatFlagsReadAreNotWrittenTo) {
  const std::string of_lists = "--output: expected a file other than the input";
  for (const std::string flag : {"--ac-units", "--fsdp-units"}) {
    ExpectKept("GPT2LMHeadModel.transformer.h.0",
               {"plan", kTracedStep, "--budget", "100%", flag, "@f.json", "-o",
                "./f.json"},
               of_lists + " of " + flag);
  }
  ExpectKept("75%, 100%",
             {"frontier", kTracedStep, "--budgets", "@f.json", "-o", "f.json"},
             of_lists + " of --budgets");
}

TEST_F(OutputFilesTest, FilesOfStrategiesAreNotWrittenTo) {
  const std::string settings = R"({"tp": 2, "gpu": "H100", "gpus": 8})";
  const std::string of_input = "--output: expected a file other than the input";
  ExpectKept(
      settings,
      {"train", "show", kModelConfig, "--strategy", "f.json", "-o", "f.json"},
      of_input);
  ExpectKept(settings,
             {"train", "compare", kModelConfig, "f.json:0", "-o", "f.json"},
             of_input);
}

TEST_F(OutputFilesTest, TheLogIsNoInput) {
  ExpectKept("{}", {"-l", "f.json", "train", "plan", "f.json"},
             "--log: expected a file other than the input");
  ExpectKept("{}",
             {"-l", "f.json", "train", "plan", kModelConfig, "-o", "f.json"},
             "--log: expected a file other than --output");
}

TEST_F(OutputFilesTest, SystemsThatNoFlagNamesAreNotWrittenTo) {
  const std::string systems = SystemsFile("").string();
  EXPECT_THAT(Flags().ErrorOf({"-o", systems}),
              HasSubstr("a file other than the input of --systems"));
  EXPECT_EQ(Flags().ErrorOf({"-o", systems, "--systems", kModelConfig}), "");
}

TEST_F(OutputFilesTest, WhatNamesNoFileIsNone) {
  PutFile("8", "");
  const std::string path = (folder() / "8").string();
  EXPECT_EQ(Flags().ErrorOf({"-o", path, "--name", path}), "");
  EXPECT_THAT(Flags().ErrorOf({"-o", path, "--name", "@" + path}),
              HasSubstr("of --name"));
  EXPECT_THAT(Flags().ErrorOf({"-o", path, path}),
              HasSubstr("--output: expected a file other than the input, "));
  EXPECT_THAT(Flags().ErrorOf({"-o", path}, path),
              HasSubstr("--log: expected a file other than --output"));
  EXPECT_EQ(Flags().ErrorOf({"-o", "/dev/null", "/dev/null"}, "/dev/null"), "");
}

TEST_F(OutputFilesTest, OfTwoNoneIsWrittenWhereTheOtherCannotBe) {
  ExpectRefused(Acplan({"simulate", kTracedStep, "--timeline", "t.csv", "-o",
                        "/dev/full"}),
                {"/dev/full: cannot be written"});
  EXPECT_FALSE(Exists("t.csv"));
  PutFile("t.csv", "old");
  ExpectRefused(Acplan({"simulate", kTracedStep, "--timeline", "/dev/full",
                        "-o", "t.csv"}),
                {"/dev/full: cannot be written"});
  EXPECT_EQ(Read("t.csv"), "old");
}

}  // namespace

}  // namespace acplan::cli
