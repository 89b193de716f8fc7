#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/input/data_folder.h"
#include "cli/terminal/text.h"
#include "costmodel/calculon/validation/megatron_2021.h"
#include "costmodel/calculon/validation/sequence_parallelism.h"
#include "graph/base/number_text.h"

namespace acplan::cli {

namespace {

using costmodel::Comparison;
using costmodel::ComparisonTable;

struct ValidationFlags {
  std::string base_dir;
  bool megatron = false;
};

// The form of a table in print.
struct TableForm {
  std::string_view title;
  std::string_view unit = "";
  bool with_memory = false;
};

std::string Cells(const Comparison& comparison, const TableForm& form) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  std::string text = fmt::format(
      "|,{}{},{:.2f}{},{:.2f}%,", graph::FloatText(comparison.published),
      form.unit, comparison.computed, form.unit, comparison.Delta());
  if (form.with_memory) {
    text += fmt::format("{:.2f},", comparison.memory / kGiB);
  }
  return text;
}

std::vector<std::string_view> ModesOf(const ComparisonTable& table) {
  std::vector<std::string_view> modes;
  for (const Comparison& comparison : table) {
    if (comparison.model == table.front().model) {
      modes.push_back(comparison.mode);
    }
  }
  return modes;
}

std::string TableText(const ComparisonTable& table, const TableForm& form) {
  std::string text = fmt::format("{}", form.title);
  std::string heading = "\nModel";
  for (const std::string_view mode : ModesOf(table)) {
    text += fmt::format(",|,{},,{}", mode, form.with_memory ? "," : "");
    heading +=
        fmt::format(",|,Profile,Calc,Delta{}", form.with_memory ? ",GiB" : "");
  }
  text += "," + heading + ",";
  std::string_view model;
  for (const Comparison& comparison : table) {
    if (comparison.model != model) {
      text += fmt::format("\n{},", comparison.model);
    }
    model = comparison.model;
    text += Cells(comparison, form);
  }
  return text + fmt::format("\nAve,,{:.2f}%\nMax,,{:.2f}%\n,\n",
                            AverageError(table), MaximumError(table));
}

void Announce(std::string_view test, const ComparisonTable& table,
              const Terminal& terminal) {
  if (!terminal.verbose()) return;
  std::string text = fmt::format("\n\nNow running test: {}\n", test);
  for (const Comparison& comparison : table) {
    text += fmt::format("Analyzing {} {}\n", comparison.model, comparison.mode);
  }
  terminal.Print(text);
}

std::string MegatronText(const std::filesystem::path& data,
                         const Terminal& terminal) {
  using enum Table::Align;
  const std::vector<costmodel::MegatronRun> runs =
      costmodel::CompareMegatron2021(data);
  Table table({kLeft, kRight, kRight, kRight, kRight, kRight, kRight});
  table.AddRow({"Megatron 2021, table 1", "GPUs", "microbatch", "interleaving",
                "measured TFLOP/s", "computed", "time"});
  for (const costmodel::MegatronRun& run : runs) {
    table.AddRow({std::string(run.model),
                  std::to_string(run.execution.num_procs),
                  std::to_string(run.execution.microbatch_size),
                  std::to_string(run.execution.pipeline_interleaving),
                  fmt::format("{:.0f}", run.measured),
                  fmt::format("{:.1f}", run.computed),
                  fmt::format("{:+.1f}%", run.TimeError())});
  }
  return table.ToString(terminal) +
         fmt::format("average error of the time: {:.1f}%\n",
                     AverageTimeError(runs));
}

int RunValidation(const ValidationFlags& flags, const Terminal& terminal) {
  const std::filesystem::path data =
      flags.base_dir.empty() ? DataFolder()
                             : std::filesystem::path(flags.base_dir);
  if (flags.megatron) {
    terminal.Print(MegatronText(data, terminal));
    return kExitOk;
  }
  const costmodel::Figure1 figure1 = costmodel::CompareFigure1(data);
  const ComparisonTable figure7 = costmodel::CompareFigure7(data);
  const ComparisonTable table5 = costmodel::CompareTable5(data);
  Announce("seqsel_fig1", figure1.states, terminal);
  terminal.Print(TableText(figure1.states, {.title = "*Params & Opt"}));
  terminal.Print(TableText(figure1.activations, {.title = "*Activations"}));
  Announce("seqsel_fig7", figure7, terminal);
  terminal.Print(TableText(figure7, {.title = "Activations", .unit = "%"}));
  Announce("seqsel_tab5", table5, terminal);
  terminal.Print(
      TableText(table5, {.title = "End-to-end", .with_memory = true}));
  return kExitOk;
}

}  // namespace

Command AddLlmValidationCommand(CLI::App& program) {
  auto flags = std::make_shared<ValidationFlags>();
  CLI::App* app =
      program
          .add_subcommand("llm-validation",
                          "Compare published measurements with the cost model")
          ->alias("lv");
  app->add_option("-b,--base_dir", flags->base_dir,
                  "folder with models, systems and validation (default: the "
                  "data that came with acplan)")
      ->type_name("DIR");
  app->add_flag("--megatron", flags->megatron,
                "compare the throughputs of Megatron-LM (2021) instead");
  app->footer(
      "Example:\n  acplan calculon llm-validation\n"
      "Exit status: 0 compared, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunValidation(*flags, terminal);
          }};
}

}  // namespace acplan::cli
