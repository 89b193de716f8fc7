#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/llm_input.h"
#include "cli/llm/fit_text.h"
#include "cli/terminal/text.h"
#include "costmodel/llm/records.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::Datatype;
using costmodel::Execution;
using costmodel::FitProblem;
using costmodel::System;

constexpr size_t kMostRows = 20;

struct FitFlags {
  std::string application;
  std::string system;
  std::string num_procs;
  std::string batch;
  std::string seq;
  std::string datatype;
  std::string microbatch = "1";
  std::string tensor_par;
  std::string pipeline_par;
  std::string budget;
  std::string output;
  bool all = false;
  bool json = false;
};

bool HasDatatype(const System& system, Datatype datatype) {
  return system.matrix.Supports(datatype) && system.vector.Supports(datatype);
}

// Returns the datatype of the flag; without one, bfloat16 or float16.
Datatype ChooseDatatype(const FitFlags& flags, const System& system) {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < costmodel::kDatatypes; ++i) {
    if (!HasDatatype(system, static_cast<Datatype>(i))) continue;
    names.push_back(costmodel::kDatatypeNames[i]);
    if (names.back() == flags.datatype) return static_cast<Datatype>(i);
  }
  if (flags.datatype.empty()) {
    for (const Datatype datatype : {Datatype::kBfloat16, Datatype::kFloat16}) {
      if (HasDatatype(system, datatype)) return datatype;
    }
  }
  throw InputError(fmt::format(
      "--datatype: expected one that both engines of {} have ({}), found {}",
      graph::OneLine(flags.system, 400),
      names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")),
      flags.datatype.empty() ? "none" : graph::Quoted(flags.datatype)));
}

// Throws InputError where a flag leaves nothing of the divisions. `degree`: the
// one that it is on.
void AddFilter(const std::string& list, std::string_view flag,
               std::string_view key, int64_t Execution::*degree,
               FitProblem& problem) {
  if (list.empty()) return;
  std::set<int64_t> degrees;
  for (const Execution& division : ListDivisions(problem)) {
    degrees.insert(division.*degree);
  }
  problem.filters.push_back(
      costmodel::ParseKeyFilter(fmt::format("{}={}", key, list), flag));
  if (ListDivisions(problem).empty()) {
    throw InputError(fmt::format("{}: expected one of {}, found {}", flag,
                                 fmt::join(degrees, ", "),
                                 graph::Quoted(list)));
  }
}

FitProblem ReadProblem(const FitFlags& flags, const Terminal& terminal) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  FitProblem problem;
  problem.num_procs = ParseWhole(flags.num_procs, "PROCS", 1, kMost);
  constexpr int64_t kMostMicrobatch = 1'000'000;
  problem.microbatch_size = ParseWhole(
      flags.microbatch, "--microbatch", 1,
      flags.batch.empty() ? std::min(kMostMicrobatch, kMost / problem.num_procs)
                          : kMostMicrobatch);
  problem.batch_size = flags.batch.empty()
                           ? problem.num_procs * problem.microbatch_size
                           : ParseWhole(flags.batch, "--batch", 1, kMost);
  problem.model = ReadModelInput(flags.application, terminal);
  if (!flags.seq.empty()) {
    problem.model.seq_size = ParseWhole(flags.seq, "--seq", 1, kMost);
  }
  problem.system = ReadSystemInput(flags.system, terminal);
  problem.datatype = ChooseDatatype(flags, problem.system);
  if (!flags.budget.empty()) {
    problem.system.mem1.capacity =
        static_cast<double>(graph::ParseByteSize(flags.budget, "--budget"));
  }
  if (ListDivisions(problem).empty()) {
    throw InputError(fmt::format(
        "PROCS: expected a product of tensor, pipeline and data parallelism "
        "with at most num_blocks ({}) stages, found {}",
        problem.model.num_blocks, problem.num_procs));
  }
  AddFilter(flags.tensor_par, "--tensor-par", "tensor_par",
            &Execution::tensor_par, problem);
  AddFilter(flags.pipeline_par, "--pipeline-par", "pipeline_par",
            &Execution::pipeline_par, problem);
  return problem;
}

// Throws InputError where no division splits the batch.
void RequireBatch(const FitProblem& problem) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Execution& division : ListDivisions(problem)) {
    const int64_t size = division.data_par * problem.microbatch_size;
    if (problem.batch_size % size == 0) return;
    least = std::min(least, size);
  }
  throw InputError(fmt::format(
      "--batch: expected a multiple of data_par * microbatch of some division, "
      "as {}, found {}",
      least, problem.batch_size));
}

std::string Stem(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  return name.substr(0, name.find(".json"));
}

