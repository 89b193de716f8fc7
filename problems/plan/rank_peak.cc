#include "problems/plan/rank_peak.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <utility>

#include "problems/plan/trace_memory.h"

namespace acplan::problems {

using graph::MemoryKind;
using graph::PeakAccount;
using graph::PeakStorage;
using graph::Trace;

namespace {

MemoryKind KindOf(graph::StorageCategory category) {
  switch (category) {
    case graph::StorageCategory::kGradient:
      return MemoryKind::kGradient;
    case graph::StorageCategory::kOptimizer:
      return MemoryKind::kOptimizer;
    default:
      return MemoryKind::kParameter;
  }
}

// Returns the first module that has each storage as a parameter.
std::map<graph::StorageId, graph::ModuleId> OwnersOf(const Trace& trace) {
  std::map<graph::StorageId, graph::ModuleId> owners;
  for (const graph::ModuleId m : trace.modules.ids()) {
    for (const graph::StorageId s : trace.modules[m].parameters)
      owners.try_emplace(s, m);
  }
  return owners;
}

// Turns the entries of one device into those of a rank.
void ShareOut(PeakAccount& account, const Trace& trace,
              const std::vector<RankBytes>& changes) {
  std::map<graph::StorageId, size_t> places;
  for (size_t k = 0; k < account.storages.size(); ++k) {
    places.try_emplace(account.storages[k].storage, k);
  }
  const auto owners = OwnersOf(trace);
  for (const RankBytes& change : changes) {
    const auto place = places.find(change.storage);
    if (!change.is_gathered && place != places.end()) {
      account.storages[place->second].bytes += change.bytes;
      continue;
    }
    const auto owner = owners.find(change.storage);
    account.storages.push_back(
        {.storage = change.storage,
         .bytes = change.bytes,
         .kind = change.is_gathered
                     ? MemoryKind::kGathered
                     : KindOf(trace.storages[change.storage].category),
         .module = owner == owners.end() ? graph::kNone : owner->second,
         .is_fixed = true});
  }
  std::ranges::stable_sort(account.storages, std::ranges::greater(),
                           &PeakStorage::bytes);
  account.peak_bytes = account.SumOfBytes();
}

}  // namespace

PeakAccount AccountForPeakOfRank(
    const Trace& trace, const std::vector<graph::CheckpointedModule>& modules,
    const MemoryOptions& options) {
  if (options.world_size == 1) return graph::AccountForPeak(trace, modules);
  const auto more = BytesOfRank(trace, options);
  const graph::SimulatedPeak peak = graph::Simulator(trace).SimulatePeak(
      modules, [&](graph::Simulation simulation) {
        return OnRank(std::move(simulation), more);
      });
  PeakAccount account = graph::AccountFor(trace, peak);
  if (account.step_id == graph::kNone) return account;
  const graph::Time time = TimesOf(peak.simulation)[account.step_id];
  ShareOut(account, trace,
           BytesOfRankByStorage(trace, options, graph::OperatorAt(time)));
  if (account.peak_bytes != peak.simulation.peak_bytes) {
    throw std::logic_error(fmt::format(
        "the storages at the peak of a rank are {} bytes, the peak is {}",
        account.peak_bytes, peak.simulation.peak_bytes));
  }
  return account;
}

graph::PeakFloor FindPeakFloorOfRank(const Trace& trace,
                                     const MemoryOptions& options) {
  return graph::FindPeakFloor(trace, BytesOfRank(trace, options));
}

}  // namespace acplan::problems
