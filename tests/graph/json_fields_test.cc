#include "graph/base/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace acplan::graph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string FieldErrorOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string ParseError(std::string_view text) {
  return FieldErrorOf([&] { ParseJson(text, "f.json"); });
}

class Fields : public ::testing::Test {
 protected:
  JsonField FieldOf(std::string_view text) {
    document_ = ParseJson(text, "f.json");
    return JsonField(document_, "f.json");
  }
  nlohmann::json document_;
};

TEST_F(Fields, ReadsTypedValues) {
  const JsonField root =
      FieldOf(R"({"s": "x", "b": true, "i": 7, "f": 0.5, "n": null,
                                "e": 1e9, "neg": -3, "a": ["p", "q"]})");
  EXPECT_EQ(root.Get("s").String(), "x");
  EXPECT_TRUE(root.Get("b").Bool());
  EXPECT_EQ(root.Get("i").Int(0, 7), 7);
  EXPECT_EQ(root.Get("i").Bytes(), 7);
  EXPECT_EQ(root.Get("e").Bytes(), 1'000'000'000);
  EXPECT_EQ(root.Get("neg").SignedBytes(), -3);
  EXPECT_EQ(root.Get("neg").Number(), -3);
  EXPECT_EQ(root.Get("f").NonNegativeNumber(), 0.5);
  EXPECT_EQ(root.Get("a").Strings(), (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(root.Get("a").Elements().size(), 2u);
  EXPECT_TRUE(root.Get("n").IsNull());
  EXPECT_TRUE(root.Has("s"));
  EXPECT_FALSE(root.Has("n"));
  EXPECT_FALSE(root.Has("zzz"));
}

TEST_F(Fields, NamesThePlaceOfEveryComplaint) {
  const JsonField root =
      FieldOf(R"({"modules": [{"fqn": "a.b", "sac": {"memory": [1, "x"]}},
                                            {"list": [[], {}]}], "odd key": 3})");
  const auto modules = root.Get("modules").Elements();
  const auto memory = modules[0].Get("sac").Get("memory").Elements();
  EXPECT_EQ(
      FieldErrorOf([&] { memory[1].Bytes(); }),
      "f.json: modules[0] (a.b).sac.memory[1]: expected a whole number of "
      "bytes, 0 to 2^53, found \"x\"");
  EXPECT_EQ(
      FieldErrorOf([&] { modules[1].Get("list").Elements()[1].Elements(); }),
      "f.json: modules[1].list[1]: expected an array, found an object with "
      "0 keys");
  EXPECT_EQ(FieldErrorOf([&] { root.Get("odd key").String(); }),
            "f.json: [\"odd key\"]: expected a string, found 3");
  EXPECT_EQ(FieldErrorOf([&] { root.String(); }),
            "f.json: expected a string, found an object with 2 keys");
}

TEST_F(Fields, SuggestsANearbyKey) {
  const JsonField root = FieldOf(R"({"acttotal": 1})");
  EXPECT_EQ(
      FieldErrorOf([&] { root.Get("act_total"); }),
      "f.json: expected the key \"act_total\", found none (but \"acttotal\")");
  EXPECT_EQ(FieldErrorOf([&] { root.Get("xyz"); }),
            "f.json: expected the key \"xyz\", found none");
}

TEST_F(Fields, RefusesOtherTypes) {
  const JsonField root = FieldOf(R"([1, "x", null, [], {}, true, 0.5])");
  const auto e = root.Elements();
  EXPECT_THAT(FieldErrorOf([&] { e[0].Get("k"); }),
              HasSubstr("expected an object, found 1"));
  EXPECT_THAT(FieldErrorOf([&] { e[0].Has("k"); }),
              HasSubstr("expected an object, found 1"));
  EXPECT_THAT(FieldErrorOf([&] { e[1].Elements(); }),
              HasSubstr("expected an array"));
  EXPECT_THAT(FieldErrorOf([&] { e[2].String(); }), HasSubstr("found null"));
  EXPECT_THAT(FieldErrorOf([&] { e[3].Bool(); }),
              HasSubstr("found an array of 0 entries"));
  EXPECT_THAT(FieldErrorOf([&] { e[4].Number(); }),
              HasSubstr("found an object"));
  EXPECT_THAT(FieldErrorOf([&] { e[5].NonNegativeNumber(); }),
              HasSubstr("found true"));
  EXPECT_THAT(FieldErrorOf([&] { e[6].Int(0, 5); }),
              HasSubstr("expected a whole number from 0 to 5, found 0.5"));
  EXPECT_THAT(FieldErrorOf([&] { root.Strings(); }),
              HasSubstr("[0]: expected a string"));
}

