#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/calculon/golden_data.h"

namespace acplan::costmodel {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A change of a valid file, and the complaint that it must cause. The value is
// JSON; "" removes the key.
struct WrongValue {
  std::string pointer;
  std::string value;
  std::string said;
};

json Changed(json document, const WrongValue& wrong) {
  const json::json_pointer pointer(wrong.pointer);
  if (wrong.value.empty()) {
    document.at(pointer.parent_pointer()).erase(pointer.back());
  } else {
    document[pointer] = json::parse(wrong.value);
  }
  return document;
}

template <typename Parse>
void ExpectRefused(const json& sound, const std::vector<WrongValue>& table,
                   Parse parse) {
  EXPECT_NO_THROW(parse(sound.dump()));
  for (const WrongValue& wrong : table) {
    const std::string text = Changed(sound, wrong).dump();
    try {
      parse(text);
      ADD_FAILURE() << wrong.pointer << " = " << wrong.value;
    } catch (const InputError& error) {
      const std::string key = json::json_pointer(wrong.pointer).back();
      EXPECT_THAT(error.what(),
                  AllOf(StartsWith("x.json: "), HasSubstr(wrong.said),
                        HasSubstr("expected"), Not(HasSubstr("\n"))))
          << wrong.pointer << " = " << wrong.value;
      if (wrong.said.find(key) == std::string::npos) {
        EXPECT_THAT(error.what(), Not(StartsWith("x.json: expected")))
            << wrong.pointer;
      }
    }
  }
}

json Sound(const std::string& name) {
  return json::parse(graph::ReadFile(GoldenInput(name)));
}

TEST(WrongInput, Executions) {
  const json sound = Sound("examples/3072_t4_p64_d12_mbs4_full.json");
  ExpectRefused(
      sound,
      {
          {"/batch_size", "", "\"batch_size\", found none"},
          {"/zero_stage", "2", "zero_stage: expected only the 23 keys"},
          {"/tensor_parr", "2", "did you mean tensor_par?"},
          {"/tensor_par", "\"8\"", "tensor_par: expected a whole number"},
          {"/tensor_par", "true", "tensor_par: expected a whole number"},
          {"/tensor_par", "4.5", "found 4.5"},
          {"/tensor_par", "0", "found 0"},
          {"/tensor_par", "[4]", "an array"},
          {"/microbatch_size", "null", "microbatch_size: expected a whole"},
          {"/microbatch_size", "-4", "found -4"},
          {"/microbatch_size", "3", "a divisor of batch_size / data_par (256)"},
          {"/num_procs", "3073", "tensor_par * pipeline_par * data_par = 3072"},
          {"/num_procs", "1e300", "num_procs: expected a whole number"},
          {"/num_procs", "4294967296", "num_procs: expected a whole number"},
          {"/data_par", "13", "num_procs: expected"},
          {"/batch_size", "3073", "a multiple of data_par (12), found 3073"},
          {"/batch_size", "1e30", "batch_size: expected a whole number"},
          {"/batch_size", "0", "found 0"},
          {"/datatype", "\"fp16\"", "float8, float16, float32, bfloat16"},
          {"/datatype", "16", "datatype: expected a string, found 16"},
          {"/tensor_par_net", "-1", "tensor_par_net: expected"},
          {"/pipeline_par_net", "\"0\"", "pipeline_par_net: expected"},
          {"/data_par_net", "1.5", "data_par_net: expected"},
          {"/training", "\"false\"", "training: expected true or false"},
          {"/training", "1", "found 1"},
          {"/fused_activation", "\"no\"", "found \"no\""},
          {"/weight_offload", "null", "weight_offload: expected true or false"},
          {"/attention_type", "\"gqa\"", "multihead, multiquery"},
          {"/activation_recompute", "\"selective\"", "none, attn_only, full"},
          {"/activation_recompute", "false", "a string, found false"},
          {"/pipeline_interleaving", "1.5", "pipeline_interleaving: expected"},
          {"/pipeline_interleaving", "0", "found 0"},
          {"/tensor_par_comm_type", "\"rs\"", "ar, p2p_rs_ag, rs_ag"},
          {"/tensor_par_overlap", "true", "tensor_par_overlap: expected"},
          {"/seq_par_ag_redo", "true", "activation_recompute is \"full\""},
          {"/training", "false", "activation_recompute: expected \"none\""},
      },
      [](const std::string& text) { ParseExecution(text, "x.json"); });
}

TEST(WrongInput, ExecutionsThatContradictThemselves) {
  json sound = Sound("examples/3072_t4_p64_d12_mbs4_full.json");
  sound["num_procs"] = sound["tensor_par"] = 1;
  sound["pipeline_par"] = sound["data_par"] = 1;
  sound["optimizer_sharding"] = false;
  sound["activation_recompute"] = "none";
  sound["training"] = false;
  ExpectRefused(
      sound,
      {
          {"/pipeline_interleaving", "2", "1 if pipeline_par is 1, found 2"},
          {"/optimizer_sharding", "true", "false if data_par is 1"},
          {"/tensor_par_overlap", "\"ring\"", "if tensor_par is 1"},
          {"/data_par_overlap", "true", "false if training is false"},
          {"/optimizer_offload", "true", "false if training is false"},
          {"/activation_recompute", "\"attn_only\"", "training is false"},
      },
      [](const std::string& text) { ParseExecution(text, "x.json"); });
  sound["training"] = true;
  sound["tensor_par_comm_type"] = "ar";
  ExpectRefused(
      sound,
      {
          {"/data_par_overlap", "true", "false if data_par is 1"},
          {"/seq_par_ag_redo", "true", "tensor_par_comm_type is not \"rs_ag\""},
      },
      [](const std::string& text) { ParseExecution(text, "x.json"); });
}

TEST(WrongInput, Models) {
  ExpectRefused(Sound("models/megatron-22B.json"),
                {
                    {"/hidden", "", "\"hidden\", found none"},
                    {"/hidden", "-6144", "hidden: expected a whole number"},
                    {"/hidden", "0", "found 0"},
                    {"/hidden", "\"6144\"", "found \"6144\""},
                    {"/hidden", "1e10", "hidden: expected a whole number"},
                    {"/feedforward", "null", "feedforward: expected"},
                    {"/seq_size", "2048.5", "found 2048.5"},
                    {"/attn_heads", "[]", "attn_heads: expected"},
                    {"/attn_size", "{}", "attn_size: expected"},
                    {"/attn_size", "true", "found true"},
                    {"/num_blocks", "0", "found 0"},
                    {"/num_blocks", "", "\"num_blocks\", found none"},
                },
                [](const std::string& text) { ParseModel(text, "x.json"); });
}

TEST(WrongInput, Systems) {
  const std::string curve = "/matrix/float16/gflops_efficiency";
  const std::string network = "/networks/0";
  ExpectRefused(
      Sound("systems/a100_80g.json"),
      {
          {"/mem2", "", "\"mem2\", found none"},
          {"/matrix", "", "\"matrix\", found none"},
          {"/matrix", "[]", "matrix: expected an object"},
          {"/matrix", "{}", "matrix: expected one of the datatypes"},
          {"/vector", "{\"fp16\": {}}", "vector: expected one of"},
          {"/matrix/float16", "312", "matrix.float16: expected an object"},
          {"/vector/float32", "null", "vector.float32: expected an object"},
          {"/matrix/float16/tflops", "", "\"tflops\", found none"},
          {"/matrix/float16/tflops", "0", "a number above 0, found 0"},
          {"/matrix/float16/tflops", "-312", "a number above 0"},
          {"/matrix/float16/tflops", "\"312\"", "tflops: expected a number"},
          {curve, "", "\"gflops_efficiency\", found none"},
          {curve, "[]", "at least one size and its efficiency"},
          {curve, "1", "gflops_efficiency: expected an array"},
          {curve + "/0", "[128]", "a size and an efficiency"},
          {curve + "/0/1", "1.5", "above 0, at most 1, found 1.5"},
          {curve + "/0/1", "0", "a number above 0, found 0"},
          {curve + "/0/1", "1e-300", "a number of at least 1e-9"},
          {curve + "/3/0", "0.5", "the last size to be 0"},
          {curve + "/1/0", "128", "below the one before it, found 128"},
          {curve + "/1/0", "\"16\"", "[1][0]: expected a number"},
          {"/vector/float16/gflops_efficiency/1/0", "99", "below the one"},
          {"/mem1/GiB", "-80", "mem1.GiB: expected a number, 0 to 1e18"},
          {"/mem1/GiB", "", "\"GiB\", found none"},
          {"/mem1/GBps", "0", "mem1.GBps: expected a number above 0"},
          {"/mem2/GBps", "0", "mem2.GBps: expected a number above 0"},
          {"/mem1/MB_efficiency/1/0", "200", "below the one before it"},
          {"/mem1/MB_efficiency/3/0", "1e-3", "the last size to be 0"},
          {"/mem2/MB_efficiency", "{}", "MB_efficiency: expected an array"},
          {"/processing_mode", "\"overlap\"", "\"roofline\" or \"no_overlap\""},
          {"/processing_mode", "1", "processing_mode: expected a string"},
          {"/networks", "[]", "networks: expected at least one network"},
          {"/networks", "{}", "networks: expected an array"},
          {network, "null", "networks[0]: expected an object"},
          {network + "/bandwidth", "", "\"bandwidth\", found none"},
          {network + "/bandwidth", "0", "networks[0].bandwidth: expected"},
          {network + "/efficiency", "1.01", "at most 1, found 1.01"},
          {network + "/size", "-8", "networks[0].size: expected"},
          {network + "/size", "8.5", "found 8.5"},
          {network + "/latency", "-1e-5", "networks[0].latency: expected"},
          {network + "/must_be_filled", "1", "must_be_filled: expected true"},
          {network + "/processor_usage", "1", "0 to below 1, found 1"},
          {network + "/processor_usage", "-0.1", "processor_usage: expected"},
          {network + "/topology", "\"ring\"", "expected only the keys"},
          {network + "/ops", "", "\"ops\", found none"},
          {network + "/ops/all_gather", "", "\"all_gather\", found none"},
          {network + "/ops/broadcast", "[1, 0]",
           "ops.broadcast: expected only"},
          {network + "/ops/p2p/1", "0", "p2p[1]: expected null"},
          {network + "/ops/p2p/0", "0", "p2p[0]: expected a number above 0"},
          {network + "/ops/p2p", "[1]", "p2p: expected a scalar and an offset"},
          {network + "/ops/all_reduce/1", "null", "all_reduce[1]: expected"},
          {network + "/ops/all_reduce/0", "-2", "a number above 0, found -2"},
          {network + "/ops/all_reduce/1", "-3", "an offset of at least -2"},
      },
      [](const std::string& text) { ParseSystem(text, "x.json"); });
}

TEST(WrongInput, TextThatIsNoJson) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"{", "line 1"},           {"[]", "expected an object"},
      {"hello", "line 1"},       {"{\"hidden\": 1,}", "line 1, column"},
      {"{\"hidden\": NaN}", ""}, {"\xEF\xBB\xBF{}", ""},
      {"{\"a\": \"\xff\"}", ""}, {"null", "expected an object"},
  };
  for (const auto& [text, said] : table) {
    for (const auto& parse :
         std::vector<std::function<void(const std::string&)>>{
             [](const std::string& t) { ParseModel(t, "x.json"); },
             [](const std::string& t) { ParseSystem(t, "x.json"); },
             [](const std::string& t) { ParseExecution(t, "x.json"); }}) {
      try {
        parse(text);
        ADD_FAILURE() << text;
      } catch (const InputError& error) {
        EXPECT_THAT(error.what(),
                    AllOf(StartsWith("x.json: "), HasSubstr(said)));
      }
    }
  }
}

