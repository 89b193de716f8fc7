#include "graph/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "tests/graph/document_edits.h"
#include "tests/graph/test_files.h"
#include "tests/support/random_trace.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using nlohmann::json;
using test_support::Enough;
using test_support::RandomTrace;
using test_support::Repetitions;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

json SmallTrace() { return json::parse(ReadFile(ACPLAN_SEED_TRACE)); }

std::string TraceErrorOf(const std::string& text) {
  try {
    ParseTrace(text, "t.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Trace, ReadsEveryField) {
  const Trace t = ReadTrace(ACPLAN_SEED_TRACE);
  EXPECT_EQ(t.model, (ModelInfo{"small", "Net", 8, 16, "fp32", "SGD"}));
  EXPECT_EQ(t.device, (DeviceInfo{"A100", 19.5e12, 1.555e12}));
  EXPECT_EQ(t.peak_bytes, 15360);
  EXPECT_EQ(t.forward_end, 5);
  EXPECT_EQ(t.backward_end, 12);

  ASSERT_EQ(t.modules.size(), 3u);
  EXPECT_EQ(t.modules[0_module], (TraceModule{"Net", "Net", {}, {2_s}}));
  EXPECT_EQ(t.modules[1_module],
            (TraceModule{"Net.fc", "Linear", {0_s, 1_s}, {}}));

  TraceCall last_call = {2_module, 0_call, 3, 4, {6_s}, {6_s}, {}, true, 7, 8};
  last_call.further_inputs = {6_s};
  EXPECT_THAT(
      t.calls,
      ElementsAre(
          TraceCall{0_module, kNone, 0, 4, {3_s}, {6_s}, {6_t}, false, 7, 12},
          TraceCall{1_module, 0_call, 0, 2, {3_s}, {5_s}, {6_t}, false, 9, 12},
          last_call));

  ASSERT_EQ(t.operators.size(), 14u);
  EXPECT_EQ(t.operators[0_op], (TraceOperator{.name = 0_name,
                                              .call = 1_call,
                                              .reads = {0_s},
                                              .creates = {},
                                              .outputs = {0_s},
                                              .mutates = {},
                                              .results = {1_t},
                                              .view = true}));
  EXPECT_THAT(t.operators[1_op].recasts, ElementsAre(0_op));
  EXPECT_EQ(t.operators[2_op], (TraceOperator{.name = 2_name,
                                              .call = 0_call,
                                              .runtime_ms = 0.25,
                                              .reads = {5_s},
                                              .creates = {6_s, 7_s},
                                              .outputs = {6_s, 7_s},
                                              .mutates = {},
                                              .results = {3_t, 4_t},
                                              .random = true,
                                              .source = 1_source}));
  EXPECT_EQ(t.operators[3_op], (TraceOperator{.name = 3_name,
                                              .call = 2_call,
                                              .runtime_ms = 0.125,
                                              .reads = {6_s},
                                              .creates = {},
                                              .outputs = {6_s},
                                              .mutates = {6_s}}));

  using enum StorageCategory;
  ASSERT_EQ(t.storages.size(), 16u);
  EXPECT_EQ(t.storages[0_s], (TraceStorage{4096, kParameter}));
  EXPECT_EQ(t.storages[2_s], (TraceStorage{8, kBuffer}));
  EXPECT_EQ(t.storages[4_s], (TraceStorage{1000, kInput, kNone, 7}));
  EXPECT_EQ(t.storages[5_s], (TraceStorage{1024, kActivation, 1_op, 3, 3}));
  EXPECT_EQ(t.storages[6_s],
            (TraceStorage{1024, kActivation, 2_op, 8, kNever}));
  EXPECT_EQ(t.storages[9_s], (TraceStorage{4, kTemporary, 5_op, 7}));
  EXPECT_EQ(t.storages[13_s], (TraceStorage{4096, kGradient, 10_op}));
  EXPECT_EQ(t.storages[15_s], (TraceStorage{4096, kOptimizer, 12_op}));

  EXPECT_THAT(t.tensors,
              ElementsAre(TraceTensor{0_s}, TraceTensor{0_s, 0_t, 0_op, 2},
                          TraceTensor{5_s, kNone, 1_op, 3},
                          TraceTensor{6_s, kNone, 2_op},
                          TraceTensor{7_s, kNone, 2_op, 3},
                          TraceTensor{8_s, kNone, 4_op}, TraceTensor{3_s}));
  EXPECT_THAT(
      t.saved,
      ElementsAre(SavedTensor{0_s, 1_t, false, 2, 1_call},
                  SavedTensor{3_s, kNone, false, 2, 1_call, 9, 11, 11},
                  SavedTensor{7_s, 4_t, false, 3, 0_call, 8, 9, 9},
                  SavedTensor{6_s, 3_t, true, 4, 2_call, 7, 8, 8},
                  SavedTensor{4_s, kNone, false, 5, kNone, 6, 7, 7, true}));
  EXPECT_THAT(t.sources,
              ElementsAre(SourceLine{"nets/small.py", 12, "forward"},
                          SourceLine{"nets/small.py", 13, "forward"}));
  EXPECT_EQ(t.operators[10_op].source, 0_source);
  EXPECT_EQ(SourceOf(t, 2_op), "nets/small.py:13");
  EXPECT_EQ(SourceOf(t, 3_op), "");
  EXPECT_EQ(SourceOf(t, kNone), "");
}

TEST(Trace, KeepsEachNameOnce) {
  const Trace t = ReadTrace(ACPLAN_SEED_TRACE);
  EXPECT_EQ(t.operators[9_op].name, t.operators[0_op].name);
  EXPECT_EQ(t.operator_names.size(), 13u);
  EXPECT_EQ(t.operator_names[t.operators[13_op].name], "aten.add_.Tensor");
}

TEST(Trace, NeedsNoModelDeviceMeasuredOrFlags) {
  json small = SmallTrace();
  for (const char* key : {"model", "device", "measured"}) small.erase(key);
  for (json& op : small["operators"])
    for (const char* key :
         {"view", "random", "mutates", "results", "recasts", "source"})
      op.erase(key);
  small.erase("sources");
  small["extra"] = {1, 2, 3};
  small["operators"][0]["extra"] = "x";
  const Trace t = ParseTrace(small.dump(), "t.json");
  EXPECT_EQ(t.model, ModelInfo());
  EXPECT_EQ(t.device, DeviceInfo());
  EXPECT_EQ(t.peak_bytes, std::nullopt);
  EXPECT_FALSE(t.operators[0_op].view);
  EXPECT_FALSE(t.operators[2_op].random);
  EXPECT_THAT(t.operators[3_op].mutates, IsEmpty());
  EXPECT_THAT(t.operators[0_op].results, IsEmpty());
  EXPECT_THAT(t.operators[1_op].recasts, IsEmpty());
  EXPECT_EQ(t.tensors[1_t].op, kNone);
  EXPECT_THAT(t.sources, IsEmpty());
  EXPECT_EQ(t.operators[1_op].source, kNone);
  EXPECT_THAT(ToJson(t), Not(HasSubstr("source")));
}

// Files of earlier versions list the storages that modules keep as attributes.
TEST(Trace, ReadsWhatIsKeptNoLonger) {
  const Trace trace = ReadTrace(ACPLAN_SEED_TRACE);
  for (const char* kept_json : {R"([{"storage": 6, "since": 3}])", "[]", "null",
                                R"([{"storage": 99}])"}) {
    json earlier = SmallTrace();
    earlier["kept"] = json::parse(kept_json);
    EXPECT_EQ(ParseTrace(earlier.dump(), "t.json"), trace) << kept_json;
  }
  EXPECT_THAT(ToJson(trace), Not(HasSubstr("\"kept\"")));
}

TEST(Trace, StoragesMayBeOfOtherStreams) {
  json small = SmallTrace();
  small["storages"][5]["stream"] = 3;
  const Trace t = ParseTrace(small.dump(), "t.json");
  EXPECT_EQ(t.storages[5_s].stream, 3);
  EXPECT_EQ(t.storages[6_s].stream, 0);
  EXPECT_EQ(ParseTrace(ToJson(t), "t.json"), t);
  EXPECT_THAT(ToJson(ReadTrace(ACPLAN_SEED_TRACE)), Not(HasSubstr("stream")));
}

TEST(Trace, StoragesMayBeOnTheHost) {
  json small = SmallTrace();
  small["storages"][5]["bytes"] = 0;
  small["storages"][5]["host_bytes"] = 12;
  const Trace t = ParseTrace(small.dump(), "t.json");
  EXPECT_EQ(t.storages[5_s].host_bytes, 12);
  EXPECT_EQ(t.storages[6_s].host_bytes, 0);
  EXPECT_EQ(ParseTrace(ToJson(t), "t.json"), t);
}

TEST(Trace, OperatorsMayRunOnOtherStreams) {
  json small = SmallTrace();
  small["operators"][1]["stream"] = 2;
  small["operators"][3]["waits"] = {0, 1};
  const Trace t = ParseTrace(small.dump(), "t.json");
  EXPECT_EQ(t.operators[1_op].stream, 2);
  EXPECT_EQ(t.operators[2_op].stream, 0);
  EXPECT_THAT(t.operators[3_op].waits, ElementsAre(0_op, 1_op));
  EXPECT_THAT(t.operators[2_op].waits, IsEmpty());
  EXPECT_EQ(ParseTrace(ToJson(t), "t.json"), t);
}

// A sparse tensor has storage 5 as a part, but the trace has no tensor of it.
TEST(Trace, MayHaveTimesOfTheHost) {
  json small = SmallTrace();
  EXPECT_THAT(ToJson(ReadTrace(ACPLAN_SEED_TRACE)), Not(HasSubstr("host")));
  small["host"] = json::parse(
      R"({"forward_us": {"operator": 7, "view": 1.5},
          "backward_us": {"operator": 6, "view": 1}, "update_us": 5,
          "call_us": 4, "unit_us": {"operator": 18, "view": 10},
          "quiet_unit_us": {"operator": 9, "view": 2}, "module_us": 20,
          "launch_us": 0.5})");
  const Trace t = ParseTrace(small.dump(), "t.json");
  EXPECT_EQ(t.host, (HostTimes{.forward = {7, 1.5},
                               .backward = {6, 1},
                               .update_us = 5,
                               .call_us = 4,
                               .unit = {18, 10},
                               .quiet_unit = {9, 2},
                               .module_us = 20,
                               .launch_us = .5}));
  EXPECT_EQ(ParseTrace(ToJson(t), "t.json"), t);
  const std::vector<std::pair<std::string, std::string>> edits = {
      {"/host/launch_us", "-1"},
      {"/host/call_us", "1e7"},
      {"/host/unit_us", "3"},
      {"/host/unit_us/view", "null"}};
  for (const auto& [pointer, value] : edits) {
    json edited = small;
    edited[json::json_pointer(pointer)] = json::parse(value);
    EXPECT_THAT(TraceErrorOf(edited.dump()), HasSubstr("t.json: host."))
        << pointer;
  }
  // Earlier traces don't know quiet units.
  small["host"].erase("quiet_unit_us");
  EXPECT_EQ(ParseTrace(small.dump(), "t.json").host->quiet_unit,
            (HostPair{18, 10}));
  small["host"].erase("update_us");
  EXPECT_THAT(TraceErrorOf(small.dump()), HasSubstr("update_us"));
}

TEST(Trace, OperatorsMayBeOpaque) {
  json small = SmallTrace();
  json& op = small["operators"][2];
  op["opaque"] = true;
  op["outputs"] = op["results"] = json::array();
  const Trace t = ParseTrace(small.dump(), "t.json");
  EXPECT_TRUE(t.operators[2_op].opaque);
  EXPECT_EQ(std::ranges::count_if(
                t.operators, [](const TraceOperator& o) { return o.opaque; }),
            1);
  EXPECT_EQ(ParseTrace(ToJson(t), "t.json"), t);
  op["opaque"] = false;
  EXPECT_FALSE(ParseTrace(small.dump(), "t.json").operators[2_op].opaque);
  EXPECT_THAT(ToJson(ReadTrace(ACPLAN_SEED_TRACE)), Not(HasSubstr("opaque")));
}

TEST(Trace, SourcesArePrintable) {
  json small = SmallTrace();
  small["sources"][0]["file"] = "a\x1b[31m\nb.py";
  const Trace t = ParseTrace(small.dump(), "t.json");
  EXPECT_EQ(SourceOf(t, 1_op), "a\\u001b[31m\\nb.py:12");
}

TEST(Trace, MayNotSayWhenBackwardRuns) {
  json null = SmallTrace();
  json absent = null;
  for (size_t c = 0; c < 3; ++c)
    for (const char* key : {"backward_start", "backward_end"}) {
      null["calls"][c][key] = nullptr;
      absent["calls"][c].erase(key);
    }
  const Trace t = ParseTrace(absent.dump(), "t.json");
  EXPECT_EQ(t, ParseTrace(null.dump(), "t.json"));
  EXPECT_EQ(t.calls[1_call].backward_start, kNever);
  EXPECT_EQ(t.calls[1_call].backward_end, kNever);
  EXPECT_THAT(ToJson(t), Not(HasSubstr("backward_start")));
}

TEST(Trace, MayHaveNoOperators) {
  const Trace t = ParseTrace(R"({"format": "acplan.trace", "version": 1,
      "forward_end": 0, "backward_end": 0, "operators": [],
      "modules": [{"fqn": "N", "class": "N", "parameters": [], "buffers": []}],
      "calls": [{"module": 0, "parent": -1, "start": 0, "end": 0,
                 "inputs": [], "arguments": [], "outputs": []}],
      "storages": [], "tensors": [], "saved": []})",
                             "t.json");
  EXPECT_EQ(t.calls.size(), 1u);
  EXPECT_EQ(ParseTrace(ToJson(t), "t.json"), t);
}

