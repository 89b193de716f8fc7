#include "graph/trace/gathers.h"

#include <algorithm>
#include <cstddef>

#include "graph/trace/allocation.h"
#include "graph/trace/simulation.h"

namespace acplan::graph {
namespace {

// Returns the place of the gather of which an operator ends at a time, or the number of
// all.
size_t PlaceOfEnd(const std::vector<Gather>& gathers, Time time) {
  const auto gather = std::ranges::lower_bound(gathers, time, {}, &Gather::end);
  const bool is_in = gather != gathers.end() && gather->begin < time;
  return is_in ? gather - gathers.begin() : gathers.size();
}

struct GathersOfStorages {
  std::vector<Gather> gathers;
  // The place of the gather of which a storage is a buffer, or the number of all.
  std::vector<size_t> place_of = {};
};

GathersOfStorages Find(const Trace& trace,
                       const IndexedVector<StorageId, Time>& held_until) {
  GathersOfStorages result;
  std::vector<Gather>& gathers = result.gathers;
  for (const CallId c : trace.calls.ids()) {
    const TraceCall& call = trace.calls[c];
    if (call.gather_begin == kNever) continue;
    gathers.push_back(
        {.call = c, .begin = call.gather_begin, .end = call.gather_end});
  }
  if (gathers.empty()) return result;
  std::ranges::sort(gathers, {}, &Gather::begin);
  result.place_of.assign(trace.storages.size(), gathers.size());
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    const int64_t bytes = AllocatedBytes(storage.bytes);
    const size_t filled = PlaceOfEnd(gathers, EndOf(storage.born));
    if (storage.born != kNone && filled < gathers.size()) {
      gathers[filled].filled_bytes += bytes;
      continue;
    }
    const size_t place = PlaceOfEnd(gathers, held_until[s]);
    result.place_of[IndexOf(s)] = place;
    if (place < gathers.size()) gathers[place].buffer_bytes += bytes;
  }
  return result;
}

}  // namespace

std::vector<Gather> GathersOf(const Trace& trace) {
  return Find(trace, HeldByOthers(trace)).gathers;
}

IndexedVector<StorageId, Time> HeldUnderEveryPlan(const Trace& trace) {
  IndexedVector<StorageId, Time> held_until = HeldByOthers(trace);
  const GathersOfStorages of_storages = Find(trace, held_until);
  if (of_storages.gathers.empty()) return held_until;
  for (const StorageId s : trace.storages.ids()) {
    const size_t place = of_storages.place_of[IndexOf(s)];
    if (place == of_storages.gathers.size()) continue;
    const Gather& gather = of_storages.gathers[place];
    held_until[s] =
        gather.TakesPlace() ? gather.begin : EndOf(trace.storages[s].born);
  }
  return held_until;
}

std::vector<Gather> EarlyGathers(const Trace& trace,
                                 const std::vector<Gather>& gathers,
                                 CallId unit, Time request, Time stop) {
  std::vector<Gather> early;
  for (const Gather& gather : gathers) {
    const TraceCall& call = trace.calls[gather.call];
    const bool is_inside =
        gather.call > unit && call.end <= trace.calls[unit].end;
    if (is_inside && call.start <= stop && request <= gather.begin) {
      early.push_back(gather);
    }
  }
  return early;
}

IndexedVector<ModuleId, Flag> HoldSharded(const Trace& trace) {
  IndexedVector<ModuleId, Flag> holds(trace.modules.size(), false);
  std::vector<OperatorId> once;
  for (const OperatorId op : trace.operators.ids()) {
    if (trace.operators[op].once) once.push_back(op);
  }
  for (const TraceCall& call : trace.calls) {
    const auto first = std::ranges::lower_bound(once, OperatorAt(call.start));
    if (first != once.end() && StartOf(*first) < call.end) {
      holds[call.module] = true;
    }
  }
  return holds;
}

}  // namespace acplan::graph
