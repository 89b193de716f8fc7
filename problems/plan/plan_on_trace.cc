#include "problems/plan/plan_on_trace.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"
#include "graph/trace/segments.h"

namespace acplan::problems {

using graph::Quoted;
using graph::Trace;

namespace {

bool IsNamed(std::string_view full, std::string_view name) {
  if (name == full) return true;
  const size_t begin = full.find('.');
  const size_t end = full.rfind('.');
  return begin < end && name == full.substr(begin + 1, end - begin - 1);
}

graph::ModuleId ModuleNamed(const Trace& trace,
                            const graph::ModuleNames& modules,
                            const std::string& fqn) {
  const graph::ModuleId module = modules.Find(fqn);
  if (module != graph::kNone) return module;
  std::vector<std::string> names;
  for (const graph::TraceModule& other : trace.modules) {
    names.push_back(other.fqn);
  }
  const std::vector<std::string> near = graph::NearestNames(fqn, names);
  throw InputError(fmt::format(
      "plan: expected a module of the trace, found {}{}", Quoted(fqn),
      near.empty() ? "" : fmt::format("; nearest: {}", near.front())));
}

void RequireResults(const graph::TraceOperator& op, const PlannedModule& unit,
                    size_t k) {
  const std::optional<std::vector<int32_t>>& results = unit.ops[k].results;
  if (!results || results->empty()) return;
  if (results->back() < std::ssize(op.results)) return;
  throw InputError(fmt::format(
      "plan: {}: operator {}: expected results of the {} that it makes, found "
      "index {}",
      Quoted(unit.fqn), k, op.results.size(), results->back()));
}

void RequireSameOperators(const Trace& trace, const graph::TraceCall& call,
                          const PlannedModule& unit) {
  const auto length = static_cast<size_t>(call.OperatorCount());
  if (unit.ops.size() != length) {
    throw InputError(fmt::format(
        "plan: {}: expected the {} operators of the trace, found {}",
        Quoted(unit.fqn), length, unit.ops.size()));
  }
  for (size_t k = 0; k < length; ++k) {
    const graph::TraceOperator& op =
        trace.operators[call.AtPlace(static_cast<int32_t>(k))];
    if (!IsNamed(trace.operator_names[op.name], unit.ops[k].name)) {
      throw InputError(fmt::format(
          "plan: {}: operator {}: expected {} as in the trace, found {}",
          Quoted(unit.fqn), k, Quoted(trace.operator_names[op.name]),
          Quoted(unit.ops[k].name)));
    }
    RequireResults(op, unit, k);
  }
}

// Returns the calls with gradients of each module.
graph::IndexedVector<graph::ModuleId, std::vector<graph::CallId>>
CallsOfModules(const Trace& trace) {
  graph::IndexedVector<graph::ModuleId, std::vector<graph::CallId>> calls_of(
      trace.modules.size());
  for (const graph::CallId c : trace.calls.ids()) {
    if (trace.calls[c].no_grad) continue;
    calls_of[trace.calls[c].module].push_back(c);
  }
  return calls_of;
}

}  // namespace

std::vector<graph::CheckpointedModule> CheckpointedModules(
    const Trace& trace, const std::vector<PlannedModule>& units) {
  std::vector<graph::CheckpointedModule> modules;
  const graph::ModuleNames names(trace);
  const auto calls_of = CallsOfModules(trace);
  std::set<graph::ModuleId> units_so_far;
  for (const PlannedModule& unit : units) {
    graph::CheckpointedModule module{
        .module = ModuleNamed(trace, names, unit.fqn),
        .stops_early = unit.stops_early,
        .offloaded_arguments = unit.offloaded_arguments};
    if (!units_so_far.insert(module.module).second) {
      throw InputError(fmt::format("plan: {}: expected once, found twice",
                                   Quoted(unit.fqn)));
    }
    if (unit.ops.empty() && unit.discard_ratio < 1) {
      throw InputError(
          fmt::format("plan: {}: expected a decision for each operator, found "
                      "only the ratio {}",
                      Quoted(unit.fqn), unit.discard_ratio));
    }
    if (!unit.ops.empty()) {
      for (const graph::CallId call : calls_of[module.module]) {
        RequireSameOperators(trace, trace.calls[call], unit);
      }
      for (const PlannedOp& op : unit.ops) {
        if (op.results) {
          module.kept_results.emplace(
              static_cast<int32_t>(module.decisions.size()), *op.results);
        }
        module.decisions.push_back(op.decision);
      }
    }
    modules.push_back(std::move(module));
  }
  return modules;
}

std::optional<Trace> WithSegmentsOf(const Trace& trace,
                                    const std::vector<PlannedModule>& units) {
  std::vector<graph::ModuleRun> runs;
  const graph::ModuleNames names(trace);
  for (const PlannedModule& unit : units) {
    if (const auto run = graph::RunNamed(names, unit.fqn)) runs.push_back(*run);
  }
  if (runs.empty()) return std::nullopt;
  return graph::WithSegments(trace, std::move(runs));
}

}  // namespace acplan::problems
