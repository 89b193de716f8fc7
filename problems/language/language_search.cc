#include "problems/language/language_search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <ranges>
#include <string>
#include <utility>

#include "graph/base/flag.h"
#include "graph/base/input_error.h"
#include "graph/trace/link_time.h"
#include "problems/language/held_bytes.h"
#include "solver/infinity.h"

// The search is a branch and bound over choices of units, and within each over its ties:
// a node saves some, recomputes others, and leaves the rest open. It is exact because of
// two bounds.
//
// Memory. H(S), the bytes held at each operator of the trace with the ties S saved
// (held_bytes.h), is at most the simulated memory there, and grows with S. So if H of the
// saved ties exceeds the budget at some operator, no node below has a plan. Memory while
// operators run again is no function that grows with S (a saved operator needs no
// workspace then); it is only seen by simulating, so no node is closed because of it.
//
// Time. H grows by less the more is saved: with All the set of all ties,
//   H(S + T) >= H(S) + sum over t of T of w_t,   w_t = H(All) - H(All - t) >= 0,
// at each operator. The open ties that may be saved within the budget thus spare at most
// the optimum of the fractional knapsack with weights w_t. It is taken at the operator
// where H(S) is largest and where H(All) is.
//
// Offload. A tie that is offloaded spares the same, and adds holders to its results as a
// saved one does, only for less long; so H(S) with S the saved ties alone stays a bound. No
// memory bounds what open ties spare then, as all of them may be offloaded; the step waits
// for at least 0 ms.
//
// The plan of a node that leaves all open ties to run again is simulated, so a leaf is
// simulated, too, and every plan of the language is seen or closed by a bound.

namespace acplan::problems {

using graph::Flag;
using graph::OperatorId;
using solver::SearchLimits;
using solver::SearchStatus;
using solver::StoppedBy;

namespace {

using TieFlags = graph::IndexedVector<TieId, Flag>;

// Plans cost the same if their times differ by less than this share.
constexpr double kSame = 1e-12;
// The most policies that the search for the least budget simulates.
constexpr int64_t kMostLeastNodes = 1000;

OperatorId Largest(const HeldBytes& holdings) {
  OperatorId largest{0};
  for (const OperatorId op : holdings.ids()) {
    if (holdings[op] > holdings[largest]) largest = op;
  }
  return largest;
}

// The memory of one choice of units, which both searches ask about.
class ChoiceMemory {
 public:
  ChoiceMemory(const RestrictedTrace& restriction, const UnitChoice& choice)
      : restriction_(restriction), choice_(choice) {}

  // Returns the bytes held on a rank, at most those of the simulation.
  std::optional<HeldBytes> HoldingsOf(const TieFlags& saves) const {
    const TraceProblem& problem =
        restriction_.TraceProblemOf(choice_.policy.blocks);
    try {
      HeldBytes holdings =
          HeldBytesOf(*problem.trace, problem.simulator,
                      PlannedUnitsOf(restriction_, PolicyOf(choice_, saves)));
      for (const OperatorId op : holdings.ids()) {
        holdings[op] += problem.bytes_of_rank[op];
      }
      return holdings;
    } catch (const InputError&) {
      return std::nullopt;
    }
  }

  // Finds w_t. Where PyTorch refuses a set, nothing is known of it, and w is 0.
  void FindWeights() {
    const size_t count = choice_.ties.size();
    weights_.assign(count, HeldBytes());
    TieFlags saves(count, true);
    const std::optional<HeldBytes> all = HoldingsOf(saves);
    if (!all) return;
    largest_of_all_ = Largest(*all);
    for (const TieId t : choice_.ties.ids()) {
      saves[t] = false;
      std::optional<HeldBytes> holdings = HoldingsOf(saves);
      saves[t] = true;
      if (!holdings) continue;
      for (const OperatorId op : holdings->ids()) {
        (*holdings)[op] = std::max<int64_t>(0, (*all)[op] - (*holdings)[op]);
      }
      weights_[t] = std::move(*holdings);
    }
  }

