#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "graph/trace/offload.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Simulates what a training step would do and use with some of its modules
// checkpointed, from its trace without checkpointing. simulation.cc works one
// step out.
//
// The rules are those of torch.utils.checkpoint (not re-entrant, early stop)
// under a selective policy:
// - A storage lives as long as someone holds it: the program (until its
//   scope_end), autograd for what was saved outside of every unit, or one of
//   the following.
// - In a unit autograd keeps nothing. Each call has a frame, which holds the
//   call's arguments until autograd lets go of the last thing saved in it.
// - When backward first asks for something saved in a call, the call's
//   operators run again, in order, up to the last save; of that one what comes
//   before the save. Without early stop they run to the call's end. Operators that the policy saved do not run: their results,
//   kept until then, take the place of what they would make, or until the frame
//   ends where they are not reached.
// - An operator that the policy skips does not run again either. In place of
//   its results it hands on stand-ins, which have no storage; one in place
//   returns its argument as it is. Results that a saved operator does not keep
//   are stand-ins as well, and so are views of stand-ins, which nothing runs
//   for.
// - A storage that is created again is held by the program as before, and no longer
//   than the recomputation; by autograd as long as the recomputation lasts, if it is
//   saved; and from then until the backward node that asks for it lets go of it. A view
//   that the policy saved is one of the original storage.
// - A unit may be inside another. The inner frame's arguments that are tensors given by
//   position then are saves of the outer unit, so the outer one runs again first, the
//   inner one's operators among the others, and the inner one with the arguments that
//   this made. Its other arguments the inner frame holds itself, from the forward pass
//   on. The inner one has what it saved from the forward pass, too, whatever the outer
//   one skips; which operators run when the outer one runs again is the outer one's
//   policy alone.
// - A cast that autocast kept from before the call is made again, before the
//   operator that needs it, and kept until the recomputation ends.
// - A tensor that a module keeps as an attribute stays the one of the forward
//   pass: a recomputation leaves attributes as it found them, and what it makes
//   in their place goes with it.
// - A unit called without gradients is only called.
// - An operator that the policy offloads is saved, but what it keeps is so in
//   the host's memory until shortly before the unit runs again. The same may be said of
//   an argument that the frame holds (graph/trace/offload.h).
// Bytes are those of live storages, each rounded up to 512 as CUDA's caching
// allocator does.

// The decision of a policy about an operator of a unit.
enum class OperatorDecision : char {
  kRecompute = 0,
  kSave = 1,
  kSkip = 2,
  kOffload = 3
};

// Returns whether the results are kept, wherever.
constexpr bool Keeps(OperatorDecision decision) {
  return decision == OperatorDecision::kSave ||
         decision == OperatorDecision::kOffload;
}

inline OperatorDecision SaveOrRecompute(bool is_saved) {
  return is_saved ? OperatorDecision::kSave : OperatorDecision::kRecompute;
}

struct CheckpointedModule {
  ModuleId module = {};
  // One an operator of each of its calls. Empty: all are recomputed.
  std::vector<OperatorDecision> decisions = {};
  // For the place of an operator that keeps results: which of them are kept, as places
  // in TraceOperator::results. Without an entry all are.
  std::map<int32_t, std::vector<int32_t>> kept_results = {};
  // A call that runs again stops at the last save, PyTorch's default; otherwise it
  // runs to its end (torch.utils.checkpoint's early_stop).
  bool stops_early = true;
  // The tensors, given to each call, that wait in the host's memory, as ascending
  // places (GivenStorage).
  std::vector<int32_t> offloaded_arguments = {};

  bool RecomputesEverything() const {
    return std::ranges::all_of(decisions, [](OperatorDecision decision) {
      return decision == OperatorDecision::kRecompute;
    });
  }
};

struct Simulation {
  struct Step {
    OperatorId op = {};
    CallId redone = kNone;  // the call for which it runs again, if it does
    bool operator==(const Step&) const = default;
  };
  IndexedVector<StepId, Step> steps;  // the operators that run, in order
  IndexedVector<StepId, int64_t> live_bytes;  // while each of them runs
  int64_t peak_bytes = 0;
  StepId peak_step = kNone;  // the first with the peak, if anything runs
  std::array<int64_t, kStorageCategories> peak_by_category = {};
  double recompute_ms = 0;  // of what runs again
  OffloadUse offload = {};

  bool operator==(const Simulation&) const = default;
};

