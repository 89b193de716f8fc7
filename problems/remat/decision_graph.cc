#include "problems/remat/decision_graph.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "problems/remat/row_bytes.h"

// Idea. Later operators alone determine whether an operator runs again: they
// and backward need its values or not. So decisions are taken from the last
// operator to the first, and the decisions taken so far matter only through the
// earlier values that are needed, the backward node before which each is needed
// first, and the time when it is needed last. Times matter only as far as rows
// tell them apart (need_clock.h).
//
// Tied operators, of several runs of one graph, are one decision with the bytes
// and the ms of all of them. So a path of the graph is a choice that keeps the
// ties, only such choices are paths, and proofs cover such choices. This
// requires an order of decisions in which readers come before makers
// (RematProblem::groups).
//
// If there are too many states, all of them forget the needs of one value. Then
// only backward's own needs of it remain, which are no more. So every choice is
// still a path, and costs no more than it did.

namespace acplan::problems {
namespace {

// All subsets of up to this many values of an operator are tried.
constexpr int kMostSubsets = 10;

// A need that differs from backward's own.
struct Pending {
  int32_t value = 0;
  RematNeed need = {};

  bool operator==(const Pending&) const = default;
};

using State = std::vector<Pending>;  // sorted by value

struct StateHash {
  size_t operator()(const State& state) const {
    size_t hash = state.size();
    for (const auto& [value, need] : state) {
      for (const int32_t x : {value, need.first, need.last, need.early}) {
        hash =
            hash * 0x9E3779B97F4A7C15U + static_cast<size_t>(x) + (hash >> 29U);
      }
    }
    return hash;
  }
};

// States, each with its number.
struct States {
  int32_t Add(const State& state) {
    const auto [entry, is_new] =
        index.try_emplace(state, static_cast<int32_t>(all.size()));
    if (is_new) all.push_back(state);
    return entry->second;
  }

  std::vector<State> all = {};
  std::unordered_map<State, int32_t, StateHash> index = {};
};

// Returns the value that the most states need; -1 if no state needs any.
int32_t MostPending(const std::vector<State>& states) {
  std::unordered_map<int32_t, int64_t> users;
  for (const State& state : states)
    for (const Pending& p : state) ++users[p.value];
  int32_t most_needed = -1;
  int64_t most = 0;
  for (const auto& [value, count] : users) {
    if (count < most || (count == most && value < most_needed)) continue;
    most = count;
    most_needed = value;
  }
  return most_needed;
}

// Forgets needs until there are at most `most` states. Returns the new number
// of each state.
std::vector<int32_t> Merge(States& states, int64_t most) {
  std::vector<int32_t> target(states.all.size());
  for (size_t i = 0; i < target.size(); ++i)
    target[i] = static_cast<int32_t>(i);
  while (std::ssize(states.all) > most) {
    const int32_t forgotten = MostPending(states.all);
    if (forgotten < 0) break;
    States fewer;
    std::vector<int32_t> new_numbers;
    for (State& state : states.all) {
      std::erase_if(state, [forgotten](const Pending& p) {
        return p.value == forgotten;
      });
      new_numbers.push_back(fewer.Add(state));
    }
    for (int32_t& t : target) t = new_numbers[t];
    states = std::move(fewer);
  }
  return target;
}

// Raises the need of a value in a state.
void Raise(State& state, int32_t value, const RematNeed& need) {
  const auto place =
      std::ranges::lower_bound(state, value, {}, &Pending::value);
  if (place != state.end() && place->value == value) {
    place->need = need;
  } else {
    state.insert(place, {.value = value, .need = need});
  }
}

bool IsEarly(const RematNeed& need) { return need.early > 0; }

// Returns the values of an operator that may be kept, a bit each.
uint64_t MayKeep(const RematProblem& problem, int32_t o) {
  uint64_t may_keep = 0;
  for (const int32_t v : problem.operators[o].makes)
    if (problem.values[v].may_keep) may_keep |= problem.values[v].Bit();
  return may_keep;
}

// Returns a state without the needs of values that these operators make.
State WithoutValues(const RematProblem& problem, const State& state,
                    const std::vector<int32_t>& ops) {
  State rest;
  for (const Pending& p : state) {
    const int32_t maker = problem.values[p.value].maker;
    if (std::ranges::find(ops, maker) == ops.end()) rest.push_back(p);
  }
  return rest;
}

class GraphBuilder {
 public:
  GraphBuilder(const RematProblem& problem, std::vector<RematMoment> rows,
               const RematBudget& budget, const DecisionLimits& limits)
      : problem_(problem),
        limits_(limits),
        graph_{.rows = SortedRows(std::move(rows))},
        clock_(graph_.rows, limits.conditions),
        bytes_(problem, graph_.rows, clock_, limits.conditions, budget) {
    graph_.room = bytes_.room();
    for (const RematValue& value : problem.values)
      direct_.push_back(clock_.Direct(value));
  }

