#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/trace/call_facts.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Holds what is known of the calls of a step. Refers to the trace.
struct CallFacts {
  explicit CallFacts(const Trace& step)
      : trace(step),
        forest(MakeCallForest(step)),
        saves(FindCallSaves(step)),
        writes(FindInPlaceWrites(step)) {}

  const Trace& trace;
  CallForest forest;
  CallSaves saves;
  InPlaceWrites writes;
};

// Why a module cannot run again under a policy.
enum class UnitObstacle : char {
  kNoGradients,      // all of its calls are without gradients
  kInsideItself,     // a call is inside another one of the same module
  kArgumentWritten,  // an argument is written to before the call runs again
  kStateWritten,     // so is memory of others that the call writes to
  kStateRead,        // a value is read of memory that is written to since
  kAskedTwice,       // backward asks twice for something saved in a call
  kCastAgain,        // autocast would cast a weight again
  kOtherOperators    // its calls run different operators
};

struct UnitRefusal {
  UnitObstacle obstacle = UnitObstacle::kNoGradients;
  OperatorId op = kNone;     // the operator that it is about, if any
  OperatorId other = kNone;  // the one that it is in conflict with, if any
};

// Returns why a module cannot run again under a policy, if it cannot. Calls without
// gradients count for nothing, since they never run again.
std::optional<UnitRefusal> FindUnitRefusal(const CallFacts& facts,
                                           ModuleId module);

// Returns in one sentence why the module cannot run again without a policy either:
// for want of a random state that PyTorch restores, or since an operator of a
// call writes to memory of others that the call reads. Nothing if it can, as far
// as calls alone say; what the simulation refuses is not known here.
std::optional<std::string> RefusalOfWhole(const CallFacts& facts,
                                          ModuleId module);

// Returns the obstacle as a clause that follows "because", without its place.
std::string KindText(UnitObstacle obstacle);
// Returns the rest of that sentence: the place of the obstacle and what to do
// about it.
std::string PlaceText(const UnitRefusal& refusal, const Trace& trace);

// Returns the time of a call's last save, up to which it runs again; 0 if it never
// does.
inline Time RerunStop(const CallFacts& facts, CallId call) {
  return facts.saves.first_request[call] == kNever
             ? 0
             : facts.saves.last_save[call];
}

// Returns whether operator `op` would read other contents when the call runs
// again.
bool ReadsStale(const CallFacts& facts, CallId call, OperatorId op);

}  // namespace acplan::graph
