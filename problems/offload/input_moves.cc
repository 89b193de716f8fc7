#include "problems/offload/input_moves.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "graph/trace/operator_kinds.h"
#include "problems/offload/cover_units.h"
#include "problems/offload/movables.h"

namespace acplan::problems {
namespace {

using graph::CheckpointedModule;
using graph::OperatorId;
using graph::Trace;

constexpr int kLeastBlocks = 2;

double MsOf(const Trace& trace, const graph::TraceCall& call) {
  double ms = 0;
  for (const OperatorId op : call.Operators())
    ms += trace.operators[op].runtime_ms;
  return ms;
}

// Returns the units of the cover that are of the class whose calls take the most time.
std::vector<CheckpointedModule> Blocks(const TraceProblem& problem) {
  const Trace& trace = *problem.trace;
  const std::vector<CheckpointedModule> cover =
      WithCover(problem, {}, {.keeps_results = false});
  const auto class_of = [&](const CheckpointedModule& unit) {
    return trace.modules[unit.module].class_name;
  };
  struct Class {
    double ms = 0;
    int units = 0;
  };
  std::map<std::string, Class> classes;
  for (const CheckpointedModule& unit : cover) {
    Class& own = classes[class_of(unit)];
    ++own.units;
    for (const graph::TraceCall& call : trace.calls)
      if (call.module == unit.module) own.ms += MsOf(trace, call);
  }
  std::erase_if(classes, [](const auto& entry) {
    return entry.second.units < kLeastBlocks;
  });
  const auto longest = std::ranges::max_element(
      classes, {}, [](const auto& entry) { return entry.second.ms; });
  if (longest == classes.end()) return {};
  std::vector<CheckpointedModule> blocks;
  for (const CheckpointedModule& unit : cover)
    if (class_of(unit) == longest->first) blocks.push_back(unit);
  return blocks;
}

}  // namespace

double InputMoves::Factor() const {
  return forward_ms / std::max(send_ms, fetch_ms);
}

std::optional<double> InputMoves::HiddenFrom() const {
  const double copy_ms = std::max(send_ms, fetch_ms);
  const double rest_ms = forward_ms - attention_ms;
  if (rest_ms >= copy_ms) return 0;
  if (attention_ms <= 0) return std::nullopt;
  return (copy_ms - rest_ms) / attention_ms;
}

std::optional<InputMoves> InputMovesOf(const TraceProblem& problem,
                                       const graph::LinkRates& rates) {
  const Trace& trace = *problem.trace;
  const std::vector<CheckpointedModule> blocks = Blocks(problem);
  if (blocks.empty()) return std::nullopt;
  const std::optional<graph::Simulation> use =
      SimulatedUse(problem, WithAllOffloaded(problem, blocks));
  if (!use || use->offload.sent_bytes == 0) return std::nullopt;
  const auto copies_ms = [&](double rate) {
    return static_cast<double>(use->offload.sent_bytes) / rate * 1e3;
  };
  InputMoves moves{
      .class_name = trace.modules[blocks.front().module].class_name,
      .bytes = use->offload.sent_bytes,
      .send_ms = copies_ms(rates.to_host),
      .fetch_ms = copies_ms(rates.to_device),
      .stall_ms = graph::TimeOnLink(trace, *use, rates).stall_ms};
  const auto kinds = graph::KindsOf(trace);
  for (const graph::TraceCall& call : trace.calls) {
    const bool is_block =
        !call.no_grad && std::ranges::count(blocks, call.module,
                                            &CheckpointedModule::module) > 0;
    if (!is_block) continue;
    ++moves.blocks;
    moves.forward_ms += MsOf(trace, call);
    for (const OperatorId op : call.Operators())
      if (kinds[op] == graph::OperatorKind::kAttention)
        moves.attention_ms += trace.operators[op].runtime_ms;
  }
  return moves;
}

}  // namespace acplan::problems
