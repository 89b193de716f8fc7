#include "problems/trace/rerun_bound/rerun_cut.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "solver/stop.h"

// The network. A node for r_o of each operator and, for each moment k, one for
// z_ok; on the source's side means 1.
//   r_o -> sink, t_o ms                          it runs again: it costs
//   z_ok -> r_o, uncuttable                      r_o >= z_ok
//   source -> g_qk, price * b_q                  q is asked for: it is made again,
//   g_qk -> z_wk, uncuttable, w in W_q           or cut, that is live
//   z_ok -> h_qk, uncuttable, o in D_q           q is not asked for by backward, but
//   h_qk -> g_qk, price * b_q                    maybe by what runs again
// A cut costs what its solution does, and each l_qk is as small as r and z allow.
// With a single reader or writer z takes the place of h or g, and with a single
// moment r that of z.
//
// Which values may matter at a moment is found from the last to the first: those
// asked for, and those that operators read that may have to run again for others.
// Readers of a value come after its writers, so by last writer is an order.
//
// Capacities are whole numbers, rounded down, and more than everything together
// counts as that: the cut is no dearer for it.

namespace acplan::problems {

using graph::OperatorId;
using solver::FlowNetwork;

namespace {

using Value = RerunProblem::Value;

constexpr double kWhole = 1LL << 40;  // all operators together

}  // namespace

RerunCut::RerunCut(const RerunProblem& problem, std::vector<OperatorId> moments)
    : problem_(problem), moments_(std::move(moments)) {
  for (const double ms : problem.runtime_ms) whole_ms_ += ms;
  for (int m = 0; m < std::ssize(moments_); ++m) {
    solver::StopIfDue();
    AddMoment(m);
  }
}

void RerunCut::AddEdge(int from, int to, const Meaning& meaning) {
  network_.edges.push_back({from, to, solver::kUncuttable});
  meanings_.push_back(meaning);
}

int RerunCut::NodeOfRerun(OperatorId op) {
  const auto [node, is_new] = rerun_of_.try_emplace(op, 0);
  if (is_new) {
    node->second = network_.AddNode();
    AddEdge(node->second, FlowNetwork::kSink,
            {.ms = problem_.runtime_ms[op], .op = op});
  }
  return node->second;
}

void RerunCut::AddMoment(int moment) {
  const OperatorId now = moments_[moment];
  graph::IndexedVector<OperatorId, int> node_of(problem_.runtime_ms.size(), -1);
  const auto node = [&](OperatorId op) {
    if (node_of[op] >= 0) return node_of[op];
    const int rerun = NodeOfRerun(op);
    if (moments_.size() == 1) return node_of[op] = rerun;
    node_of[op] = network_.AddNode();
    AddEdge(node_of[op], rerun, {});
    return node_of[op];
  };
  for (auto value = problem_.values.rbegin(); value != problem_.values.rend();
       ++value) {
    if (value->writers.front() >= now || value->IsHeldAt(now)) continue;
    std::vector<int> users;
    if (value->IsAskedAfter(now)) {
      users = {FlowNetwork::kSource};
    } else {
      for (const OperatorId op : value->readers) {
        if (op < now && node_of[op] >= 0) users.push_back(node_of[op]);
      }
    }
    if (users.empty()) continue;
    int from = users.front();
    if (users.size() > 1) {
      from = network_.AddNode();
      for (const int user : users) AddEdge(user, from, {});
    }
    const auto end = std::ranges::lower_bound(value->writers, now);
    int to = node(value->writers.front());
    if (end - value->writers.begin() > 1) {
      const int first = to;
      to = network_.AddNode();
      AddEdge(to, first, {});
      for (auto w = value->writers.begin() + 1; w != end; ++w) {
        AddEdge(to, node(*w), {});
      }
    }
    AddEdge(from, to, {.bytes = value->bytes, .moment = moment});
  }
}

PricedReruns RerunCut::Solve(const std::vector<double>& prices) const {
  const double scale = whole_ms_ > 0 ? kWhole / whole_ms_ : 1;
  FlowNetwork network = network_;
  for (size_t e = 0; e < meanings_.size(); ++e) {
    const Meaning& meaning = meanings_[e];
    if (meaning.op == graph::kNone && meaning.moment < 0) continue;
    const double cost =
        meaning.op != graph::kNone
            ? meaning.ms
            : prices[meaning.moment] * static_cast<double>(meaning.bytes);
    network.edges[e].capacity =
        static_cast<int64_t>(std::min(cost * scale, 2 * kWhole));
  }
  const solver::MinCut cut = FindMinCut(network);
  PricedReruns result{.least = static_cast<double>(cut.capacity) / scale};
  result.reruns.runs_again.assign(problem_.runtime_ms.size(), false);
  for (const OperatorId moment : moments_) {
    result.reruns.bytes_at.push_back(problem_.held_bytes[moment]);
  }
  for (size_t e = 0; e < meanings_.size(); ++e) {
    const FlowNetwork::Edge& edge = network.edges[e];
    const bool is_cut =
        cut.is_with_source[edge.from] != 0 && cut.is_with_source[edge.to] == 0;
    if (!is_cut) continue;
    const Meaning& meaning = meanings_[e];
    if (meaning.op != graph::kNone) {
      result.reruns.runs_again[meaning.op] = true;
      result.reruns.ms += meaning.ms;
    } else {
      result.reruns.bytes_at[meaning.moment] += meaning.bytes;
    }
  }
  return result;
}

int64_t BytesWithReruns(
    const RerunProblem& problem, OperatorId op,
    const graph::IndexedVector<OperatorId, graph::Flag>& runs_again) {
  graph::IndexedVector<OperatorId, graph::Flag> is_late(
      problem.runtime_ms.size(), false);
  int64_t bytes = problem.held_bytes[op];
  for (auto value = problem.values.rbegin(); value != problem.values.rend();
       ++value) {
    if (value->writers.front() >= op || value->IsHeldAt(op)) continue;
    const bool is_needed =
        value->IsAskedAfter(op) ||
        std::ranges::any_of(value->readers, [&](OperatorId reader) {
          return reader < op && is_late[reader];
        });
    if (!is_needed) continue;
    const auto last = std::ranges::lower_bound(value->writers, op);
    const bool is_made_again =
        std::all_of(value->writers.begin(), last,
                    [&](OperatorId w) { return runs_again[w]; });
    if (!is_made_again) {
      bytes += value->bytes;
      continue;
    }
    for (auto w = value->writers.begin(); w != last; ++w) is_late[*w] = true;
  }
  return bytes;
}

}  // namespace acplan::problems
