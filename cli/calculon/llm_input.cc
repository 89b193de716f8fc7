#include "cli/calculon/llm_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "cli/input/file_names.h"
#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"
#include "graph/base/text_value.h"

namespace acplan::cli {

namespace {

template <size_t kCount>
void LogIgnored(const std::string& text, const std::string& path,
                const std::array<std::string_view, kCount>& used_keys,
                const Terminal& terminal) {
  if (!terminal.verbose()) return;
  for (const auto& [key, unused] : graph::ParseTextValue(text, path).members) {
    if (std::ranges::find(used_keys, key) == used_keys.end()) {
      terminal.Log(fmt::format("{}: {}: ignored", graph::OneLine(path, 400),
                               graph::OneLine(key)));
    }
  }
}

}  // namespace

void StrategyFlags::AddTo(CLI::App& app, const std::string& execution_help) {
  app.add_option("APPLICATION", application, "model (.json or .json.gz)")
      ->required();
  app.add_option("EXECUTION", execution, execution_help)->required();
  app.add_option("SYSTEM", system, "system (.json or .json.gz)")->required();
}

costmodel::Model ReadModelInput(const std::string& path,
                                const Terminal& terminal) {
  RequireJsonName(path);
  const std::string text = graph::ReadJsonText(path);
  const costmodel::Model model = costmodel::ParseModel(text, path);
  LogIgnored(text, path, costmodel::kModelKeys, terminal);
  return model;
}

costmodel::System ReadSystemInput(const std::string& path,
                                  const Terminal& terminal) {
  RequireJsonName(path);
  const std::string text = graph::ReadJsonText(path);
  costmodel::System system = costmodel::ParseSystem(text, path);
  LogIgnored(text, path, costmodel::kSystemKeys, terminal);
  return system;
}

costmodel::Execution ReadExecutionInput(const std::string& path) {
  RequireJsonName(path);
  return costmodel::ReadExecution(path);
}

void RefuseContradiction(const std::string& path,
                         const costmodel::Verdict& verdict,
                         const costmodel::Model& model,
                         const costmodel::System& system,
                         const costmodel::Execution& execution) {
  if (verdict.Fits() || verdict.IsInfeasible()) return;
  throw InputError(
      fmt::format("{}: {}", graph::OneLine(path, 400),
                  DescribeContradiction(verdict, model, system, execution)));
}

}  // namespace acplan::cli