  // Returns the most that ties from `first` on spare if they take no more than `bytes` at
  // an operator.
  double MostSpared(TieId first, OperatorId op, int64_t bytes) const {
    std::vector<std::pair<double, int64_t>> open;  // ms, bytes
    double ms = 0;
    for (const TieId t : graph::IdRange(first, choice_.ties.end_id())) {
      const int64_t weight = weights_[t].empty() ? 0 : weights_[t][op];
      if (weight == 0) {
        ms += choice_.ties[t].ms;
      } else {
        open.emplace_back(choice_.ties[t].ms, weight);
      }
    }
    std::ranges::sort(open, [](const auto& one, const auto& other) {
      return one.first * static_cast<double>(other.second) >
             other.first * static_cast<double>(one.second);
    });
    for (const auto& [tie_ms, weight] : open) {
      if (bytes <= 0) break;
      const double share = std::min(
          1.0, static_cast<double>(bytes) / static_cast<double>(weight));
      ms += tie_ms * share;
      bytes -= weight;
    }
    return ms;
  }

  bool IsSayable(const TieFlags& saves) const {
    return std::ranges::all_of(choice_.implications, [&](const auto& pair) {
      return !saves[pair.first] || saves[pair.second];
    });
  }

  const UnitChoice& choice() const { return choice_; }
  OperatorId largest_of_all() const { return largest_of_all_; }

 private:
  const RestrictedTrace& restriction_;
  const UnitChoice& choice_;
  graph::IndexedVector<TieId, HeldBytes> weights_;
  OperatorId largest_of_all_{0};
};

double LeastMs(const UnitChoice& choice) {
  double ms = choice.whole_ms;
  for (const OperatorTie& tie : choice.ties) ms -= tie.ms;
  return std::max(0.0, ms);
}

std::vector<const UnitChoice*> ByLeastMs(const RestrictedTrace& restriction) {
  std::vector<const UnitChoice*> choices;
  for (const UnitChoice& choice : restriction.choices) {
    choices.push_back(&choice);
  }
  std::ranges::stable_sort(
      choices, {}, [](const UnitChoice* choice) { return LeastMs(*choice); });
  return choices;
}

// A node: the ties before `next` are decided.
struct Node {
  TieFlags saves;
  TieFlags offloads;
  TieId next{0};
  double spared_ms = 0;
  HeldBytes holdings = {};
};

class LanguageSearch {
 public:
  LanguageSearch(const RestrictedTrace& restriction, int64_t usable_bytes,
                 const SearchLimits& limits)
      : restriction_(restriction),
        usable_bytes_(usable_bytes),
        clock_(limits),
        open_ms_(solver::kInfinity) {}

  LanguageSolution Solve() && {
    for (const UnitChoice* choice : ByLeastMs(restriction_)) {
      if (IsNoBetter(LeastMs(*choice))) break;
      Visit(*choice);
    }
    const bool is_found = best_ms_ < solver::kInfinity;
    const bool is_proven = answer_.stopped_by == StoppedBy::kNothing;
    answer_.status =
        is_found ? is_proven ? SearchStatus::kOptimal : SearchStatus::kFeasible
        : is_proven ? SearchStatus::kInfeasible
                    : SearchStatus::kNoSolution;
    answer_.bound_ms =
        std::min(open_ms_, is_found ? answer_.CostMs() : solver::kInfinity);
    return std::move(answer_);
  }

 private:
  bool IsNoBetter(double ms) const { return ms >= best_ms_ * (1 - kSame); }

  void Visit(const UnitChoice& choice) {
    ChoiceMemory memory(restriction_, choice);
    Node root{.saves = TieFlags(choice.ties.size(), false),
              .offloads = TieFlags(choice.ties.size(), false)};
    if (!Enter(memory, root)) return;
    if (!restriction_.link) memory.FindWeights();
    Branch(memory, root);
  }

  // Finds what a node holds, and tries its plan. Returns false if no node below has one.
  bool Enter(const ChoiceMemory& memory, Node& node) {
    std::optional<HeldBytes> holdings = memory.HoldingsOf(node.saves);
    if (holdings) {
      node.holdings = std::move(*holdings);
      const bool is_over =
          !node.holdings.empty() &&
          node.holdings[Largest(node.holdings)] > usable_bytes_;
      if (is_over) return false;
    }
    if (memory.IsSayable(node.saves)) Try(memory.choice(), node);
    return true;
  }

