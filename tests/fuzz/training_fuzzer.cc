// All bytes are an accepted model of Hugging Face transformers, settings of a
// strategy, GPUs and software, or a table of measured runs that can be computed
// with, with times and memory that are numbers of at least 0, or an InputError
// of one line. Any other JSON can be shown as text. Built with
// -fsanitize=fuzzer, or with replay_main.cc.

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/hardware/accelerator.h"
#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/score/run_table.h"
#include "costmodel/training/settings/strategy_settings.h"
#include "costmodel/training/training_report.h"
#include "graph/base/csv_table.h"
#include "graph/base/input_error.h"
#include "graph/base/text_value.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"

namespace {

using namespace acplan::costmodel;

const TrainingSystems& Systems() {
  static const TrainingSystems systems =
      ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json");
  return systems;
}

const ModelShape& SoundShape() {
  static const ModelShape shape = ReadHuggingFaceConfig(
      ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json");
  return shape;
}

const StrategySettings& SoundSettings() {
  static const StrategySettings settings = ParseStrategySettings(
      R"({"gpu": "h100", "gpus": 16, "tp": 2, "pp": 2, "seq": 128, "gbs": 16})",
      "strategy.json");
  return settings;
}

template <typename Check>
void Try(std::string_view start, Check check) {
  try {
    check();
  } catch (const acplan::InputError& error) {
    CheckMessage(error, start);
  }
}

// Returns whether a job is quick here: a plan of a stage, and an iteration of
// millions of microbatches, take too long.
bool IsQuick(const TrainingJob& job) {
  return job.strategy.recomputation != Recomputation::kPlan &&
         job.shape.layers < 1000 && job.strategy.pipeline < 100 &&
         job.strategy.global_batch < 10'000;
}

void CheckReport(const TrainingJob& job) {
  if (job.strategy.microbatch < 1 || !IsQuick(job)) return;
  Try("", [&] {
    const TrainingReport report = ReportOfTraining(job);
    const double seconds = report.time.Total();
    Require(std::isfinite(seconds) && seconds >= 0, "a time");
    const double bytes = report.memory.Worst().Total();
    Require(std::isfinite(bytes) && bytes >= 0, "memory");
  });
}

void CheckModel(const std::string& text) {
  Try("fuzz.json: ", [&] {
    const ModelShape shape = ParseHuggingFaceConfig(text, "fuzz.json");
    Require(CountParameters(shape) > 0, "parameters");
    Try("",
        [&] { CheckReport(JobOfSettings(shape, SoundSettings(), Systems())); });
  });
}

void CheckSettings(const std::string& text) {
  Try("", [&] {
    const StrategySettings settings = ParseStrategySettings(text, "fuzz.json");
    CheckReport(JobOfSettings(SoundShape(), settings, Systems()));
  });
}

void CheckSystems(const std::string& text) {
  Try("fuzz.json: ", [&] {
    const TrainingSystems systems = ParseTrainingSystems(text, "fuzz.json");
    Try("", [&] {
      CheckReport(JobOfSettings(SoundShape(), SoundSettings(), systems));
    });
  });
}

void CheckRuns(const std::string& text) {
  Try("fuzz.json: ", [&] {
    const auto table = acplan::graph::ParseCsv(text, "fuzz.json");
    for (const TrainingRun& run : ReadRuns(table, Systems())) {
      if (run.job) CheckReport(*run.job);
    }
  });
}

}  // namespace

std::string ValidInput(unsigned) { return ""; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  CheckModel(text);
  CheckSettings(text);
  CheckSystems(text);
  CheckRuns(text);
  Try("fuzz.json: ", [&] {
    const auto value = acplan::graph::ParseTextValue(text, "fuzz.json");
    Require(!PythonText(value).empty() || !value.text.size(), "a text");
  });
  return 0;
}
