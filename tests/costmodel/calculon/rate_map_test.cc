#include "costmodel/calculon/results/rate_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "tests/graph/test_files.h"

namespace acplan::costmodel {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RateMapTest : public testing::Test {
 protected:
  std::filesystem::path PutFile(const std::string& name,
                                std::string_view bytes) const {
    graph::WriteFile(folder_.path() / name, bytes);
    return folder_.path() / name;
  }
  void ExpectRefused(const std::string& name, std::string_view bytes,
                     const std::string& said) const {
    try {
      ReadRateMap(PutFile(name, bytes));
      ADD_FAILURE() << bytes;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(name + ": " + said));
    }
  }

  graph::TemporaryFolder folder_;
};

// Returns "TP,PP=TEXT" for each cell.
std::vector<std::string> Texts(const RateMap& map) {
  std::vector<std::string> texts;
  for (const RateMap::Cell& cell : map.cells) {
    texts.push_back(std::to_string(cell.tensor_par) + "," +
                    std::to_string(cell.pipeline_par) + "=" + cell.text);
  }
  return texts;
}

constexpr std::string_view kNested =
    R"({"16": {"1": {"stats": {"sample_rate": 3}}, "4": {}},
        "2": {"4": {"stats": {"sample_rate": 10.50, "x": 1}, "y": 2}}})";

TEST_F(RateMapTest, ANestedMapKeepsItsOrder) {
  const RateMap map = ReadRateMap(PutFile("a.json", kNested));
  EXPECT_THAT(Texts(map), ElementsAre("16,1=3", "16,4=", "2,4=10.5"));
  EXPECT_THAT(map.TensorPars(), ElementsAre(2, 16));
  EXPECT_THAT(map.PipelinePars(), ElementsAre(1, 4));
  EXPECT_EQ(map.Least(), 3);
  EXPECT_EQ(map.Most(), 10.5);
  ASSERT_NE(map.Find(2, 4), nullptr);
  EXPECT_EQ(map.Find(2, 4)->rate, 10.5);
  EXPECT_EQ(map.Find(16, 4), nullptr);  // without stats
  EXPECT_EQ(map.Find(2, 1), nullptr);   // not there
}

TEST_F(RateMapTest, GzippedFilesToo) {
  EXPECT_EQ(Texts(ReadRateMap(PutFile("a.json.gz", kNested))),
            Texts(ReadRateMap(PutFile("a.json", kNested))));
}

TEST_F(RateMapTest, OfResultsTheBestOfEachPair) {
  const RateMap map = ReadRateMap(PutFile(
      "a.json",
      R"({"0": {"execution": {"tensor_par": 8, "pipeline_par": 1}, "stats": {"sample_rate": 5.0}},
          "1": {"execution": {"tensor_par": 1, "pipeline_par": 2}, "stats": {"sample_rate": 3.0}},
          "2": {"execution": {"tensor_par": 8, "pipeline_par": 1}, "stats": {"sample_rate": 6.0}},
          "3": {"execution": {"tensor_par": 8, "pipeline_par": 1}, "stats": {"sample_rate": 4.0}}})"));
  EXPECT_THAT(Texts(map), ElementsAre("1,2=3.0", "8,1=6.0"));
}

TEST_F(RateMapTest, OfCsvTheBestOfEachPair) {
  const std::string rows =
      "num_procs,tensor_par,pipeline_par,sample_rate,layers\n"
      "8,8,1,2.25,[{'name': 'a', 'size': 1}]\r\n"
      "8,1,2,1e-05,None\n"
      "\n"
      "8,8,1,2.5,None\n"
      "#shard {\"index\": 1}\n";
  EXPECT_THAT(Texts(ReadRateMap(PutFile("a.csv", rows))),
              ElementsAre("1,2=1e-05", "8,1=2.5"));
  EXPECT_THAT(Texts(ReadRateMap(PutFile("a.csv.gz", rows))),
              ElementsAre("1,2=1e-05", "8,1=2.5"));
}

TEST_F(RateMapTest, OfCsvWithRanksAndTrailingCommas) {
  const RateMap map =
      ReadRateMap(PutFile("a.csv",
                          ",tensor_par,pipeline_par,sample_rate,,\n"
                          "0,4,2,7.0,,\n"));
  EXPECT_THAT(Texts(map), ElementsAre("4,2=7.0"));
}