TEST(Trace, AcceptsLegalOddities) {
  const std::vector<Edit> edits = {
      {"/model/batch", "null"},
      {"/measured", "{}"},
      {"/measured/peak_bytes", "null"},
      {"/operators/0/view", "null"},
      {"/operators/1/source", "null"},
      {"/sources/0/function", "\"\""},
      {"/sources/1/file", "\"other.py\""},
      {"/operators/0/mutates", "[]"},
      {"/operators/2/creates", "[7,6]"},
      {"/operators/3/mutates", "[6,6]"},
      // Freed while an operator reads it, and while its own operator runs.
      {"/storages/4/freed", "6"},
      {"/storages/15/freed", "12"},
      {"/storages/15/freed", "14"},
      {"/storages/5/bytes", "9007199254740992"},
      {"/storages/5/bytes", "1e9"},
      {"/storages/5/scope_end", "1"},
      {"/storages/5/scope_end", "5"},
      {"/storages/15/scope_end", "null"},
      {"/storages/0/category", "\"gradient\""},
      {"/modules/2/parameters", "[0,0]"},
      {"/modules/2/fqn", "\"Net.fc.act\""},
      {"/calls/1/module", "0"},
      {"/calls/1/backward_start", "5"},
      {"/calls/0/backward_end", "7"},
      // The time of saving is the start of calls[2] and inside of calls[0].
      {"/saved/2/call", "2"},
      {"/saved/4/call", "-1"},
      {"/saved/0/released", "2"},
      {"/saved/3/released", "null"},
  };
  for (const Edit& edit : edits)
    EXPECT_EQ(TraceErrorOf(Changed(SmallTrace(), edit).dump()), "accepted")
        << edit.pointer << " = " << edit.value;
}

