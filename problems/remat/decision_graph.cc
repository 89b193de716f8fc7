#include "problems/remat/decision_graph.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

// Idea. Whether an operator runs again depends on later operators alone: on what of its
// values they and backward need. So decisions are taken from the last operator to the
// first, and all that matters of those taken is which earlier values are needed, first
// before which backward node, and for the last time when. Times matter only as far as
// rows tell them apart: `Clock` turns them into a few classes.
//
// Rows. What a value takes at a moment of forward: its bytes, if it is kept, made before
// and not live anyway. At a moment of backward: its bytes from when it is there to when
// it is needed for the last time. A moment at which an operator runs again is one only if
// it does: its row has `absent` more room, more than all values together, which the
// operator takes back where it runs again at that time.

namespace acplan::problems {
namespace {

// All subsets of so many values of an operator are tried.
constexpr int kMostSubsets = 10;

// When a value is needed, in classes of the clock.
struct Need {
  int32_t first = 0;  // class of the backward node
  int32_t last = 0;   // rows before this one are not after the last need
  // 0: no operator of stage either reads it that forward runs; else one more than the
  // rows of forward until then, where it is not live until then anyway.
  int32_t early = 0;

  bool operator==(const Need&) const = default;
};

// A need that is not what backward's own is.
struct Pending {
  int32_t value = 0;
  Need need = {};

  bool operator==(const Pending&) const = default;
};

using State = std::vector<Pending>;  // by value

struct StateHash {
  size_t operator()(const State& state) const {
    size_t hash = state.size();
    for (const Pending& p : state) {
      for (const int32_t x : {p.value, p.need.first, p.need.last, p.need.early})
        hash =
            hash * 0x9E3779B97F4A7C15U + static_cast<size_t>(x) + (hash >> 29U);
    }
    return hash;
  }
};

bool IsBefore(const RematMoment& a, const RematMoment& b) {
  const bool is_a_forward = a.kind == RematMoment::Kind::kForward;
  const bool is_b_forward = b.kind == RematMoment::Kind::kForward;
  if (is_a_forward != is_b_forward) return is_a_forward;
  if (is_a_forward) return a.op < b.op;
  if (a.backward != b.backward) return a.backward < b.backward;
  if (a.kind != b.kind) return a.kind == RematMoment::Kind::kAgain;
  return a.kind == RematMoment::Kind::kAgain && a.op < b.op;
}

// Times as far as rows tell them apart.
class Clock {
 public:
  Clock(const std::vector<RematMoment>& rows,
        const std::vector<RematCondition>& conditions)
      : rows_(rows) {
    for (const RematCondition& condition : conditions) {
      steps_.push_back(condition.moment.backward);
      steps_.push_back(condition.moment.backward + 1);
    }
    while (forward_ < std::ssize(rows) &&
           rows[forward_].kind == RematMoment::Kind::kForward) {
      ++forward_;
    }
    for (int32_t r = forward_; r < std::ssize(rows); ++r) {
      if (rows[r].kind == RematMoment::Kind::kAgain)
        steps_.push_back(rows[r].backward);
      steps_.push_back(rows[r].backward + 1);
    }
    std::ranges::sort(steps_);
    steps_.erase(std::ranges::unique(steps_).begin(), steps_.end());
  }

  int32_t forward_rows() const { return forward_; }
  Need None() const { return {.first = Never(), .last = forward_}; }
  bool IsNone(const Need& need) const { return need.first == Never(); }

  // Of backward's own reads.
  Need Direct(const RematValue& value) const {
    if (value.last_read < 0) return None();
    Need need{.first = Class(value.first_read), .last = forward_};
    while (need.last < std::ssize(rows_) &&
           rows_[need.last].backward <= value.last_read) {
      ++need.last;
    }
    return need;
  }

  // Of an operator that runs again, first needed at `first`.
  Need OfReader(int32_t first, int32_t op) const {
    return {.first = first, .last = RowsBefore(first, op, true)};
  }
  // The first row at which there is what it makes.
  int32_t FirstRowOf(int32_t first, int32_t op) const {
    return RowsBefore(first, op, false);
  }
  // Returns whether a moment of an operator that runs again is at that time.
  bool IsAt(const RematMoment& moment, int32_t first) const {
    return moment.backward == BackwardOf(first);
  }

 private:
  int32_t Never() const { return static_cast<int32_t>(steps_.size()) + 1; }
  int32_t Class(int32_t backward) const {
    return static_cast<int32_t>(std::ranges::upper_bound(steps_, backward) -
                                steps_.begin());
  }
  // One that has the class, and the only one where a row of an operator is there.
  int32_t BackwardOf(int32_t first) const {
    return first == 0 ? -1 : steps_[static_cast<size_t>(first) - 1];
  }

