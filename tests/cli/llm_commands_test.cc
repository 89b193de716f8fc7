#include <fmt/format.h>

#include <regex>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"
#include "tests/cli/xml_check.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::string Golden(const std::string& name) {
  return ACPLAN_TEST_DATA_DIR "/calculon/" + name;
}

std::string ModelPath(const std::string& name) {
  return fmt::format("{}/models/{}.json", ACPLAN_DATA_DIR, name);
}

class LlmCommandsTest : public CliTest {
 protected:
  void PutModel(const std::string& name, const json& model) const {
    graph::WriteFile(folder() / name, model.dump());
  }
  static json SmallModel() {
    return {{"hidden", 8},     {"feedforward", 32}, {"seq_size", 16},
            {"attn_heads", 2}, {"attn_size", 4},    {"num_blocks", 3}};
  }
};

TEST_F(LlmCommandsTest, ParametersAreThoseOfCalculon) {
  const json runs =
      json::parse(graph::ReadFile(Golden("llm-parameter-calculator.json")));
  ASSERT_EQ(runs.size(), 27U);
  for (const json& run : runs) {
    const std::string model = run["model"];
    std::vector<std::string> arguments = run["flags"];
    arguments.insert(arguments.begin(), "calculon llm-parameter-calculator");
    arguments.push_back(std::string(ACPLAN_DATA_DIR) + "/" + model);
    EXPECT_EQ(AcplanOut(arguments), run["stdout"]) << model;
  }
}

TEST_F(LlmCommandsTest, ParametersAsWorkedByHand) {
  PutModel("a.json", SmallModel());
  // A block: MLP 2*8*32 + 8 + 32, attention 4*8*8 + 3*8 + 8, norms 4*8: 872.
  // Embeddings: (51200 + 16) * 8.
  EXPECT_EQ(AcplanOut({"calculon", "lpc", "a.json"}),
            "a             -> 412.344 k\n");
  EXPECT_EQ(AcplanOut({"calculon", "lpc", "a.json", "-a", "3"}),
            "a   -> 412.344 k\n");
  EXPECT_EQ(AcplanOut({"calculon", "lpc", "--alignment=-5", "a.json"}),
            "a -> 412.344 k\n");
  json whole_floats = SmallModel();
  whole_floats["hidden"] = 8.0;
  whole_floats["comment"] = "other keys are ignored";
  PutModel("ä.json.gz", whole_floats);
  EXPECT_EQ(AcplanOut({"calculon", "lpc", "ä.json.gz", "-a8"}),
            "ä.json   -> 412.344 k\n");
}

// | `name` | ... | lpc | ...
TEST_F(LlmCommandsTest, TheReadmeOfTheDataHasTheseCounts) {
  const std::string readme =
      graph::ReadFile(std::string(ACPLAN_DATA_DIR) + "/README.md");
  const std::regex row(
      R"re(\n\| `models/([\w.-]+)\.json` \|[^|\n]*\| ([\d.]+) G \|)re");
  int rows = 0;
  for (std::sregex_iterator match(readme.begin(), readme.end(), row);
       match != std::sregex_iterator(); ++match, ++rows) {
    EXPECT_EQ(
        AcplanOut({"calculon", "lpc", "-a0", ModelPath((*match)[1])}),
        fmt::format("{} -> {} G\n", (*match)[1].str(), (*match)[2].str()));
  }
  EXPECT_EQ(rows, 15);
}

TEST_F(LlmCommandsTest, ModelsThatAreWrong) {
  for (const std::string key : {"hidden", "feedforward", "seq_size",
                                "attn_heads", "attn_size", "num_blocks"}) {
    json model = SmallModel();
    model.erase(key);
    PutModel("a.json", model);
    ExpectRefused(Acplan({"calculon", "lpc", "a.json"}),
                  {"a.json: expected the key \"" + key + "\", found none"});
    for (const json& value :
         {json("8"), json(0), json(-8), json(8.5), json(true), json(nullptr),
          json(1e30), json::array(), json::object()}) {
      model[key] = value;
      PutModel("a.json", model);
      ExpectRefused(
          Acplan({"calculon", "lpc", "a.json"}),
          {"a.json: " + key + ": expected a whole number from 1 to "});
    }
  }
  PutFile("list.json", "[]");
  ExpectRefused(Acplan({"calculon", "lpc", "list.json"}),
                {"list.json: expected an object, found an array of 0 entries"});
  PutFile("empty.json", "");
  ExpectRefused(Acplan({"calculon", "lpc", "empty.json"}),
                {"empty.json: expected a file"});
  PutFile("text.json", "hello");
  ExpectRefused(Acplan({"calculon", "lpc", "text.json"}),
                {"text.json: line 1, column 1"});
  PutFile("fake.json.gz", "{}");
  ExpectRefused(Acplan({"calculon", "lpc", "fake.json.gz"}),
                {"expected gzip data"});
  ExpectRefused(Acplan({"calculon", "lpc", "nope.json"}), {"nope.json: "});
  ExpectRefused(Acplan({"calculon", "lpc"}), {"APPLICATION"});
  PutModel("a.json", SmallModel());
  ExpectRefused(Acplan({"calculon", "lpc", "a.json", "-a", "x"}),
                {"--alignment: expected a whole number", "found 'x'"});
  ExpectRefused(Acplan({"calculon", "lpc", "a.json", "b.json"}), {"b.json"});
}

