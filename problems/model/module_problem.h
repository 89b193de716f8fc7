#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/model/memory_model.h"

namespace acplan::problems {

// The module-level problem: which modules to checkpoint (AC units), and how
// many bytes each discards.
//
// Data
//   A forest of modules; for module i its time t_i (forward post-order) and the
//   base bytes b_i of its record; the budget B. For a candidate unit i the cost
//   curve f_i(d), convex, piecewise linear and nondecreasing on 0 <= d <= D_i:
//   the milliseconds of recomputation for d bytes discarded, f_i(0) >= 0 being
//   the price of a unit that discards nothing; and the bytes h_i that its
//   checkpoint frame holds.
// Variables
//   y_i in {0, 1}           i is a unit
//   0 <= d_i <= D_i y_i     bytes it discards, net of h_i
// Model
//   minimise   sum_i y_i f_i(d_i / y_i)              (the perspective of f_i)
//   subject to sum_{j: t_j < t_k} d_j - sum_{j contains k} h_j y_j >= b_k - B
//                                                    for every record k
//              sum_{i on p} y_i <= 1                 for every root-to-leaf
//                                                    path p
//              sum_i y_i <= max_units                if given
//
// f_i comes from the trade-off fit of PyTorch's SAC estimator. With discard
// ratio r in [0, 1], IA = act_fw_per_module, ACM = max(sac_memory, IA) and
// ACT = sac_runtime, the unit
//   discards     d = ACM r - (ACM - IA) >= 0 bytes and
//   recomputes   max(0, ACT max_s(slope_s r + intercept_s)) ms.
// docs/formulation.md derives this form from torch.distributed._tools.sac_ilp.

// A point of a unit's cost curve.
struct Knot {
  double bytes = 0;  // discarded, net of what the frame holds
  double ms = 0;     // recomputed
};

struct ModuleProblem {
  struct Node {
    int subtree_size = 1;  // pre-order numbering, as in graph::ModuleTree
    // Time of the record and of the end of the module's forward; -1: none.
    int time = -1;
    double base_bytes = 0;  // of the record, where there is one
    // Convex, bytes and ms nondecreasing; linear between knots. Discarding less
    // than the first knot costs as much as the first knot. Empty: no candidate.
    std::vector<Knot> curve;
    double held_bytes = 0;
    // If i is a unit, these bytes replace the records in its subtree: the bytes
    // in use while it runs or runs again. Nothing: the largest of those
    // records.
    std::optional<double> unit_base_bytes = {};
    bool must_be_unit = false;  // if the module around it is no unit
  };
  std::vector<Node> nodes;
  // The bytes in use at a moment that no plan changes (the optimizer step); 0:
  // there is none.
  double fixed_bytes = 0;
  double budget_bytes = 0;  // what the records must not exceed
  std::optional<int> max_units;
  // True if time order is the post-order of the forest. Then the units
  // that have discarded at a record form a prefix of the walk.
  bool prefix_structure = true;
};

struct ModuleProblemOptions {
  MemoryOptions memory = {};
  double budget_bytes = 0;
  std::vector<std::string> ac_units = {};    // only these; empty: all
  std::vector<std::string> fsdp_units = {};  // no unit strictly above these
  std::optional<int> max_units = {};
  // Operators that every policy must save bound the discard ratio. In PyTorch's
  // own problem they do not.
  bool bound_by_forced_saves = true;
  // The trade-offs are fitted anew from the operator statistics
  // (graph::FitTradeoff) instead of taken from the profile.
  bool fit_anew = false;
};

// The conversion between a candidate's discarded bytes and its discard ratio.
struct UnitScale {
  double internal_bytes = 0;  // IA
  double sac_bytes = 0;       // ACM
  double held_bytes = 0;
  // Returns 1 - r, the share that is saved if `net_bytes` are discarded net of
  // the held ones. Where ACM is far above IA this share is exact to the byte,
  // but r, near 1, is not.
  double MemoryBudget(double net_bytes) const {
    return (internal_bytes - held_bytes - net_bytes) / sac_bytes;
  }
};

struct BuiltModuleProblem {
  ModuleProblem problem;
  std::vector<UnitScale> scales;  // by node; only those of candidates are
                                  // meaningful
  // Remarks on the profile and the restrictions for the user, a line
  // each: contradictions that were overridden (once for each module type), fits
  // that are not convex, modules without a usable fit, restrictions without
  // effect.
  std::vector<std::string> warnings;
};

// Builds the module problem of a profile. Throws InputError for unknown names
// in ac_units or fsdp_units (with the nearest known names) and under the
// conditions of MemoryRecords.
BuiltModuleProblem BuildModuleProblem(const graph::Profile& profile,
                                      const graph::ModuleTree& tree,
                                      const ModuleProblemOptions& options);

struct ChosenUnit {
  int node = 0;
  double net_bytes = 0;  // d_i
  // In a joint problem (joint_problem.h): by kind, the number of its groups
  // that are recomputed.
  std::vector<int> counts = {};
};

// Returns the cost of discarding `net_bytes` as a unit; +infinity beyond the
// last knot.
double CurveCost(const std::vector<Knot>& curve, double net_bytes);

// Returns the maximum of the lines and 0 on [0, most_bytes] as knots, with the
// decreasing part cut off (it never pays to discard less for more). A line is
// (ms a byte, ms at 0). Requires `most_bytes` > 0. Computes the upper envelope
// in O(n log n).
std::vector<Knot> CurveOfLines(std::vector<std::pair<double, double>> lines,
                               double most_bytes);

}  // namespace acplan::problems