std::vector<BadRow> RowsOfMissingMembers() {
  std::vector<BadRow> rows;
  const auto add = [&](const std::string& pointer, const std::string& path,
                       const std::vector<std::string>& keys) {
    for (const std::string& key : keys)
      rows.push_back(
          {{pointer + "/" + key, ""}, path, "the key \"" + key + "\"", "none"});
  };
  add("", "",
      {"format", "version", "forward_end", "backward_end", "modules", "calls",
       "operators", "storages", "tensors", "saved"});
  add("/modules/1", "modules[1] (Net.fc)", {"class", "parameters", "buffers"});
  add("/modules/1", "modules[1]", {"fqn"});
  add("/calls/1", "calls[1]",
      {"module", "parent", "start", "end", "inputs", "arguments", "outputs"});
  add("/operators/1", "operators[1]",
      {"name", "call", "runtime_ms", "reads", "creates", "outputs"});
  add("/storages/5", "storages[5]",
      {"bytes", "category", "born", "scope_end", "freed"});
  add("/saved/0", "saved[0]",
      {"storage", "tensor", "packed", "call", "unpacked", "local_end",
       "released"});
  add("/tensors/1", "tensors[1]", {"storage", "base", "scope_end"});
  return rows;
}

std::vector<BadRow> RowsOfWrongTypes() {
  std::vector<BadRow> rows;
  const auto add = [&](const std::string& pointer, const std::string& path,
                       const std::vector<std::string>& keys,
                       const std::string& value, const std::string& expected,
                       const std::string& found_text) {
    for (const std::string& key : keys)
      rows.push_back({{pointer + "/" + key, value},
                      path + (path.empty() ? "" : ".") + key,
                      expected,
                      found_text});
  };
  const std::string whole = "a whole number from ";
  add("", "", {"modules", "calls", "operators", "storages", "tensors", "saved"},
      "{}", "an array", "an object with 0 keys");
  add("", "", {"forward_end", "backward_end"}, "1.5", whole, "1.5");
  add("", "", {"model", "device", "measured"}, "[]", "an object",
      "an array of 0 entries");
  add("/modules/1", "modules[1] (Net.fc)", {"class"}, "1", "a string", "1");
  add("/modules/1", "modules[1] (Net.fc)", {"parameters", "buffers"}, "3",
      "an array", "3");
  add("/calls/1", "calls[1]", {"module", "parent", "start", "end"}, "\"0\"",
      whole, "\"0\"");
  add("/calls/1", "calls[1]", {"inputs", "arguments", "outputs"}, "null",
      "an array", "null");
  add("/calls/1", "calls[1]", {"no_grad"}, "0", "true or false", "0");
  add("/operators/1", "operators[1]", {"reads", "creates", "outputs"}, "true",
      "an array", "true");
  add("/operators/1", "operators[1]",
      {"mutates", "results", "recasts", "waits"}, "1", "an array", "1");
  add("/operators/1", "operators[1]", {"name"}, "null", "a string", "null");
  add("/operators/1", "operators[1]", {"call"}, "null", whole, "null");
  add("/operators/1", "operators[1]", {"view", "random", "opaque"}, "1",
      "true or false", "1");
  add("/storages/5", "storages[5]", {"category"}, "0", "a string", "0");
  add("/storages/5", "storages[5]", {"born"}, "null", whole, "null");
  add("/storages/5", "storages[5]", {"stream"}, "-1", whole, "-1");
  add("/storages/5", "storages[5]", {"host_bytes"}, "4",
      "none for a storage with bytes on the device", "4");
  add("/operators/1", "operators[1]", {"stream"}, "-1", whole, "-1");
  add("/storages/5", "storages[5]", {"scope_end", "freed"}, "\"never\"",
      "a time from 1 to ", "\"never\"");
  add("/saved/1", "saved[1]",
      {"storage", "tensor", "packed", "call", "local_end"}, "null", whole,
      "null");
  add("/saved/1", "saved[1]", {"requires_grad", "unpacked_again"}, "0",
      "true or false", "0");
  add("/tensors/1", "tensors[1]", {"storage", "base"}, "null", whole, "null");
  add("/tensors/1", "tensors[1]", {"scope_end"}, "{}", "a time from 0 to 14",
      "an object with 0 keys");
  add("/saved/1", "saved[1]", {"unpacked", "released"}, "[]", " to 14, or null",
      "an array of 0 entries");
  return rows;
}

