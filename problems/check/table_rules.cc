#include "problems/check/table_rules.h"

#include <fmt/format.h>

#include <utility>

#include "graph/base/byte_size.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/length_traces.h"
#include "problems/check/plan_effect.h"
#include "problems/check/stated_number.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::problems {
namespace {

using BrokenTable = std::optional<std::string>;

// Returns the trace with the segments that the plan names.
graph::Trace TraceFor(const Plan& plan, graph::Trace trace) {
  auto with_segments = WithSegmentsOf(trace, plan.modules);
  return with_segments ? *std::move(with_segments) : std::move(trace);
}

BrokenTable BrokenEntry(const LengthProblem& problem, const PlanTable& table,
                        const TableEntry& entry, const PlanRules& rules) {
  const graph::Trace trace =
      TraceFor(entry.plan, graph::TraceAt(problem.traced, entry.longest));
  Plan plan = entry.plan;
  plan.budget_bytes = table.memory_bytes;
  plan.reserve_bytes = table.reserve_bytes;
  plan.device.reset();
  const BrokenTable broken =
      FirstBrokenRule(graph::Aggregate(trace), plan, rules, &trace);
  if (!broken) return std::nullopt;
  return fmt::format("the plan up to length {}: {}", entry.longest, *broken);
}

// Returns the mean recomputation, summed by the check's own code.
double MeanMs(const LengthProblem& problem, const PlanTable& table) {
  double sum = 0;
  for (size_t k = 0; k < problem.lengths.size(); ++k) {
    if (problem.counts[k] == 0) continue;
    const graph::TraceOfLength& length = problem.lengths[k];
    const Plan& plan = table.EntryFor(length.length).plan;
    const graph::Trace trace = TraceFor(plan, length.trace);
    const PlanEffect effect =
        ComputeEffect(graph::Aggregate(trace), plan.modules, plan.memory,
                      plan.tradeoff, &trace);
    sum += effect.recompute_ms * static_cast<double>(problem.counts[k]);
  }
  return sum / static_cast<double>(problem.Batches());
}

BrokenTable BrokenRun(const LengthProblem& problem, const PlanTable& table) {
  const PlanDevice& stated = table.device;
  const DeviceSetting setting{
      .allocator = stated.allocator,
      .config = graph::ParseAllocatorConfig(
          stated.allocator, "table: device: allocator",
          graph::ParsePyTorchVersion(stated.torch_version,
                                     "table: device: torch_version")),
      .makes_state_first = stated.makes_state_first,
      .ddp = stated.ddp};
  const LengthSteps steps =
      LiveSteps(problem, [&](size_t k) -> const std::vector<PlannedModule>& {
        return table.EntryFor(problem.lengths[k].length).plan.modules;
      });
  const int64_t device_bytes = table.memory_bytes - table.reserve_bytes;
  const std::optional<PlanDevice> actual =
      FindDeviceUse(RunOf(problem, steps, setting), setting, device_bytes);
  if (!actual) {
    return fmt::format(
        "out of memory: the run of these batches does not end on a device of "
        "{} with PyTorch's allocator ({})",
        graph::FormatBytes(device_bytes), stated.allocator);
  }
  const auto differs = [](const char* what, int64_t stated_number,
                          int64_t number) -> BrokenTable {
    if (stated_number == kNotStated || stated_number == number) {
      return std::nullopt;
    }
    return fmt::format("the table states {} {}; the run has {}", stated_number,
                       what, number);
  };
  for (const BrokenTable& broken :
       {differs("bytes allocated", stated.allocated_bytes,
                actual->allocated_bytes),
        differs("bytes reserved", stated.reserved_bytes,
                actual->reserved_bytes),
        differs("bytes of the least device", stated.least_device_bytes,
                actual->least_device_bytes),
        differs("retries", stated.retries, actual->retries)}) {
    if (broken) return broken;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> BrokenTableRule(const LengthProblem& problem,
                                           const PlanTable& table,
                                           const PlanRules& rules) {
  const int64_t longest = problem.lengths[problem.Longest()].length;
  if (table.entries.back().longest < longest) {
    return fmt::format("the table ends at length {}, a batch has {}",
                       table.entries.back().longest, longest);
  }
  for (const TableEntry& entry : table.entries) {
    if (auto broken = BrokenEntry(problem, table, entry, rules)) return broken;
  }
  if (auto broken = BrokenRun(problem, table)) return broken;
  const double recompute_ms = MeanMs(problem, table);
  if (IsFalse(table.recompute_ms, recompute_ms)) {
    return fmt::format(
        "the table states {} ms of recomputation for a batch; it is {} ms",
        table.recompute_ms, recompute_ms);
  }
  if (table.bound_ms > recompute_ms && IsFalse(table.bound_ms, recompute_ms)) {
    return fmt::format("the table's bound of {} ms is above what it recomputes",
                       table.bound_ms);
  }
  return std::nullopt;
}

}  // namespace acplan::problems
