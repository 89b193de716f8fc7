#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cli/report/execution_data.h"
#include "cli/report/frontier_data.h"
#include "cli/report/page.h"
#include "cli/report/search_data.h"
#include "cli/report/step_data.h"
#include "cli/terminal/text.h"
#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr char kReportTrace[] = ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz";

// Returns the data in a page, which a browser would read.
json DataOf(const std::string& page) {
  constexpr std::string_view kBegin = "id=\"data\">";
  const size_t begin = page.find(kBegin) + kBegin.size();
  return json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(JsonForScript, HoldsAnyTextInAScript) {
  std::mt19937 random(1);
  const std::vector<std::string> pieces = {
      "</script>", "<!--", "-->",    "]]>",  "&amp;", "\"",   "\\",
      "\n",        "\x7f", "\u2028", "\xff", "a",     "\x01", "<script>"};
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int k = 0; k < 6; ++k) text += pieces[random() % pieces.size()];
    const std::string script_text = JsonForScript({{text, text}, {"x", text}});
    EXPECT_THAT(script_text, AllOf(Not(HasSubstr("<")), Not(HasSubstr(">")),
                                   Not(HasSubstr("&"))));
    EXPECT_TRUE(std::ranges::all_of(script_text, [](char c) {
      return c >= ' ' && c < '\x7f';
    })) << script_text;
    if (text.find('\xff') == std::string::npos) {
      EXPECT_EQ(json::parse(script_text)["x"], text);
    }
  }
}

TEST(ReportPage, ShowsCharactersThatABrowserDoesNot) {
  const std::string page =
      ReportPage(PageKind::kStep, "t\u202e",
                 {{"a\u200b", {"b\U000e0041", 1, nullptr}}, {"\n", "<"}});
  EXPECT_THAT(page, HasSubstr("<title>t\\u202e</title>"));
  EXPECT_EQ(DataOf(page),
            json({{"a\\u200b", {"b\\udb40\\udc41", 1, nullptr}}, {"\n", "<"}}));
}

TEST(SampleSteps, AreNeverBelowWhatIsInUse) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> live(random() % 60);
    for (int64_t& bytes : live) bytes = static_cast<int64_t>(random() % 9);
    const size_t most = 1 + random() % 20;
    const std::vector<StepSample> samples = SampleSteps(live, most);
    ASSERT_EQ(samples.size(), std::min(most, live.size()));
    for (size_t s = 0; s < samples.size(); ++s) {
      const size_t end =
          s + 1 < samples.size() ? samples[s + 1].first : live.size();
      if (s == 0) {
        ASSERT_EQ(samples[s].first, 0);
      }
      ASSERT_LT(samples[s].first, end);
      const auto first = live.begin() + samples[s].first;
      // The first step with the most bytes of its part.
      ASSERT_EQ(live.begin() + samples[s].step,
                std::max_element(first, live.begin() + end));
    }
  }
}

class ReportCommandTest : public CliTest {};

