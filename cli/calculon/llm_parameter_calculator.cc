#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/calculon/llm_input.h"
#include "cli/command.h"
#include "cli/input/flags.h"
#include "costmodel/calculon/application/model.h"
#include "graph/base/message_text.h"
#include "graph/base/number_text.h"

namespace acplan::cli {

namespace {

struct ParameterFlags {
  std::string application;
  std::string alignment = "13";
};

int64_t Characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

int RunParameterCalculator(const ParameterFlags& flags,
                           const Terminal& terminal) {
  const int64_t alignment =
      ParseWhole(flags.alignment, "--alignment", -1'000'000, 1'000'000);
  const double parameters =
      costmodel::CountParameters(ReadModelInput(flags.application, terminal));
  const std::string name = graph::OneLine(
      std::filesystem::path(flags.application).stem().string(), 400);
  const std::string padding(std::max<int64_t>(0, alignment - Characters(name)),
                            ' ');
  terminal.Report(ResultLevel::kInfo,
                  fmt::format("{}{} -> {}", name, padding,
                              graph::HumanText(parameters, 3, " ")));
  return kExitOk;
}

}  // namespace

Command AddLlmParameterCalculatorCommand(CLI::App& program) {
  auto flags = std::make_shared<ParameterFlags>();
  CLI::App* app =
      program
          .add_subcommand("llm-parameter-calculator",
                          "Count the parameters of a language model")
          ->alias("lpc");
  app->add_option("APPLICATION", flags->application,
                  "model (.json or .json.gz)")
      ->required();
  app->add_option("-a,--alignment", flags->alignment,
                  "pad the name to N characters (13)")
      ->type_name("N");
  app->footer(
      "Example:\n  acplan calculon llm-parameter-calculator "
      "example:gpt3-175B\n"
      "Exit status: 0 counted, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunParameterCalculator(*flags, terminal);
          }};
}

}  // namespace acplan::cli
