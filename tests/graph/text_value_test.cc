#include "graph/base/text_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/input_error.h"

namespace acplan::graph {

namespace {

using testing::HasSubstr;

std::string Python(std::string_view document) {
  return PythonText(ParseTextValue(document, "a.json"));
}

TEST(TextValueTest, ScalarsAreWhatPythonPrints) {
  EXPECT_EQ(Python("null"), "None");
  EXPECT_EQ(Python("true"), "True");
  EXPECT_EQ(Python("false"), "False");
  EXPECT_EQ(Python("-7"), "-7");
  EXPECT_EQ(Python("1.50"), "1.5");
  EXPECT_EQ(Python("1e3"), "1000.0");
  EXPECT_EQ(Python("\"it's\""), "it's");
}

TEST(TextValueTest, WholeNumbersOfAnySizeStayWhole) {
  EXPECT_EQ(Python("18446744073709551615"), "18446744073709551615");
  EXPECT_EQ(Python("85899345920000000000"), "85899345920000000000");
  EXPECT_EQ(Python("-85899345920000000001"), "-85899345920000000001");
}

TEST(TextValueTest, NestedValuesAreWhatPythonPrints) {
  EXPECT_EQ(Python("[]"), "[]");
  EXPECT_EQ(Python("{}"), "{}");
  EXPECT_EQ(
      Python(R"([{"name": "Linear", "gflops": 1.0, "on": true}, [2, null]])"),
      "[{'name': 'Linear', 'gflops': 1.0, 'on': True}, [2, None]]");
  EXPECT_EQ(
      Python(R"(["it's", "say \"it\"", "both ' and \"", "a\\b\n\u0001"])"),
      R"(["it's", 'say "it"', 'both \' and "', 'a\\b\n\x01'])");
}

TEST(TextValueTest, MembersKeepTheirOrder) {
  EXPECT_EQ(Python(R"({"9": 1, "10": 2, "0": 3})"),
            "{'9': 1, '10': 2, '0': 3}");
}

TEST(TextValueTest, ARepeatedKeyHasItsFirstPlaceAndItsLastValue) {
  EXPECT_EQ(Python(R"({"a": 1, "b": {"c": 1, "c": [2]}, "a": {"d": 3}})"),
            "{'a': {'d': 3}, 'b': {'c': [2]}}");
}

TEST(TextValueTest, WhatIsNoJsonIsRefused) {
  for (const std::string text : {"", "{", "[1,]", "NaN", "{\"a\": 1} x"}) {
    try {
      Python(text);
      FAIL() << text;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("a.json: line 1, column "));
    }
  }
}

}  // namespace

}  // namespace acplan::graph
