#include <fmt/format.h>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;

using Fragments = std::vector<std::string>;

// A folder with profile.json, plan.json (its plan for 2 GiB) and nothing else.
class WrongInputTest : public CliTest {
 protected:
  WrongInputTest() {
    PutFile("profile.json", SmallProfile().dump());
    static const std::string plan =
        AcplanOut({"plan", "profile.json", "--budget", "2GiB", "--tradeoff",
                   "profile", "--json"});
    PutFile("plan.json", plan);
  }

  json SoundPlan() const { return json::parse(Read("plan.json")); }

  void ExpectPlanRefused(std::vector<std::string> arguments,
                         const Fragments& fragments) const {
    arguments.insert(arguments.begin(), "plan");
    arguments.insert(arguments.end(), {"-o", "out.json"});
    ExpectRefused(Acplan(arguments), fragments);
    EXPECT_FALSE(Exists("out.json"));
  }
};

struct WrongFile {
  std::string name, bytes;
  Fragments said;
};

TEST_F(WrongInputTest, FilesThatAreNoProfiles) {
  const std::string sound = SmallProfile().dump();
  graph::WriteFile(folder() / "sound.json.gz", sound);
  const std::string packed = Read("sound.json.gz");
  std::string corrupt = packed;
  corrupt[packed.size() / 2] ^= 0x55;
  const std::vector<WrongFile> files{
      {"empty.json", "", {"expected a file with content, found it empty"}},
      {"empty.json.gz", "", {"found it empty"}},
      {"blank.json", " \n", {"expected", "found the end of the text"}},
      {"cut.json", sound.substr(0, sound.size() / 2), {"line 1", "expected"}},
      {"text.json", "hello", {"line 1, column 1: expected", "found"}},
      {"list.json", "[]", {"expected an object, found an array of 0 entries"}},
      {"two.json", "{}\n{}", {"line 2, column 1", "expected"}},
      {"deep.json", std::string(100'000, '['), {"nested at most"}},
      {"binary.json",
       std::string("\0\xff\xfe\x80", 4),
       {"line 1, column 1: expected JSON, found a zero byte"}},
      {"plain.json.gz", sound, {"expected gzip data, found something else"}},
      {"cut.json.gz",
       packed.substr(0, packed.size() / 2),
       {"expected whole gzip data, found its end missing"}},
      {"more.json.gz", packed + "more", {"found more bytes"}},
      {"corrupt.json.gz", corrupt, {"expected"}}};
  for (const WrongFile& file : files) {
    SCOPED_TRACE(file.name);
    PutFile(file.name, file.bytes);
    Fragments said = file.said;
    said.push_back("acplan: " + file.name + ": ");
    ExpectPlanRefused({file.name, "--budget", "2GiB"}, said);
    ExpectRefused(Acplan({"show", "--modules", file.name}), said);
    ExpectRefused(
        Acplan({"check", "profile.json", file.name, "--budget", "2GiB"}), said);
  }
}

// Each of these never ends.
TEST_F(WrongInputTest, FilesWithoutAnEnd) {
  const std::string zero = "/dev/zero";
  ExpectPlanRefused({zero, "--budget", "2GiB"},
                    {"acplan: /dev/zero: line 1, column 1: expected JSON"});
  ExpectPlanRefused(
      {"profile.json", "--budget", "2GiB", "--ac-units", "@" + zero},
      {"--ac-units: /dev/zero: expected at most 67108864 bytes"});
  ExpectRefused(Acplan({"check", "profile.json", zero, "--budget", "2GiB"}),
                {"acplan: /dev/zero: line 1, column 1: expected JSON"});
  ExpectRefused(Acplan({"simulate", "--events", zero}),
                {"/dev/zero: expected lines of at most 67108864 bytes"});
  ExpectRefused(Acplan({"train", "score", zero}),
                {"/dev/zero: expected at most 67108864 bytes, found more"});
}

struct WrongDocument {
  std::vector<Edit> edits;
  Fragments said;
};

std::string DeepName(int components) {
  std::string name = "a";
  for (int i = 1; i < components; ++i) name += ".a";
  return name;
}

// One row for each of a few kinds of complaint; tests/graph/profile_test.cc has
// the rest.
TEST_F(WrongInputTest, Profiles) {
  const std::vector<WrongDocument> documents{
      {{{"/format", "\"acplan.plan\""}},
       {"format: expected \"acplan.profile\", found \"acplan.plan\""}},
      {{{"/modules", {}}}, {"expected the key \"modules\", found none"}},
      {{{"/modules/4/fqn", "\"a\\u001b[31m\""}},
       {"without control or invisible characters", "found \"a"}},
      {{{"/modules/4/fqn", "\"" + DeepName(1001) + "\""}},
       {"expected a name of at most 1000 components"}},
      {{{"/modules/4/act_total", "-1"}},
       {"modules[4] (Transformer.layers.0).act_total: expected a whole number "
        "of bytes, 0 to 2^53, found -1"}},
      {{{"/modules/4/act_total", "NaN"}}, {"line 1, column", "expected"}},
      {{{"/modules/4/act_total", "1e999"}},
       {"expected a number that a double can hold, found 1e999"}},
      {{{"/order/bw_post/1", "\"Transformer\""},
        {"/order/bw_post/2", "\"Transformer\""}},
       {"order.bw_post[",
        "expected a module that is not listed before, found "
        "\"Transformer\""}}};
  for (const WrongDocument& document : documents) {
    SCOPED_TRACE(document.said[0]);
    PutFile("profile.json", Edited(SmallProfile(), document.edits));
    Fragments said = document.said;
    said.emplace_back("acplan: profile.json: ");
    ExpectPlanRefused({"profile.json", "--budget", "2GiB"}, said);
  }
}

TEST_F(WrongInputTest, Plans) {
  const std::string unit = "modules[0] (Transformer.layers.0)";
  const std::vector<WrongDocument> documents{
      {{{"/format", "\"acplan.profile\""}},
       {"format: expected \"acplan.plan\", found \"acplan.profile\""}},
      {{{"/format", {}}}, {"expected the key \"format\", found none"}},
      {{{"/version", "3"}}, {"version: expected 1, found 3"}},
      {{{"/version", {}}}, {"expected the key \"version\", found none"}},
      {{{"/model", {}}}, {"expected the key \"model\", found none"}},
      {{{"/memory_model", {}}}, {"expected the key \"memory_model\""}},
      {{{"/memory_model", "\"traced\""}},
       {"memory_model: expected \"torch\", \"snapshot\" or \"trace\", found "
        "\"traced\""}},
      {{{"/world_size", "0"}},
       {"world_size: expected a whole number of at least 1, found 0"}},
      {{{"/status", "\"fine\""}},
       {"status: expected \"optimal\", \"feasible\"", "found \"fine\""}},
      {{{"/limit", "\"patience\""}},
       {"limit: expected \"time\" or \"gap\"", "found \"patience\""}},
      {{{"/status", "\"infeasible\""}},
       {"status: expected a plan (optimal or feasible), found "
        "\"infeasible\""}},
      {{{"/status", "\"no_plan\""}}, {"expected a plan", "found \"no_plan\""}},
      {{{"/peak_bytes", "-1"}}, {"peak_bytes: expected a whole number"}},
      {{{"/recompute_ms", "\"1 ms\""}},
       {"recompute_ms: expected a number", "found \"1 ms\""}},
      {{{"/baseline/peak_bytes", {}}},
       {"baseline: expected the key \"peak_bytes\""}},
      {{{"/modules", {}}}, {"expected the key \"modules\", found none"}},
      {{{"/modules/0/fqn", {}}}, {"modules[0]: expected the key \"fqn\""}},
      {{{"/modules/0/fqn", "\"Transformer.layers.9\""}},
       {"the profile has no module 'Transformer.layers.9'", "another model"}},
      {{{"/modules/1/fqn", "\"Transformer.layers.0\""}},
       {"modules[1] (Transformer.layers.0).fqn: ", "listed twice"}},
      {{{"/modules/0/discard_ratio", {}}},
       {unit + ": expected the key \"discard_ratio\""}},
      {{{"/modules/0/discard_ratio", "1.5"}},
       {unit + ".discard_ratio: expected a number from 0 to 1, found 1.5"}},
      {{{"/modules/0/discard_ratio", "-0.1"}},
       {unit + ".discard_ratio: expected a number from 0 to 1, found -0.1"}},
      {{{"/modules/0/discard_ratio", "NaN"}}, {"line 1, column"}},
      {{{"/modules/0/memory_budget", "2"}},
       {unit + ".memory_budget: expected a number from 0 to 1, found 2"}},
      {{{"/modules/0/ops",
         R"([{"index": 0, "name": "x", "decision": "keep"}])"}},
       {unit + ".ops[0].decision: expected \"save\", \"recompute\", "
               "\"skip\" or \"offload\", found \"keep\""}},
      {{{"/modules/0/ops",
         R"([{"index": 0, "name": "x", "decision": "skip", "results": [0]}])"}},
       {unit + ".ops[0].results: needs an operator that is saved or "
               "offloaded, found one to skip"}},
      {{{"/modules/0/ops",
         R"([{"index": 0, "name": "x", "decision": "save", "results": 1}])"}},
       {unit + ".ops[0].results: expected "}},
      {{{"/modules/0/ops",
         R"([{"index": 0, "name": "x", "decision": "save", "results": [-1]}])"}},
       {unit + ".ops[0].results[0]: expected a whole number"}},
      {{{"/modules/0/ops",
         R"([{"index": 0, "name": "x", "decision": "save", "results": [1, 1]}])"}},
       {unit + ".ops[0].results[1]: expected an index above 1, found 1"}},
      {{{"/modules/0/ops",
         R"([{"index": 0, "name": "x", "decision": "save"}])"}},
       {"Transformer.layers.0: 1 operators in the plan, ", "in the profile"}},
      {{{"/modules/0/ops", R"([{"index": 0, "decision": "save"}])"}},
       {unit + ".ops[0]: expected the key \"name\", found none"}},
  };
  const json sound = SoundPlan();
  for (const WrongDocument& document : documents) {
    SCOPED_TRACE(document.said[0]);
    PutFile("plan.json", Edited(sound, document.edits));
    Fragments said = document.said;
    said.emplace_back("acplan: plan.json: ");
    ExpectRefused(
        Acplan({"check", "profile.json", "plan.json", "--budget", "2GiB"}),
        said);
    ExpectRefused(Acplan({"show", "profile.json", "plan.json"}), said);
  }
}

TEST_F(WrongInputTest, AnInfeasiblePlanFile) {
  EXPECT_EQ(Acplan({"plan", "profile.json", "--budget", "1MiB", "-o",
                    "infeasible.json"})
                .exit_code,
            3);
  const Fragments said{
      "infeasible.json: status: expected a plan (optimal or feasible), found "
      "\"infeasible\""};
  ExpectRefused(
      Acplan({"check", "profile.json", "infeasible.json", "--budget", "2GiB"}),
      said);
  ExpectRefused(Acplan({"show", "profile.json", "infeasible.json"}), said);
}

TEST_F(WrongInputTest, APlanForAnotherModel) {
  const Fragments said{
      "plan.json: model: expected \"gpt2_small\" (the model of the profile), "
      "found \"transformer4\": a plan for another model"};
  const std::string gpt2 = ProfilePath("gpt2_small");
  ExpectRefused(Acplan({"check", gpt2, "plan.json", "--budget", "20GiB"}),
                said);
  ExpectRefused(Acplan({"show", gpt2, "plan.json"}), said);
}

TEST_F(WrongInputTest, ProfileAndPlanMixedUp) {
  ExpectRefused(
      Acplan({"check", "plan.json", "profile.json", "--budget", "2GiB"}),
      {"plan.json: format: expected \"acplan.profile\", found "
       "\"acplan.plan\""});
}

struct WrongArguments {
  std::vector<std::string> arguments;  // after "plan"
  Fragments said;
};

TEST_F(WrongInputTest, FlagsOfPlan) {
  const auto extended = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"profile.json", "--budget", "2GiB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const auto budget = [](const std::string& size) {
    return std::vector<std::string>{"profile.json", "--budget", size};
  };
  std::filesystem::create_directory(folder() / "folder");
  PutFile("names.txt", "Transformer.layers.0\nTransformer.blocks.1\n");
  const std::string size = "--budget: expected a size such as 1.6GiB";
  const std::string share =
      "--budget: expected a share of the baseline such as";
  const std::vector<WrongArguments> cases{
      {{"profile.json"}, {"expected one of --budget and --device-memory"}},
      {{"profile.json", "--budget", "2GiB", "--device-memory", "2GiB"},
       {"expected one of --budget and --device-memory"}},
      {{"profile.json", "--budget", "2GiB", "--allocator", "native"},
       {"--allocator: needs --device-memory"}},
      {{"profile.json", "--device-memory", "2GiB"},
       {"--device-memory: expected a trace and its memory model"}},
      {{"profile.json", "--device-memory", "much"},
       {"--device-memory: expected"}},
      {{"--budget", "2GiB"}, {"PROFILE is required"}},
      {{"profile.json", "--bugdet", "2GiB"},
       {"unknown flag '--bugdet'; did you mean --budget?"}},
      {extended({"--bogus=3"}), {"unknown flag '--bogus'"}},
      {extended({"-x"}), {"unknown flag '-x' (see"}},
      {extended({"other.json"}), {"unknown argument 'other.json'"}},
      {extended({"--budget", "3GiB"}),
       {"--budget: expected once, found more often"}},
      {extended({"--gap"}), {"unknown argument 'out.json'"}},
      {{"missing.json", "--budget", "2GiB"},
       {"missing.json: cannot be opened: No such file or directory"}},
      {{"folder", "--budget", "2GiB"},
       {"folder: expected a file, found a folder"}},
      {{"", "--budget", "2GiB"}, {"PROFILE: expected a value, found an empty"}},
      {budget(""), {"--budget: expected a value, found an empty one"}},
      {budget(" "), {size, "found \" \": no number"}},
      {budget("0"), {size, "found \"0\": less than one byte"}},
      {budget("0.0GiB"), {size, "less than one byte"}},
      {budget("-1GiB"), {size, "found \"-1GiB\": a size is positive"}},
      {budget("1.6"), {size, "found \"1.6\": a fraction needs a unit"}},
      {budget("1.GiB"), {size, "no digit after the point"}},
      {budget("10GiBs"), {size, "unknown unit \"GiBs\"", "did you mean"}},
      {budget("10gb"), {size, "unknown unit \"gb\"; did you mean GB?"}},
      {budget("10Gib"), {size, "did you mean GiB?"}},
      {budget("10 parsecs"), {size, "unknown unit \"parsecs\""}},
      {budget("GiB"), {size, "no number"}},
      {budget("1e9"), {size, "exponents are not supported"}},
      {budget("nan"), {size, "found \"nan\""}},
      {budget("1,6GiB"), {size, "found \"1,6GiB\""}},
      {budget("99999999999GiB"), {size, "more than 4 EiB"}},
      {extended({"--reserve", "1.5"}), {"--reserve: expected a size"}},
      {extended({"--reserve", "2GiB"}),
       {"--reserve: expected less than the budget (2.00 GiB), found 2.00 "
        "GiB"}},
      {extended({"--reserve", "3GiB"}), {"--reserve: ", "found 3.00 GiB"}},
      {extended({"--memory-model", "traced"}),
       {"--memory-model: expected snapshot, torch or trace, found 'traced'"}},
      {extended({"--memory-model", "trace"}),
       {"--memory-model: expected snapshot or torch for a profile, found "
        "trace"}},
      {extended({"--memory-model", ""}), {"--memory-model: expected a value"}},
      {extended({"--world-size", "0"}),
       {"--world-size: expected a whole number from 1 to", "found '0'"}},
      {extended({"--world-size", "2.5"}), {"--world-size: ", "found '2.5'"}},
      {extended({"--max-units", "-1"}), {"--max-units: ", "found '-1'"}},
      {extended({"--max-units", "many"}), {"--max-units: ", "found 'many'"}},
      {extended({"--gap", "2"}),
       {"--gap: expected a number from 0 to 1, found '2'"}},
      {extended({"--gap", "1%"}), {"--gap: ", "found '1%'"}},
      {extended({"--gap", "nan"}), {"--gap: ", "found 'nan'"}},
      {extended({"--gap", ""}),
       {"--gap: expected a value, found an empty one"}},
      {extended({"--time-limit", "-1"}),
       {"--time-limit: expected none or a number of at least 0, found '-1'"}},
      {extended({"--time-limit", "inf"}), {"--time-limit: ", "found 'inf'"}},
      {extended({"--time-limit", "10s"}), {"--time-limit: ", "found '10s'"}},
      {extended({"--seed", "x"}),
       {"--seed: expected a whole number from 0 to"}},
      {extended({"--seed", "99999999999"}),
       {"--seed: ", "found '99999999999'"}},
      {extended({"--engine", "glpk"}),
       {"--engine: expected auto, labels or cbc, found 'glpk'"}},
      {extended({"--tradeoff", "hull"}),
       {"--tradeoff: expected pareto, fit or profile, found 'hull'"}},
      {extended({"--tradeoff", ""}), {"--tradeoff: expected a value"}},
      {extended({"--granularity", "op"}),
       {"--granularity: expected operator or module, found 'op'"}},
      {extended({"--granularity", ""}), {"--granularity: expected a value"}},
      {extended({"--granularity", "operator", "--tradeoff", "fit"}),
       {"--tradeoff: expected pareto at operator granularity, found fit"}},
      {extended({"--granularity", "operator", "--tradeoff", "profile"}),
       {"--tradeoff: expected pareto at operator granularity, found profile"}},
      {extended({"--granularity", "module", "--save", "mm"}),
       {"--save: needs operator granularity, found module"}},
      {extended({"--tradeoff", "fit", "--recompute", "gelu"}),
       {"--recompute: needs operator granularity"}},
      {extended({"--save", ""}), {"--save: expected a value"}},
      {extended({"--save", "mm||add"}),
       {"--save: expected a pattern, found ''"}},
      {extended({"--recompute", "|"}), {"--recompute: expected a pattern"}},
      {extended({"--save", "mm", "--save", "admm"}),
       {"--save: expected a pattern that matches an operator, found \"admm\"; "
        "nearest: addmm, add, mm"}},
      {extended({"--save", "torch.ops.aten.admm.default"}),
       {"found \"torch.ops.aten.admm.default\"; nearest: addmm, add, mm"}},
      {extended({"--recompute", "GELU"}),
       {"--recompute: expected a pattern that matches an operator, found "
        "\"GELU\""}},
      {extended({"--recompute", "convolution*"}),
       {"--recompute: expected a pattern that matches an operator, found "
        "\"convolution*\""}},
      {budget("0%"), {share, "found \"0%\""}},
      {budget("-5%"), {share, "found \"-5%\""}},
      {budget("%"), {share, "found \"%\""}},
      {budget("nan%"), {share, "found \"nan%\""}},
      {budget("1e400%"), {share, "found \"1e400%\""}},
      {budget("75 %"), {share}},
      {budget("minimum"), {size, "found \"minimum\""}},
      {{"profile.json", "--budget", "1%", "--reserve", "1GiB"},
       {"--reserve: expected less than the budget ("}},
      {extended({"--color", "blue"}),
       {"--color: expected auto, always or never, found 'blue'"}},
      {extended({"--color", ""}),
       {"--color: expected a value, found an empty"}},
      {extended({"--ac-units", "Transformer.layer.0"}),
       {"--ac-units: expected the name of a module, found "
        "\"Transformer.layer.0\"; nearest: Transformer.layers.0"}},
      {extended({"--fsdp-units", "layers.2"}),
       {"--fsdp-units: expected the name of a module, found \"layers.2\"",
        "nearest: Transformer.layers.2"}},
      {extended({"--ac-units", "@names.txt"}),
       {"--ac-units: expected the name of a module, found "
        "\"Transformer.blocks.1\""}},
      {extended({"--ac-units", "@missing.txt"}),
       {"--ac-units: missing.txt: cannot be opened"}},
      {extended({"--fsdp-units", "@folder"}),
       {"--fsdp-units: folder: expected a file, found a folder"}},
  };
  for (const WrongArguments& wrong : cases) {
    SCOPED_TRACE(testing::PrintToString(wrong.arguments));
    ExpectPlanRefused(wrong.arguments, wrong.said);
  }
}

TEST_F(WrongInputTest, OutputThatCannotBeWritten) {
  std::filesystem::create_directory(folder() / "folder");
  const std::vector<WrongArguments> cases{
      {{"missing/out.json"},
       {"missing/out.json: cannot be written: No such file or directory"}},
      {{"folder"}, {"folder: expected a file, found a folder"}},
      {{"profile.json/out.json"}, {"profile.json/out.json: cannot be written"}},
      {{""}, {"--output: expected a value, found an empty one"}},
      {{}, {"--output: expected a value, found none"}}};
  for (const WrongArguments& wrong : cases) {
    std::vector<std::string> arguments{"plan", "profile.json", "--budget",
                                       "2GiB", "-o"};
    arguments.insert(arguments.end(), wrong.arguments.begin(),
                     wrong.arguments.end());
    SCOPED_TRACE(testing::PrintToString(arguments));
    ExpectRefused(Acplan(arguments), wrong.said);
  }
}

TEST_F(WrongInputTest, TheProfileIsNoOutput) {
  ExpectRefused(Acplan({"plan", "profile.json", "--budget", "2GiB", "-o",
                        "./profile.json"}),
                {"--output: expected a file other than the input"});
}

TEST_F(WrongInputTest, CheckKnowsTheModulesOfItsFlags) {
  for (const std::string flag : {"--ac-units", "--fsdp-units"}) {
    ExpectRefused(Acplan({"check", "profile.json", "plan.json", "--budget",
                          "2GiB", flag, "layers.0"}),
                  {flag + ": expected the name of a module",
                   "nearest: Transformer.layers.0"});
  }
}

TEST_F(WrongInputTest, APlanAboveTheBudgetThatItStates) {
  PutFile("plan.json", Edited(SoundPlan(), {{"/budget_bytes", "1000"}}));
  const std::vector<std::string> check{"check", "profile.json", "plan.json",
                                       "--budget", "2GiB"};
  const Outcome outcome = Acplan(check);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(
      outcome.out,
      testing::HasSubstr("the plan says that it fits 1000 bytes; its peak is"));
  // The stated budget is that of one rank.
  std::vector<std::string> of_ranks = check;
  of_ranks.insert(of_ranks.end(), {"--world-size", "2"});
  EXPECT_EQ(Acplan(of_ranks).exit_code, 0);
}

TEST_F(WrongInputTest, FlagsOfCheck) {
  AcplanOut({"plan", "profile.json", "--budget", "2GiB", "-o", "ops.json"});
  const auto extended = [](const std::string& plan,
                           const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"check", "profile.json", plan};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const std::vector<WrongArguments> cases{
      {extended("ops.json", {"--budget", "0%"}),
       {"--budget: expected a share of the baseline such as 75%"}},
      {extended("ops.json", {"--budget", "minimum"}),
       {"--budget: expected a size such as 1.6GiB"}},
      {extended("ops.json", {"--budget", "1%", "--reserve", "1GiB"}),
       {"--reserve: expected less than the budget ("}},
      {extended("ops.json", {"--budget", "2GiB", "--save", "admm"}),
       {"--save: expected a pattern that matches an operator, found \"admm\"; "
        "nearest: addmm"}},
      {extended("ops.json", {"--budget", "75%", "--recompute", "GELU"}),
       {"--recompute: expected a pattern that matches an operator, found "
        "\"GELU\""}},
      {extended("ops.json", {"--budget", "2GiB", "--save", "mm|"}),
       {"--save: expected a pattern, found ''"}},
      {extended("plan.json", {"--budget", "2GiB", "--save", "mm"}),
       {"--save: needs a plan at operator granularity, found one at module "
        "granularity"}},
      {extended("plan.json", {"--budget", "min", "--recompute", "gelu"}),
       {"--recompute: needs a plan at operator granularity"}}};
  for (const WrongArguments& wrong : cases) {
    SCOPED_TRACE(testing::PrintToString(wrong.arguments));
    ExpectRefused(Acplan(wrong.arguments), wrong.said);
  }
}

TEST_F(WrongInputTest, Frontier) {
  const auto extended = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"frontier", "profile.json"});
    more.insert(more.end(), {"-o", "out.json"});
    return more;
  };
  const std::string points = "--points: expected a whole number from 1 to ";
  const std::vector<WrongArguments> cases{
      {{"frontier"}, {"PROFILE is required"}},
      {{"frontier", "missing.json"}, {"missing.json: cannot be opened"}},
      {extended({"--points", "0"}), {points, "found '0'"}},
      {extended({"--points", "-1"}), {points, "found '-1'"}},
      {extended({"--points", "x"}), {points, "found 'x'"}},
      {extended({"--points", "2.5"}), {points, "found '2.5'"}},
      {extended({"--points", "1e9"}), {points, "found '1e9'"}},
      {extended({"--points", "1000000000"}), {points, "found '1000000000'"}},
      {extended({"--points", ""}), {"--points: expected a value"}},
      {extended({"--points", "3", "--budgets", "2GiB"}),
       {"--points: cannot be combined with --budgets"}},
      {extended({"--budgets", ""}), {"--budgets: expected a value"}},
      {extended({"--budgets", ","}),
       {"--budgets: expected budgets such as 8GiB,75%,min, found none"}},
      {extended({"--budgets", "a"}),
       {"--budgets: expected a size such as 1.6GiB", "found \"a\""}},
      {extended({"--budgets", "75%,x"}),
       {"--budgets: expected a size such as 1.6GiB", "found \"x\""}},
      {extended({"--budgets", "0%"}),
       {"--budgets: expected a share of the baseline such as 75%"}},
      {extended({"--budgets", "2GiB", "min"}), {"unknown argument 'min'"}},
      {extended({"--budgets", "@missing.txt"}),
       {"--budgets: missing.txt: cannot be opened"}},
      {extended({"--budgets", "1MiB,2GiB", "--reserve", "1MiB"}),
       {"--reserve: expected less than the budget (1.00 MiB), found 1.00 "
        "MiB"}},
      {extended({"--budget", "2GiB"}),
       {"unknown flag '--budget'", "--budgets"}},
      {extended({"--csv", "--json"}),
       {"--csv: cannot be combined with --json"}},
      {extended({"--tradeoff", "fit", "--granularity", "operator"}),
       {"--tradeoff: expected pareto at operator granularity, found fit"}},
      {extended({"--save", "admm"}),
       {"--save: expected a pattern that matches"}},
      {extended({"--time-limit", "10s"}), {"--time-limit: ", "found '10s'"}},
      {{"frontier", "profile.json", "-o", "missing/out.csv"},
       {"missing/out.csv: cannot be written"}},
      {{"frontier", "profile.json", "-o", "./profile.json"},
       {"--output: expected a file other than the input"}}};
  for (const WrongArguments& wrong : cases) {
    SCOPED_TRACE(testing::PrintToString(wrong.arguments));
    ExpectRefused(Acplan(wrong.arguments), wrong.said);
    EXPECT_FALSE(Exists("out.json"));
  }
}

