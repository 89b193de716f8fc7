#include "graph/profile/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "tests/graph/random_profile.h"
#include "tests/graph/test_files.h"
#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using nlohmann::json;
using test_support::Repetitions;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

json SmallProfile() { return json::parse(ReadFile(ACPLAN_SEED_PROFILE)); }

std::string ProfileErrorOf(const std::string& text) {
  try {
    ParseProfile(text, "p.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Profile, ReadsEveryField) {
  const Profile p = ReadProfile(ACPLAN_SEED_PROFILE);
  EXPECT_EQ(p.model.root_class, "Net");
  EXPECT_EQ(p.model.batch, 8);
  EXPECT_EQ(p.device.peak_flops, 19.5e12);
  EXPECT_EQ(p.measured.peak_bytes, 123456);
  EXPECT_EQ((*p.measured.opt_step_peak_categories)[kTotal], 28);
  EXPECT_EQ(p.order.fw_post.back(), "Net");
  ASSERT_EQ(p.modules.size(), 4u);
  const Module& root = p.modules[0];
  EXPECT_EQ(root.act_grad_per_module, -10);
  EXPECT_EQ(root.bw_runtime_per_module, 3.25);
  EXPECT_EQ(root.sac->inplace_ops, (std::vector<std::pair<int, int>>{{3, 0}}));
  EXPECT_EQ(root.torch_fit->slopes[1], std::nullopt);
  EXPECT_EQ(root.torch_fit->tradeoff_curve[1].second, 0.25);
  EXPECT_EQ((*root.snap->peak_bw)[kGrad], 5);
  EXPECT_EQ(p.modules[1].held_per_module, 32);
  EXPECT_EQ(p.modules[1].torch_fit, std::nullopt);
  EXPECT_EQ(p.modules[2].calls, 2);
  EXPECT_EQ(p.modules[2].snap->pre_bw, std::nullopt);
  EXPECT_TRUE(p.modules[3].no_backward);
  EXPECT_EQ(p.modules[3].sac, std::nullopt);
}

TEST(Profile, NeedsOnlyModulesAndOrders) {
  json small = SmallProfile();
  for (const char* key : {"model", "device", "measured"}) small.erase(key);
  for (json& module : small["modules"])
    for (const char* key : {"calls", "no_backward", "snap", "sac", "torch_fit",
                            "buffer_per_module", "held_per_module"})
      module.erase(key);
  small["extra"] = {1, 2, 3};
  const Profile p = ParseProfile(small.dump(), "p.json");
  EXPECT_EQ(p.model, ModelInfo());
  EXPECT_EQ(p.measured, Measured());
  EXPECT_EQ(p.modules[0].calls, 1);
  EXPECT_EQ(p.modules[0].buffer_per_module, 0);
}

TEST(Profile, AcceptsLegalOddities) {
  struct Row {
    const char* pointer;
    json value;
  };
  const std::vector<Row> rows = {
      {"/model/batch", nullptr},
      {"/measured", json::object()},
      {"/modules/0/act_total", 1e9},
      {"/modules/0/act_total", int64_t{1} << 53},
      {"/modules/0/snap", nullptr},
      {"/modules/0/snap/peak_fw", nullptr},
      {"/modules/0/sac", nullptr},
      {"/modules/2/sac", json::parse(R"({"func_names": [], "runtimes": [],
          "memory": [], "view_like_ops": [], "rand_ops": [],
          "saved_autograd_ops": [], "inplace_ops": [],
          "force_store_random": true})")},
      {"/modules/0/torch_fit",
       json::parse(R"({"sac_runtime": 0, "sac_memory": 0, "n_segments": 0,
                       "slopes": [], "intercepts": [], "breakpoints": []})")},
      {"/modules/0/torch_fit",
       json::parse(R"({"sac_runtime": 0, "sac_memory": 0, "n_segments": 0})")},
      {"/modules/0/sac/saved_autograd_ops", {0, 0}},
      {"/modules/0/sac/inplace_ops", json::array({json::array({3, 3})})},
      {"/order/bw_pre", json::array()},
  };
  for (const Row& row : rows) {
    json changed = SmallProfile();
    changed[json::json_pointer(row.pointer)] = row.value;
    EXPECT_EQ(ProfileErrorOf(changed.dump()), "accepted") << row.pointer;
  }
}

TEST(Profile, NeverCalledModulesMayBeInNoOrder) {
  json small = SmallProfile();
  json module = small["modules"][3];
  module["fqn"] = "Net.unused";
  module["calls"] = 0;
  small["modules"].push_back(module);
  EXPECT_EQ(ProfileErrorOf(small.dump()), "accepted");
}

struct BadProfileRow {
  std::string pointer;
  std::string value;  // JSON; "" removes the member
  std::string path;   // as named in the message
  std::string expected, found;
};

std::vector<BadProfileRow> BadProfileRows() {
  const std::string bytes = "a whole number of bytes, 0 to 2^53";
  const std::string number = "a number, 0 to 1e18";
  const std::string root = "modules[0] (Net)";
  const std::string block = "modules[1] (Net.block)";
  std::vector<BadProfileRow> rows = {
      {"/format", "", "", "the key \"format\"", "none"},
      {"/format", "1", "format", "a string", "1"},
      {"/format", "\"acplan.plan\"", "format", "\"acplan.profile\"",
       "\"acplan.plan\""},
      {"/version", "", "", "the key \"version\"", "none"},
      {"/version", "2", "version", "1", "2"},
      {"/version", "\"1\"", "version", "1", "\"1\""},
      {"/version", "1.5", "version", "1", "1.5"},
      {"/model", "[]", "model", "an object", "an array of 0 entries"},
      {"/model/name", "5", "model.name", "a string", "5"},
      {"/model/root_class", "[]", "model.root_class", "a string", "an array"},
      {"/model/batch", "-1", "model.batch", "a whole number from 0", "-1"},
      {"/model/seq", "1.5", "model.seq", "a whole number from 0", "1.5"},
      {"/model/dtype", "false", "model.dtype", "a string", "false"},
      {"/device", "\"A100\"", "device", "an object", "\"A100\""},
      {"/device/peak_flops", "-1", "device.peak_flops", number, "-1"},
      {"/device/peak_flops", "1e300", "device.peak_flops", number, "1e+300"},
      {"/device/bandwidth", "\"x\"", "device.bandwidth", number, "\"x\""},
      {"/device/time_errors", "{\"median\": -1}", "device.time_errors.median",
       number, "-1"},
      {"/measured", "3", "measured", "an object", "3"},
      {"/measured/peak_bytes", "-5", "measured.peak_bytes", bytes, "-5"},
      {"/measured/param_bytes", "0.5", "measured.param_bytes", bytes, "0.5"},
      {"/measured/opt_step_peak_categories/temp", "",
       "measured.opt_step_peak_categories", "the key \"temp\"", "none"},
      {"/measured/opt_step_peak_categories/act", "-1",
       "measured.opt_step_peak_categories.act", bytes, "-1"},
      {"/measured/opt_step_peak_categories", "[1]",
       "measured.opt_step_peak_categories", "an object", "an array of 1 entry"},
      {"/order", "", "", "the key \"order\"", "none"},
      {"/order", "null", "order", "an object", "null"},
      {"/order/fw_pre", "", "order", "the key \"fw_pre\"",
       "none (but \"bw_pre\")"},
      {"/order/bw_post", "7", "order.bw_post", "an array", "7"},
      {"/order/fw_pre/1", "7", "order.fw_pre[1]", "a string", "7"},
      {"/order/fw_pre/1", "\"Net.blok\"", "order.fw_pre[1]",
       "the name of a module", "\"Net.blok\"; did you mean \"Net.block\""},
      {"/order/fw_pre/1", "\"block\"", "order.fw_pre[1]",
       "the name of a module", "\"block\"; did you mean \"Net.block\""},
      {"/order/bw_pre/0", "\"zzzzzzzz\"", "order.bw_pre[0]",
       "the name of a module", "\"zzzzzzzz\""},
      {"/order/fw_post/1", "\"Net.block.fc\"", "order.fw_post[1]",
       "a module that is not listed before", "\"Net.block.fc\""},
      {"/order/fw_pre", R"(["Net","Net.block","Net.block.fc"])", "order.fw_pre",
       "every module with calls above 0", "no \"Net.block.act\" (modules[3])"},
      {"/order/fw_post", "[]", "order.fw_post",
       "every module with calls above 0", "no \"Net\" (modules[0])"},
      {"/modules", "", "", "the key \"modules\"", "none"},
      {"/modules", "[]", "modules", "at least one module",
       "an array of 0 entries"},
      {"/modules", "{}", "modules", "an array", "an object with 0 keys"},
      {"/modules/2", "7", "modules[2]", "an object", "7"},
      {"/modules/2/fqn", "", "modules[2]", "the key \"fqn\"", "none"},
      {"/modules/2/fqn", "\"\"", "modules[2] ().fqn",
       "without empty components", "\"\""},
      {"/modules/2/fqn", "\"a..b\"", "modules[2] (a..b).fqn",
       "without empty components", "\"a..b\""},
      {"/modules/2/fqn", "\".a\"", "modules[2] (.a).fqn",
       "without empty components", "\".a\""},
      {"/modules/2/fqn", "\"a.\"", "modules[2] (a.).fqn",
       "without empty components", "\"a.\""},
      {"/modules/2/fqn", "\"Net\"", "modules[2] (Net).fqn", "a name of its own",
       "\"Net\", which is that of modules[0] too"},
      {"/modules/2/fqn", "[1]", "modules[2].fqn", "a string",
       "an array of 1 entry"},
      {"/modules/1/is_leaf", "", block, "the key \"is_leaf\"", "none"},
      {"/modules/1/is_leaf", "0", block + ".is_leaf", "true or false", "0"},
      {"/modules/1/act_grad_per_module", "0.5", block + ".act_grad_per_module",
       "-2^53 to 2^53", "0.5"},
      {"/modules/1/act_grad_per_module", "-9007199254740993",
       block + ".act_grad_per_module", "-2^53 to 2^53", "-9007199254740993"},
      {"/modules/1/calls", "-1", block + ".calls", "a whole number from 0",
       "-1"},
      {"/modules/1/calls", "true", block + ".calls", "a whole number from 0",
       "true"},
      {"/modules/1/no_backward", "\"no\"", block + ".no_backward",
       "true or false", "\"no\""},
      {"/modules/0/snap", "[]", root + ".snap", "an object",
       "an array of 0 entries"},
      {"/modules/0/snap/pre_fw", "[1,2]", root + ".snap.pre_fw",
       "8 entries (param,", "an array of 2 entries"},
      {"/modules/0/snap/post_bw", "[0,0,0,0,0,0,0,0,0]", root + ".snap.post_bw",
       "8 entries (param,", "an array of 9 entries"},
      {"/modules/0/snap/peak_bw/3", "-1", root + ".snap.peak_bw[3]", bytes,
       "-1"},
      {"/modules/0/snap/peak_fw/7", "null", root + ".snap.peak_fw[7]", bytes,
       "null"},
      {"/modules/0/sac", "5", root + ".sac", "an object", "5"},
      {"/modules/0/sac/memory", "[1,2,3]", root + ".sac.memory",
       "4 entries, one for each of func_names", "3"},
      {"/modules/0/sac/runtimes", "[0,0,0,0,0]", root + ".sac.runtimes",
       "4 entries, one for each of func_names", "5"},
      {"/modules/0/sac/func_names", "[]", root + ".sac.runtimes", "0 entries",
       "4"},
      {"/modules/0/sac/func_names/0", "0", root + ".sac.func_names[0]",
       "a string", "0"},
      {"/modules/0/sac/memory/2", "-512", root + ".sac.memory[2]", bytes,
       "-512"},
      {"/modules/0/sac/memory/2", "9007199254740992", root + ".sac.memory",
       "at most 2^53 bytes in all", "more"},
      {"/modules/0/sac/runtimes/1", "-0.5", root + ".sac.runtimes[1]", number,
       "-0.5"},
      {"/modules/0/sac/runtimes/1", "null", root + ".sac.runtimes[1]", number,
       "null"},
      {"/modules/0/sac/view_like_ops/0", "4", root + ".sac.view_like_ops[0]",
       "a whole number from 0 to 3", "4"},
      {"/modules/0/sac/view_like_ops/0", "-1", root + ".sac.view_like_ops[0]",
       "a whole number from 0 to 3", "-1"},
      {"/modules/0/sac/view_like_ops", "[1,1]", root + ".sac.view_like_ops[1]",
       "an operator that is not listed before", "1"},
      {"/modules/0/sac/rand_ops", "[1,3,1]", root + ".sac.rand_ops[2]",
       "an operator that is not listed before", "1"},
      {"/modules/0/sac/rand_ops", "null", root + ".sac.rand_ops", "an array",
       "null"},
      {"/modules/0/sac/saved_autograd_ops/1", "99999999999",
       root + ".sac.saved_autograd_ops[1]", "a whole number from 0 to 3",
       "99999999999"},
      {"/modules/0/sac/inplace_ops/0", "[3]", root + ".sac.inplace_ops[0]",
       "a pair [operator, parent]", "an array of 1 entry"},
      {"/modules/0/sac/inplace_ops/0", "3", root + ".sac.inplace_ops[0]",
       "an array", "3"},
      {"/modules/0/sac/inplace_ops/0/1", "4", root + ".sac.inplace_ops[0][1]",
       "a whole number from 0 to 3", "4"},
      {"/modules/0/sac/inplace_ops", "", root + ".sac",
       "the key \"inplace_ops\"", "none"},
      {"/modules/0/sac/force_store_random", "1",
       root + ".sac.force_store_random", "true or false", "1"},
      {"/modules/0/torch_fit", "\"none\"", root + ".torch_fit", "an object",
       "\"none\""},
      {"/modules/0/torch_fit/sac_memory", "-1", root + ".torch_fit.sac_memory",
       bytes, "-1"},
      {"/modules/0/torch_fit/sac_runtime", "", root + ".torch_fit",
       "the key \"sac_runtime\"", "none"},
      {"/modules/0/torch_fit/n_segments", "-1", root + ".torch_fit.n_segments",
       "a whole number from 0", "-1"},
      {"/modules/0/torch_fit/n_segments", "1", root + ".torch_fit.slopes",
       "1 entries, one a segment", "2"},
      {"/modules/0/torch_fit/intercepts", "[0]", root + ".torch_fit.intercepts",
       "2 entries, one a segment", "1"},
      {"/modules/0/torch_fit/breakpoints", "[0,1]",
       root + ".torch_fit.breakpoints", "3 entries, one more than segments",
       "2"},
      {"/modules/0/torch_fit/slopes", "", root + ".torch_fit",
       "the key \"slopes\"", "none"},
      {"/modules/0/torch_fit/slopes/0", "\"nan\"",
       root + ".torch_fit.slopes[0]", "a number, -1e18 to 1e18", "\"nan\""},
      {"/modules/0/torch_fit/tradeoff_curve/1", "[1]",
       root + ".torch_fit.tradeoff_curve[1]", "a pair [discarded, recomputed]",
       "an array of 1 entry"},
      {"/modules/0/torch_fit/tradeoff_curve/1/0", "null",
       root + ".torch_fit.tradeoff_curve[1][0]", "a number, -1e18 to 1e18",
       "null"},
  };
  for (const char* key : {"param_per_module", "grad_per_module", "grad_total",
                          "act_fw_per_module", "act_bw_per_module", "act_total",
                          "input_per_module", "output_per_module"}) {
    const std::string pointer = std::string("/modules/1/") + key;
    const std::string path = block + "." + key;
    rows.push_back(
        {pointer, "", block, "the key \"" + std::string(key) + "\"", "none"});
    rows.push_back({pointer, "-1", path, bytes, "-1"});
    rows.push_back(
        {pointer, "9007199254740993", path, bytes, "9007199254740993"});
    rows.push_back({pointer, "\"12\"", path, bytes, "\"12\""});
  }
  for (const char* key : {"buffer_per_module", "held_per_module"})
    rows.push_back({std::string("/modules/1/") + key, "-1", block + "." + key,
                    bytes, "-1"});
  for (const char* key : {"fw_runtime_per_module", "bw_runtime_per_module"}) {
    const std::string pointer = std::string("/modules/1/") + key;
    rows.push_back(
        {pointer, "", block, "the key \"" + std::string(key) + "\"", "none"});
    rows.push_back({pointer, "-0.001", block + "." + key, number, "-0.001"});
    rows.push_back({pointer, "1e19", block + "." + key, number, "1e+19"});
  }
  return rows;
}

json Changed(const BadProfileRow& row) {
  json changed = SmallProfile();
  const json::json_pointer pointer(row.pointer);
  if (!row.value.empty())
    changed[pointer] = json::parse(row.value);
  else
    changed[pointer.parent_pointer()].erase(pointer.back());
  return changed;
}

TEST(Profile, SaysWhatIsWrongWhere) {
  const std::vector<BadProfileRow> rows = BadProfileRows();
  EXPECT_GE(rows.size(), 60u);
  for (const BadProfileRow& row : rows) {
    const std::string message = ProfileErrorOf(Changed(row).dump());
    const std::string place =
        row.path.empty() ? "p.json: " : "p.json: " + row.path + ": ";
    EXPECT_THAT(message,
                AllOf(StartsWith(place + "expected "), HasSubstr(row.expected),
                      HasSubstr("found " + row.found), Not(HasSubstr("\n"))))
        << row.pointer << " = " << row.value;
  }
}

TEST(Profile, RefusesWhatIsNoProfile) {
  for (const char* text : {"", "null", "[]", "3", "\"acplan.profile\"", "{}",
                           "[1,", "{\"format\":NaN}", "{\"version\":1e999}"})
    EXPECT_THAT(ProfileErrorOf(text),
                AllOf(StartsWith("p.json: "), HasSubstr("expected "),
                      HasSubstr("found "), Not(HasSubstr("\n"))))
        << text;
}

TEST(Profile, RefusesSumsThatWouldOverflow) {
  Profile profile;
  for (int i = 0; i < 600; ++i) {
    Module module = PlainModule("m" + std::to_string(i));
    module.calls = 0;
    module.act_fw_per_module = int64_t{1} << 53;
    profile.modules.push_back(module);
  }
  EXPECT_THAT(
      ProfileErrorOf(ProfileToJson(profile)),
      StartsWith("p.json: modules: expected at most 2^62 bytes in all"));
}

TEST(Profile, LastOfDuplicateKeysWins) {
  std::string text = SmallProfile().dump();
  text.insert(1, "\"version\":7,");
  EXPECT_EQ(ProfileErrorOf(text), "accepted");
}

TEST(Profile, NamesTheFileItRead) {
  const TemporaryFolder folder;
  PutBytes(folder.path() / "bad.json", "{}");
  try {
    ReadProfile(folder.path() / "bad.json");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                StartsWith((folder.path() / "bad.json").string() + ": "));
  }
}

json SmallModuleInfo() {
  return json::parse(ReadFile(ACPLAN_SEED_MODULE_INFO));
}

TEST(ModuleInfo, IsAProfileWithFitsAndWithoutOperators) {
  Profile expected = ReadProfile(ACPLAN_SEED_PROFILE);
  const Profile p = ReadProfile(ACPLAN_SEED_MODULE_INFO);
  EXPECT_EQ(p.model.name, "Net");
  EXPECT_EQ(p.model.root_class, "Net");
  EXPECT_EQ(p.order, expected.order);
  EXPECT_EQ(p.modules[1].torch_fit->n_segments, 1);
  expected.modules[1].torch_fit = p.modules[1].torch_fit;
  for (Module& m : expected.modules) {
    m.sac.reset();
    m.snap.reset();
    m.calls = 1;
    m.no_backward = false;
    m.buffer_per_module = m.held_per_module = 0;
  }
  EXPECT_EQ(p.modules, expected.modules);
  EXPECT_EQ(ParseProfile(ProfileToJson(p), "p.json"), p);
}

TEST(ModuleInfo, OrdersTheCurveByNumber) {
  json info = SmallModuleInfo();
  info["mod_stats"][0]["tradeoff_curve"] = {
      {"1.01", 1}, {"0.5", 0.25}, {"1e-2", 0}, {"-0.5", 0.125}};
  const Profile p = ParseProfile(info.dump(), "p.json");
  EXPECT_EQ(p.modules[0].torch_fit->tradeoff_curve,
            (std::vector<std::pair<double, double>>{
                {-0.5, 0.125}, {0.01, 0}, {0.5, 0.25}, {1.01, 1}}));
}

TEST(ModuleInfo, MayNameItsModel) {
  json info = SmallModuleInfo();
  info["model"] = {{"name", "small"}, {"batch", 8}};
  info["format"] = nullptr;
  const Profile p = ParseProfile(info.dump(), "p.json");
  EXPECT_EQ(p.model.name, "small");
  EXPECT_EQ(p.model.root_class, "");
}

TEST(ModuleInfo, SaysWhatIsWrongWhere) {
  struct Row {
    const char* pointer;
    json value;  // null removes the member
    const char* message;
  };
  const std::vector<Row> rows = {
      {"/mod_order", nullptr, "expected the key \"format\", found none"},
      {"/mod_stats", nullptr, "expected the key \"format\", found none"},
      {"/format", "acplan.plan", "format: expected \"acplan.profile\""},
      {"/mod_stats", json::array(), "mod_stats: expected at least one module"},
      {"/mod_order", 3, "mod_order: expected an object, found 3"},
      {"/mod_order/fw_pre_order", nullptr,
       "mod_order: expected the key \"fw_pre_order\", found none"},
      {"/mod_order/fw_pre_order/1", "Net.blok",
       "mod_order.fw_pre_order[1]: expected the name of a module, found "
       "\"Net.blok\"; did you mean \"Net.block\""},
      {"/mod_order/fw_post_order/1", "Net.block.fc",
       "mod_order.fw_post_order[1]: expected a module that is not listed"},
      {"/mod_order/fw_post_order", json::array(),
       "mod_order.fw_post_order: expected every module with calls above 0, "
       "found no \"Net\" (mod_stats[0])"},
      {"/mod_stats/2/fqn", "Net",
       "mod_stats[2] (Net).fqn: expected a name of its own, found \"Net\", "
       "which is that of mod_stats[0] too"},
      {"/mod_stats/0/act_total", -1,
       "mod_stats[0] (Net).act_total: expected a whole number of bytes"},
      {"/mod_stats/0/sac_memory", nullptr,
       "mod_stats[0] (Net): expected the key \"sac_memory\", found none"},
      {"/mod_stats/0/slopes",
       {1},
       "mod_stats[0] (Net).slopes: expected 2 entries, one a segment"},
      {"/mod_stats/0/tradeoff_curve/x", 0,
       "mod_stats[0] (Net).tradeoff_curve: expected keys that are numbers, "
       "-1e18 to 1e18, found \"x\""},
      {"/mod_stats/0/tradeoff_curve/nan", 0, "expected keys that are numbers"},
      {"/mod_stats/0/tradeoff_curve/1e19", 0, "expected keys that are numbers"},
      {"/mod_stats/0/tradeoff_curve/", 0, "expected keys that are numbers"},
      {"/mod_stats/0/tradeoff_curve/0.5", "x",
       "mod_stats[0] (Net).tradeoff_curve[\"0.5\"]: expected a number"},
  };
  for (const Row& row : rows) {
    json changed = SmallModuleInfo();
    const json::json_pointer pointer(row.pointer);
    if (row.value.is_null())
      changed[pointer.parent_pointer()].erase(pointer.back());
    else
      changed[pointer] = row.value;
    EXPECT_THAT(ProfileErrorOf(changed.dump()),
                AllOf(StartsWith("p.json: "), HasSubstr(row.message),
                      Not(HasSubstr("\n"))))
        << row.pointer;
  }
}

class RealProfile : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(RealProfile, RoundTrips) {
  const Profile profile = ReadProfile(GetParam());
  const std::string text = ProfileToJson(profile);
  const TemporaryFolder folder;
  for (const char* name : {"p.json", "p.json.gz"}) {
    WriteFile(folder.path() / name, text);
    EXPECT_EQ(ReadProfile(folder.path() / name), profile);
  }
  EXPECT_EQ(ProfileToJson(ParseProfile(text, "p.json")), text);
}

// A second reader of the profile: every field of the file is kept.
TEST_P(RealProfile, KeepsTheFieldsOfTheFile) {
  const json original = json::parse(ReadFile(GetParam()));
  const json document = json::parse(ProfileToJson(ReadProfile(GetParam())));
  EXPECT_EQ(document["order"], original["order"]);
  EXPECT_EQ(document["device"], original["device"]);
  ASSERT_EQ(document["modules"].size(), original["modules"].size());
  for (size_t i = 0; i < original["modules"].size(); ++i) {
    for (const auto& [key, value] : original["modules"][i].items()) {
      if (key == "torch_greedy") continue;
      EXPECT_EQ(document["modules"][i][key], value) << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RealProfile, ::testing::ValuesIn(RealProfiles()),
                         [](const auto& row) {
                           const std::string name =
                               row.param.filename().string();
                           return name.substr(0, name.find('.'));
                         });

TEST(ProfileToJson, RoundTripsRandomProfiles) {
  std::mt19937 random(1);
  for (int round = 0; round < Repetitions(300); ++round) {
    const Profile profile =
        RandomProfile(random, 1 + static_cast<int>(random() % 20),
                      1 + static_cast<int>(random() % 10));
    const std::string text = ProfileToJson(profile);
    ASSERT_EQ(ParseProfile(text, "p.json"), profile) << text;
  }
}

TEST(ProfileToJson, WritesOneModuleALine) {
  const Profile profile = ReadProfile(ACPLAN_SEED_PROFILE);
  const std::string text = ProfileToJson(profile);
  for (const Module& module : profile.modules)
    EXPECT_THAT(text, HasSubstr("\n{\"fqn\":\"" + module.fqn + "\""));
}

#ifdef __SANITIZE_ADDRESS__
constexpr int kManyModules = 5'000;
#else
constexpr int kManyModules = 100'000;
#endif

TEST(Profile, CopesWithManyModules) {
  std::vector<std::string> names = {"m"};
  for (int i = 1; i < kManyModules; ++i)
    names.push_back("m.layers." + std::to_string(i / 20) + ".part" +
                    std::to_string(i));
  Profile profile = PlainProfile(names);
  SacStatistics sac;
  for (int i = 0; i < 10; ++i) {
    sac.func_names.push_back("scaled_dot_product");
    sac.runtimes.push_back(0.123456789 * i);
    sac.memory.push_back(int64_t{123456789} * i);
  }
  for (Module& module : profile.modules) module.sac = sac;
  const std::string text = ProfileToJson(profile);
  EXPECT_GT(text.size(), 800u * kManyModules);

  const Profile read = ParseProfile(text, "p.json");
  EXPECT_EQ(ModuleTree(read).size(), kManyModules);
}

}  // namespace
}  // namespace acplan::graph
