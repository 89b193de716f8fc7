#include "problems/trace/relaxation/policy_memo.h"

#include <limits>

namespace acplan::problems {

namespace {

constexpr size_t kMostBytes = 256'000'000;

}  // namespace

std::shared_ptr<const NeedPolicies> PolicyMemo::PoliciesFor(
    NeedGraphId graph, NeedChoices choices) {
  const double most_ms = choices.most_ms;
  choices.base_bytes = 0;
  choices.most_ms = std::numeric_limits<double>::infinity();
  if (bytes_ > kMostBytes) {
    entries_.clear();
    bytes_ = 0;
  }
  Entry& entry = entries_[{graph, choices}];
  if (entry.policies && entry.most_ms >= most_ms) return entry.policies;
  choices.most_ms = most_ms;
  entry = {.most_ms = most_ms,
           .policies = std::make_shared<const NeedPolicies>(
               PoliciesOf(problem_.need_graphs[graph], choices))};
  CountBytes(choices, entry);
  return entry.policies;
}

std::shared_ptr<const NeedPolicies> PolicyMemo::Sharpen(
    NeedGraphId graph, NeedChoices choices, const PolicyWindow& window) {
  std::shared_ptr<const NeedPolicies> coarse = PoliciesFor(graph, choices);
  choices.base_bytes = 0;
  choices.most_ms = std::numeric_limits<double>::infinity();
  Entry& entry = entries_.at({graph, choices});
  entry.policies =
      SharpPolicies(problem_.need_graphs[graph], choices, coarse, window);
  CountBytes(choices, entry);
  return entry.policies;
}

void PolicyMemo::CountBytes(const NeedChoices& choices, const Entry& entry) {
  bytes_ += choices.bytes.size() * (sizeof(int64_t) + sizeof(graph::Flag)) +
            2 * choices.may_save.size() * sizeof(graph::Flag) +
            entry.policies->MemoryBytes();
}

}  // namespace acplan::problems