  DecisionGraph Build() {
    states_ = {State()};
    for (const std::vector<int32_t>& ops : problem_.groups) {
      if (!std::ranges::any_of(ops, [&](int32_t o) { return IsDecided(o); }))
        continue;
      AddLevel(ops);
      if (states_.empty()) break;
    }
    graph_.last_states = static_cast<int32_t>(states_.size());
    return std::move(graph_);
  }

 private:
  // A level while its edges are added.
  struct Draft {
    DecisionGraph::Level level = {};
    States next = {};
    std::unordered_map<std::string, int32_t> effects = {};
  };

  RematNeed NeedOf(const State& state, int32_t value) const {
    const auto pending =
        std::ranges::lower_bound(state, value, {}, &Pending::value);
    return pending != state.end() && pending->value == value ? pending->need
                                                             : direct_[value];
  }

  // Returns whether there is anything to decide about an operator in some
  // state.
  bool IsDecided(int32_t o) const {
    const std::vector<int32_t>& makes = problem_.operators[o].makes;
    const auto is_open = [&](const RematNeed& need) {
      return !clock_.IsNone(need) || IsEarly(need);
    };
    for (const int32_t v : makes)
      if (is_open(direct_[v])) return true;
    for (const RematCondition& condition : limits_.conditions)
      if (condition.moment.op == o) return true;
    return std::ranges::any_of(states_, [&](const State& state) {
      return std::ranges::any_of(
          makes, [&](int32_t v) { return is_open(NeedOf(state, v)); });
    });
  }

  void AddLevel(const std::vector<int32_t>& ops) {
    Draft draft{
        .level = {.ops = ops, .states = static_cast<int32_t>(states_.size())}};
    for (int32_t s = 0; s < std::ssize(states_); ++s) AddEdges(s, draft);
    if (std::ssize(draft.next.all) > limits_.states) {
      graph_.is_relaxed = true;
      const std::vector<int32_t> target = Merge(draft.next, limits_.states);
      for (DecisionGraph::Edge& edge : draft.level.edges)
        edge.to = target[edge.to];
    }
    graph_.levels.push_back(std::move(draft.level));
    states_ = std::move(draft.next.all);
  }

  // Adds the edges of all decisions in a state.
  void AddEdges(int32_t s, Draft& draft) {
    std::vector<RematNeeds> needs;
    uint64_t open = 0;
    for (const int32_t o : draft.level.ops) {
      needs.push_back(NeedsOf(s, o));
      open |= needs.back().needed_bits & MayKeep(problem_, o);
    }
    if (std::popcount(open) > kMostSubsets) {
      // Too many values: decide about all as one, which proves no bound.
      graph_.is_restricted = true;
      Decide(s, needs, open, draft);
      Decide(s, needs, 0, draft);
      return;
    }
    for (uint64_t kept_bits = open;; kept_bits = (kept_bits - 1) & open) {
      Decide(s, needs, kept_bits, draft);
      if (kept_bits == 0) break;
    }
  }

  RematNeeds NeedsOf(int32_t s, int32_t o) const {
    RematNeeds needs;
    for (const int32_t v : problem_.operators[o].makes) {
      needs.of_values.push_back(NeedOf(states_[s], v));
      if (!clock_.IsNone(needs.of_values.back()))
        needs.needed_bits |= problem_.values[v].Bit();
    }
    return needs;
  }

