#include "costmodel/planning/block_policies.h"

#include <algorithm>
#include <cstdint>

namespace acplan::costmodel {
namespace {

struct Label {
  uint64_t wanted = 0;  // operators that must make their output
  BlockPolicy policy;
};

// Of labels that want the same, those that no other beats.
void Prune(std::vector<Label>& labels) {
  std::ranges::sort(labels, [](const Label& a, const Label& b) {
    if (a.wanted != b.wanted) return a.wanted < b.wanted;
    if (a.policy.bytes != b.policy.bytes)
      return a.policy.bytes < b.policy.bytes;
    return a.policy.cost < b.policy.cost;
  });
  size_t kept = 0;
  for (const Label& label : labels) {
    if (kept > 0 && labels[kept - 1].wanted == label.wanted &&
        labels[kept - 1].policy.cost <= label.policy.cost) {
      continue;
    }
    labels[kept++] = label;
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
                                      std::span<const double> costs) {
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
        label.policy.cost += costs[i];
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
