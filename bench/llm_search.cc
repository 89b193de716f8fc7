// Evaluations a second of the LLM cost model: one execution by itself, and
// searches as the program runs them.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/commands.h"
#include "costmodel/calculon/llm/evaluation.h"
#include "costmodel/calculon/search/search.h"
#include "costmodel/training/memory/memory_limit.h"
#include "costmodel/training/search/strategy_search.h"
#include "costmodel/training/settings/strategy_settings.h"

namespace acplan::bench {
namespace {

using costmodel::SearchProblem;

struct Flags {
  std::string calculon;
  std::string python = "python3";
  int runs = 5;
  bool with_huge = false;
};

std::string Data(const std::string& name) {
  return std::string(ACPLAN_DATA_DIR "/") + name;
}

double SecondsOf(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

SearchProblem Turing(int64_t processors) {
  SearchProblem problem;
  problem.model = costmodel::ReadModel(Data("models/turing-530B.json"));
  problem.system = costmodel::ReadSystem(Data("systems/a100_80g.json"));
  problem.num_procs = processors;
  problem.max_batch = processors;
  return problem;
}

// Of the best execution, so that nothing is cut short.
void PrintParts(const Flags& flags) {
  const SearchProblem problem = Turing(512);
  const costmodel::Execution execution =
      FindBest(problem, {}).best.front().execution;
  const costmodel::Schedule schedule = ScheduleOf(problem.model, execution);
  const costmodel::BlockCosts block =
      ComputeBlockCosts(problem.model, problem.system, execution);
  const auto print = [&](const char* name,
                         const std::function<double()>& work) {
    constexpr int kTimes = 200'000;
    double sum = 0;
    const double seconds = Median(flags.runs, [&] {
      return SecondsOf([&] {
        for (int i = 0; i < kTimes; ++i) sum += work();
      });
    });
    fmt::print("| {} | {:.0f} | {:.0f} |\n", name, 1e9 * seconds / kTimes,
               sum > 0 ? kTimes / seconds : 0);
  };
  fmt::print("| part of an evaluation | ns | a second |\n|---|---|---|\n");
  print("all of it", [&] {
    return Evaluate(problem.model, problem.system, execution).times.total;
  });
  print("rules", [&] {
    return CheckFit(problem.model, problem.system, execution).Fits() ? 1.0 : 0;
  });
  print("block", [&] {
    return ComputeBlockCosts(problem.model, problem.system, execution)
        .useful_flops;
  });
  print("memory",
        [&] { return ComputeMemoryNeeds(execution, schedule, block).tier1; });
  print("times of the batch", [&] {
    return ComputeBatchTimes(problem.system, execution, schedule, block).total;
  });
}

void PrintSearches(const Flags& flags) {
  const SearchProblem problem = Turing(512);
  fmt::print(
      "\n| search of turing-530B on 512 | executions | s | a second |\n"
      "|---|---|---|---|\n");
  for (const int threads : {1, 2}) {
    int64_t total = 0;
    const double seconds = Median(flags.runs, [&] {
      return SecondsOf([&] {
        total = FindBest(problem, {.threads = threads}).counts.total;
      });
    });
    fmt::print("| {} thread{} | {} | {:.4f} | {:.0f} |\n", threads,
               threads == 1 ? "" : "s", total, seconds,
               static_cast<double>(total) / seconds);
  }
}

void PrintCommands(const Flags& flags) {
  struct Command {
    const char* name;
    std::vector<std::string> arguments;
    const char* output;
    bool is_huge = false;
  };
  const std::string system = Data("systems/a100_80g.json");
  const std::vector<Command> commands = {
      {"turing-530B on 5128, batch 2520, -m: 8,112 executions",
       {"calculon", "loe", Data("models/turing-530B.json"), "5128", "2520",
        "float16", system, "-m"},
       "best.json"},
      {"turing-530B on 512: 128,288 executions, one thread",
       {"calculon", "loe", Data("models/turing-530B.json"), "512", "512",
        "float16", system, "-c", "1"},
       "best.json"},
      {"gpt3-175B on 4096: 7,126,368 executions",
       {"calculon", "loe", Data("models/gpt3-175B.json"), "4096", "4096",
        "float16", system},
       "best.json"},
      {"megatron-22B on 8, all rows of 86,640 executions",
       {"calculon", "lae", Data("models/megatron-22B.json"), "8", "8",
        "float16", system},
       "all.csv"},
      {"megatron-1T on 61440, three networks: 118,833,600 executions",
       {"calculon", "loe", Data("models/megatron-1T.json"), "61440", "122880",
        "float16",
        ACPLAN_TEST_DATA_DIR "/calculon/custom/systems/roofline_4dt_3net.json",
        "-f", "both", "-t", "1000"},
       "best.json",
       true},
  };
  const TemporaryFolder folder;
  fmt::print("\n| command | s | MB |\n|---|---|---|\n");
  for (const Command& command : commands) {
    if (command.is_huge && !flags.with_huge) continue;
    std::vector<std::string> words = {ACPLAN_PROGRAM};
    words.insert(words.end(), command.arguments.begin(),
                 command.arguments.end());
    words.push_back((folder.path() / command.output).string());
    const CommandCost cost =
        MedianCost(words, command.is_huge ? 1 : flags.runs);
    fmt::print("| {} | {:.3f} | {:.0f} |\n", command.name, cost.seconds,
               cost.megabytes);
  }
}

// Searches of the cost model of training runs, without and with plans.
void PrintTrainingSearches(const Flags& flags) {
  struct Search {
    const char* model;
    const char* settings;
  };
  const costmodel::TrainingSystems systems =
      costmodel::ReadTrainingSystems(Data("training/systems.json"));
  fmt::print(
      "\n| train search | plans | strategies | evaluated | planned | s of "
      "a "
      "core | strategies a second |\n|---|---|---|---|---|---|---|\n");
  for (const Search& search :
       {Search{"llama-3.1-8b",
               R"({"gpu": "H100", "gpus": 64, "gbs": 512, "seq": 8192})"},
        Search{"llama-3.1-405b",
               R"({"gpu": "H100", "gpus": 16384, "gbs": 2048, "seq": 8192})"},
        Search{"deepseek-v3",
               R"({"gpu": "H800", "gpus": 2048, "gbs": 15360,
                   "precision": "fp8_blockwise", "dispatcher": "deepep"})"}}) {
    const costmodel::TrainingJob job = costmodel::StatedJob(
        costmodel::ReadHuggingFaceConfig(
            Data(fmt::format("training/models/{}.json", search.model))),
        costmodel::ParseStrategySettings(search.settings, search.model),
        systems);
    for (const bool has_plans : {false, true}) {
      costmodel::StrategySpace space = WholeSpace(job);
      if (!has_plans) space.recomputation.pop_back();
      costmodel::StrategySearch found;
      const double seconds = Median(flags.runs, [&] {
        found = SearchStrategies(job, space,
                                 costmodel::MemoryLimit{job.cluster.gpu.memory},
                                 {.count = 10});
        return found.core_seconds;
      });
      fmt::print("| {} | {} | {} | {} | {} | {:.3f} | {:.0f} |\n", search.model,
                 has_plans ? "with" : "without", found.strategies,
                 found.evaluated, found.plan_count, seconds,
                 static_cast<double>(found.strategies) / seconds);
    }
  }
}

// The same small search by both programs, on one core.
void PrintReference(const Flags& flags) {
  const TemporaryFolder folder;
  const std::vector<std::string> search = {
      "calculon",
      "loe",
      flags.calculon + "/models/megatron-126M.json",
      "4",
      "4",
      "float16",
      flags.calculon + "/systems/a100_80g.json",
      (folder.path() / "best.json").string(),
      "--no-tp-overlap",
      "-c",
      "1"};
  std::vector<std::string> ours = {ACPLAN_PROGRAM};
  std::vector<std::string> theirs = {"env", "PYTHONPATH=" + flags.calculon,
                                     flags.python,
                                     flags.calculon + "/bin/calculon"};
  ours.insert(ours.end(), search.begin(), search.end());
  theirs.insert(theirs.end(), search.begin(), search.end());
  const double our_seconds = MedianCost(ours, flags.runs).seconds;
  const double their_seconds = MedianCost(theirs, 1).seconds;
  fmt::print(
      "\nmegatron-126M on 4, one core, whole command: Calculon {:.2f} s, "
      "acplan {:.4f} s: {:.0f} times faster\n",
      their_seconds, our_seconds, their_seconds / our_seconds);
}

int Run(int argc, char** argv) {
  Flags flags;
  CLI::App app("Speed of the LLM cost model");
  app.add_option("--runs", flags.runs, "runs of which the median counts (5)");
  app.add_option("--calculon", flags.calculon,
                 "a checkout of Calculon to compare with");
  app.add_option("--python", flags.python, "the Python that runs it");
  app.add_flag("--huge", flags.with_huge,
               "also a search of more than 100 million executions");
  CLI11_PARSE(app, argc, argv);
  PrintParts(flags);
  PrintSearches(flags);
  PrintCommands(flags);
  PrintTrainingSearches(flags);
  if (!flags.calculon.empty()) PrintReference(flags);
  return 0;
}

}  // namespace
}  // namespace acplan::bench

int main(int argc, char** argv) { return acplan::bench::Run(argc, argv); }