  // Rows before the time at which `op` runs again, or including it.
  int32_t RowsBefore(int32_t first, int32_t op, bool is_included) const {
    const int32_t at = BackwardOf(first);
    int32_t row = forward_;
    for (; row < std::ssize(rows_); ++row) {
      const RematMoment& m = rows_[row];
      if (m.backward < at) continue;
      if (m.backward > at || m.kind != RematMoment::Kind::kAgain) break;
      if (m.op > op || (m.op == op && !is_included)) break;
    }
    return row;
  }

  const std::vector<RematMoment>& rows_;
  std::vector<int32_t> steps_;
  int32_t forward_ = 0;
};

class GraphBuilder {
 public:
  GraphBuilder(const RematProblem& problem, std::vector<RematMoment> rows,
               int64_t budget, const DecisionLimits& limits)
      : problem_(problem),
        limits_(limits),
        graph_{.rows = Sorted(std::move(rows))},
        clock_(graph_.rows, limits.conditions) {
    int64_t all = 0;
    for (const RematValue& value : problem.values) all += value.bytes;
    for (const RematMoment& row : graph_.rows) {
      const bool is_again =
          row.kind == RematMoment::Kind::kAgain && !IsMet(row);
      const int64_t room = budget - problem.BaseOf(row);
      absent_.push_back(is_again ? all + std::max<int64_t>(0, -room) : 0);
      graph_.room.push_back(room + absent_.back());
    }
    for (const RematValue& value : problem.values)
      direct_.push_back(clock_.Direct(value));
  }

  DecisionGraph Build() {
    states_ = {State()};
    for (auto o = static_cast<int32_t>(problem_.operators.size()) - 1; o >= 0;
         --o) {
      if (!IsNeeded(o)) continue;
      AddLevel(o);
      if (states_.empty()) break;
    }
    graph_.last_states = static_cast<int32_t>(states_.size());
    return std::move(graph_);
  }

 private:
  static std::vector<RematMoment> Sorted(std::vector<RematMoment> rows) {
    std::ranges::sort(rows, IsBefore);
    rows.erase(std::ranges::unique(rows).begin(), rows.end());
    return rows;
  }

  // Returns whether the operator runs again at that moment on all paths.
  bool IsMet(const RematMoment& moment) const {
    return std::ranges::any_of(
        limits_.conditions, [&](const RematCondition& condition) {
          return condition.is_met && condition.moment == moment;
        });
  }

  Need NeedOf(const State& state, int32_t value) const {
    const auto found =
        std::ranges::lower_bound(state, value, {}, &Pending::value);
    return found != state.end() && found->value == value ? found->need
                                                         : direct_[value];
  }

  bool IsNeeded(int32_t o) const {
    const std::vector<int32_t>& makes = problem_.operators[o].makes;
    for (const int32_t v : makes)
      if (!clock_.IsNone(direct_[v])) return true;
    const bool has_condition = std::ranges::any_of(
        limits_.conditions, [&](const RematCondition& condition) {
          return condition.moment.op == o;
        });
    if (has_condition) return true;
    return std::ranges::any_of(states_, [&](const State& state) {
      return std::ranges::any_of(makes, [&](int32_t v) {
        const Need need = NeedOf(state, v);
        return !clock_.IsNone(need) || IsEarly(need);
      });
    });
  }

  void AddLevel(int32_t o) {
    level_ = {.op = o, .states = static_cast<int32_t>(states_.size())};
    next_.clear();
    index_.clear();
    effects_.clear();
    for (int32_t s = 0; s < std::ssize(states_); ++s) AddEdges(s);
    if (std::ssize(next_) > limits_.states) Merge();
    graph_.levels.push_back(std::move(level_));
    states_ = std::move(next_);
  }

  void AddEdges(int32_t s) {
    const RematOperator& op = problem_.operators[level_.op];
    const State& state = states_[s];
    std::vector<Need> needs;
    uint64_t needed = 0;
    for (size_t i = 0; i < op.makes.size(); ++i) {
      needs.push_back(NeedOf(state, op.makes[i]));
      if (!clock_.IsNone(needs[i])) needed |= uint64_t{1} << i;
    }
    uint64_t may_keep = 0;
    for (size_t i = 0; i < op.makes.size(); ++i)
      if (problem_.values[op.makes[i]].may_keep) may_keep |= uint64_t{1} << i;
    State rest;
    for (const Pending& p : state)
      if (!std::ranges::binary_search(op.makes, p.value)) rest.push_back(p);
    // All subsets of what is needed and may be kept.
    const uint64_t open = needed & may_keep;
    if (std::popcount(open) > kMostSubsets) {
      // Too many: all or nothing, with which no bound is proven.
      graph_.is_restricted = true;
      const bool is_early = std::ranges::any_of(needs, IsEarly);
      if (open == needed) {
        Decide(s, rest, {.kept = needed, .is_early = op.is_either}, needs,
               needed);
      }
      if (op.may_run_again) {
        Decide(s, rest,
               {.is_again = true, .is_early = op.is_either && is_early}, needs,
               needed);
      }
      return;
    }
    for (uint64_t kept = open;; kept = (kept - 1) & open) {
      const bool is_early =
          op.is_either && (kept != 0 || std::ranges::any_of(needs, IsEarly));
      const Choice choice{
          .kept = kept, .is_again = kept != needed, .is_early = is_early};
      if (kept == needed || op.may_run_again)
        Decide(s, rest, choice, needs, needed);
      if (kept == 0) break;
    }
  }

