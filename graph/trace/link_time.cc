#include "graph/trace/link_time.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

// Follows the device through steps and events, which are in one order. When a
// copy ends is known when it is queued, since nothing overtakes it: in its
// direction it begins at the latest of now, of the end of the copy before it,
// and, back to the device, of its arrival at the host.

namespace acplan::graph {

IndexedVector<StepId, double> BeginsOfSteps(const Trace& trace,
                                            const Simulation& simulation) {
  IndexedVector<StepId, double> begins = {0};
  begins.reserve(simulation.steps.size() + 1);
  for (const Simulation::Step& step : simulation.steps) {
    begins.push_back(begins.back() + trace.operators[step.op].runtime_ms);
  }
  return begins;
}

LinkTime TimeOnLink(const IndexedVector<StepId, double>& begins_ms,
                    const OffloadUse& use,
                    const IndexedVector<MovedId, Flag>& moves,
                    const LinkRates& rates) {
  using enum OffloadEvent::Kind;
  LinkTime time;
  time.waits_ms.assign(use.events.size(), 0);
  double to_host_ms = 0;  // when the copies so far have ended
  double to_device_ms = 0;
  IndexedVector<MovedId, double> arrivals_ms(use.storages.size(), 0);
  for (size_t k = 0; k < use.events.size(); ++k) {
    const OffloadEvent& event = use.events[k];
    if (!moves[event.storage]) continue;
    const auto bytes = static_cast<double>(use.storages[event.storage].bytes);
    const double now_ms = begins_ms[event.step] + time.stall_ms;
    double& arrival = arrivals_ms[event.storage];
    switch (event.kind) {
      case kSend:
        to_host_ms = std::max(to_host_ms, now_ms) + bytes / rates.to_host * 1e3;
        arrival = to_host_ms;
        break;
      case kFetch:
        to_device_ms = std::max({to_device_ms, now_ms, arrival}) +
                       bytes / rates.to_device * 1e3;
        arrival = to_device_ms;
        break;
      case kRelease:
      case kUse:
        time.waits_ms[k] = std::max(0.0, arrival - now_ms);
        time.stall_ms += time.waits_ms[k];
        break;
      case kDrop:
        break;
    }
  }
  return time;
}

namespace {

// The trace's operators that copy, and that wait for a copy; kNone where there are none.
struct CopyNames {
  explicit CopyNames(const Trace& trace) {
    has_host_storages = std::ranges::any_of(
        trace.storages, [](const auto& s) { return s.host_bytes > 0; });
    for (const OperatorNameId name : trace.operator_names.ids()) {
      const std::string& text = trace.operator_names[name];
      if (text == "aten._to_copy.default") cast = name;
      if (text == "aten.copy_.default") copy = name;
      if (!text.starts_with("acplan.")) continue;
      if (text == "acplan.offload.default") to_host = name;
      if (text == "acplan.reload.default") to_device = name;
      if (text == "acplan.wait.default") wait = name;
    }
  }

  // Returns whether an operator may be a copy to the host or back that ends before the
  // next operator.
  bool IsPlain(OperatorNameId name) const {
    return has_host_storages && (name == cast || name == copy);
  }