TEST_F(WrongInputTest, OtherCommands) {
  const std::vector<WrongArguments> cases{
      {{"plam"}, {"unknown command 'plam'; did you mean plan? (see 'acplan"}},
      {{"optimise", "profile.json"}, {"unknown command 'optimise'"}},
      {{"--bogus", "plan"}, {"unknown flag '--bogus'"}},
      {{"--json"}, {"unknown flag '--json'"}},
      {{"--color"}, {"--color: expected a value, found none"}},
      {{"version", "now"}, {"unknown argument 'now'"}},
      {{"completion"}, {"SHELL is required"}},
      {{"completion", "fish"},
       {"completion: expected bash or zsh, found 'fish'"}},
      {{"man"}, {"FOLDER is required"}},
      {{"show", "--modules"}, {"PROFILE is required"}},
      {{"show", "--modules", "profile.json", "--depth", "-1"},
       {"--depth: ", "'-1'"}},
      {{"show", "--modules", "profile.json", "--depth", "all"},
       {"--depth: ", "'all'"}},
      {{"show", "profile.json", "--budget", "1GiB"},
       {"unknown flag '--budget'"}},
      {{"show", "profile.json", "--depth", "1"}, {"--depth: needs --modules"}},
      {{"show", "profile.json", "--all"}, {"--all: needs --modules"}},
      {{"show", "profile.json", "plan.json", "--modules"},
       {"--modules: cannot be combined with plans"}},
      {{"train", "searxh"},
       {"unknown command 'searxh'; did you mean search?",
        "(see 'acplan train --help')"}},
      {{"module", "curve", "profile.json", "M", "--bogus"},
       {"unknown flag '--bogus' (see 'acplan module curve --help')"}},
      {{"show", "profile.json", "missing.json"},
       {"missing.json: cannot be opened"}},
      {{"show", "profile.json", ""}, {"PLAN: expected a value"}},
      {{"check", "profile.json", "plan.json"},
       {"expected one of --budget and --device-memory"}},
      {{"check", "profile.json", "plan.json", "--budget", "2GiB", "--reserve",
        "2GiB"},
       {"--reserve: expected less than the budget (2.00 GiB), found 2.00 "
        "GiB"}}};
  for (const WrongArguments& wrong : cases) {
    SCOPED_TRACE(testing::PrintToString(wrong.arguments));
    ExpectRefused(Acplan(wrong.arguments), wrong.said);
  }
}

