#include "costmodel/calculon/results/result_csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "tests/graph/test_files.h"

namespace acplan::costmodel {

namespace {

using testing::HasSubstr;

class ResultCsvTest : public testing::Test {
 protected:
  std::string CsvOf(std::string_view text) const {
    const auto path = folder_.path() / "r.json";
    graph::PutBytes(path, text);
    return ResultCsv(path);
  }
  void ExpectRefused(std::string_view text, const std::string& said) const {
    try {
      CsvOf(text);
      ADD_FAILURE() << text;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(said));
    }
  }

  graph::TemporaryFolder folder_;
};

TEST_F(ResultCsvTest, ALineAnEntryInTheOrderOfTheFile) {
  EXPECT_EQ(
      CsvOf(
          R"({"1": {"stats": {"x": 2.0}, "execution": {"b": null, "a": false}},
                      "0": {"execution": {"a": true, "b": "ar"}, "stats": {"x": 1e-9}}})"),
      ",a,b,x,,\n"
      "1,False,None,2.0,,\n"
      "0,True,ar,1e-09,,\n");
}

TEST_F(ResultCsvTest, KeysThatEntry0LacksAreLeftOut) {
  EXPECT_EQ(
      CsvOf(
          R"({"0": {"execution": {"a": 1}}, "1": {"execution": {"c": 3, "a": 2}, "more": 1}})"),
      ",a,,\n0,1,,\n1,2,,\n");
}

TEST_F(ResultCsvTest, LayersAreAList) {
  EXPECT_EQ(
      CsvOf(R"({"0": {"stats": {"layers": [{"name": "L", "size": 1}, {}]}}})"),
      ",layers,,\n0,[{'name': 'L', 'size': 1}, {}],,\n");
}

TEST_F(ResultCsvTest, WhatIsNoResultsIsRefused) {
  ExpectRefused("{}", "r.json: expected the results of a search");
  ExpectRefused("[]", "found no entry \"0\"");
  ExpectRefused("7", "found no entry \"0\"");
  ExpectRefused(R"({"1": {"execution": {"a": 1}}})", "no entry \"0\"");
  ExpectRefused(R"({"0": 7})", "0: expected an execution, found no keys");
  ExpectRefused(R"({"0": {"execution": {}}})", "found no keys");
  ExpectRefused(R"({"0": {"execution": {"a": 1}, "stats": 3}})",
                "r.json: 0.stats: expected an object, found \"3\"");
  ExpectRefused(R"({"0": {"execution": {"a": 1}}, "1": {}})",
                "r.json: 1: expected the key \"execution\", found none");
  ExpectRefused(R"({"0": {"execution": {"a": 1}}, "1": 3})",
                "1: expected the key \"execution\"");
  ExpectRefused(R"({"0": {"execution": {"a": 1}}, "1": {"execution": {}}})",
                "1.execution: expected the key \"a\", found none");
  ExpectRefused(R"({"0": {"execution": {"a": 1}})", "line 1, column");
}

}  // namespace

}  // namespace acplan::costmodel
