#include "graph/trace/gathers.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "graph/trace/allocation.h"
#include "graph/trace/simulation.h"

namespace acplan::graph {
namespace {

// The operators [begin, end) that gather parameters.
struct Gather {
  Time begin = 0;
  Time end = 0;
  int64_t filled_bytes = 0;  // of what is made in it
  int64_t freed_bytes = 0;   // of older storages that are freed in it
};

// Returns all of them in ascending order, without their bytes.
std::vector<Gather> GathersOf(const Trace& trace) {
  std::vector<Gather> gathers;
  for (const TraceCall& call : trace.calls) {
    if (call.gather_begin == kNever) continue;
    gathers.push_back({.begin = call.gather_begin, .end = call.gather_end});
  }
  std::ranges::sort(gathers, {}, &Gather::begin);
  return gathers;
}

// Returns the place of the gather whose operators end at one of (begin, end], or the
// number of all.
size_t PlaceOfEnd(const std::vector<Gather>& gathers, Time time) {
  const auto gather =
      std::ranges::lower_bound(gathers, time, {}, &Gather::end);
  const bool is_in = gather != gathers.end() && gather->begin < time;
  return is_in ? gather - gathers.begin() : gathers.size();
}

}  // namespace

IndexedVector<StorageId, Time> HeldUnderEveryPlan(const Trace& trace) {
  IndexedVector<StorageId, Time> held_until = HeldByOthers(trace);
  std::vector<Gather> gathers = GathersOf(trace);
  if (gathers.empty()) return held_until;
  std::vector<size_t> place_of(held_until.size(), gathers.size());
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    const int64_t bytes = AllocatedBytes(storage.bytes);
    const size_t filled = PlaceOfEnd(gathers, EndOf(storage.born));
    if (storage.born != kNone && filled < gathers.size()) {
      gathers[filled].filled_bytes += bytes;
      continue;
    }
    const size_t place = PlaceOfEnd(gathers, held_until[s]);
    place_of[IndexOf(s)] = place;
    if (place < gathers.size()) gathers[place].freed_bytes += bytes;
  }
  for (const StorageId s : trace.storages.ids()) {
    if (place_of[IndexOf(s)] == gathers.size()) continue;
    const Gather& gather = gathers[place_of[IndexOf(s)]];
    // What is filled takes the place of the buffers, if it is not smaller.
    held_until[s] = gather.filled_bytes >= gather.freed_bytes
                        ? gather.begin
                        : EndOf(trace.storages[s].born);
  }
  return held_until;
}

bool RunsAnythingOnce(const Trace& trace, ModuleId module) {
  return std::ranges::any_of(trace.calls, [&](const TraceCall& call) {
    return call.module == module &&
           std::ranges::any_of(call.Operators(), [&](OperatorId op) {
             return trace.operators[op].once;
           });
  });
}

}  // namespace acplan::graph