// The complaint is about the flag, not about the arguments after the command
// that it takes for its value.
TEST_F(WrongInputTest, GlobalFlagsWithoutAValue) {
  const std::vector<WrongArguments> cases{
      {{"--color", "plan", "profile.json", "--budget", "2GiB"},
       {"--color: expected auto, always or never, found 'plan'"}},
      {{"--color", "plan"}, {"--color: expected", "found 'plan'"}},
      {{"plan", "profile.json", "--color", "--budget", "2GiB"},
       {"--color: expected", "found '--budget'"}},
      {{"--errors", "show", "profile.json"},
       {"--errors: expected text or json, found 'show'"}},
      {{"show", "profile.json", "--color"},
       {"--color: expected a value, found none"}}};
  for (const WrongArguments& wrong : cases) {
    SCOPED_TRACE(testing::PrintToString(wrong.arguments));
    ExpectRefused(Acplan(wrong.arguments), wrong.said);
  }
}

// Names in a file that would clear the screen, or look like another one.
TEST_F(WrongInputTest, NamesThatATerminalObeys) {
  json profile = SmallProfile();
  profile["model"]["name"] = "m\u009b31m\u202e\x1b[2J\U000e0041";
  PutFile("profile.json", profile.dump());
  for (const char* command : {"show", "show --modules", "frontier"}) {
    const std::string text = AcplanOut({command, "profile.json"});
    for (const char* raw : {"\u009b", "\u202e", "\x1b", "\U000e0041"}) {
      EXPECT_THAT(text, testing::Not(testing::HasSubstr(raw))) << command;
    }
  }
  EXPECT_THAT(AcplanOut({"show", "profile.json"}),
              testing::HasSubstr("m\\u009b31m\\u202e\\u001b[2J\\udb40\\udc41"));
  for (json& module : profile["modules"]) {
    module["fqn"] = module["fqn"].get<std::string>() + "\u202e";
  }
  PutFile("profile.json", profile.dump());
  ExpectRefused(
      Acplan({"show", "--modules", "profile.json"}),
      {"modules[0]", "\\u202e", "without control or invisible characters"});
}

