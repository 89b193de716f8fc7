#include "cli/lengths/length_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cli/input/flags.h"
#include "cli/input/plan_input.h"
#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"

namespace acplan::cli {
namespace {

// Reads "512=trace.json", or a trace that says its sequence length.
graph::TraceOfLength ReadTraceOfLength(const std::string& argument) {
  const size_t digits = static_cast<size_t>(
      std::ranges::find_if_not(
          argument, [](unsigned char c) { return std::isdigit(c); }) -
      argument.begin());
  if (digits > 0 && digits < argument.size() && argument[digits] == '=') {
    const std::string path = argument.substr(digits + 1);
    return {.length = ParseWhole(argument.substr(0, digits), "TRACE", 1,
                                 graph::kLargestLength),
            .name = graph::OneLine(path, 400),
            .trace = graph::ReadTrace(path)};
  }
  graph::Trace trace = graph::ReadTrace(argument);
  const std::string name = graph::OneLine(argument, 400);
  if (trace.model.seq < 1) {
    throw InputError(fmt::format(
        "{}: expected its length before it, such as 512={}, as the trace does "
        "not say its sequence length",
        name, name));
  }
  return {.length = trace.model.seq, .name = name, .trace = std::move(trace)};
}

std::vector<graph::TraceOfLength> ReadTraces(
    const std::vector<std::string>& arguments) {
  std::vector<graph::TraceOfLength> traces;
  for (const std::string& argument : arguments) {
    traces.push_back(ReadTraceOfLength(argument));
  }
  return traces;
}

}  // namespace

void LengthFlags::AddTo(CLI::App& app) {
  app.add_option("TRACE", traces,
                 "traces of one model (.json or .json.gz), such as "
                 "512=trace.json: the step of inputs of length 512")
      ->required();
  app.add_option("--evaluation", evaluations,
                 "a trace for evaluations, such as 512=eval.json, if their "
                 "inputs are others than those of training; may be repeated")
      ->type_name("TRACE")
      ->allow_extra_args(false);
  app.add_option(
         "--lengths", lengths,
         "the lengths of a run's batches: one a line in their order, eval and "
         "a length for an evaluation; or a length and its count a line, to "
         "draw from; lengths between traces are interpolated")
      ->type_name("FILE")
      ->required();
  app.add_option("--draws", draws,
                 "batches that are drawn from a histogram (default 200)")
      ->type_name("N");
  app.add_option("--draw-seed", draw_seed, "seed of the draw (default 0)")
      ->type_name("N");
}

problems::LengthProblem LengthFlags::Read() const {
  std::optional<graph::LengthDraw> draw;
  if (!draws.empty() || !draw_seed.empty()) draw.emplace();
  if (!draws.empty()) {
    draw->steps = ParseWhole(draws, "--draws", 1, graph::kMostLengthSteps);
  }
  if (!draw_seed.empty()) {
    draw->seed = static_cast<uint64_t>(ParseWhole(
        draw_seed, "--draw-seed", 0, std::numeric_limits<int64_t>::max()));
  }
  std::vector<graph::LengthStep> order = graph::ReadLengths(lengths, draw);
  return problems::MakeLengthProblem(ReadTraces(traces), std::move(order),
                                     ReadTraces(evaluations));
}

void AddPlanOfBatches(CLI::App& app, std::string& path) {
  app.add_option("--plan", path,
                 "table of plans, or one plan for all lengths (default: no "
                 "checkpointing)")
      ->type_name("FILE");
}

namespace {

problems::PlanTable TableOf(std::string_view text, const std::string& path,
                            const problems::LengthProblem& problem) {
  problems::PlanTable table;
  if (problems::IsPlanTable(text)) {
    table = problems::ParsePlanTable(text, path);
  } else {
    problems::Plan plan = problems::ParsePlan(text, path);
    RequireAnswer(plan, path);
    table.model = plan.model;
    table.memory_bytes = plan.budget_bytes;
    table.reserve_bytes = plan.reserve_bytes;
    if (plan.device) {
      table.device.allocator = plan.device->allocator;
      table.device.torch_version = plan.device->torch_version;
      table.device.makes_state_first = plan.device->makes_state_first;
    }
    table.entries.push_back(
        {.longest = problem.lengths[problem.Longest()].length,
         .plan = std::move(plan)});
  }
  const std::string& model = problem.traced.front().trace.model.name;
  problems::Plan of_model;
  of_model.model = table.model;
  RequireModel(of_model, model, path);
  return table;
}

}  // namespace

problems::PlanTable ReadTableOrPlan(const std::string& path,
                                    const problems::LengthProblem& problem) {
  return TableOf(graph::ReadJsonText(path), path, problem);
}

problems::PlanTable ReadTable(const std::string& path,
                              const problems::LengthProblem& problem) {
  const std::string text = graph::ReadJsonText(path);
  if (!problems::IsPlanTable(text)) {
    throw InputError(
        fmt::format("{}: expected a table of plans (acplan.plan_table)", path));
  }
  return TableOf(text, path, problem);
}

}  // namespace acplan::cli
