#include "problems/remat/remat_offload.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/joint/joint_moves.h"

namespace acplan::problems {
namespace {

using graph::JointGraph;
using graph::JointRun;
using graph::JointSimulator;
using graph::JointStage;
using solver::SearchStatus;

constexpr int64_t kNoLimit = int64_t{1} << 62;
constexpr int kBudgets = 9;
constexpr int kBoundParts = 8;
constexpr double kNoShare = 1e-9;  // of the time of the step: none
// Shares of the time limit.
constexpr double kStartShare = 0.4;
constexpr double kRelaxedShare = 0.2;
constexpr double kBoundShare = 0.2;
constexpr double kMostBoundSeconds = 5;
// Waits of plans to start from, as shares of what the best plan so far adds.
constexpr std::array kWaitShares = {0.0, 0.1, 0.3};

// Returns budgets from this one to the peak of keeping everything, ascending.
std::vector<int64_t> Ladder(int64_t from, int64_t most) {
  std::vector<int64_t> budgets;
  for (int k = 0; k < kBudgets; ++k)
    budgets.push_back(from + (most - from) / (kBudgets - 1) * k);
  budgets.back() = std::max(from, most);
  return budgets;
}

std::vector<int32_t> MovedBuffers(const JointRun& run) {
  std::vector<int32_t> buffers;
  for (const graph::JointMove& move : run.moves) buffers.push_back(move.buffer);
  return buffers;
}

bool IsFound(const RematAnswer& answer) {
  return answer.status == SearchStatus::kOptimal ||
         answer.status == SearchStatus::kFeasible;
}

// Returns the bytes between the passes that are there whatever is kept.
int64_t BytesBetween(const JointGraph& graph, const JointSimulator& simulator) {
  std::set<int32_t> buffers(graph.forward_outputs.begin(),
                            graph.forward_outputs.end());
  for (int32_t b = 0; b < std::ssize(graph.buffers); ++b)
    if (simulator.MakerOf(b) < 0 && !graph.buffers[b].is_from_backward)
      buffers.insert(b);
  int64_t bytes = graph.held_bytes;
  for (const int32_t b : buffers) bytes += graph.buffers[b].bytes;
  return bytes;
}

class MovedPlanSearch {
 public:
  MovedPlanSearch(const RematProblem& problem, const RematQuestion& question,
                  const LinkLimits& link)
      : problem_(problem),
        graph_(*problem.graph),
        question_(question),
        moves_{.graph = graph_,
               .link = link,
               .budget_bytes = question.budget_bytes},
        clock_(question.limits),
        simulator_(graph_),
        no_ms_(kNoShare * problem.AllMs()) {}

  // Begins with the best plan without moves for the budget, if there is one.
  RematOffload Run(const std::optional<JointRun>& unmoved_run) {
    if (unmoved_run) answer_.best = MovedRun{.run = *unmoved_run};
    const JointRun all_kept = simulator_.Run(simulator_.AllKept());
    Try(all_kept, {});
    if (!question_.start.empty()) Try(simulator_.Run(question_.start), {});
    Start(all_kept.peak_bytes);
    StartFromRelaxed();
    Improve();
    Bound();
    answer_.stopped_by = clock_.Stop();
    return std::move(answer_);
  }

 private:
  double BestMs() const {
    return answer_.best ? answer_.best->CostMs()
                        : std::numeric_limits<double>::infinity();
  }

  bool IsOver() const {
    return BestMs() <= no_ms_ || clock_.Stop() != solver::StoppedBy::kNothing;
  }

  // Tries a plan with moves. Returns whether it is the best so far.
  bool Try(const JointRun& run, const std::vector<int32_t>& wishes) {
    ++answer_.tries;
    if (run.recompute_ms >= BestMs() - no_ms_) return false;
    std::optional<MovedRun> fit = FitByMoves(moves_, run, wishes);
    if (!fit || fit->CostMs() >= BestMs() - no_ms_) return false;
    answer_.best = std::move(fit);
    return true;
  }