  struct Choice {
    uint64_t kept = 0;
    bool is_again = false;
    bool is_early = false;  // of stage either, and forward runs it
    int32_t first = 0;      // class of when it runs again
  };

  // Adds the edge of a choice, and what the choice makes needed.
  void Decide(int32_t s, const State& rest, Choice choice,
              const std::vector<Need>& needs, uint64_t needed) {
    const RematOperator& op = problem_.operators[level_.op];
    State after = rest;
    Need reader = clock_.None();
    if (choice.is_again) {
      choice.first = clock_.None().first;
      for (size_t i = 0; i < needs.size(); ++i) {
        if ((needed & ~choice.kept) >> i & 1U)
          choice.first = std::min(choice.first, needs[i].first);
      }
      reader = clock_.OfReader(choice.first, level_.op);
    }
    if (!MeetsConditions(choice)) return;
    for (const int32_t v : op.reads) {
      const Need before = NeedOf(after, v);
      const Need need{
          .first = std::min(before.first, reader.first),
          .last = std::max(before.last, reader.last),
          .early = std::max(before.early, choice.is_early ? EarlyClass(v) : 0)};
      if (need == before) continue;
      const auto place =
          std::ranges::lower_bound(after, v, {}, &Pending::value);
      if (place != after.end() && place->value == v) {
        place->need = need;
      } else {
        after.insert(place, {.value = v, .need = need});
      }
    }
    Add(s, after, choice, needs, needed);
  }

  bool MeetsConditions(const Choice& choice) const {
    return std::ranges::all_of(
        limits_.conditions, [&](const RematCondition& condition) {
          if (condition.moment.op != level_.op) return true;
          const bool is_there =
              choice.is_again && clock_.IsAt(condition.moment, choice.first);
          return is_there == condition.is_met;
        });
  }

  void Add(int32_t s, const State& after, const Choice& choice,
           const std::vector<Need>& needs, uint64_t needed) {
    const auto [found, is_new] =
        index_.try_emplace(after, static_cast<int32_t>(next_.size()));
    if (is_new) next_.push_back(after);
    level_.edges.push_back({.from = s,
                            .to = found->second,
                            .effect = EffectOf(choice, needs, needed),
                            .ms = MsOf(choice),
                            .kept = choice.kept});
  }

  static bool IsEarly(const Need& need) { return need.early > 0; }

  // Of a value that the level's operator reads in forward.
  int32_t EarlyClass(int32_t v) const {
    const RematValue& value = problem_.values[v];
    int32_t rows = 0;
    bool is_longer = problem_.operators[value.maker].is_either;
    for (; rows < clock_.forward_rows(); ++rows) {
      const int32_t op = graph_.rows[rows].op;
      if (op > level_.op) break;
      is_longer = is_longer || (value.maker <= op && value.live_until < op);
    }
    return is_longer ? rows + 1 : 0;
  }

  double MsOf(const Choice& choice) const {
    const RematOperator& op = problem_.operators[level_.op];
    const bool is_second = !op.is_either || choice.is_early;
    return choice.is_again && is_second ? op.ms : 0;
  }

  // The bytes of a choice at the rows.
  int32_t EffectOf(const Choice& choice, const std::vector<Need>& needs,
                   uint64_t needed) {
    const RematOperator& op = problem_.operators[level_.op];
    const auto rows = static_cast<int32_t>(graph_.rows.size());
    std::vector<int64_t> bytes(graph_.rows.size(), 0);
    const int32_t there =
        choice.is_again ? clock_.FirstRowOf(choice.first, level_.op) : rows;
    for (size_t i = 0; i < op.makes.size(); ++i) {
      const RematValue& value = problem_.values[op.makes[i]];
      const bool is_kept = (choice.kept >> i & 1U) != 0;
      for (int32_t r = 0; !is_kept && r < needs[i].early - 1; ++r)
        if (IsMore(value, graph_.rows[r].op)) bytes[r] += value.bytes;
      if ((needed >> i & 1U) == 0) continue;
      int32_t row = is_kept ? 0 : there;
      for (; row < needs[i].last; ++row)
        if (!is_kept || row >= clock_.forward_rows() ||
            IsMore(value, graph_.rows[row].op))
          bytes[row] += value.bytes;
    }
    if (choice.is_again) AddMoment(choice, needed, bytes);
    if (choice.is_early) AddEarly(choice, needs, bytes);
    const auto [found, is_new] =
        effects_.try_emplace(Key(bytes), static_cast<int32_t>(effects_.size()));
    if (is_new) {
      level_.effects.insert(level_.effects.end(), bytes.begin(), bytes.end());
    }
    return found->second;
  }