TEST_F(LlmCommandsTest, CsvIsThatOfCalculon) {
  const std::string csv = graph::ReadFile(Golden("json_to_csv_S01.csv"));
  AcplanOut({"calculon", "llm-csv", Golden("search/S01.json.gz"), "a.csv"});
  EXPECT_EQ(Read("a.csv"), csv);
  AcplanOut({"calculon", "llm-csv", Golden("search/S01.json.gz"), "a.csv.gz"});
  EXPECT_EQ(graph::ReadFile(folder() / "a.csv.gz"), csv);
  EXPECT_NE(Read("a.csv.gz"), csv);
  PutFile("a.json", graph::ReadFile(Golden("search/S01.json.gz")));
  AcplanOut({"calculon", "llm-csv", "a.json", "b.csv"});
  EXPECT_EQ(Read("b.csv"), csv);
}

TEST_F(LlmCommandsTest, CsvOfNoResults) {
  PutFile("a.json", "{}");
  ExpectRefused(Acplan({"calculon", "llm-csv", "a.json", "a.csv"}),
                {"a.json: expected the results of a search"});
  PutFile("a.json", R"({"0": {"execution": {"a": 1}}, "1": {}})");
  ExpectRefused(Acplan({"calculon", "llm-csv", "a.json", "a.csv"}),
                {"a.json: 1: expected the key \"execution\""});
  ExpectRefused(Acplan({"calculon", "llm-csv", "a.json", "no/a.csv"}),
                {"no/a.csv"});
  ExpectRefused(
      Acplan({"calculon", "llm-csv", "a.json", "a.json"}),
      {"CSV: expected a file other than the input, found \"a.json\""});
  ExpectRefused(Acplan({"calculon", "llm-csv", "a.json"}), {"CSV"});
  ExpectRefused(Acplan({"calculon", "llm-csv", "nope.json", "a.csv"}),
                {"nope.json"});
  EXPECT_FALSE(Exists("a.csv"));
}

TEST_F(LlmCommandsTest, HugeModelsAreThoseOfCalculon) {
  EXPECT_EQ(AcplanOut({"calculon", "llm-find-huge"}),
            graph::ReadFile(Golden("find_huge_stdout.csv")));
  ExpectRefused(Acplan({"calculon", "llm-find-huge", "x"}), {"'x'"});
}

TEST_F(LlmCommandsTest, TheHeatmapPrintsWhatCalculonsPrints) {
  const std::string input = Golden("heatmap_input_example.json");
  std::string lines = graph::ReadFile(Golden("heatmap_stdout.txt"));
  lines.replace(lines.find("OUT/h.png"), 9, "h.svg");
  EXPECT_EQ(AcplanOut({"calculon", "llm-heatmap", input, "h.svg"}), lines);
  EXPECT_EQ(XmlFault(Read("h.svg")), "");
  EXPECT_THAT(Read("h.svg"), StartsWith("<svg "));
  AcplanOut(
      {"calculon", "llm-heatmap", input, "h.html", "-t", "a <title> & more"});
  EXPECT_EQ(XmlFault(Read("h.html")), "");
  EXPECT_THAT(Read("h.html"), StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(Read("h.html"), HasSubstr(">a &lt;title&gt; &amp; more</text>"));
}

TEST_F(LlmCommandsTest, TheSurfacePrintsTheSameRates) {
  const std::string input = Golden("heatmap_input_example.json");
  const std::string rates =
      "1,1 is 10.0\n1,2 is 14.5\n2,1 is 12.25\n2,2 is 20.0\n";
  EXPECT_EQ(AcplanOut({"calculon", "llm-3dplot", input}),
            rates + "writing heatmap_input_example.3dplot.html\n");
  EXPECT_EQ(XmlFault(Read("heatmap_input_example.3dplot.html")), "");
  EXPECT_EQ(
      AcplanOut({"calculon", "llm-3dplot", input, "s.svg", "--title", "T"}),
      rates + "writing s.svg\n");
  EXPECT_THAT(Read("s.svg"), HasSubstr(">T</text>"));
}

TEST_F(LlmCommandsTest, CellsWithoutARateAreLeftOut) {
  PutFile("a.json", R"({"2": {"1": {"stats": {"sample_rate": 4}}, "3": {}},
                    "1": {"3": {"stats": {"sample_rate": 2.5}}}})");
  EXPECT_EQ(AcplanOut({"calculon", "llm-heatmap", "a.json", "a.svg"}),
            "2,1 is 4\n2,3 has none\n1,3 is 2.5\n"
            "min=2.5 max=4.0 thres=2.95\nwriting a.svg\n");
  EXPECT_EQ(AcplanOut({"calculon", "llm-3dplot", "a.json", "a.html"}),
            "2,1 is 4\n2,3 has none\n1,3 is 2.5\nwriting a.html\n");
}

