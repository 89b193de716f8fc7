#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::problems {

// A policy in the words that the configurations of trainers have: which blocks are
// units, and the names of the operators that each of them saves.

enum class BlockKind {
  kNone,     // no block is a unit
  kAll,      // every block
  kFirst,    // those in [0, end)
  kRange,    // those in [begin, end), where begin is above 0
  kEvery,    // those whose place is a multiple of `period`
  kRuns,     // runs of `period` blocks, each run as one unit
  kClasses,  // modules of these classes, blocks or not
  kParts,    // these parts of every block (module_parts.h)
};

struct BlockChoice {
  BlockKind kind = BlockKind::kNone;
  int32_t begin = 0;
  int32_t end = 0;
  int32_t period = 1;
  std::vector<std::string> classes = {};  // ascending
  std::vector<std::string> parts = {};    // names, ascending

  bool operator==(const BlockChoice&) const = default;
};

// The meaning of a name: all operators that are called so, or those in one place of each
// unit.
enum class NameKind {
  kOperators,  // "aten.mm.default"
  kPlaces,     // "self_attn.q_proj:aten.mm.default"
};

struct TrainerPolicy {
  BlockChoice blocks = {};
  // Ascending. Without names everything runs again.
  std::vector<std::string> saved = {};
  // The names of operators whose results wait in the host's memory, ascending; none of
  // them is in `saved`.
  std::vector<std::string> offloaded = {};
  NameKind names = NameKind::kOperators;
  // A unit saves a product among these names (aten.mm.default, aten.linear.default) if its
  // number, counted from 1 within the unit, is no multiple of this; 1: all products.
  int32_t product_period = 1;
  bool counts_grouped = false;  // products of all experts count, too
  bool stops_early = true;      // as graph::CheckpointedModule

  // Returns the names of `saved` and `offloaded`, ascending.
  std::vector<std::string> KeptNames() const;

  bool operator==(const TrainerPolicy&) const = default;
};

// Returns the blocks of a model, in the order of modules: the modules with children and
// with a number for a name that are called and in no other block; with a pattern ("*.h.*"),
// those with children whose names match it.
std::vector<graph::ModuleId> BlocksOf(const graph::Trace& trace,
                                      const std::string& pattern = "");

// Returns whether a choice by places of blocks has the block at a place.
bool HasBlock(const BlockChoice& choice, int32_t place);

// Returns the same blocks. Throws InputError with the nearest pattern if a pattern names no
// module.
std::vector<graph::ModuleId> BlocksLike(const graph::Trace& trace,
                                        const std::string& pattern);

// Returns the modules that a choice makes units, in the order of modules. A module in
// another one of the choice is not among them. For runs the trace has segments of blocks
// (changed_step.h).
std::vector<graph::ModuleId> UnitModules(
    const graph::Trace& trace, const std::vector<graph::ModuleId>& blocks,
    const BlockChoice& choice);

// Returns how many modules a choice names, those in another one of the choice among them.
size_t CountOfUnits(const graph::Trace& trace,
                    const std::vector<graph::ModuleId>& blocks,
                    const BlockChoice& choice);

// Returns an operator's name: that of the trace, or "PATH:NAME", with the path of its
// innermost module inside of the unit.
std::string NameOf(const graph::Trace& trace, graph::ModuleId unit,
                   graph::OperatorId op, NameKind kind);

// Returns the decisions of a policy about the operators of a module's first call with
// gradients, empty if everything runs again.
std::vector<graph::OperatorDecision> DecisionsOf(const graph::Trace& trace,
                                                 graph::ModuleId module,
                                                 const TrainerPolicy& policy);

// Returns what a trainer does that has this policy, exactly.
std::vector<graph::CheckpointedModule> UnitsOf(
    const graph::Trace& trace, const std::vector<graph::ModuleId>& blocks,
    const TrainerPolicy& policy);

// Returns whether a name is that of a module inside of another one.
bool IsInside(std::string_view fqn, std::string_view other);

// Returns whether there are modules inside of a module.
bool HasChildren(const graph::Trace& trace, graph::ModuleId module);

// Returns the first call of a module with gradients; kNone if there is none.
graph::CallId FirstCallWithGradients(const graph::Trace& trace,
                                     graph::ModuleId module);

// Returns an operator's name as its name() in PyTorch: "aten::mm" for "aten.mm.default",
// "aten::add.Tensor" for "aten.add.Tensor". A name in a place is returned unchanged.
std::string QualifiedName(std::string_view name);

// Returns the name in traces of a qualified one: "aten.mm.default" for "aten::mm".
std::string TracedName(std::string_view qualified_name);

}  // namespace acplan::problems