void Write(const std::string& output, const FitResult& result) {
  const bool is_csv = output.ends_with(".csv") || output.ends_with(".csv.gz");
  graph::WriteFile(
      output,
      is_csv ? ToCsv(result)
             : costmodel::ResultText(ToJson(result), output.ends_with(".gz")));
}

// Tells how many processors would be enough, where these are not.
std::string EnoughText(const FitProblem& problem) {
  const auto enough = FindEnoughProcessors(problem);
  return enough
             ? fmt::format("{} processors with a batch of {} would be enough\n",
                           FormatCount(*enough),
                           FormatCount(*enough / problem.num_procs *
                                       problem.batch_size))
             : "";
}

int RunFit(const FitFlags& flags, const Terminal& terminal) {
  const FitProblem problem = ReadProblem(flags, terminal);
  RequireBatch(problem);
  if (!flags.output.empty()) {
    CheckResultOutput(flags.output, {".csv", ".csv.gz", ".json", ".json.gz"},
                      {flags.application, flags.system});
  }
  const std::atomic<bool>& interrupt = InterruptFlag();
  terminal.Log(fmt::format(
      "planning {} divisions",
      FormatCount(static_cast<int64_t>(ListDivisions(problem).size()))));
  const FitResult result{.model = Stem(flags.application),
                         .system = Stem(flags.system),
                         .problem = problem,
                         .survey = SurveyFit(problem, &interrupt)};
  const costmodel::FitSurvey& survey = result.survey;
  const bool fits = !survey.rows.empty() && survey.rows.front().Fits();
  if (survey.was_interrupted) {
    const std::string how_far =
        fmt::format("interrupted after {} of {} divisions",
                    FormatCount(static_cast<int64_t>(survey.rows.size())),
                    FormatCount(survey.divisions));
    if (!fits) throw LimitError(how_far);
    terminal.Warn(how_far);
  }
  if (!flags.output.empty()) Write(flags.output, result);
  if (flags.json) {
    terminal.Print(ToJson(result).dump(2) + "\n");
  } else {
    terminal.Print(
        ToText(result, flags.all ? survey.rows.size() : kMostRows, terminal) +
        (fits ? "" : EnoughText(problem)));
  }
  return fits ? kExitOk
              : terminal.Explain("infeasible: no division fits",
                                 kExitInfeasible);
}

}  // namespace

Command AddFitCommand(CLI::App& program) {
  auto flags = std::make_shared<FitFlags>();
  CLI::App* app = program.add_subcommand(
      "fit",
      "Whether a language model fits on a system, and what must be recomputed");
  app->add_option("APPLICATION", flags->application,
                  "model (.json or .json.gz)")
      ->required();
  app->add_option("SYSTEM", flags->system, "system (.json or .json.gz)")
      ->required();
  app->add_option("PROCS", flags->num_procs, "processors")->required();
  app->add_option("--batch", flags->batch,
                  "samples a batch (default: PROCS * microbatch, which every "
                  "division divides)")
      ->type_name("B");
  app->add_option("--seq", flags->seq,
                  "tokens a sample (default: the model's seq_size)")
      ->type_name("N");
  app->add_option("--datatype", flags->datatype,
                  "float8, float16, float32 or bfloat16 (default: bfloat16 "
                  "where the system has it, else float16)")
      ->type_name("D");
  app->add_option("--microbatch", flags->microbatch,
                  "samples a microbatch (default 1)")
      ->type_name("M");
  app->add_option("--tensor-par", flags->tensor_par,
                  "only these tensor parallelisms: 8 or 1..4,16")
      ->type_name("LIST");
  app->add_option("--pipeline-par", flags->pipeline_par,
                  "only these pipeline parallelisms")
      ->type_name("LIST");
  app->add_option("--budget", flags->budget,
                  "memory of a processor (default: the system's)")
      ->type_name("SIZE");
  app->add_flag("--all", flags->all,
                fmt::format("show all rows, not the first {}", kMostRows));
  app->add_flag("--json", flags->json, "print JSON, nothing else");
  app->add_option("-o,--output", flags->output,
                  "write CSV (.csv) or JSON (.json) here, with .gz packed")
      ->type_name("FILE");
  app->footer(
      "Examples:\n"
      "  acplan fit data/models/turing-530B.json data/systems/a100_80g.json "
      "512\n"
      "  acplan fit data/models/llama3-70B.json "
      "data/systems/h200_141g_nvl8.json 64 --budget 120GiB --tensor-par 8\n"
      "Exit status: 0 a division fits, 2 bad input, 3 none fits, 4 "
      "interrupted before any was found.");
  return {app, [flags](const Terminal& terminal) {
            return RunFit(*flags, terminal);
          }};
}

}  // namespace acplan::cli
