#pragma once

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
  kEvery,    // those whose place is a multiple of `period`
  kClasses,  // modules of these classes, blocks or not
};

struct BlockChoice {
  BlockKind kind = BlockKind::kNone;
  int32_t end = 0;
  int32_t period = 1;
  std::vector<std::string> classes = {};  // ascending

  bool operator==(const BlockChoice&) const = default;
};

struct TrainerPolicy {
  BlockChoice blocks = {};
  // Names as in traces, "aten.mm.default", ascending. Without names everything runs
  // again.
  std::vector<std::string> saved = {};
  // A unit saves a product among these names (aten.mm.default, aten.linear.default) if its
  // number, counted from 1 within the unit, is no multiple of this; 1: all products.
  int32_t product_period = 1;
  bool stops_early = true;  // as graph::CheckpointedModule

  bool operator==(const TrainerPolicy&) const = default;
};

// Returns the blocks of a model, in the order of modules: the modules with children and
// with a number for a name that are called and in no other block; with a pattern ("*.h.*"),
// those with children whose names match it.
std::vector<graph::ModuleId> BlocksOf(const graph::Trace& trace,
                                      const std::string& pattern = "");

// Returns the modules that a choice makes units, in the order of modules. A module in
// another one of the choice is not among them.
std::vector<graph::ModuleId> UnitModules(
    const graph::Trace& trace, const std::vector<graph::ModuleId>& blocks,
    const BlockChoice& choice);

// Returns the decisions of a policy about the operators of a module's first call with
// gradients, empty if everything runs again.
std::vector<graph::OperatorDecision> DecisionsOf(const graph::Trace& trace,
                                                 graph::ModuleId module,
                                                 const TrainerPolicy& policy);

// Returns what a trainer does that has this policy, exactly.
std::vector<graph::CheckpointedModule> UnitsOf(
    const graph::Trace& trace, const std::vector<graph::ModuleId>& blocks,
    const TrainerPolicy& policy);

// Returns whether there are modules inside of a module.
bool HasChildren(const graph::Trace& trace, graph::ModuleId module);

// Returns the first call of a module with gradients; kNone if there is none.
graph::CallId FirstCallWithGradients(const graph::Trace& trace,
                                     graph::ModuleId module);

// Returns an operator's name as its name() in PyTorch: "aten::mm" for "aten.mm.default",
// "aten::add.Tensor" for "aten.add.Tensor".
std::string QualifiedName(std::string_view name);

// Returns the name in traces of a qualified one: "aten.mm.default" for "aten::mm".
std::string TracedName(std::string_view qualified_name);

}  // namespace acplan::problems