// Returns the rows of tests/data/wrong_trace_values.tsv: pointer, value, path,
// expected, found.
std::vector<BadRow> RowsOfWrongValues() {
  std::vector<BadRow> rows;
  std::ifstream file(ACPLAN_TEST_DATA_DIR "/wrong_trace_values.tsv");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream cells(line);
    BadRow row;
    for (std::string* cell : {&row.edit.pointer, &row.edit.value, &row.path,
                              &row.expected, &row.found}) {
      std::getline(cells, *cell, '\t');
    }
    rows.push_back(row);
  }
  return rows;
}

TEST(Trace, SaysWhatIsWrongWhere) {
  for (const std::vector<BadRow>& rows :
       {RowsOfMissingMembers(), RowsOfWrongTypes(), RowsOfWrongValues()}) {
    EXPECT_GE(rows.size(), 30u);
    for (const BadRow& row : rows) {
      EXPECT_THAT(TraceErrorOf(Changed(SmallTrace(), row.edit).dump()),
                  ComplainsOf("t.json", row))
          << row.edit.pointer << " = " << row.edit.value;
    }
  }
}

TEST(Trace, IndicesIntoNothingAreRefused) {
  json small = SmallTrace();
  small["storages"] = json::array();
  EXPECT_THAT(TraceErrorOf(small.dump()),
              StartsWith("t.json: modules[0] (Net).buffers[0]: expected no "
                         "entry, as there are no storages, found 2"));
}

