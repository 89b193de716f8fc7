#include "problems/trace/policies/need_policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/base/flag.h"
#include "problems/trace/policies/need_graph.h"
#include "problems/trace/policies/sharp_policies.h"
#include "solver/cbc_solver.h"
#include "solver/milp.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using graph::GroupId;
using graph::IdAt;
using test_support::Enough;
using test_support::Repetitions;

// Returns a random chain of operators with skips, several results, groups and
// operators in place.
NeedGraph RandomGraph(std::mt19937& random, int operators,
                      bool has_in_place = true) {
  NeedGraph graph;
  for (int place = operators - 1; place >= 0; --place) {
    NeedGraph::Operator op = {
        .place = place,
        .group = GroupId{random() % 5 == 0 ? place / 2 : operators + place},
        .ms = static_cast<double>(random() % 5) / 2,
        .is_always_needed = random() % 20 == 0};
    graph.operators.push_back(op);
  }
  // The results of operators; each operator reads results of some before it.
  std::vector<ResultId> made_results;
  for (int k = operators - 1; k >= 0; --k) {
    NeedGraph::Operator& op = graph.operators[k];
    std::set<ResultId> reads;
    for (auto n = random() % 3; n > 0 && !made_results.empty(); --n) {
      const size_t back =
          std::min<size_t>(made_results.size(), 1 + random() % 6);
      reads.insert(made_results[made_results.size() - back]);
    }
    op.reads.assign(reads.begin(), reads.end());
    // In place, if the operator that made the result is in the same group.
    if (has_in_place && !op.reads.empty() && k + 1 < operators &&
        graph.operators[k + 1].group == op.group) {
      op.makes = {graph.operators[k + 1].makes.front()};
      if (std::ranges::find(op.reads, op.makes[0]) == op.reads.end()) {
        op.reads.push_back(op.makes[0]);
      }
      continue;
    }
    for (auto n = 1 + random() % 2; n > 0; --n) {
      made_results.push_back(IdAt<ResultId>(graph.results++));
      op.makes.push_back(made_results.back());
    }
  }
  // Backward asks for some of the results made before an operator's successor.
  for (int k = 0; k < operators; ++k) {
    NeedGraph::Operator& op = graph.operators[k];
    for (const ResultId r : op.makes) {
      if (random() % 2 == 0) op.requests.push_back(r);
    }
  }
  return graph;
}

NeedChoices RandomChoices(std::mt19937& random, const NeedGraph& graph) {
  NeedChoices choices = {.base_bytes = static_cast<int64_t>(random() % 100)};
  for (size_t r = 0; r < graph.results; ++r) {
    choices.bytes.push_back(static_cast<int64_t>(random() % 8) * 512);
    choices.may_keep.push_back(random() % 8 != 0);
  }
  GroupId end{0};
  for (const NeedGraph::Operator& op : graph.operators) {
    end = std::max(end, Next(op.group));
  }
  for (int g = 0; g < IndexOf(end); ++g) {
    const auto kind = random() % 10;
    choices.may_save.push_back(kind != 0);
    choices.may_rerun.push_back(kind != 1);
  }
  return choices;
}

struct Outcome {
  bool is_allowed = true;
  int64_t kept_bytes = 0;
  double ms = 0;
  GroupUses uses = {};
};

// Returns the effect of a policy that saves some groups, by its definition.
Outcome OutcomeOf(const NeedGraph& graph, const NeedChoices& choices,
                  const GroupFlags& saved) {
  Outcome outcome;
  outcome.uses.assign(saved.size(), GroupUse::kNone);
  std::set<ResultId> needed_results, counted;
  for (const NeedGraph::Operator& op : graph.operators) {
    needed_results.insert(op.requests.begin(), op.requests.end());
    std::set<ResultId> wanted_results;
    for (const ResultId r : op.makes) {
      if (needed_results.erase(r) > 0) wanted_results.insert(r);
    }
    if (!wanted_results.empty() || op.is_always_needed) {
      outcome.uses[op.group] =
          saved[op.group] ? GroupUse::kSaved : GroupUse::kRunsAgain;
      if (saved[op.group]) {
        outcome.is_allowed &= choices.may_save[op.group];
        for (const ResultId r : wanted_results) {
          outcome.is_allowed &= choices.may_keep[r];
          if (!counted.contains(r)) outcome.kept_bytes += choices.bytes[r];
        }
      } else {
        outcome.is_allowed &= choices.may_rerun[op.group];
        outcome.ms += op.ms;
        needed_results.insert(op.reads.begin(), op.reads.end());
      }
    }
    counted.insert(op.makes.begin(), op.makes.end());
  }
  return outcome;
}

