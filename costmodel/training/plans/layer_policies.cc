// Enumeration of all sets of kept tensors, of which there are few: a layer saves about ten
// tensors.
//
// A set from which a tensor can be dropped without more recomputation is beaten by the set
// without it, whatever bytes and times are: fewer bytes, the same operations. So only sets
// in which each tensor is worth keeping are remembered (SetsOfPolicies), and among these
// the policies that no other one beats by the numbers of a job (PoliciesOfLayer).
#include "costmodel/training/plans/layer_policies.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace acplan::costmodel {
namespace {

LayerPolicy PolicyOf(const LayerGraph& graph, const PolicySets& sets) {
  LayerPolicy policy{.sets = sets, .bytes = graph.KeptBytes(sets.kept_tensors)};
  for (OperationSet rest = sets.runs; rest != 0; rest &= rest - 1) {
    const PassTime& forward = graph.operations[std::countr_zero(rest)].forward;
    policy.gpu += forward.compute + forward.communication.Total();
    policy.host += forward.host;
  }
  return policy;
}

bool IsWorthAll(const std::vector<OperationSet>& runs, TensorSet kept_tensors) {
  for (TensorSet rest = kept_tensors; rest != 0; rest &= rest - 1) {
    const TensorSet smaller_set = kept_tensors & ~(rest & (~rest + 1));
    if (runs[smaller_set] == runs[kept_tensors]) return false;
  }
  return true;
}

}  // namespace

std::vector<PolicySets> SetsOfPolicies(const LayerGraph& graph) {
  const size_t count = size_t{1} << graph.tensors.size();
  std::vector<OperationSet> runs(count);
  for (size_t bits = 0; bits < count; ++bits) {
    runs[bits] = RunsAgain(graph, static_cast<TensorSet>(bits));
  }
  std::vector<PolicySets> sets;
  for (size_t bits = 0; bits < count; ++bits) {
    const auto set = static_cast<TensorSet>(bits);
    if (IsWorthAll(runs, set)) sets.push_back({set, runs[bits]});
  }
  return sets;
}

bool IsSameStructure(const LayerGraph& a, const LayerGraph& b) {
  return std::ranges::equal(a.operations, b.operations, {},
                            &GraphOperation::inputs, &GraphOperation::inputs) &&
         std::ranges::equal(a.tensors, b.tensors,
                            [](const GraphTensor& x, const GraphTensor& y) {
                              return x.makers == y.makers &&
                                     x.is_output == y.is_output;
                            });
}

std::vector<LayerPolicy> PoliciesOfLayer(const LayerGraph& graph,
                                         const std::vector<PolicySets>& sets) {
  std::vector<LayerPolicy> all;
  all.reserve(sets.size());
  for (const PolicySets& each : sets) all.push_back(PolicyOf(graph, each));
  std::ranges::sort(all, [](const LayerPolicy& a, const LayerPolicy& b) {
    return std::tie(a.bytes, a.gpu, a.host, a.sets.kept_tensors) <
           std::tie(b.bytes, b.gpu, b.host, b.sets.kept_tensors);
  });
  std::vector<LayerPolicy> best;
  for (const LayerPolicy& policy : all) {
    const bool is_beaten =
        std::ranges::any_of(best, [&](const LayerPolicy& other) {
          return other.gpu <= policy.gpu && other.host <= policy.host;
        });
    if (!is_beaten) best.push_back(policy);
  }
  return best;
}

}  // namespace acplan::costmodel