  OperatorNameId to_host = kNone, to_device = kNone, wait = kNone;
  OperatorNameId cast = kNone, copy = kNone;
  bool has_host_storages = false;
};

struct PlainCopy {
  bool is_sent;  // to the host
  int64_t bytes;
};

// Returns what an operator copies to the host or back; nothing if it copies within the
// device or the host.
std::optional<PlainCopy> CopyBetween(const Trace& trace,
                                     const TraceOperator& op) {
  if (op.outputs.empty()) return std::nullopt;
  const StorageId target = op.outputs.front();
  const int64_t to_host = trace.storages[target].host_bytes;
  for (const StorageId source : op.reads) {
    const int64_t to_device = trace.storages[source].host_bytes;
    if (source == target || (to_host > 0) == (to_device > 0)) continue;
    return PlainCopy{.is_sent = to_host > 0,
                     .bytes = std::max(to_host, to_device)};
  }
  return std::nullopt;
}

int64_t CopiedBytes(const Trace& trace,
                    const std::vector<StorageId>& storages) {
  int64_t bytes = 0;
  for (const StorageId s : storages) bytes += trace.storages[s].bytes;
  return bytes;
}

}  // namespace

bool HasOwnCopies(const Trace& trace) {
  const CopyNames names(trace);
  return names.to_host != kNone || names.to_device != kNone ||
         names.has_host_storages;
}

OffloadUse WithOwnCopies(const Trace& trace, const Simulation& simulation) {
  using enum OffloadEvent::Kind;
  OffloadUse use = simulation.offload;
  const CopyNames names(trace);
  std::vector<OffloadEvent> events;
  auto next = use.events.begin();
  const auto add_until = [&](StepId step) {
    for (; next != use.events.end() && next->step <= step; ++next)
      events.push_back(*next);
  };
  // The copies that nothing has waited for, by the storage that they fill.
  std::map<StorageId, MovedId> pending;
  const auto add_copy = [&](StepId step, const PlainCopy& copy) {
    const OperatorId op = simulation.steps[step].op;
    const std::vector<StorageId>& outputs = trace.operators[op].outputs;
    const MovedId moved_copy =
        use.storages.Add({.call = kNone,
                          .storage = outputs.empty() ? kNone : outputs.front(),
                          .op = op,
                          .bytes = copy.bytes});
    events.push_back({.kind = copy.is_sent ? kSend : kFetch,
                      .step = step,
                      .storage = moved_copy});
    return moved_copy;
  };
  for (const StepId k : simulation.steps.ids()) {
    const TraceOperator& op = trace.operators[simulation.steps[k].op];
    add_until(k);
    if (op.name == names.to_host || op.name == names.to_device) {
      // The host's memory has no bytes in such a trace.
      const int64_t bytes =
          CopiedBytes(trace, op.reads) + CopiedBytes(trace, op.outputs);
      const MovedId copy =
          add_copy(k, {.is_sent = op.name == names.to_host, .bytes = bytes});
      for (const StorageId s : op.outputs) pending[s] = copy;
    } else if (const auto plain = names.IsPlain(op.name)
                                      ? CopyBetween(trace, op)
                                      : std::nullopt) {
      const MovedId copy = add_copy(k, *plain);
      events.push_back({.kind = kUse, .step = Next(k), .storage = copy});
    } else if (op.name == names.wait) {
      for (const StorageId s : op.reads) {
        const auto copy = pending.find(s);
        if (copy == pending.end()) continue;
        events.push_back(
            {.kind = kUse, .step = Next(k), .storage = copy->second});
        pending.erase(copy);
      }
    }
  }
  add_until(simulation.steps.end_id());
  use.events = std::move(events);
  return use;
}

LinkTime TimeOnLink(const Trace& trace, const Simulation& simulation,
                    const LinkRates& rates) {
  const auto begins_ms = BeginsOfSteps(trace, simulation);
  const MovedId first_own = simulation.offload.storages.end_id();
  if (!HasOwnCopies(trace)) {
    const IndexedVector<MovedId, Flag> moves(simulation.offload.storages.size(),
                                             true);
    return TimeOnLink(begins_ms, simulation.offload, moves, rates);
  }
  const OffloadUse use = WithOwnCopies(trace, simulation);
  IndexedVector<MovedId, Flag> moves(use.storages.size(), true);
  const LinkTime all = TimeOnLink(begins_ms, use, moves, rates);
  LinkTime time = {.stall_ms = all.stall_ms, .waits_ms = {}};
  for (size_t k = 0; k < use.events.size(); ++k) {
    if (use.events[k].storage < first_own)
      time.waits_ms.push_back(all.waits_ms[k]);
  }
  for (const MovedId k : simulation.offload.storages.ids()) moves[k] = false;
  time.stall_ms -= TimeOnLink(begins_ms, use, moves, rates).stall_ms;
  return time;
}

}  // namespace acplan::graph
