// All bytes of a file that one command writes for another are read and used as
// that command does, or are an InputError of one line that names the file.
// Rates of searches, shards of searches, strategies from searches, frontiers,
// plans of compiled steps, users' own GPUs, lists of names and the data of
// pages; each also compressed. Built with -fsanitize=fuzzer, or with
// replay_main.cc.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/report/execution_data.h"
#include "cli/report/frontier_data.h"
#include "cli/report/search_data.h"
#include "cli/terminal/terminal.h"
#include "cli/training/train_input.h"
#include "costmodel/calculon/results/rate_map.h"
#include "costmodel/calculon/results/result_csv.h"
#include "costmodel/training/hardware/accelerator.h"
#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/settings/strategy_settings.h"
#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "graph/joint/joint_graph.h"
#include "problems/remat_plan.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"
#include "tests/graph/test_files.h"

namespace {

namespace costmodel = acplan::costmodel;
namespace graph = acplan::graph;

// Uses a file. A complaint must name the file, or a consequence of its use.
template <typename Use>
void Try(const std::string& start, Use use) {
  try {
    use();
  } catch (const acplan::InputError& error) {
    CheckMessage(error, start);
  }
}

// The file's bytes under each name that tells commands how to read them.
class Files {
 public:
  Files() = default;
  std::string PutFile(const std::string& name, std::string_view bytes) const {
    const std::string path = folder_.path() / name;
    graph::PutBytes(path, bytes);
    return path;
  }
  std::string NameOf(const std::string& name) const {
    return folder_.path() / name;
  }

 private:
  graph::TemporaryFolder folder_;
};

void CheckRates(const std::string& path) {
  Try(path + ": ", [&] {
    const costmodel::RateMap map = costmodel::ReadRateMap(path);
    Require(map.Least() <= map.Most(), "rates in order");
    for (const costmodel::RateMap::Cell& cell : map.cells) {
      const auto* same_cell = map.Find(cell.tensor_par, cell.pipeline_par);
      Require(cell.rate ? same_cell == &cell : same_cell == nullptr,
              "a cell once");
    }
    costmodel::RequireGrid(map, path);
  });
}

// Merges as the command itself does, from a shard that is the only one.
void CheckMerge(const std::string& shard, const std::string& output) {
  const acplan::cli::Terminal terminal(
      acplan::cli::ColorMode::kNever, /*quiet=*/true, /*verbose=*/false,
      {.file = "/dev/null"}, acplan::cli::ErrorFormat::kText);
  CLI::App program;
  const acplan::cli::Command merge = acplan::cli::AddLlmMergeCommand(program);
  program.parse({output, shard, "--noneok", "llm-merge"});  // in reverse
  bool is_refused = false;
  Try("", [&] {
    is_refused = true;
    Require(merge.run(terminal) == acplan::cli::kExitOk, "an exit code of 0");
    is_refused = false;
  });
  Require(!is_refused || !std::filesystem::exists(output),
          "no file beside a complaint");
  std::filesystem::remove(output);
}

void CheckStrategy(const std::string& path) {
  static const costmodel::ModelShape shape = costmodel::ReadHuggingFaceConfig(
      ACPLAN_DATA_DIR "/training/models/llama-3.1-8b.json");
  static const costmodel::TrainingSystems systems =
      costmodel::ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json");
  for (const std::string& argument : {path, path + ":1"}) {
    Try("", [&] {
      const acplan::cli::NamedStrategy strategy =
          acplan::cli::ReadNamedStrategy(argument);
      Require(!strategy.name.empty(), "a name");
      costmodel::JobOfSettings(shape, strategy.settings, systems);
    });
  }
}

void CheckFrontier(const std::string& path) {
  Try(path + ": ", [&] {
    const auto frontier = acplan::cli::ReadFrontier(path, "small");
    Require(!frontier.dump().empty(), "text of a frontier");
  });
}

void CheckKept(const std::string& path) {
  static const graph::JointGraph step =
      graph::ReadJointGraph(ACPLAN_FUZZ_SEEDS "/small_joint.json");
  Try("", [&] {
    const acplan::problems::RematChoices choices =
        acplan::problems::ReadRematChoices(path, step);
    Require(choices.is_kept.size() == step.buffers.size(), "a mark a buffer");
    Require(acplan::problems::EvaluateRemat(step, choices).run.has_value(),
            "what keeping them does");
  });
}

// Reads the data of pages, and the files that are read as tables.
void CheckPages(const std::string& path) {
  Try(path + ": ", [&] {
    const std::string text = acplan::graph::ReadJsonText(path);
    for (const auto& page : {acplan::cli::ParseTraining(text, path),
                             acplan::cli::ParseExecutions(text, path)}) {
      Require(!page || !page->dump().empty(), "text of a page");
    }
  });
  Try(path + ": ",
      [&] { Require(costmodel::ResultCsv(path).ends_with('\n'), "a table"); });
}

void CheckNames(const std::string& path) {
  Try("--flag: ", [&] {
    for (const std::string& name :
         acplan::cli::ParseNames({"@" + path}, "--flag")) {
      Require(name.find_first_of("\n,#") == std::string::npos, "a name alone");
    }
  });
}

void CheckAccelerators(const std::string& path) {
  Try(path + ": ", [&] {
    Require(!costmodel::ReadOwnAccelerators(path).empty(), "a GPU at least");
  });
}

}  // namespace

std::string ValidInput(unsigned) { return ""; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Files files;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const bool is_compressed = bytes.starts_with("\x1f\x8b");
  const std::string end = is_compressed ? ".gz" : "";
  const std::string json = files.PutFile("fuzz.json" + end, bytes);
  const std::string csv = files.PutFile("fuzz.csv" + end, bytes);
  CheckRates(json);
  CheckRates(csv);
  CheckMerge(json, files.NameOf("merged.json"));
  CheckMerge(csv, files.NameOf("merged.csv"));
  CheckStrategy(json);
  CheckFrontier(json);
  CheckKept(json);
  CheckAccelerators(json);
  CheckPages(json);
  CheckNames(json);
  return 0;
}