  // Returns what keeping these values means for an operator.
  RematChoice ChoiceOf(int32_t o, const RematNeeds& needs,
                       uint64_t kept_bits) const {
    RematChoice choice{.kept_bits = kept_bits & needs.needed_bits};
    choice.is_again = choice.kept_bits != needs.needed_bits;
    const bool is_wanted = std::ranges::any_of(needs.of_values, IsEarly);
    choice.is_early =
        problem_.operators[o].is_either && (choice.kept_bits != 0 || is_wanted);
    if (!choice.is_again) return choice;
    choice.first = clock_.None().first;
    const std::vector<int32_t>& makes = problem_.operators[o].makes;
    for (size_t i = 0; i < makes.size(); ++i) {
      if (needs.needed_bits & ~choice.kept_bits &
          problem_.values[makes[i]].Bit())
        choice.first = std::min(choice.first, needs.of_values[i].first);
    }
    return choice;
  }

  // Adds the edge of a choice, to the state with the needs that follow from it.
  void Decide(int32_t s, const std::vector<RematNeeds>& needs,
              uint64_t kept_bits, Draft& draft) const {
    const std::vector<int32_t>& ops = draft.level.ops;
    std::vector<RematChoice> choices;
    for (size_t k = 0; k < ops.size(); ++k) {
      choices.push_back(ChoiceOf(ops[k], needs[k], kept_bits));
      const bool is_allowed =
          !choices[k].is_again || problem_.operators[ops[k]].may_run_again;
      if (!is_allowed || !MeetsConditions(ops[k], choices[k])) return;
    }
    State after = WithoutValues(problem_, states_[s], ops);
    std::vector<int64_t> bytes(graph_.rows.size(), 0);
    double ms = 0;
    for (size_t k = 0; k < ops.size(); ++k) {
      const RematOperator& op = problem_.operators[ops[k]];
      Read(ops[k], choices[k], after);
      const std::vector<int64_t> added_bytes =
          bytes_.BytesOf(ops[k], choices[k], needs[k]);
      for (size_t row = 0; row < bytes.size(); ++row)
        bytes[row] += added_bytes[row];
      const bool is_second = !op.is_either || choices[k].is_early;
      if (choices[k].is_again && is_second) ms += op.ms;
    }
    draft.level.edges.push_back({.from = s,
                                 .to = draft.next.Add(after),
                                 .effect = EffectOf(bytes, draft),
                                 .ms = ms,
                                 .kept_bits = kept_bits});
  }

  // Raises the needs of the values that an operator reads.
  void Read(int32_t o, const RematChoice& choice, State& after) const {
    const RematNeed reader =
        choice.is_again ? clock_.OfReader(choice.first, o) : clock_.None();
    for (const int32_t v : problem_.operators[o].reads) {
      const RematValue& value = problem_.values[v];
      const bool is_made_by_either = problem_.operators[value.maker].is_either;
      const int32_t early =
          choice.is_early ? clock_.EarlyClass(value, is_made_by_either, o) : 0;
      const RematNeed before = NeedOf(after, v);
      const RematNeed need{.first = std::min(before.first, reader.first),
                           .last = std::max(before.last, reader.last),
                           .early = std::max(before.early, early)};
      if (need != before) Raise(after, v, need);
    }
  }

  bool MeetsConditions(int32_t o, const RematChoice& choice) const {
    return std::ranges::all_of(
        limits_.conditions, [&](const RematCondition& condition) {
          if (condition.moment.op != o) return true;
          const bool is_there =
              choice.is_again && clock_.IsAt(condition.moment, choice.first);
          return is_there == condition.is_met;
        });
  }

  static int32_t EffectOf(const std::vector<int64_t>& bytes, Draft& draft) {
    const auto view = std::as_bytes(std::span(bytes));
    const std::string key(reinterpret_cast<const char*>(view.data()),
                          view.size());
    const auto [entry, is_new] = draft.effects.try_emplace(
        key, static_cast<int32_t>(draft.effects.size()));
    std::vector<int64_t>& effects = draft.level.effects;
    if (is_new) effects.insert(effects.end(), bytes.begin(), bytes.end());
    return entry->second;
  }

  const RematProblem& problem_;
  const DecisionLimits limits_;
  DecisionGraph graph_;
  const NeedClock clock_;
  const RowBytes bytes_;
  std::vector<RematNeed> direct_;  // by value: backward's own needs
  std::vector<State> states_;
};

}  // namespace

DecisionGraph BuildDecisionGraph(const RematProblem& problem,
                                 std::vector<RematMoment> rows,
                                 const RematBudget& budget,
                                 const DecisionLimits& limits) {
  return GraphBuilder(problem, std::move(rows), budget, limits).Build();
}

}  // namespace acplan::problems