  // Starts from plans without moves for larger budgets.
  void Start(int64_t most) {
    const std::vector<int64_t> budgets = Ladder(question_.budget_bytes, most);
    std::vector<char> start;
    if (answer_.best && answer_.best->run.moves.empty())
      start = answer_.best->run.is_kept;
    for (size_t k = 1; k < budgets.size() && !IsOver(); ++k) {
      const double seconds = clock_.limits().time_limit_s * kStartShare;
      solver::SearchLimits limits = clock_.Remaining();
      limits.on_progress = {};
      limits.time_limit_s = std::min(
          limits.time_limit_s, std::max(0.0, seconds - clock_.Seconds()) /
                                   static_cast<double>(budgets.size() - k));
      const RematAnswer answer = SolveRemat(
          problem_,
          {.budget_bytes = budgets[k], .limits = limits, .start = start});
      if (!IsFound(answer)) continue;
      start = answer.run.is_kept;
      Try(answer.run, {});
    }
  }

  // Starts from plans that keep what the link might carry if the step waited for some time.
  void StartFromRelaxed() {
    const double most = answer_.best ? BestMs() : problem_.AllMs();
    const double seconds =
        clock_.limits().time_limit_s * kRelaxedShare / std::size(kWaitShares);
    for (const double share : kWaitShares) {
      if (IsOver()) return;
      const RematAnswer answer =
          Relaxed(share * most, 0, std::min(seconds, clock_.SecondsLeft()));
      if (IsFound(answer)) Try(answer.run, {});
    }
  }

  // Changes single decisions of the best plan as long as one makes it better.
  void Improve() {
    bool is_better = answer_.best.has_value();
    while (is_better && !IsOver()) {
      is_better = false;
      for (const int32_t b : ToChange()) {
        if (IsOver()) return;
        std::vector<char> is_kept = answer_.best->run.is_kept;
        is_kept[b] = !is_kept[b];
        std::vector<int32_t> wishes = MovedBuffers(answer_.best->run);
        if (is_kept[b]) wishes.push_back(b);
        try {
          is_better |= Try(simulator_.Run(is_kept), wishes);
        } catch (const InputError&) {
          continue;  // the rules forbid it
        }
      }
    }
  }

  // Returns buffers whose decision may be worth a change: results of what runs again, the
  // most time first, then what moves, the most bytes first.
  std::vector<int32_t> ToChange() const {
    const JointRun& run = answer_.best->run;
    std::vector<std::pair<double, int32_t>> reruns;
    for (const JointRun::Step& step : run.steps) {
      if (!step.is_again) continue;
      const graph::JointNode& node = graph_.nodes[step.node];
      for (const int32_t b : node.makes)
        if (graph_.buffers[b].may_keep && !run.is_kept[b] &&
            !simulator_.IsForwardOutput(b))
          reruns.emplace_back(-node.ms, b);
    }
    std::vector<std::pair<double, int32_t>> moves;
    for (const int32_t b : MovedBuffers(run))
      moves.emplace_back(-static_cast<double>(graph_.buffers[b].bytes), b);
    std::ranges::sort(reruns);
    std::ranges::sort(moves);
    std::vector<int32_t> buffers;
    for (const auto* list : {&reruns, &moves})
      for (const auto& [rank, b] : *list) buffers.push_back(b);
    return buffers;
  }

  // Finds a bound. All that is away at a moment has been sent by then, so it is at most
  // what the link carries in the time so far: that of the step, of reruns, and of
  // waiting. With so much more room at every moment, plans without moves are a relaxation.
  // The time that the step waits is cut in parts; in each, the longest time gives the
  // room, and the shortest one is added to what must run again.
  void Bound() {
    const double most = answer_.best ? BestMs() : problem_.AllMs();
    if (most <= no_ms_) return;
    double bound = most;
    const double seconds =
        std::min(kMostBoundSeconds, clock_.limits().time_limit_s * kBoundShare);
    for (int k = 0; k < kBoundParts; ++k) {
      const double waits_ms = most * k / kBoundParts;
      if (waits_ms >= bound) break;
      const double again_ms =
          Relaxed(most * (k + 1) / kBoundParts, most, seconds / kBoundParts)
              .bound_ms;
      bound = std::min(bound, waits_ms + again_ms);
    }
    answer_.bound_ms = std::max(0.0, bound);
  }

