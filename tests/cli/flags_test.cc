#include "cli/input/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "graph/base/input_error.h"
#include "tests/graph/test_files.h"

namespace acplan::cli {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Call>
std::string ErrorOf(Call call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(FlagsTest, WholeNumbers) {
  EXPECT_EQ(ParseWhole("0", "--n", 0, 9), 0);
  EXPECT_EQ(ParseWhole("9", "--n", 0, 9), 9);
  EXPECT_EQ(ParseWhole("-3", "--n", -5, 9), -3);
  EXPECT_EQ(ParseWhole("9223372036854775807", "--n", 0, kMost), kMost);
}

TEST(FlagsTest, RefusesWhatIsNoWholeNumberInRange) {
  for (const char* text :
       {"", " 1", "1 ", "1.0", "1e3", "0x1", "+1", "one", "1,000", "10", "-1",
        "9223372036854775808", "99999999999999999999999"}) {
    EXPECT_EQ(ErrorOf([&] { ParseWhole(text, "--n", 0, 9); }),
              "--n: expected a whole number from 0 to 9, found '" +
                  std::string(text) + "'");
  }
  EXPECT_EQ(ErrorOf([] { ParseWhole("0", "--n", 1, kMost); }),
            "--n: expected a whole number of at least 1, found '0'");
}

TEST(FlagsTest, Numbers) {
  EXPECT_EQ(ParseNumber("0", "--gap", 0, 1), 0);
  EXPECT_EQ(ParseNumber("0.01", "--gap", 0, 1), 0.01);
  EXPECT_EQ(ParseNumber("1e-2", "--gap", 0, 1), 0.01);
  EXPECT_EQ(ParseNumber("1", "--gap", 0, 1), 1);
  EXPECT_EQ(ParseNumber("1e9", "--time-limit", 0, kInfinity), 1e9);
}

TEST(FlagsTest, RefusesWhatIsNoNumberInRange) {
  for (const char* text : {"", "x", "1.5", "-0.1", "nan", "inf", "-inf",
                           "1e999", "0.1 ", "0,1", "5%"}) {
    EXPECT_EQ(ErrorOf([&] { ParseNumber(text, "--gap", 0, 1); }),
              "--gap: expected a number from 0 to 1, found '" +
                  std::string(text) + "'");
  }
  EXPECT_EQ(ErrorOf([] { ParseNumber("inf", "--t", 0, kInfinity); }),
            "--t: expected a number of at least 0, found 'inf'");
}

TEST(FlagsTest, NamesWithCommasInSeveralFlags) {
  EXPECT_THAT(ParseNames({}, "--ac-units"), IsEmpty());
  EXPECT_THAT(ParseNames({""}, "--ac-units"), IsEmpty());
  EXPECT_THAT(ParseNames({",,"}, "--ac-units"), IsEmpty());
  EXPECT_THAT(ParseNames({"a.b, c ,a.b", "d", "c"}, "--ac-units"),
              ElementsAre("a.b", "c", "d"));
}

TEST(FlagsTest, NamesFromAFile) {
  const graph::TemporaryFolder folder;
  const std::string path = (folder.path() / "units.txt").string();
  graph::PutBytes(path,
                  "# the blocks\r\n"
                  "layers.1\r\n"
                  "\r\n"
                  "  layers.0 , layers.2  # and why\r\n"
                  "layers.1\r\n"
                  "\t\r\n"
                  "layers.3");
  EXPECT_THAT(
      ParseNames({"@" + path, "layers.2,layers.4"}, "--ac-units"),
      ElementsAre("layers.1", "layers.0", "layers.2", "layers.3", "layers.4"));
}

TEST(FlagsTest, AFileMayHoldNoNames) {
  const graph::TemporaryFolder folder;
  const std::string path = (folder.path() / "none.txt").string();
  graph::PutBytes(path, "");
  EXPECT_THAT(ParseNames({"@" + path}, "--ac-units"), IsEmpty());
  graph::PutBytes(path, "# nothing\n\n");
  EXPECT_THAT(ParseNames({"@" + path}, "--ac-units"), IsEmpty());
}

TEST(FlagsTest, RefusesAFileThatCannotBeRead) {
  const graph::TemporaryFolder folder;
  const std::string path = (folder.path() / "missing.txt").string();
  EXPECT_EQ(
      ErrorOf([&] { ParseNames({"@" + path}, "--ac-units"); }),
      "--ac-units: " + path + ": cannot be opened: No such file or directory");
  EXPECT_THAT(ErrorOf([&] {
                ParseNames({"@" + folder.path().string()}, "--fsdp-units");
              }),
              HasSubstr("expected a file, found a folder"));
}

TEST(FlagsTest, PatternsAreAlternativesInSeveralFlags) {
  PatternFlags flags;
  EXPECT_TRUE(flags.Patterns().empty());
  flags.save = {"mm|_flash*", " bmm "};
  flags.recompute = {"gelu"};
  EXPECT_THAT(flags.Patterns().save, ElementsAre("mm", "_flash*", "bmm"));
  EXPECT_THAT(flags.Patterns().recompute, ElementsAre("gelu"));
}

TEST(FlagsTest, RefusesEmptyPatterns) {
  for (const char* text : {"", "|", "mm|", "|mm", "mm||bmm", "mm| "}) {
    PatternFlags flags;
    flags.save = {"mm", text};
    EXPECT_EQ(ErrorOf([&] { flags.Patterns(); }),
              "--save: expected a pattern, found ''");
    std::swap(flags.save, flags.recompute);
    EXPECT_EQ(ErrorOf([&] { flags.Patterns(); }),
              "--recompute: expected a pattern, found ''");
  }
}

TEST(FlagsTest, RefusesPatternsThatMatchNothing) {
  const std::vector<std::string> names{"addmm", "view", "addmm", "gelu"};
  const auto error = [&](const graph::OperatorPatterns& patterns) {
    return ErrorOf([&] { RefuseUnmatched(patterns, names); });
  };
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({.save = {"add*", "vie[w]"}, .recompute = {"?elu"}}), "");
  EXPECT_EQ(error({.save = {"view", "admm"}, .recompute = {}}),
            "--save: expected a pattern that matches an operator, found "
            "\"admm\"; nearest: addmm");
  EXPECT_EQ(error({.save = {}, .recompute = {"convolution"}}),
            "--recompute: expected a pattern that matches an operator, found "
            "\"convolution\"");
}

}  // namespace

}  // namespace acplan::cli
