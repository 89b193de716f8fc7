#include "problems/remat/remat_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <queue>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::problems {
namespace {

using graph::JointBuffer;
using graph::JointGraph;
using graph::JointNode;
using graph::JointStage;
using graph::OneLine;

// The bytes that are live from one place to another one, both included.
class Sums {
 public:
  explicit Sums(size_t places) : change_(places + 1, 0) {}

  void Add(int64_t begin, int64_t end, int64_t bytes) {
    if (begin > end) return;
    change_[static_cast<size_t>(begin)] += bytes;
    change_[static_cast<size_t>(end) + 1] -= bytes;
  }

  std::vector<int64_t> Totals() const {
    std::vector<int64_t> totals(change_.begin(), change_.end() - 1);
    for (size_t i = 1; i < totals.size(); ++i) totals[i] += totals[i - 1];
    return totals;
  }

 private:
  std::vector<int64_t> change_;
};

// Returns the operators of each group, indexed by the group's first operator.
std::vector<std::vector<int32_t>> TiedOperators(const RematProblem& problem) {
  std::vector<std::vector<int32_t>> tied(problem.operators.size());
  for (int32_t o = 0; o < std::ssize(problem.operators); ++o) {
    const JointNode& node = problem.graph->nodes[problem.operators[o].node];
    tied[node.tied_to ? problem.operator_of[*node.tied_to] : o].push_back(o);
  }
  return tied;
}

// Returns whether an operator may need the values that it reads, because it
// runs again or early.
bool MayNeed(const RematOperator& op) {
  return op.may_run_again || op.is_either;
}

// Returns the groups in order: the next one is the last of those whose readers
// have all had their turn.
std::vector<std::vector<int32_t>> DecisionGroups(const RematProblem& problem) {
  const std::vector<std::vector<int32_t>> tied = TiedOperators(problem);
  std::vector<int32_t> first(tied.size());
  std::vector<int64_t> readers(tied.size(), 0);
  for (int32_t f = 0; f < std::ssize(tied); ++f)
    for (const int32_t o : tied[f]) first[o] = f;
  const auto maker_of = [&](int32_t value) {
    return first[problem.values[value].maker];
  };
  for (const RematOperator& op : problem.operators)
    if (MayNeed(op))
      for (const int32_t v : op.reads) ++readers[maker_of(v)];
  std::priority_queue<int32_t> ready;
  for (int32_t f = 0; f < std::ssize(tied); ++f)
    if (!tied[f].empty() && readers[f] == 0) ready.push(f);
  std::vector<std::vector<int32_t>> groups;
  while (!ready.empty()) {
    const int32_t f = ready.top();
    ready.pop();
    groups.push_back(tied[f]);
    for (const int32_t o : tied[f]) {
      if (!MayNeed(problem.operators[o])) continue;
      for (const int32_t v : problem.operators[o].reads)
        if (--readers[maker_of(v)] == 0) ready.push(maker_of(v));
    }
    readers[f] = -1;
  }
  for (int32_t f = 0; f < std::ssize(tied); ++f) {
    if (tied[f].empty() || readers[f] < 0) continue;
    throw InputError(fmt::format(
        "node '{}': expected that no node tied to it needs its results",
        OneLine(problem.graph->nodes[problem.operators[f].node].name)));
  }
  return groups;
}

class Builder {
 public:
  explicit Builder(const JointGraph& graph)
      : graph_(graph),
        simulator_(graph),
        reads_(graph.buffers.size()),
        maker_places_(graph.buffers.size(), -1) {
    problem_.graph = &graph;
    problem_.operator_of.assign(graph.nodes.size(), -1);
    problem_.place_of.assign(graph.nodes.size(), -1);
    problem_.value_of.assign(graph.buffers.size(), -1);
  }

  RematProblem Build() {
    for (int32_t n = 0; n < std::ssize(graph_.nodes); ++n) {
      if (graph_.nodes[n].stage == JointStage::kBackward) {
        AddBackward(n);
      } else {
        AddOperator(n);
      }
    }
    const auto end = static_cast<int32_t>(problem_.backward_nodes.size());
    ReadInBackward(graph_.backward_outputs, end);
    CountForward();
    CountBackward();
    problem_.groups = DecisionGroups(problem_);
    return std::move(problem_);
  }

