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

// Idea. Whether an operator runs again depends on later operators alone: on what of its
// values they and backward need. So decisions are taken from the last operator to the
// first, and all that matters of those taken is which earlier values are needed, first
// before which backward node, and for the last time when. Times matter only as far as
// rows tell them apart (need_clock.h).
//
// Where states are too many, the needs of one value are forgotten, in all of them: then
// backward's own needs of it remain, which are no more, so that every choice is still a
// path, that costs no more than it did.

namespace acplan::problems {
namespace {

// All subsets of so many values of an operator are tried.
constexpr int kMostSubsets = 10;

// A need that is not what backward's own is.
struct Pending {
  int32_t value = 0;
  RematNeed need = {};

  bool operator==(const Pending&) const = default;
};

using State = std::vector<Pending>;  // by value

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
    const auto [found, is_new] =
        index.try_emplace(state, static_cast<int32_t>(all.size()));
    if (is_new) all.push_back(state);
    return found->second;
  }

  std::vector<State> all = {};
  std::unordered_map<State, int32_t, StateHash> index = {};
};

// The value of whose needs most states have; -1: there are none.
int32_t MostPending(const std::vector<State>& states) {
  std::unordered_map<int32_t, int64_t> users;
  for (const State& state : states)
    for (const Pending& p : state) ++users[p.value];
  int32_t found = -1;
  int64_t most = 0;
  for (const auto& [value, count] : users) {
    if (count < most || (count == most && value < found)) continue;
    most = count;
    found = value;
  }
  return found;
}

// Forgets needs until states are few enough. Returns the new number of each state.
std::vector<int32_t> Merge(States& states, int64_t most) {
  std::vector<int32_t> target(states.all.size());
  for (size_t i = 0; i < target.size(); ++i)
    target[i] = static_cast<int32_t>(i);
  while (std::ssize(states.all) > most) {
    const int32_t forgotten = MostPending(states.all);
    if (forgotten < 0) break;
    States fewer;
    std::vector<int32_t> moved;
    for (State& state : states.all) {
      std::erase_if(state, [forgotten](const Pending& p) {
        return p.value == forgotten;
      });
      moved.push_back(fewer.Add(state));
    }
    for (int32_t& t : target) t = moved[t];
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
    for (auto o = static_cast<int32_t>(problem_.operators.size()) - 1; o >= 0;
         --o) {
      if (!IsDecided(o)) continue;
      AddLevel(o);
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
    const auto found =
        std::ranges::lower_bound(state, value, {}, &Pending::value);
    return found != state.end() && found->value == value ? found->need
                                                         : direct_[value];
  }

  // Returns whether there is anything to decide about an operator in some state.
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

  void AddLevel(int32_t o) {
    Draft draft{
        .level = {.op = o, .states = static_cast<int32_t>(states_.size())}};
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

  // All that can be decided in a state.
  void AddEdges(int32_t s, Draft& draft) {
    const RematOperator& op = problem_.operators[draft.level.op];
    RematNeeds needs;
    uint64_t may_keep = 0;
    for (size_t i = 0; i < op.makes.size(); ++i) {
      needs.of_values.push_back(NeedOf(states_[s], op.makes[i]));
      const uint64_t bit = uint64_t{1} << i;
      if (!clock_.IsNone(needs.of_values[i])) needs.needed |= bit;
      if (problem_.values[op.makes[i]].may_keep) may_keep |= bit;
    }
    const bool is_wanted = std::ranges::any_of(needs.of_values, IsEarly);
    const auto decide = [&](uint64_t kept) {
      const bool is_again = kept != needs.needed;
      if (is_again && !op.may_run_again) return;
      Decide(s, needs,
             {.kept = kept,
              .is_again = is_again,
              .is_early = op.is_either && (kept != 0 || is_wanted)},
             draft);
    };
    const uint64_t open = needs.needed & may_keep;
    if (std::popcount(open) > kMostSubsets) {
      // Too many: all or nothing, with which no bound is proven.
      graph_.is_restricted = true;
      decide(open);
      decide(0);
      return;
    }
    for (uint64_t kept = open;; kept = (kept - 1) & open) {
      decide(kept);
      if (kept == 0) break;
    }
  }

  // Adds the edge of a choice, to the state with what the choice makes needed.
  void Decide(int32_t s, const RematNeeds& needs, RematChoice choice,
              Draft& draft) const {
    const int32_t o = draft.level.op;
    const RematOperator& op = problem_.operators[o];
    RematNeed reader = clock_.None();
    if (choice.is_again) {
      choice.first = reader.first;
      for (size_t i = 0; i < needs.of_values.size(); ++i) {
        if ((needs.needed & ~choice.kept) >> i & 1U)
          choice.first = std::min(choice.first, needs.of_values[i].first);
      }
      reader = clock_.OfReader(choice.first, o);
    }
    if (!MeetsConditions(o, choice)) return;
    State after;
    for (const Pending& p : states_[s])
      if (!std::ranges::binary_search(op.makes, p.value)) after.push_back(p);
    for (const int32_t v : op.reads) {
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
    const bool is_second = !op.is_either || choice.is_early;
    draft.level.edges.push_back(
        {.from = s,
         .to = draft.next.Add(after),
         .effect = EffectOf(bytes_.Of(o, choice, needs), draft),
         .ms = choice.is_again && is_second ? op.ms : 0,
         .kept = choice.kept});
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
    const auto [found, is_new] = draft.effects.try_emplace(
        key, static_cast<int32_t>(draft.effects.size()));
    std::vector<int64_t>& effects = draft.level.effects;
    if (is_new) effects.insert(effects.end(), bytes.begin(), bytes.end());
    return found->second;
  }

  const RematProblem& problem_;
  const DecisionLimits limits_;
  DecisionGraph graph_;
  const NeedClock clock_;
  const RowBytes bytes_;
  std::vector<RematNeed> direct_;  // a value: what backward needs itself
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