std::vector<GroupId> GroupsOf(const NeedGraph& graph) {
  std::set<GroupId> groups;
  for (const NeedGraph::Operator& op : graph.operators) groups.insert(op.group);
  return {groups.begin(), groups.end()};
}

GroupFlags SavedBy(const NeedChoices& choices,
                   const std::vector<GroupId>& groups, uint64_t subset) {
  GroupFlags saved(choices.may_save.size(), false);
  for (size_t k = 0; k < groups.size(); ++k) {
    saved[groups[k]] = (subset >> k & 1) != 0;
  }
  return saved;
}

// Goes through all sets of groups that are saved.
TEST(NeedPoliciesTest, AreAllThatNoOtherBeats) {
  std::mt19937 random(1);
  int64_t points = 0;
  int empty_count = 0;
  for (int round = 0; round < Repetitions(3000); ++round) {
    SCOPED_TRACE(round);
    const NeedGraph graph =
        RandomGraph(random, 2 + static_cast<int>(random() % 8));
    const NeedChoices choices = RandomChoices(random, graph);
    const std::vector<GroupId> groups = GroupsOf(graph);
    std::map<int64_t, double> cheapest;  // by bytes
    for (uint64_t subset = 0; subset >> groups.size() == 0; ++subset) {
      const Outcome outcome =
          OutcomeOf(graph, choices, SavedBy(choices, groups, subset));
      if (!outcome.is_allowed) continue;
      const int64_t bytes = choices.base_bytes - outcome.kept_bytes;
      const auto [place, is_new] = cheapest.try_emplace(bytes, outcome.ms);
      if (!is_new) place->second = std::min(place->second, outcome.ms);
    }
    std::vector<PolicyPoint> expected;
    for (auto it = cheapest.rbegin(); it != cheapest.rend(); ++it) {
      if (!expected.empty() && it->second >= expected.back().ms) continue;
      expected.push_back({it->first, it->second});
    }
    std::ranges::reverse(expected);
    const NeedPolicies policies = PoliciesOf(graph, choices);
    ASSERT_EQ(policies.points(), expected);
    points += std::ssize(expected);
    empty_count += expected.empty() ? 1 : 0;
    for (size_t p = 0; p < expected.size(); ++p) {
      const GroupUses uses = policies.UsesOf(p);
      GroupFlags saved;
      for (const GroupUse use : uses) saved.push_back(use == GroupUse::kSaved);
      const Outcome outcome = OutcomeOf(graph, choices, saved);
      EXPECT_TRUE(outcome.is_allowed);
      EXPECT_EQ(outcome.uses, uses);
      EXPECT_EQ(choices.base_bytes - outcome.kept_bytes, expected[p].bytes);
      EXPECT_EQ(outcome.ms, expected[p].ms);
    }
  }
  EXPECT_GT(points, Enough(8000));
  EXPECT_LT(empty_count, Repetitions(1000));
}

// All policies of a random call, a list of them with bytes rounded down, and a
// window.
struct WindowCase {
  explicit WindowCase(std::mt19937& random)
      : graph(RandomGraph(random, 2 + static_cast<int>(random() % 12))),
        choices(RandomChoices(random, graph)) {
    constexpr int64_t kUnit = 64;
    NeedChoices rounded = choices;
    for (const ResultId r : choices.bytes.ids()) {
      choices.bytes[r] += static_cast<int64_t>(random() % kUnit);
      rounded.bytes[r] = choices.bytes[r] / kUnit * kUnit;
    }
    all = PoliciesOf(graph, choices).points();
    NeedPolicies::List list = {.points = PoliciesOf(graph, rounded).points()};
    list.last_move.assign(list.points.size(), graph::kNone);
    coarse = std::make_shared<const NeedPolicies>(
        std::move(list), choices.may_save.size(), /*is_exact=*/false);
    if (all.empty()) return;
    const PolicyPoint& near = all[random() % all.size()];
    const auto bytes = static_cast<double>(1 + all.back().bytes - all[0].bytes);
    window = {.least_discarded = near.bytes,
              .most_ms = near.ms * static_cast<double>(4 + random() % 5) / 4,
              .price = static_cast<double>(random() % 100) / 50 *
                       all.back().ms / bytes};
  }