  // A kept value is more than what is live anyway.
  static bool IsMore(const RematValue& value, int32_t op) {
    return value.maker <= op && value.live_until < op;
  }

  // The rows at which this very operator runs again.
  void AddMoment(const Choice& choice, uint64_t needed,
                 std::vector<int64_t>& bytes) const {
    const RematOperator& op = problem_.operators[level_.op];
    for (auto row = static_cast<size_t>(clock_.forward_rows());
         row < graph_.rows.size(); ++row) {
      const RematMoment& moment = graph_.rows[row];
      if (moment.kind != RematMoment::Kind::kAgain || moment.op != level_.op)
        continue;
      if (!clock_.IsAt(moment, choice.first)) continue;
      bytes[row] += absent_[row];
      for (size_t i = 0; i < op.makes.size(); ++i) {
        const bool is_copy = (choice.kept >> i & 1U) != 0;
        const bool is_unused = (needed >> i & 1U) == 0;
        if (is_copy || is_unused)
          bytes[row] += problem_.values[op.makes[i]].bytes;
      }
    }
  }

  // The row at which forward runs this very operator of stage either.
  void AddEarly(const Choice& choice, const std::vector<Need>& needs,
                std::vector<int64_t>& bytes) const {
    const RematOperator& op = problem_.operators[level_.op];
    for (int32_t row = 0; row < clock_.forward_rows(); ++row) {
      if (graph_.rows[row].op != level_.op) continue;
      bytes[row] += op.scratch_bytes;
      for (size_t i = 0; i < op.makes.size(); ++i)
        if ((choice.kept >> i & 1U) == 0 && !IsEarly(needs[i]))
          bytes[row] += problem_.values[op.makes[i]].bytes;
    }
  }

  static std::string Key(const std::vector<int64_t>& bytes) {
    const auto view = std::as_bytes(std::span(bytes));
    return {reinterpret_cast<const char*>(view.data()), view.size()};
  }

  // Forgets needs until states are few enough: each time those of the value that most
  // states have.
  void Merge() {
    graph_.is_relaxed = true;
    std::vector<int32_t> target(next_.size());
    for (size_t i = 0; i < target.size(); ++i)
      target[i] = static_cast<int32_t>(i);
    while (std::ssize(next_) > limits_.states) {
      std::unordered_map<int32_t, int64_t> users;
      for (const State& state : next_)
        for (const Pending& p : state) ++users[p.value];
      int32_t forgotten = -1;
      int64_t most = 0;
      for (const auto& [value, count] : users) {
        if (count < most || (count == most && value < forgotten)) continue;
        most = count;
        forgotten = value;
      }
      if (forgotten < 0) break;
      Forget(forgotten, target);
    }
    for (DecisionGraph::Edge& edge : level_.edges) edge.to = target[edge.to];
  }

  void Forget(int32_t value, std::vector<int32_t>& target) {
    std::unordered_map<State, int32_t, StateHash> index;
    std::vector<State> fewer;
    std::vector<int32_t> moved;
    for (State& state : next_) {
      std::erase_if(state, [&](const Pending& p) { return p.value == value; });
      const auto [found, is_new] =
          index.try_emplace(state, static_cast<int32_t>(fewer.size()));
      if (is_new) fewer.push_back(state);
      moved.push_back(found->second);
    }
    for (int32_t& t : target) t = moved[t];
    next_ = std::move(fewer);
  }

  const RematProblem& problem_;
  const DecisionLimits limits_;
  DecisionGraph graph_;
  const Clock clock_;
  std::vector<int64_t> absent_;  // a row
  std::vector<Need> direct_;     // a value: what backward needs itself
  DecisionGraph::Level level_;
  std::vector<State> states_;
  std::vector<State> next_;
  std::unordered_map<State, int32_t, StateHash> index_;
  std::unordered_map<std::string, int32_t> effects_;
};

}  // namespace

DecisionGraph BuildDecisionGraph(const RematProblem& problem,
                                 std::vector<RematMoment> rows,
                                 int64_t budget_bytes,
                                 const DecisionLimits& limits) {
  return GraphBuilder(problem, std::move(rows), budget_bytes, limits).Build();
}

}  // namespace acplan::problems
