#include "cli/planning/step_names.h"

#include <fmt/format.h>

namespace acplan::cli {

std::string_view PhaseOf(const graph::Trace& trace,
                         const graph::Simulation::Step& step) {
  if (step.redone != graph::kNone) return "recompute";
  if (StartOf(step.op) < trace.forward_end) return "forward";
  return StartOf(step.op) < trace.backward_end ? "backward" : "optimizer";
}

std::string_view NameOf(const graph::Trace& trace,
                        const graph::Simulation::Step& step) {
  return trace.operator_names[trace.operators[step.op].name];
}

std::string_view ModuleOf(const graph::Trace& trace,
                          const graph::Simulation::Step& step) {
  const graph::CallId call = trace.operators[step.op].call;
  return call == graph::kNone
             ? std::string_view()
             : std::string_view(trace.modules[trace.calls[call].module].fqn);
}

std::string StepText(const graph::Trace& trace,
                     const graph::Simulation::Step& step) {
  const std::string_view module = ModuleOf(trace, step);
  const std::string source = graph::SourceOf(trace, step.op);
  return fmt::format("{}, {}{}{}", PhaseOf(trace, step), NameOf(trace, step),
                     module.empty() ? "" : fmt::format(" in {}", module),
                     source.empty() ? "" : ", at " + source);
}

std::string CsvField(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    return std::string(text);
  }
  std::string field = "\"";
  for (const char c : text) field.append(c == '"' ? 2 : 1, c);
  return field + '"';
}

}  // namespace acplan::cli