  int64_t SentBytes(double ms) const {
    const double bytes = ms / 1e3 * moves_.link.rates.to_host + 1;
    const int64_t most = std::min(moves_.link.host_memory_bytes, kNoLimit);
    return bytes < static_cast<double>(most) ? static_cast<int64_t>(bytes)
                                             : most;
  }

  // Returns the best plan without moves that has as much more room as the link can have
  // carried, and its bound, if the step waits at most `waits_ms`, and all that it adds is
  // at most `added_ms`.
  RematAnswer Relaxed(double waits_ms, double added_ms, double seconds) const {
    RematProblem relaxed = problem_;
    double ms = waits_ms;
    for (const RematOperator& op : relaxed.operators) {
      relaxed.forward_slack.push_back(SentBytes(ms));
      ms += op.ms;
    }
    const int64_t room =
        question_.budget_bytes - BytesBetween(graph_, simulator_);
    const int64_t kept_bytes = room + SentBytes(ms);
    if (kept_bytes < 0)
      return {.bound_ms = std::numeric_limits<double>::infinity()};
    ms += added_ms;
    for (const int32_t node : relaxed.backward_nodes) {
      relaxed.backward_slack.push_back(SentBytes(ms));
      ms += graph_.nodes[node].ms;
    }
    relaxed.backward_slack.push_back(SentBytes(ms));
    return SolveRemat(relaxed,
                      {.budget_bytes = question_.budget_bytes,
                       .kept_bytes = kept_bytes,
                       .limits = {.time_limit_s = seconds,
                                  .interrupted = clock_.limits().interrupted}});
  }

  const RematProblem& problem_;
  const JointGraph& graph_;
  const RematQuestion& question_;
  const MoveQuestion moves_;
  const solver::LimitClock clock_;
  const JointSimulator simulator_;
  const double no_ms_;  // less is rounding
  RematOffload answer_;
};

}  // namespace

void RefuseTies(const JointGraph& graph) {
  for (const graph::JointNode& node : graph.nodes)
    if (node.tied_to)
      throw InputError(
          "--offload: expected a graph without tied nodes: a step of several "
          "graphs moves nothing");
}

RematOffload SolveRematOffload(const RematProblem& problem,
                               const RematQuestion& question,
                               const LinkLimits& link) {
  RefuseTies(*problem.graph);
  RematQuestion alone = question;
  alone.limits.on_progress = {};
  RematAnswer answer = SolveRemat(problem, alone);
  std::optional<JointRun> unmoved_run;
  if (IsFound(answer)) unmoved_run = std::move(answer.run);
  return MovedPlanSearch(problem, question, link).Run(unmoved_run);
}

std::optional<LeastMoved> FindLeastMoved(const RematProblem& problem,
                                         const LinkLimits& link,
                                         const solver::SearchLimits& limits) {
  const JointGraph& graph = *problem.graph;
  RefuseTies(graph);
  const JointSimulator simulator(graph);
  solver::SearchLimits alone = limits;
  alone.on_progress = {};
  const LeastRematBudget least = FindLeastRematBudget(problem, alone);
  if (!least.exists) return std::nullopt;
  const solver::LimitClock clock(alone);
  const JointRun all_kept = simulator.Run(simulator.AllKept());
  std::optional<LeastMoved> best;
  const auto take = [&](const JointRun& run) {
    JointRun least_run = MoveAll({.graph = graph, .link = link}, run);
    if (best && least_run.peak_bytes >= best->bytes) return;
    best = {.bytes = least_run.peak_bytes,
            .bound_bytes = LeastBase(problem),
            .run = std::move(least_run)};
  };
  take(simulator.Run(least.is_kept));
  take(all_kept);
  std::vector<char> start = least.is_kept;
  for (const int64_t budget : Ladder(least.bytes, all_kept.peak_bytes)) {
    solver::SearchLimits part = clock.Remaining();
    part.time_limit_s =
        std::min(part.time_limit_s, alone.time_limit_s / kBudgets);
    const RematAnswer answer = SolveRemat(
        problem, {.budget_bytes = budget, .limits = part, .start = start});
    if (!IsFound(answer)) continue;
    start = answer.run.is_kept;
    take(answer.run);
  }
  return best;
}

}  // namespace acplan::problems