TEST(Trace, RefusesWhatIsNoTrace) {
  for (const char* text : {"", "null", "[]", "3", "\"acplan.trace\"", "{}",
                           "[1,", "{\"format\":NaN}", "{\"version\":1e999}"})
    EXPECT_THAT(TraceErrorOf(text),
                AllOf(StartsWith("t.json: "), HasSubstr("expected "),
                      HasSubstr("found "), Not(HasSubstr("\n"))))
        << text;
}

TEST(Trace, RefusesSumsThatWouldOverflow) {
  Trace trace = ReadTrace(ACPLAN_SEED_TRACE);
  while (trace.storages.size() < 600) {
    trace.storages.push_back({.bytes = int64_t{1} << 53});
  }
  EXPECT_THAT(
      TraceErrorOf(ToJson(trace)),
      StartsWith("t.json: storages: expected at most 2^62 bytes in all"));
}

TEST(Trace, LastOfDuplicateKeysWins) {
  std::string text = SmallTrace().dump();
  text.insert(1, "\"version\":7,");
  EXPECT_EQ(TraceErrorOf(text), "accepted");
}

TEST(Trace, NamesTheFileItRead) {
  const TemporaryFolder folder;
  PutBytes(folder.path() / "bad.json", "{}");
  try {
    ReadTrace(folder.path() / "bad.json");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                StartsWith((folder.path() / "bad.json").string() + ": "));
  }
}

