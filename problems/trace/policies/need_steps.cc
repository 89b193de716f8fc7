#include "problems/trace/policies/need_steps.h"

#include <algorithm>
#include <cstddef>

#include "graph/base/flag.h"

namespace acplan::problems {

namespace {

constexpr int kNoBit = -1;

uint64_t BitOf(int bit) { return bit < 0 ? 0 : uint64_t{1} << bit; }

// The bits of results and of groups with several operators, and those that end at each
// operator.
class StateBits {
 public:
  explicit StateBits(const NeedGraph& graph, size_t groups)
      : of_result(graph.results, kNoBit),
        of_saved(groups, kNoBit),
        of_rerun(groups, kNoBit),
        closed_after(graph.operators.size(), 0) {
    const auto count = static_cast<int>(graph.operators.size());
    graph::IndexedVector<ResultId, int> last_maker(graph.results, -1);
    graph::IndexedVector<graph::GroupId, int> first_of(groups, -1);
    graph::IndexedVector<graph::GroupId, int> last_of(groups, -1);
    for (int k = 0; k < count; ++k) {
      const NeedGraph::Operator& op = graph.operators[k];
      for (const ResultId r : op.makes) last_maker[r] = k;
      if (first_of[op.group] < 0) first_of[op.group] = k;
      last_of[op.group] = k;
    }
    for (int k = 0; k < count; ++k) {
      const NeedGraph::Operator& op = graph.operators[k];
      for (const ResultId r : op.requests) Open(of_result[r]);
      if (first_of[op.group] == k && last_of[op.group] > k) {
        Open(of_saved[op.group]);
        Open(of_rerun[op.group]);
        // Half of the pair is of no use.
        if (of_rerun[op.group] == kNoBit) of_saved[op.group] = kNoBit;
      }
      for (const ResultId r : op.makes) {
        if (last_maker[r] == k) Close(k, of_result[r]);
      }
      for (const ResultId r : op.reads) {
        if (last_maker[r] > k) Open(of_result[r]);
      }
      if (last_of[op.group] == k) {
        Close(k, of_saved[op.group]);
        Close(k, of_rerun[op.group]);
      }
    }
  }

  uint64_t SetOf(const std::vector<ResultId>& results) const {
    uint64_t set = 0;
    for (const ResultId r : results) set |= BitOf(of_result[r]);
    return set;
  }

  graph::IndexedVector<ResultId, int> of_result;
  graph::IndexedVector<graph::GroupId, int> of_saved, of_rerun;
  std::vector<uint64_t> closed_after;  // indexed by operator

 private:
  void Open(int& bit) {
    if (bit != kNoBit || used_bits_ == ~uint64_t{0}) return;
    bit = 0;
    while ((used_bits_ >> bit & 1) != 0) ++bit;
    used_bits_ |= BitOf(bit);
  }

  void Close(int k, int bit) {
    closed_after[k] |= BitOf(bit);
    used_bits_ &= ~BitOf(bit);
  }

  uint64_t used_bits_ = 0;
};

}  // namespace

std::vector<NeedStep> StepsOf(const NeedGraph& graph,
                              const NeedChoices& choices) {
  const StateBits bits(graph, choices.may_save.size());
  // A result that is written to in place later is counted there.
  graph::IndexedVector<ResultId, graph::Flag> is_counted(graph.results, false);
  std::vector<NeedStep> steps;
  for (size_t k = 0; k < graph.operators.size(); ++k) {
    const NeedGraph::Operator& op = graph.operators[k];
    NeedStep step = {.group = op.group,
                     .ms = op.ms,
                     .requests = bits.SetOf(op.requests),
                     .makes = bits.SetOf(op.makes),
                     .reads = bits.SetOf(op.reads),
                     .is_saved = BitOf(bits.of_saved[op.group]),
                     .is_rerun = BitOf(bits.of_rerun[op.group]),
                     .open = ~bits.closed_after[k],
                     .is_always_needed = op.is_always_needed,
                     .may_save = choices.may_save[op.group],
                     .may_rerun = choices.may_rerun[op.group]};
    for (const ResultId r : op.makes) {
      const uint64_t bit = BitOf(bits.of_result[r]);
      if (!choices.may_keep[r]) step.not_kept |= bit;
      if (!is_counted[r]) step.bytes.emplace_back(bit, choices.bytes[r]);
      is_counted[r] = true;
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<graph::GroupId> GroupsOf(const std::vector<NeedStep>& steps) {
  std::vector<graph::GroupId> groups;
  groups.reserve(steps.size());
  for (const NeedStep& step : steps) groups.push_back(step.group);
  return groups;
}

}  // namespace acplan::problems
