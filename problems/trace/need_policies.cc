// The policies of a call by labels.
//
// Idea. The operators are walked from the last to the first. Which of the results
// made so far back are still needed is all that the rest of the walk has to know
// of the policy: its state. A label is a policy so far: the bytes that it keeps
// and the ms that run again. At an operator of whose results some are needed,
// each label goes on in two ways: the operator is saved, so these results are
// kept; or it runs again, and what it reads is needed. Where none is needed, there
// is nothing to decide. Operators of one group are decided alike, which is part of
// the state from the first of them to the last.
//
// Invariant. The labels of a state contain, for every policy of the operators
// walked so far that leads to that state, one that keeps at most as many bytes and
// costs at most as many ms. For what is to come adds the same to both.
//
// So the labels after the last step contain all policies that no other one beats.
//
// A state is a set of bits. A result has a bit from the first operator that may
// need it to the one that creates it, and bits are used again. Where there are too
// few, a result is not tracked: it is never needed, which costs less. Where there
// are too many labels, those within a few bytes of each other become one with the
// fewest bytes and least ms of all, and the history of one of them. Both only
// relax.
#include "problems/trace/need_policies.h"

#include <algorithm>
#include <map>
#include <utility>

namespace acplan::problems {

namespace {

constexpr int kBits = 64;
constexpr int kNoBit = -1;
constexpr size_t kMostLabels = 6000;
constexpr int64_t kGridOfMerged = 500;

struct Label {
  int64_t kept_bytes;
  double ms;
  int32_t move;
};

// Keeps what no other label beats, by bytes.
std::vector<Label> Best(std::vector<Label> labels) {
  std::ranges::stable_sort(labels, [](const Label& a, const Label& b) {
    return a.kept_bytes != b.kept_bytes ? a.kept_bytes < b.kept_bytes
                                        : a.ms < b.ms;
  });
  size_t kept = 0;
  for (const Label& label : labels) {
    // Sums in another order are the same.
    if (kept > 0 && label.ms >= labels[kept - 1].ms * (1 - 1e-12)) continue;
    labels[kept++] = label;
  }
  labels.resize(kept);
  return labels;
}

// Labels within a few bytes of each other as one.
std::vector<Label> Merged(const std::vector<Label>& labels) {
  const int64_t few =
      (labels.back().kept_bytes - labels.front().kept_bytes) / kGridOfMerged;
  std::vector<Label> merged;
  for (const Label& label : labels) {
    if (merged.empty() || label.kept_bytes > merged.back().kept_bytes + few) {
      merged.push_back(label);
    } else {
      merged.back().ms = label.ms;
    }
  }
  return merged;
}

uint64_t BitOf(int bit) { return bit < 0 ? 0 : uint64_t{1} << bit; }

// The bits of results and of groups with several operators, and which of them
// are free again after each operator.
class StateBits {
 public:
  explicit StateBits(const NeedGraph& graph, size_t groups)
      : of_result(graph.results, kNoBit),
        saved(groups, kNoBit),
        rerun(groups, kNoBit),
        closed_after(graph.operators.size(), 0) {
    const auto count = static_cast<int>(graph.operators.size());
    std::vector<int> last_maker(graph.results, -1);
    std::vector<int> first_of(groups, -1);
    std::vector<int> last_of(groups, -1);
    for (int k = 0; k < count; ++k) {
      const NeedGraph::Operator& op = graph.operators[k];
      for (const int r : op.makes) last_maker[r] = k;
      if (first_of[op.group] < 0) first_of[op.group] = k;
      last_of[op.group] = k;
    }
    for (int k = 0; k < count; ++k) {
      const NeedGraph::Operator& op = graph.operators[k];
      for (const int r : op.asked) Open(of_result[r]);
      if (first_of[op.group] == k && last_of[op.group] > k) {
        Open(saved[op.group]);
        Open(rerun[op.group]);
        // Half of the pair is of no use.
        if (rerun[op.group] == kNoBit) saved[op.group] = kNoBit;
      }
      for (const int r : op.makes) {
        if (last_maker[r] == k) Close(k, of_result[r]);
      }
      for (const int r : op.reads) {
        if (last_maker[r] > k) Open(of_result[r]);
      }
      if (last_of[op.group] == k) {
        Close(k, saved[op.group]);
        Close(k, rerun[op.group]);
      }
    }
  }

  uint64_t SetOf(const std::vector<int>& results) const {
    uint64_t set = 0;
    for (const int r : results) set |= BitOf(of_result[r]);
    return set;
  }

  std::vector<int> of_result, saved, rerun;
  std::vector<uint64_t> closed_after;  // an operator

 private:
  void Open(int& bit) {
    if (bit != kNoBit || used_ == ~uint64_t{0}) return;
    bit = 0;
    while ((used_ >> bit & 1) != 0) ++bit;
    used_ |= BitOf(bit);
  }

  void Close(int k, int bit) {
    closed_after[k] |= BitOf(bit);
    used_ &= ~BitOf(bit);
  }