TEST(TraceToJson, WritesTheFileThatWasRead) {
  EXPECT_EQ(json::parse(ToJson(ReadTrace(ACPLAN_SEED_TRACE))), SmallTrace());
}

TEST(TraceToJson, RoundTripsThroughFiles) {
  const Trace trace = ReadTrace(ACPLAN_SEED_TRACE);
  const TemporaryFolder folder;
  for (const char* name : {"t.json", "t.json.gz"}) {
    WriteFile(folder.path() / name, ToJson(trace));
    EXPECT_EQ(ReadTrace(folder.path() / name), trace);
  }
}

TEST(TraceToJson, WritesOneEntryALine) {
  const std::string text = ToJson(ReadTrace(ACPLAN_SEED_TRACE));
  for (const char* start : {"\n{\"fqn\":\"Net.fc\",", "\n{\"module\":2,",
                            "\n{\"name\":\"aten.mm.default\",",
                            "\n{\"bytes\":1000,", "\n{\"storage\":7,"})
    EXPECT_THAT(text, HasSubstr(start));
}

TEST(TraceToJson, RoundTripsRandomTraces) {
  std::mt19937 random(1);
  for (int round = 0; round < Repetitions(500); ++round) {
    const Trace trace = RandomTrace(random, static_cast<int>(random() % 40));
    const std::string text = ToJson(trace);
    ASSERT_EQ(TraceErrorOf(text), "accepted") << text;
    ASSERT_EQ(ParseTrace(text, "t.json"), trace) << text;
  }
}