TEST(RightInput, WholeFloatsAreIntegers) {
  json execution = Sound("examples/3072_t4_p64_d12_mbs4_full.json");
  const Execution sound = ParseExecution(execution.dump(), "x.json");
  execution["tensor_par"] = 4.0;
  execution["batch_size"] = 3072.0;
  EXPECT_EQ(ParseExecution(execution.dump(), "x.json"), sound);
  json model = Sound("models/megatron-22B.json");
  model["hidden"] = 6144.0;
  EXPECT_EQ(ParseModel(model.dump(), "x.json").hidden, 6144);
}

TEST(RightInput, OtherKeysOfModelsAndSystemsAreIgnored) {
  json model = Sound("models/megatron-22B.json");
  const Model sound = ParseModel(model.dump(), "x.json");
  model["vocabulary"] = 51200;
  EXPECT_EQ(ParseModel(model.dump(), "x.json"), sound);
  json system = Sound("systems/a100_80g.json");
  system["price"] = {1, 2};
  EXPECT_NO_THROW(ParseSystem(system.dump(), "x.json"));
}

TEST(RightInput, OfRepeatedKeysTheLastCounts) {
  const Model model = ParseModel(
      R"({"hidden": 1, "feedforward": 2, "seq_size": 3, "attn_heads": 4,
          "attn_size": 5, "num_blocks": 6, "hidden": 7})",
      "x.json");
  EXPECT_EQ(model.hidden, 7);
}

}  // namespace
}  // namespace acplan::costmodel
