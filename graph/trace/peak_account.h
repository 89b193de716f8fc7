#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The memory of a simulated step at its peak, storage by storage.

enum class MemoryKind : uint8_t {
  kParameter,
  kBuffer,  // and other tensors that modules keep from step to step
  kGradient,
  kOptimizer,
  kInput,
  kSaved,       // kept for backward: by autograd, a policy or a frame
  kRecomputed,  // made by what runs again
  kTemporary,   // all else, gradients of activations among it
  kWorkspace,   // what kernels and their libraries allocate beside results
  kGathered     // what a rank has of parameters besides its shards of them
};
inline constexpr size_t kMemoryKinds = 10;
std::string_view ToString(MemoryKind kind);  // "parameters" ...

enum class StepPhase : uint8_t {
  kBefore,  // before the step
  kForward,
  kBackward,
  kRecompute,
  kOptimizer
};
std::string_view ToString(StepPhase phase);  // "before the step" ...

// A storage that is in use at the peak.
struct PeakStorage {
  StorageId storage = {};
  int64_t bytes = 0;  // as allocated
  MemoryKind kind = MemoryKind::kTemporary;
  // Which module has it, as parameter or buffer, or made it: in its forward, or
  // in its backward pass, of several the one that began last.
  ModuleId module = kNone;
  OperatorId op = kNone;                 // that made it; kNone: before the step
  StepPhase phase = StepPhase::kBefore;  // when it was made
  // Is there when this operator runs under every plan: the program holds it, or
  // the operator makes it, or reads it for the backward node that runs it.
  bool is_fixed = false;

  bool operator==(const PeakStorage&) const = default;
};

struct PeakAccount {
  int64_t peak_bytes = 0;  // the sum of all entries
  // The operator that runs; of a trace without operators nothing.
  Simulation::Step step = {};
  StepId step_id = kNone;  // of it
  ModuleId module = kNone;
  StepPhase phase = StepPhase::kBefore;
  // The largest first, then by storage.
  std::vector<PeakStorage> storages = {};

  std::array<int64_t, kMemoryKinds> ByKind() const;
  int64_t FixedBytes() const;
  int64_t SumOfBytes() const;
};

// Returns what is in use at the peak of a simulation, as one device has it: peak_bytes
// is the sum, even if the simulation says otherwise.
PeakAccount AccountFor(const Trace& trace, const SimulatedPeak& peak);

// Accounts for the peak of a step under a plan. Throws InputError as Simulate does, and
// std::logic_error where the storages are not the peak: a defect of acplan.
PeakAccount AccountForPeak(const Trace& trace,
                           const std::vector<CheckpointedModule>& modules);

// No plan needs less: what is fixed while an operator runs, at the operator at
// which that is most. `more` is what there is besides at each operator under every
// plan (negative: less), if anything.
struct PeakFloor {
  int64_t bytes = 0;
  OperatorId op = kNone;
};
PeakFloor FindPeakFloor(const Trace& trace,
                        const IndexedVector<OperatorId, int64_t>& more = {});

// The module whose forward or backward pass has an operator: of a backward pass,
// the one that began last. kNone: none.
class ModuleOfOperator {
 public:
  explicit ModuleOfOperator(const Trace& trace);
  ModuleId operator()(OperatorId op) const { return modules_[op]; }

 private:
  IndexedVector<OperatorId, ModuleId> modules_;
};

}  // namespace acplan::graph
