#include "graph/trace/peak_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <ranges>
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
// Fixed bytes. Under every plan all operators of the trace run, in their order: a plan
// only adds operators that run again. While one of them runs, what it makes is in
// memory, and so is what the program holds then, since no plan changes when the program
// lets go (HeldByOthers). A storage that it reads and only autograd holds, a backward
// node has asked for and not let go of: the original, or what a rerun made, is in
// memory, too. All else was held by autograd alone, and a plan may discard it. So no
// plan's peak is below the sum of what is fixed at any one operator, and the largest
// such sum (FindPeakFloor) is a lower bound on every least budget. While an operator
// runs again, only what the program holds of the originals is fixed: a plan need not
// run it.

namespace acplan::graph {
namespace {

bool HasAscending(const std::vector<StorageId>& ascending, StorageId value) {
  return std::ranges::binary_search(ascending, value);
}

StepPhase PhaseAt(const Trace& trace, OperatorId op, bool is_again) {
  if (op == kNone) return StepPhase::kBefore;
  if (is_again) return StepPhase::kRecompute;
  if (StartOf(op) < trace.forward_end) return StepPhase::kForward;
  return StartOf(op) < trace.backward_end ? StepPhase::kBackward
                                          : StepPhase::kOptimizer;
}

// Returns the module that has each storage as a parameter or a buffer, if any.
IndexedVector<StorageId, ModuleId> OwnersOf(const Trace& trace) {
  IndexedVector<StorageId, ModuleId> owners(trace.storages.size(), kNone);
  for (const ModuleId m : std::views::reverse(trace.modules.ids())) {
    for (const StorageId s : trace.modules[m].parameters) owners[s] = m;
    for (const StorageId s : trace.modules[m].buffers) owners[s] = m;
  }
  return owners;
}

// Kernels allocate what their operator makes and does not return.
bool IsWorkspace(const Trace& trace, const TraceStorage& storage, StorageId id,
                 ModuleId owner) {
  if (storage.born != kNone) {
    return !HasAscending(trace.operators[storage.born].outputs, id);
  }
  return storage.category == StorageCategory::kBuffer && owner == kNone;
}

MemoryKind KindOf(const Trace& trace, const LiveStorage& live, ModuleId owner) {
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
      if (storage.born == kNone) return MemoryKind::kBuffer;
      return live.is_kept ? MemoryKind::kSaved : MemoryKind::kTemporary;
    case StorageCategory::kTemporary:
      break;
  }
  return MemoryKind::kTemporary;
}

// The storages that backward nodes hold that have asked for them.
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
  bool IsNeededBy(OperatorId op, StorageId storage) const {
    if (trace_.storages[storage].born == op) return true;
    if (!HasAscending(trace_.operators[op].reads, storage)) return false;
    auto hold = std::ranges::lower_bound(holds_, Hold{.storage = storage});
    for (; hold != holds_.end() && hold->storage == storage; ++hold) {
      if (hold->begin <= StartOf(op) && StartOf(op) < hold->end) return true;
    }
    return false;
  }

 private:
  struct Hold {
    StorageId storage = {};
    Time begin = 0;
    Time end = 0;
    auto operator<=>(const Hold&) const = default;
  };

  const Trace& trace_;
  std::vector<Hold> holds_;  // ascending
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
    : modules_(trace.operators.size(), kNone) {
  std::vector<CallId> by_start;
  for (const CallId c : trace.calls.ids()) {
    if (trace.calls[c].backward_start != kNever) by_start.push_back(c);
  }
  // The one inside of calls that begin together comes last: it is the later one.
  std::ranges::stable_sort(
      by_start, {}, [&](CallId c) { return trace.calls[c].backward_start; });
  std::vector<CallId> open;
  size_t next = 0;
  for (const OperatorId op : trace.operators.ids()) {
    const Time time = StartOf(op);
    while (next < by_start.size() &&
           trace.calls[by_start[next]].backward_start <= time) {
      open.push_back(by_start[next++]);
    }
    std::erase_if(
        open, [&](CallId c) { return trace.calls[c].backward_end <= time; });
    CallId call = trace.operators[op].call;
    if (time >= trace.forward_end) {
      const bool is_backward = time < trace.backward_end && !open.empty();
      call = is_backward ? open.back() : kNone;
    }
    if (call != kNone) modules_[op] = trace.calls[call].module;
  }
}

PeakAccount AccountFor(const Trace& trace, const SimulatedPeak& peak) {
  const auto& [simulation, live] = peak;
  PeakAccount account{.step_id = simulation.peak_step};
  if (account.step_id == kNone) return account;
  const ModuleOfOperator module_of(trace);
  const IndexedVector<StorageId, ModuleId> owners = OwnersOf(trace);
  const NodeHolds holds(trace);
  account.step = simulation.steps[account.step_id];
  const OperatorId running = account.step.op;
  const bool is_again = account.step.redone != kNone;
  account.module = module_of(running);
  account.phase = PhaseAt(trace, running, is_again);
  // Originals come first: of one that is there twice, the other is not fixed.
  std::set<StorageId> needed_storages;
  for (const LiveStorage& entry : live) {
    const StorageId s = entry.storage;
    const bool is_needed = !is_again && holds.IsNeededBy(running, s) &&
                           needed_storages.insert(s).second;
    const OperatorId born = trace.storages[s].born;
    const ModuleId owner = owners[s];
    account.storages.push_back(
        {.storage = s,
         .bytes = AllocatedBytes(trace.storages[s].bytes),
         .kind = KindOf(trace, entry, owner),
         .module = owner != kNone  ? owner
                   : born == kNone ? kNone
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

PeakFloor FindPeakFloor(const Trace& trace,
                        const IndexedVector<OperatorId, int64_t>& more) {
  const auto end = static_cast<Time>(trace.operators.size());
  const IndexedVector<StorageId, Time> held_until = HeldByOthers(trace);
  std::vector<int64_t> change(end + size_t{1}, 0);  // indexed by time
  // The times until when storages are counted as held.
  IndexedVector<StorageId, Time> until(trace.storages.size(), 0);
  for (const StorageId s : trace.storages.ids()) {
    const Time begin = std::max(StartOf(trace.storages[s].born), 0);
    if (begin >= end) continue;
    until[s] = std::clamp(held_until[s], begin, end);
    const int64_t bytes = AllocatedBytes(trace.storages[s].bytes);
    change[begin] += bytes;
    change[until[s]] -= bytes;
  }
  const NodeHolds holds(trace);
  PeakFloor floor;
  int64_t sum = 0;
  for (const OperatorId op : trace.operators.ids()) {
    sum += change[StartOf(op)];
    int64_t needed_bytes = more.empty() ? 0 : more[op];
    std::set<StorageId> others(trace.operators[op].reads.begin(),
                               trace.operators[op].reads.end());
    others.insert(trace.operators[op].creates.begin(),
                  trace.operators[op].creates.end());
    for (const StorageId s : others) {
      if (until[s] <= StartOf(op) && holds.IsNeededBy(op, s)) {
        needed_bytes += AllocatedBytes(trace.storages[s].bytes);
      }
    }
    if (sum + needed_bytes > floor.bytes) floor = {sum + needed_bytes, op};
  }
  return floor;
}

}  // namespace acplan::graph