TEST_F(RateMapTest, ResultsNeedBeNoGridAndANestedMapMust) {
  const RateMap map = ReadRateMap(PutFile(
      "a.csv", "tensor_par,pipeline_par,sample_rate\n4,2,7.0\n4,1,3.0\n"));
  EXPECT_THROW(RequireGrid(map, "a.csv"), InputError);
  ExpectRefused("a.json",
                R"({"1": {"1": {"stats": {"sample_rate": 1}}, "2": {}}})",
                "expected at least 2 tensor and 2 pipeline parallelisms, found "
                "1 and 2");
  ExpectRefused(
      "a.json",
      R"({"1": {"2": {"stats": {"sample_rate": 1}}}, "2": {"2": {}}})",
      "expected at least 2 tensor and 2 pipeline parallelisms, found "
      "2 and 1");
}

TEST_F(RateMapTest, WrongJsonIsRefused) {
  ExpectRefused("a.json", "[]", "expected an object, found an array");
  ExpectRefused("a.json", "{}", "expected at least 2 tensor");
  ExpectRefused("a.json", R"({"1": {"1": {}, "2": {}}, "2": {"1": {}}})",
                "expected a sample rate, found none");
  for (const std::string key : {"x", "0", "-1", "1.5", "", "99999999999"}) {
    ExpectRefused("a.json", "{\"" + key + "\": {}}", "");
    ExpectRefused("a.json", "{\"1\": {\"" + key + "\": {}}}", "1.");
  }
  ExpectRefused("a.json", R"({"1": 7})", "1: expected an object, found 7");
  ExpectRefused("a.json", R"({"1": {"2": true}})",
                "1.2: expected an object, found True");
  ExpectRefused("a.json", R"({"1": {"2": {"stats": {}}}})",
                "1.2.stats: expected the key \"sample_rate\", found none");
  ExpectRefused("a.json", R"({"1": {"2": {"stats": null}}})",
                "1.2.stats: expected an object, found None");
  for (const std::string rate : {"\"fast\"", "null", "true", "[1]", "{}"}) {
    ExpectRefused("a.json",
                  R"({"1": {"2": {"stats": {"sample_rate": )" + rate + "}}}}",
                  "1.2.stats.sample_rate: expected a number, found ");
  }
  ExpectRefused("a.json", R"({"1": {"2": {"stats": {"sample_rate": -1}}}})",
                "1.2.stats.sample_rate: expected a rate of at least 0");
  ExpectRefused(
      "a.json",
      R"({"0": {"execution": {"tensor_par": 1}, "stats": {"sample_rate": 1}}})",
      "0.execution: expected the key \"pipeline_par\", found none");
  ExpectRefused(
      "a.json",
      R"({"0": {"execution": {"tensor_par": 1.5, "pipeline_par": 1}, "stats": {"sample_rate": 1}}})",
      "0.execution.tensor_par: expected a whole number");
  ExpectRefused(
      "a.json",
      R"({"0": {"execution": {}, "stats": {"sample_rate": 1}}, "1": 5})",
      "0.execution: expected the key \"tensor_par\"");
  ExpectRefused("a.json", R"({"0": {"execution": {}}})",
                "0: expected the key \"stats\"");
}

TEST_F(RateMapTest, WrongCsvIsRefused) {
  const std::string heading = "tensor_par,pipeline_par,sample_rate\n";
  ExpectRefused("a.csv", "tensor_par,pipeline_par\n1,2\n",
                "line 1: expected a column \"sample_rate\", found none");
  ExpectRefused("a.csv", "hello", "line 1: expected a column \"tensor_par\"");
  ExpectRefused("a.csv", heading, "expected a sample rate, found none");
  ExpectRefused("a.csv", heading + "1,2,3\n1\n",
                "line 3.pipeline_par: expected a whole number from 1 to "
                "1000000000, found \"\"");
  ExpectRefused("a.csv", heading + "1,2,nan\n",
                "line 2.sample_rate: expected a rate of at least 0");
  ExpectRefused("a.csv", heading + "1,2,inf\n", "line 2.sample_rate");
  ExpectRefused("a.csv", heading + "1,2,-3\n", "line 2.sample_rate");
  ExpectRefused("a.csv", heading + "1,2,3x\n", "line 2.sample_rate");
  ExpectRefused("a.csv", heading + "one,2,3\n", "line 2.tensor_par");
}

TEST_F(RateMapTest, OtherNamesAreRefused) {
  ExpectRefused("a.txt", kNested,
                "expected a name in .json, .json.gz, .csv or .csv.gz");
  EXPECT_THROW(ReadRateMap(folder_.path() / "missing.json"), InputError);
}

}  // namespace

}  // namespace acplan::costmodel