TEST_F(LlmCommandsTest, PicturesOfResults) {
  const std::string best =
      "1,1 is 146.32789843958858\n1,2 is 139.1149693701197\n"
      "2,1 is 153.4387643657422\n2,2 is 142.4214427725216\n"
      "4,1 is 141.63055067408834\n";
  EXPECT_THAT(AcplanOut({"calculon", "llm-heatmap", Golden("search/S09.csv.gz"),
                         "a.svg"}),
              StartsWith(best));
  EXPECT_EQ(AcplanOut({"calculon", "llm-3dplot", Golden("search/S09.csv.gz"),
                       "a.svg"}),
            best + "writing a.svg\n");
  EXPECT_EQ(AcplanOut({"calculon", "llm-heatmap", Golden("search/S01.json.gz"),
                       "a.svg"}),
            "1,1 is 77798.00234927525\n"
            "min=77798.00234927525 max=77798.00234927525 "
            "thres=77798.00234927525\nwriting a.svg\n");
  ExpectRefused(
      Acplan({"calculon", "llm-3dplot", Golden("search/S01.json.gz"), "b.svg"}),
      {"expected at least 2 tensor and 2 pipeline parallelisms, "
       "found 1 and 1"});
  EXPECT_FALSE(Exists("b.svg"));
}

// A file of llm-csv can be drawn as well as the file that it is made from.
TEST_F(LlmCommandsTest, PicturesOfTheCsvOfResults) {
  AcplanOut({"calculon", "llm-csv", Golden("search/S01.json.gz"), "a.csv"});
  EXPECT_EQ(AcplanOut({"calculon", "llm-heatmap", "a.csv", "a.svg"}),
            AcplanOut({"calculon", "llm-heatmap", Golden("search/S01.json.gz"),
                       "a.svg"}));
}

TEST_F(LlmCommandsTest, PicturesThatCannotBe) {
  const std::string input = Golden("heatmap_input_example.json");
  for (const std::string command :
       {"calculon llm-heatmap", "calculon llm-3dplot"}) {
    for (const std::string output : {"h.png", "h", "h.svg.gz", "svg"}) {
      ExpectRefused(Acplan({command, input, output}),
                    {output + ": expected a name that ends in .svg, .html"});
      EXPECT_FALSE(Exists(output));
    }
    ExpectRefused(Acplan({command, input, "no/h.svg"}), {"no/h.svg"});
    ExpectRefused(Acplan({command, "nope.json", "h.svg"}), {"nope.json"});
    PutFile("a.txt", Read(input));
    ExpectRefused(Acplan({command, "a.txt", "h.svg"}),
                  {"a.txt: expected a name in .json, .json.gz, .csv or"});
    PutFile("a.json", R"({"1": {"x": {}}, "2": {"1": {}}})");
    ExpectRefused(Acplan({command, "a.json", "h.svg"}),
                  {"a.json: 1.x: expected a whole number", "found \"x\""});
    PutFile("a.json", R"({"1": {"1": {}, "2": {}}, "2": {"1": {}}})");
    ExpectRefused(Acplan({command, "a.json", "h.svg"}),
                  {"a.json: expected a sample rate, found none"});
    PutFile("a.csv", "tensor_par,pipeline_par\n1,1\n");
    ExpectRefused(Acplan({command, "a.csv", "h.svg"}),
                  {"a.csv: line 1: expected a column \"sample_rate\""});
    ExpectRefused(Acplan({command, input, "h.svg", "-t"}), {"-t"});
    ExpectRefused(Acplan({command}), {"STATS"});
    EXPECT_FALSE(Exists("h.svg"));
  }
  ExpectRefused(Acplan({"calculon", "llm-heatmap", input}), {"OUTPUT"});
}

TEST_F(LlmCommandsTest, ShortNames) {
  EXPECT_EQ(AcplanOut({"v"}), AcplanOut({"version"}));
  EXPECT_EQ(AcplanOut({"calculon", "lpc", "--help"}),
            AcplanOut({"calculon", "llm-parameter-calculator", "--help"}));
}

}  // namespace

}  // namespace acplan::cli