TEST_F(WrongInputTest, Curve) {
  const auto extended = [](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"module", "curve", "profile.json", "Transformer.layers.0"});
    return more;
  };
  const std::vector<WrongArguments> cases{
      {{"module", "curve"}, {"PROFILE is required"}},
      {{"module", "curve", "profile.json"}, {"MODULE is required"}},
      {{"module", "curve", "missing.json", "Transformer"},
       {"missing.json: cannot be opened"}},
      {{"module", "curve", "profile.json", ""}, {"MODULE: expected a value"}},
      {{"module", "curve", "profile.json", "layers.0"},
       {"MODULE: expected the name of a module, found \"layers.0\"",
        "nearest: Transformer.layers.0"}},
      {{"module", "curve", "profile.json", "Transformer.output"},
       {"MODULE: expected a module with operator statistics, found "
        "\"Transformer.output\", which is a leaf"}},
      {extended({"--segments", "0"}),
       {"--segments: expected a whole number from 1 to 16, found '0'"}},
      {extended({"--segments", "17"}), {"--segments: ", "found '17'"}},
      {extended({"--segments", "2.5"}), {"--segments: ", "found '2.5'"}},
      {extended({"--csv", "--json"}),
       {"--csv: cannot be combined with --json"}},
      {extended({"--save", ""}), {"--save: expected a value"}},
      {extended({"--save", "bmm|"}), {"--save: expected a pattern, found ''"}},
      {extended({"--recompute", "|"}), {"--recompute: expected a pattern"}},
      {extended({"--recompute", "bmm||gelu"}),
       {"--recompute: expected a pattern, found ''"}},
      {extended({"--save", "gelu", "--save", "adddm"}),
       {"--save: expected a pattern that matches an operator, found "
        "\"adddm\"; nearest: addmm"}},
      {extended({"--recompute", "MM"}), {"--recompute: ", "found \"MM\""}},
      {extended({"--save", "view"}),
       {"Transformer.layers.0: no policy satisfies every rule: operator ",
        "'view' must be saved (--save 'view') and is view-like and must be "
        "recomputed"}},
      {extended({"-o", "missing/curve.csv"}),
       {"missing/curve.csv: cannot be written"}},
      {extended({"-o", "profile.json"}),
       {"--output: expected a file other than the input"}},
      {extended({"Transformer"}), {"unknown argument 'Transformer'"}}};
  for (const WrongArguments& wrong : cases) {
    SCOPED_TRACE(testing::PrintToString(wrong.arguments));
    ExpectRefused(Acplan(wrong.arguments), wrong.said);
  }
  PutFile("profile.json", Edited(SmallProfile(), {{"/modules/4/sac", "null"}}));
  ExpectRefused(Acplan(extended({})),
                {"found \"Transformer.layers.0\", which has none"});
}