  bool IsInWindow(const PolicyPoint& point) const {
    return point.bytes >= window.least_discarded && point.ms <= window.most_ms;
  }

  NeedGraph graph;
  NeedChoices choices;
  std::vector<PolicyPoint> all = {};
  std::shared_ptr<const NeedPolicies> coarse = {};
  PolicyWindow window = {};
};

// Policies of the window that no other one beats are in the list unchanged; for
// every other policy the list has a point that discards as much for no more.
TEST(NeedPoliciesTest, AreExactWithinAWindow) {
  std::mt19937 random(4);
  int64_t exact = 0;
  int64_t relaxed = 0;
  int64_t raised = 0;
  for (int round = 0; round < Repetitions(3000); ++round) {
    SCOPED_TRACE(round);
    const WindowCase c(random);
    if (c.all.empty()) continue;
    const auto sharp = SharpPolicies(c.graph, c.choices, c.coarse, c.window);
    const std::vector<PolicyPoint>& points = sharp->points();
    for (const PolicyPoint& point : c.all) {
      const auto place = std::ranges::lower_bound(points, point.bytes, {},
                                                  &PolicyPoint::bytes);
      ASSERT_NE(place, points.end());
      ASSERT_LE(place->ms, point.ms * (1 + 1e-12) + 1e-12);
      if (!c.IsInWindow(point)) continue;
      EXPECT_EQ(place->bytes, point.bytes);
      EXPECT_TRUE(sharp->IsExact(place - points.begin()));
    }
    for (size_t p = 0; p < points.size(); ++p) {
      if (p > 0) {
        ASSERT_GT(points[p].bytes, points[p - 1].bytes);
      }
      if (!sharp->IsExact(p)) {
        ++relaxed;
        raised += std::ranges::find(c.coarse->points(), points[p]) ==
                          c.coarse->points().end()
                      ? 1
                      : 0;
        continue;
      }
      ++exact;
      GroupFlags saved;
      for (const GroupUse use : sharp->UsesOf(p)) {
        saved.push_back(use == GroupUse::kSaved);
      }
      const Outcome outcome = OutcomeOf(c.graph, c.choices, saved);
      EXPECT_TRUE(outcome.is_allowed);
      EXPECT_EQ(c.choices.base_bytes - outcome.kept_bytes, points[p].bytes);
      EXPECT_NEAR(outcome.ms, points[p].ms, 1e-12 * points[p].ms);
    }
  }
  EXPECT_GT(exact, Enough(1000));
  EXPECT_GT(relaxed, Enough(1000));
  EXPECT_GT(raised, Enough(100));
}

// Returns the least ms of a policy that keeps at most so many bytes, by CBC;
// nothing if none does. For graphs without operators in place.
std::optional<double> LeastByCbc(const NeedGraph& graph,
                                 const NeedChoices& choices,
                                 int64_t most_kept_bytes) {
  solver::Milp milp;
  const auto binary = [&](double cost, bool may_be = true) {
    return milp.AddColumn(
        {.upper = may_be ? 1.0 : 0.0, .cost = cost, .is_integer = true});
  };
  std::vector<int> runs;
  graph::IndexedVector<GroupId, int> saved;
  graph::IndexedVector<ResultId, int> needed_columns, kept;
  for (const bool may_save : choices.may_save) {
    saved.push_back(binary(0, may_save));
  }
  graph::IndexedVector<ResultId, int> maker(graph.results, -1);
  for (int k = 0; k < std::ssize(graph.operators); ++k) {
    const NeedGraph::Operator& op = graph.operators[k];
    runs.push_back(binary(op.ms, choices.may_rerun[op.group]));
    for (const ResultId r : op.makes) maker[r] = k;
  }
  solver::Milp::Row capacity = {.upper =
                                    static_cast<double>(most_kept_bytes) / 512};
  for (const ResultId r : maker.ids()) {
    needed_columns.push_back(binary(0));
    kept.push_back(binary(0, choices.may_keep[r]));
    capacity.terms.push_back(
        {kept[r], static_cast<double>(choices.bytes[r]) / 512});
    // A needed result is made, or it is kept if its operator is saved.
    const NeedGraph::Operator& op = graph.operators[maker[r]];
    milp.AddRow({.lower = 0,
                 .terms = {{runs[maker[r]], 1},
                           {saved[op.group], 1},
                           {needed_columns[r], -1}}});
    milp.AddRow(
        {.upper = 1,
         .terms = {
             {needed_columns[r], 1}, {saved[op.group], 1}, {kept[r], -1}}});
  }
  milp.AddRow(std::move(capacity));
  for (size_t k = 0; k < graph.operators.size(); ++k) {
    const NeedGraph::Operator& op = graph.operators[k];
    milp.AddRow({.upper = 1, .terms = {{runs[k], 1}, {saved[op.group], 1}}});
    if (op.is_always_needed) {
      milp.AddRow({.lower = 1, .terms = {{runs[k], 1}, {saved[op.group], 1}}});
    }
    for (const ResultId r : op.requests) {
      milp.AddRow({.lower = 1, .terms = {{needed_columns[r], 1}}});
    }
    for (const ResultId r : op.reads) {
      milp.AddRow(
          {.lower = 0, .terms = {{needed_columns[r], 1}, {runs[k], -1}}});
    }
  }
  const solver::MilpSolution solution = solver::SolveWithCbc(milp);
  if (solution.x.empty()) return std::nullopt;
  return solution.objective;
}

