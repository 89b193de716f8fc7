#include "cli/report/module_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "graph/profile/profile.h"
#include "graph/trace/simulation.h"

namespace acplan::cli {

using nlohmann::ordered_json;

namespace {

std::string_view ToText(graph::OperatorDecision decision) {
  switch (decision) {
    case graph::OperatorDecision::kSave:
      return "save";
    case graph::OperatorDecision::kSkip:
      return "skip";
    case graph::OperatorDecision::kOffload:
      return "offload";
    case graph::OperatorDecision::kRecompute:
      break;
  }
  return "recompute";
}

std::map<std::string, std::string> ClassNames(const ProfileInput& input) {
  std::map<std::string, std::string> names;
  if (!input.trace) return names;
  for (const graph::TraceModule& module : input.trace->modules) {
    names[module.fqn] = module.class_name;
  }
  return names;
}

// Returns, by module, the place of its own operators in the forward pass:
// "model.py:12", or "model.py:12-30", in the file that has most of them.
std::map<std::string, std::string> LinesOfModules(const ProfileInput& input) {
  std::map<std::string, std::string> lines;
  if (!input.trace || input.trace->sources.empty()) return lines;
  const graph::Trace& trace = *input.trace;
  struct Span {
    int operators = 0;
    int32_t first = std::numeric_limits<int32_t>::max();
    int32_t last = 0;
  };
  std::map<graph::ModuleId, std::map<std::string, Span>> files;
  for (const graph::OperatorId op : graph::OperatorsIn(0, trace.forward_end)) {
    const auto [call, source] =
        std::pair(trace.operators[op].call, trace.operators[op].source);
    if (call == graph::kNone || source == graph::kNone) continue;
    const graph::SourceLine& line = trace.sources[source];
    Span& span = files[trace.calls[call].module][line.file];
    ++span.operators;
    span.first = std::min(span.first, line.line);
    span.last = std::max(span.last, line.line);
  }
  for (const auto& [module, by_file] : files) {
    const auto& [file, span] = *std::ranges::max_element(
        by_file, {}, [](const auto& entry) { return entry.second.operators; });
    lines[trace.modules[module].fqn] =
        span.first == span.last
            ? fmt::format("{}:{}", file, span.first)
            : fmt::format("{}:{}-{}", file, span.first, span.last);
  }
  return lines;
}

}  // namespace

ordered_json ModulesJson(const ProfileInput& input,
                         const graph::ModuleTree& tree) {
  const std::map<std::string, std::string> classes = ClassNames(input);
  const std::map<std::string, std::string> lines = LinesOfModules(input);
  ordered_json list = ordered_json::array();
  for (int i = 0; i < tree.size(); ++i) {
    const graph::Module& module = input.profile.modules[tree.node(i).module];
    int64_t own = module.act_fw_per_module;
    int64_t own_parameters = module.param_per_module;
    for (const int child : tree.Children(i)) {
      const graph::Module& child_module =
          input.profile.modules[tree.node(child).module];
      own -= child_module.act_fw_per_module;
      own_parameters -= child_module.param_per_module;
    }
    ordered_json entry = {
        {"name", module.fqn},
        {"parent", tree.node(i).parent},
        {"calls", module.calls},
        {"parameters", module.param_per_module},
        {"own_parameters", std::max<int64_t>(0, own_parameters)},
        {"activations", module.act_fw_per_module},
        {"own_activations", std::max<int64_t>(0, own)},
        {"forward_ms", module.fw_runtime_per_module}};
    if (const auto entry_of = classes.find(module.fqn);
        entry_of != classes.end()) {
      entry["class"] = entry_of->second;
    }
    if (const auto entry_of = lines.find(module.fqn); entry_of != lines.end()) {
      entry["lines"] = entry_of->second;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

ordered_json UnitsJson(const problems::Plan& plan) {
  ordered_json list = ordered_json::array();
  for (const problems::PlannedModule& unit : plan.modules) {
    ordered_json entry = {{"name", unit.fqn},
                          {"discard_ratio", unit.discard_ratio}};
    if (unit.recompute_ms != problems::kNotStated) {
      entry["recompute_ms"] = unit.recompute_ms;
    }
    if (unit.discarded_bytes != problems::kNotStated) {
      entry["discarded_bytes"] = unit.discarded_bytes;
    }
    std::map<std::string_view, std::map<std::string, int>> counts;
    for (const problems::PlannedOp& op : unit.ops) {
      ++counts[ToText(op.decision)][op.name];
    }
    for (const auto& [decision, names] : counts) {
      entry["operators"][std::string(decision)] = names;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace acplan::cli
