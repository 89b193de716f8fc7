#include "graph/trace/peak_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "graph/trace/allocation.h"

// Accounts for the peak of a step.
//
// The idea. The simulation says which lives of storages are in use at the peak.
// Each is one entry, so the entries add up to the peak; that they do is checked
// against the peak itself, which comes from running sums over the whole step.
//
// What is fixed. Under every plan all operators of the trace run, in their order:
// a plan only adds operators that run again. While one of them runs, what it
// makes is in memory, and so is what the program holds then, since no plan
// changes when the program lets go (HeldByOthers). What it reads that only
// autograd holds, a backward node has asked for and not let go of: the original,
// or what a rerun made, is in memory, too. All else was held by autograd alone,
// and a plan may discard it. So no plan's peak is below
// the sum of what is fixed at any one operator, and the largest such sum
// (FindPeakFloor) is a lower bound on every least budget. While an operator runs
// again, only what the program holds of the originals is fixed: a plan need not
// run it.

namespace acplan::graph {
namespace {

bool HasAscending(const std::vector<int32_t>& ascending, int32_t value) {
  return std::ranges::binary_search(ascending, value);
}

StepPhase PhaseAt(const Trace& trace, int32_t op, bool is_again) {
  if (op < 0) return StepPhase::kBefore;
  if (is_again) return StepPhase::kRecompute;
  if (op < trace.forward_end) return StepPhase::kForward;
  return op < trace.backward_end ? StepPhase::kBackward : StepPhase::kOptimizer;
}

// By storage, the module that has it as a parameter or a buffer, or -1.
std::vector<int32_t> OwnersOf(const Trace& trace) {
  std::vector<int32_t> owners(trace.storages.size(), -1);
  for (auto m = static_cast<int32_t>(trace.modules.size()); m-- > 0;) {
    for (const int32_t s : trace.modules[m].parameters) owners[s] = m;
    for (const int32_t s : trace.modules[m].buffers) owners[s] = m;
  }
  return owners;
}

// Kernels allocate what their operator makes and does not return.
bool IsWorkspace(const Trace& trace, const TraceStorage& storage, int32_t index,
                 int32_t owner) {
  if (storage.born >= 0) {
    return !HasAscending(trace.operators[storage.born].outputs, index);
  }
  return storage.category == StorageCategory::kBuffer && owner < 0;
}

MemoryKind KindOf(const Trace& trace, const LiveStorage& live, int32_t owner) {
  const TraceStorage& storage = trace.storages[live.storage];
  if (IsWorkspace(trace, storage, live.storage, owner)) {
    return MemoryKind::kWorkspace;
  }
  if (live.is_fetched) return MemoryKind::kSaved;
  if (live.is_remade) return MemoryKind::kRecomputed;
  switch (storage.category) {
    case StorageCategory::kParameter:
      return MemoryKind::kParameter;
    case StorageCategory::kBuffer:
      return MemoryKind::kBuffer;
    case StorageCategory::kGradient:
      return MemoryKind::kGradient;
    case StorageCategory::kOptimizer:
      return MemoryKind::kOptimizer;
    case StorageCategory::kInput:
      return MemoryKind::kInput;
    case StorageCategory::kActivation:
      if (storage.born < 0) return MemoryKind::kBuffer;
      return live.is_kept ? MemoryKind::kSaved : MemoryKind::kTemporary;
    case StorageCategory::kTemporary:
      break;
  }
  return MemoryKind::kTemporary;
}

// Which storages backward nodes hold that have asked for them.
class NodeHolds {
 public:
  explicit NodeHolds(const Trace& trace) : trace_(trace) {
    for (const SavedTensor& saved : trace.saved) {
      if (saved.unpacked == kNever) continue;
      holds_.push_back({saved.storage, saved.unpacked, saved.local_end});
    }
    std::ranges::sort(holds_);
  }

  // The operator makes it, or reads it for the node that runs it.
  bool IsNeededBy(int32_t op, int32_t storage) const {
    if (trace_.storages[storage].born == op) return true;
    if (!HasAscending(trace_.operators[op].reads, storage)) return false;
    auto hold =
        std::ranges::lower_bound(holds_, std::array<int32_t, 3>{storage, 0, 0});
    for (; hold != holds_.end() && (*hold)[0] == storage; ++hold) {
      if ((*hold)[1] <= op && op < (*hold)[2]) return true;
    }
    return false;
  }