TEST_F(WrongInputTest, Ops) {
  const auto extended = [](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"module", "policy", "profile.json", "Transformer.layers.0",
                 "--memory-budget", "0.5"});
    return more;
  };
  const auto budget = [](const std::string& share) {
    return std::vector<std::string>{"module",          "policy",
                                    "profile.json",    "Transformer.layers.0",
                                    "--memory-budget", share};
  };
  std::vector<WrongArguments> cases{
      {{"module", "policy"}, {"required"}},
      {{"module", "policy", "profile.json", "--memory-budget", "0.5"},
       {"MODULE is required"}},
      {{"module", "policy", "profile.json", "Transformer.layers.0"},
       {"--memory-budget is required", "acplan module policy --help"}},
      {{"module", "policy", "missing.json", "Transformer", "--memory-budget",
        "0.5"},
       {"missing.json: cannot be opened"}},
      {{"module", "policy", "profile.json", "", "--memory-budget", "0.5"},
       {"MODULE: expected a value"}},
      {{"module", "policy", "profile.json", "layers.0", "--memory-budget",
        "0.5"},
       {"MODULE: expected the name of a module, found \"layers.0\"",
        "nearest: Transformer.layers.0"}},
      {{"module", "policy", "profile.json", "Transformer.output",
        "--memory-budget", "0.5"},
       {"MODULE: expected a module with operator statistics, found "
        "\"Transformer.output\", which is a leaf"}},
      {budget(""), {"--memory-budget: expected a value, found an empty one"}},
      {extended({"--memory-budget", "0.6"}),
       {"--memory-budget: expected once, found more often"}},
      {extended({"--budget", "1GiB"}), {"unknown flag '--budget'"}},
      {extended({"--engine", "glpk"}),
       {"--engine: expected auto, labels or cbc, found 'glpk'"}},
      {extended({"--engine", ""}), {"--engine: expected a value"}},
      {extended({"--save", ""}), {"--save: expected a value"}},
      {extended({"--save", "mm|"}), {"--save: expected a pattern, found ''"}},
      {extended({"--recompute", "|"}), {"--recompute: expected a pattern"}},
      {extended({"--save", "adddm"}),
       {"--save: expected a pattern that matches an operator, found "
        "\"adddm\"; nearest: addmm"}},
      {extended({"--save", "gelu", "--recompute", "gelu"}),
       {"Transformer.layers.0: no policy satisfies every rule: operator 33 "
        "'gelu' must be saved (--save 'gelu') and must be recomputed "
        "(--recompute 'gelu')"}},
      {extended({"--save", "native_dropout", "--recompute", "_scaled*"}),
       {"operator 26 'native_dropout' must be saved", "operator 19 '_scaled",
        "and both are tied to each other"}},
      {extended({"-o", "missing/ops.json"}),
       {"missing/ops.json: cannot be written"}},
      {extended({"-o", "profile.json"}),
       {"--output: expected a file other than the input"}},
      {extended({"Transformer"}), {"unknown argument 'Transformer'"}}};
  for (const std::string share :
       {"nan", "inf", "-inf", "-0.1", "1.0001", "half", "50%", " ", "0,5", "2",
        "0.5x", "1e400"}) {
    cases.push_back({budget(share),
                     {fmt::format("--memory-budget: expected a number from 0 "
                                  "to 1, found '{}'",
                                  share)}});
  }
  for (const WrongArguments& wrong : cases) {
    SCOPED_TRACE(testing::PrintToString(wrong.arguments));
    std::vector<std::string> arguments = wrong.arguments;
    ExpectRefused(Acplan(arguments), wrong.said);
    arguments.insert(arguments.end(), {"-o", "ops.json"});
    EXPECT_EQ(Acplan(arguments).exit_code, 2);
    EXPECT_FALSE(Exists("ops.json"));
  }
  for (const std::string share : {"0", "1"}) {
    EXPECT_EQ(Acplan(budget(share)).exit_code, 0);
  }
  PutFile("profile.json", Edited(SmallProfile(), {{"/modules/4/sac", "null"}}));
  ExpectRefused(Acplan(budget("0.5")),
                {"found \"Transformer.layers.0\", which has none"});
}