// Throws InputError, naming the module, for one that is never called, for
// `decisions` whose length is not the number of operators of each call, and for what
// PyTorch refuses to run or computes wrongly: an operator saved whose result
// another one writes to in place later, unless that is saved as well and
// nothing that runs again reads the result in between; a tensor given by
// position that is written to between the call and its recomputation; something
// saved in a unit that backward asks for twice; an operator saved that makes a
// sparse tensor; and a policy where a cast by autocast would be made again.
// Likewise for kept_results of an operator that is not saved, or of results that
// it does not make or not in ascending order, and where something other than a
// view would be computed with a stand-in, or with what an operator in place that
// is skipped did not write to:
// - an operator that runs again reads a storage of which a tensor that it may
//   read is one;
// - backward asks for one, a unit inside of this one that runs again is given
//   one by position;
// - an operator is skipped that returns no tensor.
// And for offload of arguments that a call does not have, in a unit inside of another one, and of a storage that is
// written to in place between the operator that offloads it and the
// recomputation.
// A storage from outside of the unit is never stale, since the forward pass wrote
// to it.
Simulation Simulate(const Trace& trace,
                    const std::vector<CheckpointedModule>& modules);

// A storage is in use during the steps [begin, end). Where end <= begin, it is
// so during the step that creates it only.
struct Life {
  StorageId storage = {};
  StepId begin = {};
  StepId end = {};

  bool operator==(const Life&) const = default;
};
enum class LifeId : int32_t {};  // in LivedStep::lives
using LifeList = IndexedVector<LifeId, Life>;

// Returns the life of a storage as the trace has it.
constexpr LifeId OriginalLife(StorageId storage) {
  return LifeId{IndexOf(storage)};
}

// A planned step as the storages that it uses, whose sum is a Simulation.
struct LivedStep {
  IndexedVector<StepId, Simulation::Step> steps;
  // First those of the trace's storages, in their order: one that lives before
  // the step begins with 0, one that outlives it ends after the last step. Then
  // those of what comes back from the host, and of what runs again.
  LifeList lives;
};

// The bytes that live during a step, by kind: the categories of storages, but what a
// rerun makes again is a kind of its own.
inline constexpr size_t kRecomputedKind = kStorageCategories;
inline constexpr size_t kLiveKinds = kStorageCategories + 1;
using LiveBytes = std::array<int64_t, kLiveKinds>;

// A simulation with what its live_bytes consist of at each step.
struct DetailedSimulation {
  Simulation simulation;
  IndexedVector<StepId, LiveBytes> by_kind;  // adds up to live_bytes
};

// Returns until when others than autograd hold each storage in the step as it was.
IndexedVector<StorageId, Time> HeldByOthers(const Trace& trace);

// A storage in use at the peak of a simulated step.
struct LiveStorage {
  StorageId storage = {};
  bool is_remade = false;   // what runs again made it
  bool is_fetched = false;  // it came back from the host
  // The program holds the original then, so that it is there under every plan.
  bool is_held_by_program = false;
  // Someone holds it for longer than the program does: autograd, a policy or a
  // frame.
  bool is_kept = false;

  bool operator==(const LiveStorage&) const = default;
};

struct SimulatedPeak {
  Simulation simulation;
  std::vector<LiveStorage> live;  // at simulation.peak_step
};

struct PreparedTrace;

// Simulates many plans of one trace, and finds what no plan changes only once.
// Refers to the trace, which must not change.
class Simulator {
 public:
  explicit Simulator(const Trace& trace);
  explicit Simulator(Trace&&) = delete;

  // Does the same as the function above.
  Simulation Simulate(const std::vector<CheckpointedModule>& modules) const;

  // Returns the storages that the step uses, and when. Refuses what Simulate
  // refuses.
  LivedStep Live(const std::vector<CheckpointedModule>& modules) const;

  // Simulates, with the bytes of each kind at each step.
  DetailedSimulation SimulateInDetail(
      const std::vector<CheckpointedModule>& modules) const;

  // Simulates, with all that is in use at the peak. `change`, if there is one, may put
  // the peak elsewhere, such as where a rank has it.
  SimulatedPeak SimulatePeak(
      const std::vector<CheckpointedModule>& modules,
      const std::function<Simulation(Simulation)>& change = {}) const;

 private:
  std::shared_ptr<const PreparedTrace> prepared_;
};

}  // namespace acplan::graph