TEST(NeedPoliciesTest, AreTheBestOfTheMilp) {
  std::mt19937 random(3);
  int found_count = 0;
  for (int round = 0; round < Repetitions(60); ++round) {
    SCOPED_TRACE(round);
    const NeedGraph graph =
        RandomGraph(random, 12 + static_cast<int>(random() % 12), false);
    const NeedChoices choices = RandomChoices(random, graph);
    const NeedPolicies policies = PoliciesOf(graph, choices);
    const std::vector<PolicyPoint>& points = policies.points();
    for (int k = 0; k < 4; ++k) {
      const auto most_kept = static_cast<int64_t>(random() % 60) * 512;
      const auto cheapest = std::ranges::lower_bound(
          points, choices.base_bytes - most_kept, {}, &PolicyPoint::bytes);
      const std::optional<double> least = LeastByCbc(graph, choices, most_kept);
      ASSERT_EQ(least.has_value(), cheapest != points.end());
      if (!least) continue;
      EXPECT_NEAR(cheapest->ms, *least, 1e-5);
      ++found_count;
    }
  }
  EXPECT_GT(found_count, Enough(60));
}

// Checks that points ascend, and that a policy costs at least as much as the
// cheapest point that discards as much: policies of points, others near them,
// and some random ones. Returns how many were allowed.
int CheckBounds(const NeedGraph& graph, const NeedChoices& choices,
                std::mt19937& random) {
  int checked = 0;
  const NeedPolicies policies = PoliciesOf(graph, choices);
  const std::vector<PolicyPoint>& points = policies.points();
  for (size_t p = 1; p < points.size(); ++p) {
    EXPECT_LT(points[p - 1].bytes, points[p].bytes);
    EXPECT_LT(points[p - 1].ms, points[p].ms);
  }
  const auto check = [&](const GroupFlags& saved) {
    const Outcome outcome = OutcomeOf(graph, choices, saved);
    if (!outcome.is_allowed) return;
    ++checked;
    const auto cheapest = std::ranges::lower_bound(
        points, choices.base_bytes - outcome.kept_bytes, {},
        &PolicyPoint::bytes);
    ASSERT_NE(cheapest, points.end());
    EXPECT_LE(cheapest->ms, outcome.ms + 1e-9);
  };
  const std::vector<GroupId> groups = GroupsOf(graph);
  for (size_t p = 0; p < points.size(); ++p) {
    GroupFlags saved;
    for (const GroupUse use : policies.UsesOf(p)) {
      saved.push_back(use == GroupUse::kSaved);
    }
    check(saved);
    const GroupId group = groups[random() % groups.size()];
    saved[group] = !saved[group];
    check(saved);
    std::ranges::fill(saved, graph::Flag(false));
    for (const GroupId some : groups) saved[some] = random() % 2 == 0;
    check(saved);
  }
  return checked;
}

// Graphs so large that policies are relaxed.
TEST(NeedPoliciesTest, AreBoundsForLargeCalls) {
  std::mt19937 random(2);
  int checked = 0;
  for (int round = 0; round < Repetitions(100); ++round) {
    SCOPED_TRACE(round);
    const NeedGraph graph = RandomGraph(random, 200);
    checked += CheckBounds(graph, RandomChoices(random, graph), random);
  }
  EXPECT_GT(checked, Enough(1000));
}