  void Try(const UnitChoice& choice, const Node& node) {
    TrainerPolicy policy = PolicyOf(choice, node.saves, node.offloads);
    std::vector<graph::CheckpointedModule> units =
        PlannedUnitsOf(restriction_, policy);
    std::optional<graph::Simulation> use =
        SimulatedUse(restriction_.TraceProblemOf(policy.blocks), units);
    ++answer_.nodes;
    if (!use || use->peak_bytes > usable_bytes_ ||
        IsNoBetter(use->recompute_ms)) {
      return;
    }
    const auto stall_ms = StallMs(restriction_, policy.blocks, *use);
    if (!stall_ms || IsNoBetter(use->recompute_ms + *stall_ms)) return;
    best_ms_ = use->recompute_ms + *stall_ms;
    answer_.stall_ms = *stall_ms;
    answer_.policy = std::move(policy);
    answer_.units = std::move(units);
    answer_.use = std::move(*use);
  }

  double Bound(const ChoiceMemory& memory, const Node& node) const {
    double ms = 0;
    for (const TieId t :
         graph::IdRange(node.next, memory.choice().ties.end_id())) {
      ms += memory.choice().ties[t].ms;
    }
    if (!node.holdings.empty() && !restriction_.link) {
      for (const OperatorId op :
           {Largest(node.holdings), memory.largest_of_all()}) {
        ms = std::min(ms, memory.MostSpared(node.next, op,
                                            usable_bytes_ - node.holdings[op]));
      }
    }
    return std::max(0.0, memory.choice().whole_ms - node.spared_ms - ms);
  }

  bool IsStopped() {
    if (answer_.stopped_by == StoppedBy::kNothing) {
      answer_.stopped_by = clock_.Stop();
      if (answer_.nodes >= clock_.limits().node_limit) {
        answer_.stopped_by = StoppedBy::kNodes;
      }
    }
    return answer_.stopped_by != StoppedBy::kNothing;
  }

  void Branch(const ChoiceMemory& memory, Node& node) {
    if (node.next == memory.choice().ties.end_id()) return;
    const double bound_ms = Bound(memory, node);
    if (IsNoBetter(bound_ms)) return;
    if (IsStopped()) {
      open_ms_ = std::min(open_ms_, bound_ms);
      return;
    }
    const TieId tie = node.next;
    for (const bool is_offloaded : {false, true}) {
      if (is_offloaded && !restriction_.link) continue;
      Node keeping = {
          .saves = node.saves,
          .offloads = node.offloads,
          .next = Next(tie),
          .spared_ms = node.spared_ms + memory.choice().ties[tie].ms};
      (is_offloaded ? keeping.offloads : keeping.saves)[tie] = true;
      if (Enter(memory, keeping)) Branch(memory, keeping);
    }
    node.next = Next(tie);
    Branch(memory, node);
    node.next = tie;
  }

  const RestrictedTrace& restriction_;
  const int64_t usable_bytes_;
  const solver::LimitClock clock_;
  LanguageSolution answer_;
  double best_ms_ = solver::kInfinity;
  double open_ms_;  // the least bound of what a limit left open
};

// The same tree; a node is closed if what it holds reaches the least peak.
class LeastSearch {
 public:
  LeastSearch(const RestrictedTrace& restriction, const SearchLimits& limits)
      : restriction_(restriction), clock_(limits) {
    least_.peak_bytes = std::numeric_limits<int64_t>::max();
    least_.is_proven = true;
  }

  LanguageMinimum Find() && {
    for (const UnitChoice& choice : restriction_.choices) {
      const ChoiceMemory memory(restriction_, choice);
      Visit(memory, TieFlags(choice.ties.size(), false), TieId{0});
    }
    return std::move(least_);
  }