TEST_F(ReportCommandTest, IsOnePageOfWhatSimulateSays) {
  AcplanOut({"plan", kReportTrace, "--budget", "99%", "-o", "plan.json"});
  const json simulated = AcplanJson({"simulate", kReportTrace, "plan.json"});
  AcplanOut(
      {"report", kReportTrace, "plan.json", "--points", "0", "-o", "a.html"});
  const std::string page = Read("a.html");
  for (const char* text :
       {"Content-Security-Policy", "University of Washington"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  for (const char* text : {"<script src", "<link", "<img", "@import"}) {
    EXPECT_EQ(page.find(text), std::string::npos) << text;
  }
  const json data = DataOf(page);
  EXPECT_EQ(data["frontier"], nullptr);
  ASSERT_EQ(data["runs"].size(), 2);
  const std::vector<json> expected = {simulated["baseline"],
                                      simulated["planned"]};
  for (size_t r = 0; r < 2; ++r) {
    const json& run = data["runs"][r];
    EXPECT_EQ(run["peak_bytes"], expected[r]["peak_bytes"]);
    EXPECT_EQ(run["recompute_ms"], expected[r]["recompute_ms"]);
    EXPECT_EQ(run["steps"], expected[r]["operators"]);
    const json& samples = run["samples"];
    const size_t peak = run["peak_sample"];
    EXPECT_EQ(samples["step"][peak], expected[r]["peak"]["step"]);
    EXPECT_EQ(samples["operators"][samples["operator"][peak].get<size_t>()],
              expected[r]["peak"]["operator"]);
    EXPECT_EQ(samples["bytes"][peak], run["peak_by_kind"]);
  }
}

// The parts of a timeline in a page with every step. The seed of the fuzzers
// has known lines; others have none.
TEST_F(ReportCommandTest, ShowsTheLinesOfPythonOfATraceThatHasThem) {
  AcplanOut({"report", ACPLAN_SEED_TRACE, "--points", "0", "-o", "page.html"});
  const json data = DataOf(Read("page.html"));
  const json& run = data["runs"][0];
  int64_t sum = 0;
  std::map<std::string, json> lines;
  for (const json& line : run["lines"]) {
    sum += line["bytes"].get<int64_t>();
    lines[line["source"]] = line["operators"];
  }
  EXPECT_EQ(sum, run["peak_bytes"]);
  EXPECT_THAT(lines.at("nets/small.py:12"), Contains("aten.mm.default"));
  const json& samples = run["samples"];
  EXPECT_EQ(samples["lines"][samples["line"][10].get<size_t>()],
            "nets/small.py:12");
  EXPECT_EQ(samples["lines"][samples["line"][0].get<size_t>()], "");
  EXPECT_EQ(data["tree"][0]["lines"], "nets/small.py:13");
  EXPECT_EQ(data["tree"][1]["lines"], "nets/small.py:12");
  EXPECT_FALSE(data["tree"][2].contains("lines"));
  AcplanOut({"report", kReportTrace, "--points", "0", "-o", "page.html"});
  EXPECT_THAT(DataOf(Read("page.html"))["runs"][0].dump(),
              Not(HasSubstr("\"lines\"")));
}

TEST_F(ReportCommandTest, DrawsTheTimeline) {
  AcplanOut({"report", kReportTrace, "--points", "0", "-o", "a.html"});
  AcplanOut({"simulate", kReportTrace, "--timeline", "t.csv"});
  const json samples = DataOf(Read("a.html"))["runs"][0]["samples"];
  const std::vector<std::string> lines = Lines(Read("t.csv"));
  ASSERT_EQ(samples["bytes"].size(), lines.size() - 1);
  for (size_t k = 0; k + 1 < lines.size(); ++k) {
    int64_t all = 0;
    for (const json& bytes : samples["bytes"][k]) all += bytes.get<int64_t>();
    EXPECT_EQ(lines[k + 1].substr(lines[k + 1].rfind(',') + 1),
              std::to_string(all));
  }
}

TEST_F(ReportCommandTest, MayBeOfSomeParts) {
  AcplanOut({"report", kReportTrace, "--points", "0", "-o", "a.html", "--parts",
             "memory,map"});
  EXPECT_EQ(DataOf(Read("a.html"))["parts"], json({"memory", "map"}));
  AcplanOut({"report", kReportTrace, "--points", "0", "-o", "a.html"});
  EXPECT_EQ(DataOf(Read("a.html"))["parts"], nullptr);
  const Outcome unknown = Acplan(
      {"report", kReportTrace, "-o", "b.html", "--parts", "memory,none"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.err,
            "acplan: --parts: expected some of summary, memory, peak, "
            "device, lines, frontier, map, modules, found \"none\"\n");
}

TEST_F(ReportCommandTest, TakesAFrontierOrMakesOne) {
  AcplanOut({"frontier", kReportTrace, "--points", "3", "-o", "f.json"});
  AcplanOut({"report", kReportTrace, "--frontier", "f.json", "-o", "a.html"});
  AcplanOut({"report", kReportTrace, "--points", "3", "-o", "b.html"});
  const json read = DataOf(Read("a.html"))["frontier"];
  const json own_frontier = DataOf(Read("b.html"))["frontier"];
  ASSERT_EQ(read["points"].size(), 3);
  for (size_t k = 0; k < 3; ++k) {
    for (const char* key : {"budget_bytes", "recompute_ms", "status"}) {
      EXPECT_EQ(read["points"][k][key], own_frontier["points"][k][key]);
    }
  }
}

// Expects that a document with any one value replaced, or left out, is read or
// refused on one line.
template <typename Read>
void ExpectReadOrRefused(const json& document, Read read) {
  const json flat = document.flatten();
  std::mt19937 random(3);
  const std::vector<json> values = {
      nullptr, -1, 1e300, "x", true, 1 << 20, json::array(), json::object()};
  std::vector<std::string> pointers;
  for (const auto& [pointer, value] : flat.items()) pointers.push_back(pointer);
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    json changed = document;
    json::json_pointer at(pointers[random() % pointers.size()]);
    // Sometimes takes all of the values around.
    while (random() % 4 == 0 && !at.parent_pointer().empty()) {
      at = at.parent_pointer();
    }
    if (random() % 4 == 0 && changed[at.parent_pointer()].is_object()) {
      changed[at.parent_pointer()].erase(at.back());
    } else {
      changed[at] = values[random() % values.size()];
    }
    try {
      read(changed);
    } catch (const InputError& error) {
      ++refused;
      EXPECT_EQ(std::string_view(error.what()).find('\n'),
                std::string_view::npos);
    }
  }
  EXPECT_GT(refused, 60);
  EXPECT_LT(refused, 400);
}

TEST_F(ReportCommandTest, ReadsAnyFileOrRefusesIt) {
  const json search = AcplanJson(
      {"train", "search", ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json",
       "--gpu", "H100", "--gpus", "64", "--gbs", "512", "--seq", "8192", "--tp",
       "2", "-t", "2"});
  const std::string path = (folder() / "changed.json").string();
  ExpectReadOrRefused(search, [&](const json& changed) {
    PutFile("changed.json", changed.dump());
    ParseTraining(graph::ReadJsonText(path), path);
  });
  const json frontier = AcplanJson({"frontier", kReportTrace, "--points", "2"});
  ExpectReadOrRefused(frontier, [&](const json& changed) {
    PutFile("changed.json", changed.dump());
    ReadFrontier(path, "GPT2LMHeadModel");
  });
}

TEST_F(ReportCommandTest, ShowsStrategiesOfCalculonsCostModel) {
  AcplanOut({"calculon", "llm-optimal-execution",
             ACPLAN_DATA_DIR "/models/megatron-22B.json", "64", "64", "float16",
             ACPLAN_DATA_DIR "/systems/a100_80g.json", "found.json", "-t",
             "8"});
  AcplanOut({"report", "found.json", "-o", "a.html"});
  const json search = json::parse(Read("found.json"));
  const json data = DataOf(Read("a.html"));
  ASSERT_EQ(data["best"].size(), search.size());
  ASSERT_GT(search.size(), 1);
  for (size_t rank = 0; rank < search.size(); ++rank) {
    const json& stats = search[std::to_string(rank)]["stats"];
    const json& entry = data["best"][rank];
    EXPECT_EQ(entry["iteration_s"], stats["total_time"]);
    EXPECT_EQ(entry["samples_per_s"], stats["sample_rate"]);
    double parts = 0;
    for (const json& part : entry["parts_s"]) parts += part.get<double>();
    EXPECT_NEAR(parts, stats["total_time"].get<double>(), 1e-9 * parts);
    EXPECT_EQ(entry["peak_bytes"], stats["proc_mem_tier1_cap_req"]);
    EXPECT_EQ(entry["strategy"]["tp"],
              search[std::to_string(rank)]["execution"]["tensor_par"]);
  }
  ExpectReadOrRefused(search, [&](const json& changed) {
    PutFile("changed.json", changed.dump());
    const std::string path = (folder() / "changed.json").string();
    ParseExecutions(graph::ReadJsonText(path), path);
  });
}

TEST_F(ReportCommandTest, RefusesWhatItCannotShow) {
  PutFile(
      "search.json",
      R"({"format": "acplan.training_search", "version": 1, "model": "m",)"
      R"( "budget_bytes": 1, "strategies": 1, "evaluated": 1, "fitting": 1,)"
      R"( "best": []})");
  PutFile("other.json",
          R"({"format": "acplan.training_search", "version": 2})");
  AcplanOut({"calculon", "llm-optimal-execution",
             ACPLAN_DATA_DIR "/models/megatron-22B.json", "64", "64", "float16",
             ACPLAN_DATA_DIR "/systems/a100_80g.json", "found.json"});
  AcplanOut({"plan", kReportTrace, "--budget", "99%", "-o", "plan.json"});
  const auto refused = [&](std::vector<std::string> arguments,
                           const std::vector<std::string>& fragments) {
    arguments.insert(arguments.begin(), "report");
    ExpectRefused(Acplan(arguments), fragments);
    EXPECT_FALSE(Exists("a.html"));
  };
  refused({kReportTrace}, {"-o", "expected the name of the page"});
  refused({kReportTrace, "-o", "no/a.html"}, {"no/a.html"});
  refused({kReportTrace, "gone.json", "-o", "a.html"}, {"gone.json"});
  refused({kReportTrace, "plan.json", "-o", "plan.json"}, {"plan.json"});
  refused({kReportTrace, "--points", "-1", "-o", "a.html"}, {"--points", "-1"});
  refused({kReportTrace, "--frontier", "plan.json", "-o", "a.html"},
          {"plan.json: format", "acplan.frontier"});
  refused({"search.json", "-o", "a.html"}, {"search.json: best"});
  refused({"found.json", "--points", "3", "-o", "a.html"}, {"--points"});
  refused({"found.json", "--time-limit", "3", "-o", "a.html"},
          {"--time-limit"});
  refused({kReportTrace, "-o", "a.svg"}, {"-o", "ends with .html", "a.svg"});
  refused({"other.json", "-o", "a.html"}, {"other.json"});
  refused({"search.json", "plan.json", "-o", "a.html"}, {"search.json"});
  PutFile("lacking.json",
          R"({"0": {"execution": {}, "stats": {"sample_rate": 1}}})");
  refused({"lacking.json", "-o", "a.html"},
          {"lacking.json", "execution", "tensor_par"});
}

// Lines as a terminal of so many columns shows them, without colours.
class NarrowTerminalTest : public CliTest {
 protected:
  std::vector<std::string> LinesShown(int columns, const std::string& command) {
    const std::string script =
        "stty cols " + std::to_string(columns) +
        " -opost </dev/fd/1; " ACPLAN_PROGRAM " --color never " + command;
    return Lines(Process("bash", {"-c", script}, folder(),
                         {.out = Stream::kTerminal,
                          .environment = {{"PATH", "/usr/bin:/bin"}}})
                     .Wait()
                     .out);
  }
};

TEST_F(NarrowTerminalTest, TextKeepsWithinIt) {
  const std::string small = ACPLAN_DATA_DIR "/traces/gpt2_small.json.gz";
  AcplanOut({"plan", small, "--budget", "50%", "-o", "plan.json"});
  for (const std::string& command :
       {"plan " + small + " --budget 50%", "simulate " + small + " plan.json",
        "compare " + small + " plan.json", "tree --depth 2 " + small,
        "baseline " + small, "frontier --points 3 " + small}) {
    for (const int columns : {80, 60}) {
      const std::vector<std::string> lines = LinesShown(columns, command);
      EXPECT_GT(lines.size(), 4) << command;
      for (const std::string& line : lines) {
        if (command.starts_with("frontier") && columns < 80) break;
        EXPECT_LE(TextWidth(line), static_cast<size_t>(columns))
            << command << "\n"
            << line;
      }
    }
  }
}

TEST_F(NarrowTerminalTest, MemoryIsDrawnThereOnly) {
  const std::string command =
      std::string("plan ") + kReportTrace + " --budget 99%";
  const std::vector<std::string> lines = LinesShown(80, command);
  EXPECT_EQ(std::ranges::count_if(lines,
                                  [](const std::string& line) {
                                    return line.find("│") == 11 ||
                                           line.find("┤") == 11;
                                  }),
            8);
  EXPECT_THAT(AcplanOut({"plan", kReportTrace, "--budget", "99%"}),
              AllOf(Not(HasSubstr("│")), Not(HasSubstr("█"))));
  EXPECT_THAT(AcplanOut({"simulate", kReportTrace}), Not(HasSubstr("█")));
}

}  // namespace

}  // namespace acplan::cli
