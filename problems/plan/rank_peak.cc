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

// Returns, by storage, the first module that has it as a parameter.
std::map<int32_t, int32_t> OwnersOf(const Trace& trace) {
  std::map<int32_t, int32_t> owners;
  for (int32_t m = 0; m < std::ssize(trace.modules); ++m) {
    for (const int32_t s : trace.modules[m].parameters)
      owners.try_emplace(s, m);
  }
  return owners;
}

// Turns the entries of one device into those of a rank.
void ShareOut(PeakAccount& account, const Trace& trace,
              const std::vector<RankBytes>& changes) {
  std::map<int32_t, size_t> place;
  for (size_t k = 0; k < account.storages.size(); ++k) {
    place.try_emplace(account.storages[k].storage, k);
  }
  const std::map<int32_t, int32_t> owners = OwnersOf(trace);
  for (const RankBytes& change : changes) {
    const auto entry = place.find(change.storage);
    if (!change.is_gathered && entry != place.end()) {
      account.storages[entry->second].bytes += change.bytes;
      continue;
    }
    const auto owner = owners.find(change.storage);
    account.storages.push_back(
        {.storage = change.storage,
         .bytes = change.bytes,
         .kind = change.is_gathered
                     ? MemoryKind::kGathered
                     : KindOf(trace.storages[change.storage].category),
         .module = owner == owners.end() ? -1 : owner->second,
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
  const std::vector<int64_t> more = BytesOfRank(trace, options);
  const graph::SimulatedPeak peak = graph::Simulator(trace).SimulatePeak(
      modules, [&](graph::Simulation simulation) {
        return OnRank(std::move(simulation), more);
      });
  PeakAccount account = graph::AccountFor(trace, peak);
  if (account.place < 0) return account;
  const int32_t time = TimesOf(peak.simulation)[account.place];
  ShareOut(account, trace, BytesOfRankByStorage(trace, options, time));
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