 private:
  const Trace& trace_;
  std::vector<std::array<int32_t, 3>> holds_;  // storage, from, until
};

}  // namespace

std::string_view ToString(MemoryKind kind) {
  constexpr std::array<std::string_view, kMemoryKinds> kNames = {
      "parameters",         "buffers",   "gradients",
      "optimizer state",    "inputs",    "saved for backward",
      "recomputed",         "temporary", "workspaces",
      "gathered parameters"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view ToString(StepPhase phase) {
  constexpr std::array<std::string_view, 5> kNames = {
      "before the step", "forward", "backward", "recompute", "optimizer"};
  return kNames[static_cast<size_t>(phase)];
}

std::array<int64_t, kMemoryKinds> PeakAccount::ByKind() const {
  std::array<int64_t, kMemoryKinds> sums = {};
  for (const PeakStorage& entry : storages) {
    sums[static_cast<size_t>(entry.kind)] += entry.bytes;
  }
  return sums;
}

int64_t PeakAccount::FixedBytes() const {
  return std::accumulate(storages.begin(), storages.end(), int64_t{0},
                         [](int64_t sum, const PeakStorage& entry) {
                           return entry.is_fixed ? sum + entry.bytes : sum;
                         });
}

int64_t PeakAccount::SumOfBytes() const {
  return std::accumulate(
      storages.begin(), storages.end(), int64_t{0},
      [](int64_t sum, const PeakStorage& entry) { return sum + entry.bytes; });
}

// Calls begin their backward pass in some order, and end it in another; each
// operator takes the one that began last of those that have not ended.
ModuleOfOperator::ModuleOfOperator(const Trace& trace)
    : modules_(trace.operators.size(), -1) {
  std::vector<int32_t> by_start;
  for (int32_t c = 0; c < std::ssize(trace.calls); ++c) {
    if (trace.calls[c].backward_start != kNever) by_start.push_back(c);
  }
  // Of calls that begin together, the one inside comes last: it is the later one.
  std::ranges::stable_sort(
      by_start, {}, [&](int32_t c) { return trace.calls[c].backward_start; });
  std::vector<int32_t> open;
  size_t next = 0;
  for (int32_t op = 0; op < std::ssize(trace.operators); ++op) {
    while (next < by_start.size() &&
           trace.calls[by_start[next]].backward_start <= op) {
      open.push_back(by_start[next++]);
    }
    std::erase_if(open,
                  [&](int32_t c) { return trace.calls[c].backward_end <= op; });
    int32_t call = trace.operators[op].call;
    if (op >= trace.forward_end) {
      const bool is_backward = op < trace.backward_end && !open.empty();
      call = is_backward ? open.back() : -1;
    }
    if (call >= 0) modules_[op] = trace.calls[call].module;
  }
}

PeakAccount AccountFor(const Trace& trace, const SimulatedPeak& peak) {
  const auto& [simulation, live] = peak;
  PeakAccount account{.place = simulation.peak_step};
  if (account.place < 0) return account;
  const ModuleOfOperator module_of(trace);
  const std::vector<int32_t> owners = OwnersOf(trace);
  const NodeHolds holds(trace);
  account.step = simulation.steps[account.place];
  const int32_t running = account.step.op;
  const bool is_again = account.step.redone >= 0;
  account.module = module_of(running);
  account.phase = PhaseAt(trace, running, is_again);
  // Originals come first: of one that is there twice, the other is not fixed.
  std::set<int32_t> needed;
  for (const LiveStorage& entry : live) {
    const int32_t s = entry.storage;
    const bool is_needed =
        !is_again && holds.IsNeededBy(running, s) && needed.insert(s).second;
    const int32_t born = trace.storages[s].born;
    const int32_t owner = owners[s];
    account.storages.push_back(
        {.storage = s,
         .bytes = AllocatedBytes(trace.storages[s].bytes),
         .kind = KindOf(trace, entry, owner),
         .module = owner >= 0 ? owner
                   : born < 0 ? -1
                              : module_of(born),
         .op = born,
         .phase = PhaseAt(trace, born, entry.is_remade),
         .is_fixed = entry.is_held_by_program || is_needed});
  }
  std::ranges::stable_sort(account.storages, std::ranges::greater(),
                           &PeakStorage::bytes);
  account.peak_bytes = account.SumOfBytes();
  return account;
}

PeakAccount AccountForPeak(const Trace& trace,
                           const std::vector<CheckpointedModule>& modules) {
  const SimulatedPeak peak = Simulator(trace).SimulatePeak(modules);
  PeakAccount account = AccountFor(trace, peak);
  if (account.peak_bytes != peak.simulation.peak_bytes) {
    throw std::logic_error(
        fmt::format("the storages at the peak are {} bytes, the peak is {}",
                    account.peak_bytes, peak.simulation.peak_bytes));
  }
  return account;
}

PeakFloor FindPeakFloor(const Trace& trace, const std::vector<int64_t>& more) {
  const auto count = static_cast<int32_t>(trace.operators.size());
  const std::vector<int32_t> held = HeldByOthers(trace);
  std::vector<int64_t> change(count + 1, 0);
  // By storage, until when it is counted as held.
  std::vector<int32_t> until(trace.storages.size(), 0);
  for (size_t s = 0; s < trace.storages.size(); ++s) {
    const int32_t begin = std::max(trace.storages[s].born, 0);
    if (begin >= count) continue;
    until[s] = std::clamp(held[s], begin, count);
    const int64_t bytes = AllocatedBytes(trace.storages[s].bytes);
    change[begin] += bytes;
    change[until[s]] -= bytes;
  }
  const NodeHolds holds(trace);
  PeakFloor floor;
  int64_t sum = 0;
  for (int32_t op = 0; op < count; ++op) {
    sum += change[op];
    int64_t needed = more.empty() ? 0 : more[op];
    std::set<int32_t> others(trace.operators[op].reads.begin(),
                             trace.operators[op].reads.end());
    others.insert(trace.operators[op].creates.begin(),
                  trace.operators[op].creates.end());
    for (const int32_t s : others) {
      if (until[s] <= op && holds.IsNeededBy(op, s)) {
        needed += AllocatedBytes(trace.storages[s].bytes);
      }
    }
    if (sum + needed > floor.bytes) floor = {sum + needed, op};
  }
  return floor;
}

}  // namespace acplan::graph