TEST_F(Fields, ChecksRanges) {
  const auto e =
      FieldOf(
          "[9007199254740992, 9007199254740993, -1, -9007199254740993,"
          " 1e19, -1e19, 18446744073709551615, 1e18, 1e300,"
          " 123456789012345678901234567890, 9007199254740992.0]")
          .Elements();
  EXPECT_EQ(e[0].Bytes(), int64_t{1} << 53);
  EXPECT_EQ(e[10].Bytes(), int64_t{1} << 53);
  for (int i : {1, 2, 4, 6, 8, 9})
    EXPECT_THAT(FieldErrorOf([&] { e[i].Bytes(); }),
                HasSubstr("0 to 2^53, found"))
        << i;
  for (int i : {1, 3, 4, 5})
    EXPECT_THAT(FieldErrorOf([&] { e[i].SignedBytes(); }),
                HasSubstr("-2^53 to"))
        << i;
  EXPECT_EQ(e[7].Number(), 1e18);
  for (int i : {4, 5, 6, 8, 9})
    EXPECT_THAT(FieldErrorOf([&] { e[i].Number(); }),
                HasSubstr("expected a number"))
        << i;
  EXPECT_THAT(FieldErrorOf([&] { e[2].NonNegativeNumber(); }),
              HasSubstr("found -1"));
  EXPECT_THAT(FieldErrorOf([&] { e[6].Int(0, INT64_MAX); }),
              HasSubstr("expected a whole number of at least 0, found "
                        "18446744073709551615"));
  EXPECT_THAT(FieldErrorOf([&] { e[2].Int(1, 1); }),
              HasSubstr("expected 1, found -1"));
}

TEST_F(Fields, KeepsHostileValuesShortAndOnOneLine) {
  const std::string longest(100'000, 'x');
  const auto e = FieldOf("[\"a\\n" + longest + "\", {\"fqn\": \"b\\n" +
                         longest + "\", \"k\\n" + longest + "\": 1}]")
                     .Elements();
  std::string message = FieldErrorOf([&] { e[0].Bytes(); });
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_LT(message.size(), 300u);
  message = FieldErrorOf([&] { e[1].Get("fqn").Bool(); });
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_LT(message.size(), 300u);
}

TEST(ParseJson, NamesLineAndColumn) {
  EXPECT_EQ(ParseError("{\n  \"a\": 1,\n  x\n}"),
            "f.json: line 3, column 3: expected string literal, found invalid "
            "literal at the end of \"  x\"");
  EXPECT_EQ(ParseError("[1 2]"),
            "f.json: line 1, column 4: expected ']', found number literal at "
            "the end of \"[1 2\"");
  EXPECT_THAT(ParseError("[1, 2"), HasSubstr("found the end of the text"));
  EXPECT_THAT(ParseError(""), HasSubstr("line 1, column 1"));
  EXPECT_THAT(ParseError("[1] 2"), HasSubstr("line 1, column 5"));
  EXPECT_THAT(ParseError("[1,]"), HasSubstr("line 1, column 4"));
}

TEST(ParseJson, RefusesWhatIsNoJson) {
  const std::vector<std::string> rows = {"NaN",
                                         "[NaN]",
                                         "[Infinity]",
                                         "[-Infinity]",
                                         "[01]",
                                         "[+1]",
                                         "[.5]",
                                         "[1.]",
                                         "{\"a\":}",
                                         "{a:1}",
                                         "{'a':1}",
                                         "[1 2]",
                                         "// c\n1",
                                         "tru",
                                         "\"\x01\"",
                                         "\"\\x\"",
                                         "\"\\ud800\"",
                                         "\"\xff\"",
                                         "\"\xc0\x80\"",
                                         "\"\xed\xa0\x80\"",
                                         "\"abc",
                                         "\xff\xfe",
                                         std::string("\0", 1),
                                         "[1e999]",
                                         "[-1e999]",
                                         "}",
                                         "]",
                                         ","};
  for (const std::string& row : rows) {
    const std::string message = ParseError(row);
    EXPECT_THAT(message,
                AllOf(StartsWith("f.json: line "), HasSubstr("column "),
                      HasSubstr("expected "), HasSubstr("found "),
                      Not(HasSubstr("\n")), Not(HasSubstr("exception"))))
        << row;
  }
}

TEST(ParseJson, NamesANumberThatIsTooLarge) {
  EXPECT_EQ(
      ParseError("[1,\n 1e999]"),
      "f.json: line 2, column 2: expected a number that a double can hold, "
      "found 1e999");
}

TEST(ParseJson, RefusesMoreThanMemoryHolds) {
  std::string text = "[0";
  for (int k = 0; k < 40'000'000; ++k) text += ",0";
  EXPECT_THAT(ParseError(text + "]"),
              HasSubstr("expected at most 40000000 values, found more"));
}

TEST(ParseJson, SurvivesDeepNesting) {
  const size_t depth = 1'000'000;
  for (const std::string& open : {std::string("["), std::string("{\"a\":")}) {
    std::string text;
    for (size_t i = 0; i < depth; ++i) text += open;
    EXPECT_THAT(ParseError(text), HasSubstr("nested at most 500 deep"));
    text += std::string(depth, open == "[" ? ']' : '}');
    EXPECT_THAT(ParseError(text), HasSubstr("nested at most 500 deep"));
  }
  EXPECT_EQ(ParseError(std::string(500, '[') + std::string(500, ']')),
            "no error");
  EXPECT_EQ(ParseError("\"" + std::string(1000, '[') + "\""), "no error");
  EXPECT_EQ(ParseError("\"\\\"" + std::string(1000, '[') + "\""), "no error");
}

TEST(ParseJson, KeepsMessagesShort) {
  EXPECT_LT(ParseError("[" + std::string(100'000, 'x')).size(), 300u);
  EXPECT_LT(ParseError("[\"" + std::string(100'000, 'x')).size(), 300u);
  EXPECT_LT(ParseError("[1" + std::string(100'000, '0') + ".").size(), 300u);
  EXPECT_LT(ParseError("[1" + std::string(100'000, '0') + "]").size(), 300u);
}

}  // namespace
}  // namespace acplan::graph