 private:
  struct Reads {
    int32_t first = RematValue::kNever;
    int32_t last = -1;
  };

  void AddOperator(int32_t n) {
    const JointNode& node = graph_.nodes[n];
    const auto place = static_cast<int32_t>(problem_.operators.size());
    problem_.operator_of[n] = place;
    RematOperator op{.node = n,
                     .is_either = node.stage == JointStage::kEither,
                     .ms = node.ms,
                     .may_run_again = node.may_run_again,
                     .scratch_bytes = node.scratch_bytes};
    const bool is_forward = node.stage == JointStage::kForward;
    for (const int32_t b : node.reads) {
      const int32_t v = problem_.value_of[b];
      if (v < 0) continue;
      op.reads.push_back(v);
      if (is_forward) problem_.values[v].live_until = place;
    }
    for (int32_t i = 0; i < std::ssize(node.makes); ++i) {
      const int32_t b = node.makes[i];
      maker_places_[b] = place;
      if (simulator_.IsForwardOutput(b)) {
        op.returned_bytes += graph_.buffers[b].bytes;
        continue;
      }
      const auto v = static_cast<int32_t>(problem_.values.size());
      problem_.value_of[b] = v;
      op.makes.push_back(v);
      problem_.values.push_back({.buffer = b,
                                 .bytes = graph_.buffers[b].bytes,
                                 .may_keep = graph_.buffers[b].may_keep,
                                 .maker = place,
                                 .place = i,
                                 .live_until = is_forward ? place : -1});
    }
    problem_.operators.push_back(std::move(op));
  }

  void AddBackward(int32_t n) {
    const auto place = static_cast<int32_t>(problem_.backward_nodes.size());
    problem_.place_of[n] = place;
    problem_.backward_nodes.push_back(n);
    for (const int32_t b : graph_.nodes[n].makes) {
      maker_places_[b] = place;
      reads_[b] = {.first = place, .last = place};
    }
    ReadInBackward(graph_.nodes[n].reads, place);
  }

  void ReadInBackward(const std::vector<int32_t>& buffers, int32_t place) {
    for (const int32_t b : buffers) {
      reads_[b].first = std::min(reads_[b].first, place);
      reads_[b].last = place;
      const int32_t v = problem_.value_of[b];
      if (v < 0) continue;
      problem_.values[v].first_read =
          std::min(problem_.values[v].first_read, place);
      problem_.values[v].last_read = place;
    }
  }

  bool IsInput(int32_t buffer) const { return simulator_.MakerOf(buffer) < 0; }

  // Returns the bytes that are there during the whole step.
  int64_t Constant() const {
    int64_t bytes = graph_.held_bytes;
    for (int32_t b = 0; b < std::ssize(graph_.buffers); ++b)
      if (IsInput(b) && !graph_.buffers[b].is_from_backward)
        bytes += graph_.buffers[b].bytes;
    return bytes;
  }

  void CountForward() {
    const auto count = static_cast<int32_t>(problem_.operators.size());
    Sums sums(problem_.operators.size());
    for (const RematValue& value : problem_.values)
      if (value.live_until >= 0)
        sums.Add(value.maker, value.live_until, value.bytes);
    for (const int32_t b : graph_.forward_outputs)
      if (!IsInput(b))
        sums.Add(maker_places_[b], count - 1, graph_.buffers[b].bytes);
    problem_.forward_base = sums.Totals();
    const int64_t constant = Constant();
    for (int32_t o = 0; o < count; ++o) {
      const JointNode& node = graph_.nodes[problem_.operators[o].node];
      problem_.forward_base[o] += constant;
      if (node.stage == JointStage::kForward)
        problem_.forward_base[o] += node.scratch_bytes;
    }
  }