  uint64_t used_ = 0;
};

class NeedLabels {
 public:
  NeedLabels(const NeedGraph& graph, const NeedChoices& choices)
      : graph_(graph),
        choices_(choices),
        bits_(graph, choices.may_save.size()),
        is_counted_(graph.results, 0) {
    states_[0] = {{.kept_bytes = 0, .ms = 0, .move = -1}};
  }

  NeedPolicies Run() && {
    for (size_t k = 0; k < graph_.operators.size(); ++k) {
      Ask(bits_.SetOf(graph_.operators[k].asked));
      Decide(k);
      Limit();
    }
    std::vector<Label> all;
    for (const auto& [state, labels] : states_) {
      all.insert(all.end(), labels.begin(), labels.end());
    }
    all = Best(std::move(all));
    std::ranges::reverse(all);
    std::vector<PolicyPoint> points;
    std::vector<int32_t> last_moves;
    for (const Label& label : all) {
      points.push_back({choices_.base_bytes - label.kept_bytes, label.ms});
      last_moves.push_back(label.move);
    }
    return {std::move(points), std::move(last_moves), std::move(moves_),
            choices_.may_save.size()};
  }

 private:
  using States = std::map<uint64_t, std::vector<Label>>;

  static void Append(const std::vector<Label>& labels, uint64_t state,
                     States& states) {
    std::vector<Label>& of = states[state];
    of.insert(of.end(), labels.begin(), labels.end());
  }

  void Replace(States states) {
    for (auto& [state, labels] : states) labels = Best(std::move(labels));
    states_ = std::move(states);
  }

  void Ask(uint64_t asked) {
    if (asked == 0) return;
    States next;
    for (const auto& [state, labels] : states_) {
      Append(labels, state | asked, next);
    }
    Replace(std::move(next));
  }

  void Decide(size_t k) {
    const NeedGraph::Operator& op = graph_.operators[k];
    const uint64_t makes = bits_.SetOf(op.makes);
    const uint64_t saved = BitOf(bits_.saved[op.group]);
    const uint64_t rerun = BitOf(bits_.rerun[op.group]);
    const uint64_t reads = bits_.SetOf(op.reads);
    const uint64_t open = ~bits_.closed_after[k];
    States next;
    for (const auto& [state, labels] : states_) {
      if ((state & makes) == 0) {
        Append(labels, state & open, next);
        continue;
      }
      if (MaySave(op, state) && (state & rerun) == 0) {
        Append(Moved(labels, KeptBytes(op, state), 0,
                     {-1, op.group, GroupUse::kSaved}),
               ((state & ~makes) | saved) & open, next);
      }
      if (choices_.may_rerun[op.group] && (state & saved) == 0) {
        // What it makes anew and reads is what it writes to in place.
        const uint64_t after = (state & ~makes & open) | (rerun & open) | reads;
        Append(Moved(labels, 0, op.ms, {-1, op.group, GroupUse::kRunsAgain}),
               after, next);
      }
    }
    // What is written to in place later was counted there.
    for (const int r : op.makes) is_counted_[r] = 1;
    Replace(std::move(next));
  }

  bool MaySave(const NeedGraph::Operator& op, uint64_t state) const {
    return choices_.may_save[op.group] &&
           std::ranges::all_of(op.makes, [&](int r) {
             return choices_.may_keep[r] ||
                    (state & BitOf(bits_.of_result[r])) == 0;
           });
  }

  int64_t KeptBytes(const NeedGraph::Operator& op, uint64_t state) const {
    int64_t bytes = 0;
    for (const int r : op.makes) {
      if (!is_counted_[r] && (state & BitOf(bits_.of_result[r])) != 0) {
        bytes += choices_.bytes[r];
      }
    }
    return bytes;
  }

  std::vector<Label> Moved(std::vector<Label> labels, int64_t kept_bytes,
                           double ms, NeedPolicies::Move move) {
    for (Label& label : labels) {
      move.previous = label.move;
      label = {.kept_bytes = label.kept_bytes + kept_bytes,
               .ms = label.ms + ms,
               .move = static_cast<int32_t>(moves_.size())};
      moves_.push_back(move);
    }
    return labels;
  }

  void Limit() {
    size_t count = 0;
    for (const auto& [state, labels] : states_) count += labels.size();
    if (count <= kMostLabels) return;
    for (auto& [state, labels] : states_) labels = Merged(labels);
  }

  const NeedGraph& graph_;
  const NeedChoices& choices_;
  const StateBits bits_;
  std::vector<char> is_counted_;  // a result: its bytes, at a later operator
  States states_;
  std::vector<NeedPolicies::Move> moves_;
};

}  // namespace

std::vector<GroupUse> NeedPolicies::UsesOf(size_t point) const {
  std::vector<GroupUse> uses(groups_, GroupUse::kNone);
  for (int32_t m = last_move_[point]; m >= 0; m = moves_[m].previous) {
    uses[moves_[m].group] = moves_[m].use;
  }
  return uses;
}

NeedPolicies PoliciesOf(const NeedGraph& graph, const NeedChoices& choices) {
  return NeedLabels(graph, choices).Run();
}

}  // namespace acplan::problems