// Returns a graph like a U-Net's skips: results made on the way down are read
// on the way up, the last one first. Backward asks for results made on the way
// up, which takes little time. So saving one is dear until the way down is
// reached, where fewer are needed then.
NeedGraph NestedSkips(std::mt19937& random, int depth) {
  NeedGraph graph = {.operators = {}, .results = size_t{2} * depth};
  for (int place = 2 * depth - 1; place >= 0; --place) {
    const bool is_down = place < depth;
    NeedGraph::Operator op = {
        .place = place,
        .group = GroupId{place},
        .ms = static_cast<double>(1 + random() % (is_down ? 1000 : 10)),
        .makes = {ResultId{place}},
        .reads = {}};
    if (!is_down) {
      op.reads.push_back(ResultId{2 * depth - 1 - place});
      op.requests.push_back(ResultId{place});
    }
    graph.operators.push_back(std::move(op));
  }
  return graph;
}

// Returns the groups that the best policy saves at a price of a byte, if each
// operator is a group and makes one result, all allowed: by all sets of needed
// results.
GroupFlags BestAt(double price, const NeedGraph& graph,
                  const NeedChoices& choices) {
  struct Best {
    double cost = 0;
    uint64_t saved = 0;
  };
  std::unordered_map<uint64_t, Best> of_needed = {{0, {}}};
  for (const NeedGraph::Operator& op : graph.operators) {
    std::unordered_map<uint64_t, Best> next;
    const auto add = [&](uint64_t needed_bits, const Best& best) {
      const auto [place, is_new] = next.try_emplace(needed_bits, best);
      if (!is_new && best.cost < place->second.cost) place->second = best;
    };
    const uint64_t made_bit = uint64_t{1} << IndexOf(op.makes[0]);
    for (const auto& [before, best] : of_needed) {
      uint64_t needed_bits = before;
      for (const ResultId r : op.requests) {
        needed_bits |= uint64_t{1} << IndexOf(r);
      }
      if ((needed_bits & made_bit) == 0) {
        add(needed_bits, best);
        continue;
      }
      needed_bits &= ~made_bit;
      const auto bytes = static_cast<double>(choices.bytes[op.makes[0]]);
      add(needed_bits, {best.cost + price * bytes, best.saved | made_bit});
      for (const ResultId r : op.reads)
        needed_bits |= uint64_t{1} << IndexOf(r);
      add(needed_bits, {best.cost + op.ms, best.saved});
    }
    of_needed = std::move(next);
  }
  GroupFlags saved;
  for (size_t r = 0; r < graph.results; ++r) {
    saved.push_back((of_needed.at(0).saved >> r & 1) != 0);
  }
  return saved;
}

// States are the sets of needed skips. Lines go through the best policies at
// some prices, where bounds are tight.
TEST(NeedPoliciesTest, AreBoundsWhereStatesAreMany) {
  std::mt19937 random(3);
  constexpr int kDepth = 14;
  int relaxed = 0;
  for (int round = 0; round < Repetitions(6); ++round) {
    SCOPED_TRACE(round);
    const NeedGraph graph = NestedSkips(random, kDepth);
    NeedChoices choices;
    choices.may_keep.assign(graph.results, true);
    choices.may_save.assign(graph.results, true);
    choices.may_rerun.assign(graph.results, true);
    for (size_t r = 0; r < graph.results; ++r) {
      choices.bytes.push_back(static_cast<int64_t>(1 + random() % 1'000'000));
    }
    const NeedPolicies policies = PoliciesOf(graph, choices);
    relaxed += policies.IsExact(0) ? 0 : 1;
    for (double price = 1e-6; price < 1; price *= 2) {
      const Outcome best =
          OutcomeOf(graph, choices, BestAt(price, graph, choices));
      const auto cheapest = std::ranges::lower_bound(
          policies.points(), -best.kept_bytes, {}, &PolicyPoint::bytes);
      ASSERT_NE(cheapest, policies.points().end());
      EXPECT_LE(cheapest->ms, best.ms + 1e-9) << price;
    }
  }
  EXPECT_GT(relaxed, Enough(4));
}

}  // namespace
}  // namespace acplan::problems