  void CountBackward() {
    const auto count = static_cast<int32_t>(problem_.backward_nodes.size());
    int64_t constant = Constant();
    for (const int32_t b : graph_.forward_outputs)
      if (!IsInput(b)) constant += graph_.buffers[b].bytes;
    // A value is also live while something runs again before the place that
    // reads it.
    Sums at(problem_.backward_nodes.size() + 1);
    Sums before(problem_.backward_nodes.size() + 1);
    std::vector<char> is_output(graph_.buffers.size(), 0);
    for (const int32_t b : graph_.backward_outputs) is_output[b] = 1;
    for (int32_t b = 0; b < std::ssize(graph_.buffers); ++b) {
      const JointBuffer& buffer = graph_.buffers[b];
      const bool is_tangent = IsInput(b) && buffer.is_from_backward;
      const bool is_made =
          !IsInput(b) &&
          graph_.nodes[simulator_.MakerOf(b)].stage == JointStage::kBackward;
      if (!is_tangent && !is_made) continue;
      const int32_t last = is_output[b] ? count : reads_[b].last;
      if (last < 0) continue;
      const int32_t begin = is_tangent ? 0 : maker_places_[b];
      at.Add(begin, last, buffer.bytes);
      before.Add(is_tangent ? 0 : begin + 1, last, buffer.bytes);
    }
    problem_.backward_base = at.Totals();
    problem_.again_base = before.Totals();
    problem_.backward_base.pop_back();
    for (int32_t j = 0; j < count; ++j) {
      problem_.backward_base[j] +=
          constant + graph_.nodes[problem_.backward_nodes[j]].scratch_bytes;
    }
    for (int64_t& bytes : problem_.again_base) bytes += constant;
  }

  const JointGraph& graph_;
  const graph::JointSimulator simulator_;
  RematProblem problem_;
  std::vector<Reads> reads_;           // by buffer: reads in backward
  std::vector<int32_t> maker_places_;  // by buffer: the place in its pass
};

}  // namespace

int64_t RematProblem::BaseOf(const RematMoment& moment) const {
  switch (moment.kind) {
    case RematMoment::Kind::kForward:
      return forward_base[moment.op];
    case RematMoment::Kind::kBackward:
      return backward_base[moment.backward];
    case RematMoment::Kind::kAgain:
      return again_base[moment.backward] + operators[moment.op].scratch_bytes +
             operators[moment.op].returned_bytes;
  }
  return 0;
}

int64_t RematProblem::SlackOf(const RematMoment& moment) const {
  if (forward_slack.empty()) return 0;
  return moment.kind == RematMoment::Kind::kForward
             ? forward_slack[moment.op]
             : backward_slack[moment.backward];
}

int64_t RematProblem::RoomAt(const RematMoment& moment,
                             const RematBudget& budget) const {
  return moment == Between()
             ? budget.kept_bytes
             : budget.peak_bytes - BaseOf(moment) + SlackOf(moment);
}

double RematProblem::AllMs() const {
  double ms = 0;
  for (const RematOperator& op : operators) ms += op.ms;
  return ms;
}

RematProblem BuildRematProblem(const JointGraph& graph) {
  return Builder(graph).Build();
}

RematMoment MomentOf(const RematProblem& problem, const graph::JointRun& run,
                     int32_t step) {
  const graph::JointRun::Step& at = run.steps[step];
  if (!at.is_backward) {
    return {.kind = RematMoment::Kind::kForward,
            .op = problem.operator_of[at.node]};
  }
  if (!at.is_again) {
    return {.kind = RematMoment::Kind::kBackward,
            .backward = problem.place_of[at.node]};
  }
  auto next = static_cast<int32_t>(problem.backward_nodes.size());
  for (size_t s = static_cast<size_t>(step) + 1; s < run.steps.size(); ++s) {
    if (run.steps[s].is_again) continue;
    next = problem.place_of[run.steps[s].node];
    break;
  }
  return {.kind = RematMoment::Kind::kAgain,
          .op = problem.operator_of[at.node],
          .backward = next};
}

}  // namespace acplan::problems
