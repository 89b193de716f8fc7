#include "costmodel/planning/block_policies.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>

namespace acplan::costmodel {
namespace {

struct Label {
  uint64_t wanted = 0;  // operators that must make their output
  BlockPolicy policy;
};

// Keeps, of labels that want the same, those that no other beats.
void Prune(std::vector<Label>& labels) {
  std::ranges::sort(labels, {}, [](const Label& label) {
    const BlockPolicy& policy = label.policy;
    return std::tuple(label.wanted, policy.bytes, policy.costs);
  });
  size_t kept = 0;
  size_t first = 0;  // that wants the same
  for (const Label& label : labels) {
    if (kept > 0 && labels[kept - 1].wanted != label.wanted) first = kept;
    const bool is_beaten = std::any_of(
        labels.begin() + static_cast<ptrdiff_t>(first),
        labels.begin() + static_cast<ptrdiff_t>(kept), [&](const Label& other) {
          return std::ranges::equal(other.policy.costs, label.policy.costs,
                                    std::less_equal<>());
        });
    if (!is_beaten) labels[kept++] = label;
  }
  labels.resize(kept);
}

Label Keep(Label label, int tensor, double bytes) {
  label.policy.kept |= KeptTensors{1} << tensor;
  label.policy.bytes += bytes;
  return label;
}

}  // namespace

std::vector<BlockPolicy> FindPolicies(const BlockOperators& block,
                                      std::span<const PolicyCosts> costs) {
  std::vector<Label> labels = {{.policy = {.bytes = block.input_bytes}}};
  std::vector<Label> next;
  for (size_t i = block.operators.size(); i-- > 0;) {
    const Operator& op = block.operators[i];
    uint64_t inputs = 0;
    for (const int input : op.inputs) inputs |= uint64_t{1} << input;
    const uint64_t own = uint64_t{1} << i;
    next.clear();
    const auto add = [&](Label label, bool runs) {
      label.wanted &= ~own;
      if (runs) {
        label.wanted |= inputs;
        for (size_t k = 0; k < costs[i].size(); ++k) {
          label.policy.costs[k] += costs[i][k];
        }
      }
      next.push_back(label);
    };
    const bool has_mask = op.mask >= 0;
    const bool has_output = op.output >= 0;
    const bool is_required = has_output && block.tensors[op.output].is_required;
    for (const Label& label : labels) {
      const bool is_wanted = (label.wanted & own) != 0 || is_required;
      for (const bool keeps_mask : {true, false}) {
        if (keeps_mask && !has_mask) continue;
        const Label with_mask =
            keeps_mask ? Keep(label, op.mask, block.tensors[op.mask].bytes)
                       : label;
        const bool runs_for_mask = has_mask && !keeps_mask;
        add(with_mask, is_wanted || runs_for_mask);
        if (has_output && is_wanted) {
          add(Keep(with_mask, op.output, block.tensors[op.output].bytes),
              runs_for_mask);
        }
      }
    }
    Prune(next);
    labels.swap(next);
  }
  std::vector<BlockPolicy> policies;
  for (const Label& label : labels) policies.push_back(label.policy);
  return policies;
}

}  // namespace acplan::costmodel