TEST_F(WrongInputTest, SnapshotModelWithoutSnapshots) {
  PutFile("profile.json", Edited(SmallProfile(), {{"/modules/3/snap", {}}}));
  ExpectPlanRefused(
      {"profile.json", "--budget", "2GiB", "--memory-model", "snapshot"},
      {"memory model snapshot: module 'Transformer.dropout' has no "
       "`snap.peak_fw`",
       "use --memory-model torch"});
  ExpectRefused(
      Acplan({"check", "profile.json", "plan.json", "--budget", "2GiB"}),
      {"module 'Transformer.dropout' has no `snap.peak_fw`"});
}

TEST_F(WrongInputTest, LabelsOnAProfileWhosePostOrderIsNotThatOfItsTree) {
  json profile = SmallProfile();
  json& fw_post = profile["order"]["fw_post"];
  fw_post.push_back(fw_post[5]);
  fw_post.erase(5);
  PutFile("profile.json", profile.dump());
  ExpectPlanRefused({"profile.json", "--budget", "2GiB", "--engine", "labels"},
                    {"--engine labels: ", "order.fw_post", "--engine cbc"});
}

TEST_F(WrongInputTest, LongAndUglyNamesStayOnOneLine) {
  ExpectPlanRefused({"a\nb\033[31m.json", "--budget", "2GiB"},
                    {"a\\nb\\u001b[31m.json: cannot be opened"});
  ExpectPlanRefused({"profile.json", "--budget", "2GiB", "--ac-units", "a\nb"},
                    {"--ac-units: expected the name of a module"});
  ExpectPlanRefused({"profile.json", "--budget", "2GiB", "--engine", "a\nb"},
                    {"--engine: expected auto, labels or cbc, found"});
  ExpectRefused(Acplan({"pl\nan"}), {"unknown command 'pl\\nan'"});
}

}  // namespace

}  // namespace acplan::cli