 private:
  void Visit(const ChoiceMemory& memory, TieFlags saves, TieId next) {
    const std::optional<HeldBytes> holdings = memory.HoldingsOf(saves);
    if (holdings && (*holdings)[Largest(*holdings)] >= least_.peak_bytes)
      return;
    if (nodes_ >= kMostLeastNodes || clock_.Stop() != StoppedBy::kNothing) {
      least_.is_proven = false;
      if (least_.peak_bytes < std::numeric_limits<int64_t>::max()) return;
    }
    ++nodes_;
    if (memory.IsSayable(saves)) Try(memory.choice(), saves);
    for (const TieId t : graph::IdRange(next, memory.choice().ties.end_id())) {
      if (holdings && (*holdings)[Largest(*holdings)] >= least_.peak_bytes)
        return;
      saves[t] = true;
      Visit(memory, saves, Next(t));
      saves[t] = false;
    }
  }

  void Try(const UnitChoice& choice, const TieFlags& saves) {
    TrainerPolicy policy = PolicyOf(choice, saves);
    const std::optional<graph::Simulation> use =
        SimulatedUse(restriction_.TraceProblemOf(policy.blocks),
                     PlannedUnitsOf(restriction_, policy));
    if (!use || use->peak_bytes >= least_.peak_bytes) return;
    least_.peak_bytes = use->peak_bytes;
    least_.policy = std::move(policy);
  }

  const RestrictedTrace& restriction_;
  const solver::LimitClock clock_;
  LanguageMinimum least_;
  int64_t nodes_ = 0;
};

bool Says(const TrainerPolicy& policy, const OperatorTie& tie) {
  return std::ranges::all_of(tie.names, [&](const std::string& name) {
    return std::ranges::binary_search(policy.saved, name);
  });
}

// Returns the choice whose ties make up a policy; null if it is that of a set.
const UnitChoice* ChoiceOf(const RestrictedTrace& restricted,
                           const TrainerPolicy& policy) {
  for (const UnitChoice& choice : restricted.choices) {
    if (choice.policy.blocks == policy.blocks && !choice.ties.empty()) {
      return &choice;
    }
  }
  return nullptr;
}

}  // namespace

std::optional<double> StallMs(const RestrictedTrace& restriction,
                              const BlockChoice& blocks,
                              const graph::Simulation& use) {
  if (!restriction.link) return 0;
  if (use.offload.host_peak_bytes > restriction.link->host_memory_bytes) {
    return std::nullopt;
  }
  return graph::TimeOnLink(*restriction.ProblemOf(blocks).trace, use,
                           restriction.link->rates)
      .stall_ms;
}

LanguageSolution Simplified(const RestrictedTrace& restricted,
                            int64_t usable_bytes, double most_ms,
                            LanguageSolution solution) {
  // With a link fewer names may wait less.
  const UnitChoice* choice =
      restricted.link ? nullptr : ChoiceOf(restricted, solution.policy);
  if (choice == nullptr) return solution;
  const ChoiceMemory memory(restricted, *choice);
  TieFlags saves;
  for (const OperatorTie& tie : choice->ties) {
    saves.push_back(Says(solution.policy, tie));
  }
  for (const TieId t : std::views::reverse(choice->ties.ids())) {
    if (!saves[t]) continue;
    saves[t] = false;
    TrainerPolicy policy = PolicyOf(*choice, saves);
    std::vector<graph::CheckpointedModule> units =
        PlannedUnitsOf(restricted, policy);
    std::optional<graph::Simulation> use =
        SimulatedUse(restricted.TraceProblemOf(policy.blocks), units);
    if (!memory.IsSayable(saves) || !use || use->peak_bytes > usable_bytes ||
        use->recompute_ms > most_ms) {
      saves[t] = true;
      continue;
    }
    solution.policy = std::move(policy);
    solution.units = std::move(units);
    solution.use = std::move(*use);
  }
  return solution;
}

LanguageSolution SolveLanguage(const RestrictedTrace& restriction,
                               int64_t usable_bytes,
                               const SearchLimits& limits) {
  return LanguageSearch(restriction, usable_bytes, limits).Solve();
}

LanguageMinimum LeastOfLanguage(const RestrictedTrace& restriction,
                                const SearchLimits& limits) {
  return LeastSearch(restriction, limits).Find();
}

}  // namespace acplan::problems