// Returns a random value of a kind that a trace may hold.
json RandomValue(std::mt19937& random) {
  switch (random() % 8) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return "gradient";
    case 3:
      return json::array({random() % 5, random() % 40});
    case 4:
      return json::object();
    default:
      return static_cast<int>(random() % 40) - 1;
  }
}

// Changes, removes or repeats one value anywhere in `document`.
json Mutated(json document, std::mt19937& random) {
  json* place = &document;
  while (place->is_structured() && !place->empty()) {
    json::iterator child = place->begin();
    std::advance(child, random() % place->size());
    if (random() % 8 == 0) {
      switch (random() % 3) {
        case 0:
          place->erase(child);
          break;
        case 1:
          if (place->is_array()) place->push_back(json(*child));
          break;
        default:
          *child = RandomValue(random);
      }
      return document;
    }
    place = &*child;
  }
  *place = RandomValue(random);
  return document;
}

TEST(Trace, RandomEditsAreReadOrRefused) {
  std::mt19937 random(2);
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < Repetitions(400); ++round) {
    const json original = json::parse(
        ToJson(RandomTrace(random, static_cast<int>(random() % 12))));
    for (int i = 0; i < 20; ++i) {
      const std::string text = Mutated(original, random).dump();
      const std::string message = TraceErrorOf(text);
      if (message == "accepted") {
        ++accepted;
        const Trace trace = ParseTrace(text, "t.json");
        ASSERT_EQ(ParseTrace(ToJson(trace), "t.json"), trace) << text;
      } else {
        ++refused;
        ASSERT_THAT(message,
                    AllOf(StartsWith("t.json: "), HasSubstr("expected "),
                          HasSubstr("found "), Not(HasSubstr("\n"))))
            << text;
      }
    }
  }
  EXPECT_GT(accepted, Enough(200));
  EXPECT_GT(refused, Enough(2000));
}

#ifdef __SANITIZE_ADDRESS__
constexpr int kManyOperators = 5'000;
#else
constexpr int kManyOperators = 100'000;
#endif

TEST(Trace, CopesWithManyOperators) {
  std::mt19937 random(3);
  const Trace trace = RandomTrace(random, kManyOperators);
  const std::string text = ToJson(trace);
  EXPECT_GT(text.size(), 150u * kManyOperators);

  EXPECT_EQ(ParseTrace(text, "t.json").operators.size(), kManyOperators);
}

}  // namespace
}  // namespace acplan::graph
