// All bytes are an accepted model, system or execution that can be computed
// with, whose statistics are numbers or missing if they may be, or an
// InputError of one line. Built with -fsanitize=fuzzer, or with replay_main.cc.

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"
#include "costmodel/calculon/llm/evaluation.h"
#include "costmodel/calculon/llm/records.h"
#include "costmodel/calculon/llm/statistics.h"
#include "graph/base/input_error.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"

namespace {

using namespace acplan::costmodel;

const Model& SoundModel() {
  static const Model model = ParseModel(
      R"({"hidden": 64, "feedforward": 256, "seq_size": 32, "attn_heads": 8,
          "attn_size": 8, "num_blocks": 8})",
      "model.json");
  return model;
}

const System& SoundSystem() {
  static const System system = ParseSystem(
      R"({"matrix": {"float16": {"tflops": 300, "gflops_efficiency": [[0, 1]]}},
          "vector": {"float16": {"tflops": 70, "gflops_efficiency": [[0, 1]]}},
          "mem1": {"GiB": 1e9, "GBps": 2000, "MB_efficiency": [[0, 1]]},
          "mem2": {"GiB": 1e9, "GBps": 30, "MB_efficiency": [[0, 1]]},
          "processing_mode": "no_overlap",
          "networks": [{"bandwidth": 300, "efficiency": 1, "size": 100000,
                        "latency": 1e-5, "must_be_filled": false,
                        "processor_usage": 0.1,
                        "ops": {"p2p": [1, null], "reduce_scatter": [1, -1],
                                "all_gather": [1, -1],
                                "all_reduce": [2, -1]}}]})",
      "system.json");
  return system;
}

Execution SoundExecution() {
  return {.num_procs = 8,
          .tensor_par = 2,
          .pipeline_par = 2,
          .data_par = 2,
          .batch_size = 8,
          .microbatch_size = 2,
          .optimizer_sharding = true,
          .tensor_par_overlap = TensorOverlap::kRing,
          .data_par_overlap = true,
          .weight_offload = true};
}

void CheckEvaluation(const Model& model, const System& system,
                     const Execution& execution) {
  const Evaluation evaluation = Evaluate(model, system, execution);
  const Verdict& verdict = evaluation.verdict;
  if (!verdict.Fits()) {
    const bool is_memory =
        verdict.rule == Rule::kMem1 || verdict.rule == Rule::kMem2;
    const std::string text =
        verdict.IsInfeasible()
            ? DescribeInfeasible(verdict) +
                  DescribeNumbers(verdict, model, system, execution)
            : DescribeContradiction(verdict, model, system, execution);
    Require(is_memory || !text.empty(), "a reason");
    return;
  }
  const Statistics statistics =
      ComputeStatistics(model, system, execution, evaluation);
  for (const std::string_view name :
       {"total_time", "proc_mem_tier1_cap_req", "sample_rate",
        "total_efficiency", "useful_flops"}) {
    Require(std::isfinite(Statistic(statistics, name)), name);
  }
  Require(!CsvRow(execution, statistics).empty(), "a row");
}

template <typename Check>
void Try(Check check) {
  try {
    check();
  } catch (const acplan::InputError& error) {
    CheckMessage(error);
  }
}

}  // namespace

std::string ValidInput(unsigned) { return ""; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Try([&] {
    const Model model = ParseModel(text, "fuzz.json");
    Require(CountParameters(model) > 0, "parameters");
    CheckEvaluation(model, SoundSystem(), SoundExecution());
  });
  Try([&] {
    const System system = ParseSystem(text, "fuzz.json");
    CheckEvaluation(SoundModel(), system, SoundExecution());
  });
  Try([&] {
    const Execution execution = ParseExecution(text, "fuzz.json");
    Require(ParseExecution(ToJson(execution).dump(), "fuzz.json") == execution,
            "the same execution after writing and reading");
    CheckEvaluation(SoundModel(), SoundSystem(), execution);
  });
  return 0;
}
