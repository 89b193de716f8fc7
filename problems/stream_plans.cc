#include "problems/stream_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/trace/allocation.h"
#include "graph/trace/simulation.h"
#include "graph/trace/stream_times.h"
#include "problems/plan/plan_streams.h"
#include "problems/regret/times_box.h"
#include "problems/step_search.h"

namespace acplan::problems {

using graph::OperatorId;
using graph::StorageId;
using graph::Time;
using graph::Trace;
using graph::TraceOperator;

namespace {

// The share of its time that a hidden operator costs, so that less is run again.
constexpr double kHiddenShare = 1e-3;
// A wait shorter than this share of the step hides nothing.
constexpr double kLeastWait = 1e-6;
// A plan whose step is shorter by less than this share is no other plan.
constexpr double kNearStreamStep = 1e-6;

// A wait of the default stream in the backward pass, before the operator at a time.
struct Wait {
  Time time = 0;
  double ms = 0;
};

// The step without a plan. Its steps are the operators.
class PlainStep {
 public:
  explicit PlainStep(const Trace& trace) : trace_(trace) {
    graph::IndexedVector<graph::StepId, graph::Simulation::Step> steps;
    for (const OperatorId op : trace.operators.ids()) {
      steps.push_back({.op = op});
    }
    starts_ = StartsOnStreams(trace, steps);
  }

  double StartOfOperator(OperatorId op) const {
    return starts_[graph::StepId{graph::IndexOf(op)}];
  }

  std::vector<Wait> Waits(double least_ms) const {
    std::vector<Wait> waits;
    double free_ms = 0;
    for (const OperatorId op : trace_.operators.ids()) {
      if (trace_.operators[op].stream != 0) continue;
      const double ms = StartOfOperator(op) - free_ms;
      const Time time = graph::StartOf(op);
      const bool is_in_backward =
          time >= trace_.forward_end && time < trace_.backward_end;
      if (is_in_backward && ms > least_ms) waits.push_back({time, ms});
      free_ms = StartOfOperator(op) + trace_.operators[op].runtime_ms;
    }
    return waits;
  }

 private:
  const Trace& trace_;
  graph::IndexedVector<graph::StepId, double> starts_;
};

// Returns the default stream's first operator from a time on; kNoOperator if there is none.
OperatorId FirstFrom(const Trace& trace, Time time) {
  for (Time t = time; t < std::ssize(trace.operators); ++t) {
    if (trace.operators[graph::OperatorAt(t)].stream == 0) {
      return graph::OperatorAt(t);
    }
  }
  return graph::kNoOperator;
}

// Returns the milliseconds of the longest path from an operator on.
double LongestFrom(const Trace& trace, OperatorId first) {
  // When each operator, and each stream, ends after `first` begins; negative: not after it.
  graph::IndexedVector<OperatorId, double> end_ms(trace.operators.size(), -1);
  std::unordered_map<int32_t, double> stream_ms;
  double longest_ms = 0;
  for (const OperatorId op : graph::IdRange(first, trace.operators.end_id())) {
    const TraceOperator& one = trace.operators[op];
    const auto stream = stream_ms.try_emplace(one.stream, -1).first;
    double start_ms = op == first ? 0 : stream->second;
    for (const OperatorId other : one.waits) {
      start_ms = std::max(start_ms, end_ms[other]);
    }
    if (start_ms < 0) continue;
    end_ms[op] = stream->second = start_ms + one.runtime_ms;
    longest_ms = std::max(longest_ms, end_ms[op]);
  }
  return longest_ms;
}

// Returns whether a call may be in a unit.
bool MayRunAgain(const Trace& trace, graph::CallId call) {
  for (; call != graph::kNone; call = trace.calls[call].parent) {
    if (!trace.calls[call].no_grad) return true;
  }
  return false;
}

// Returns whether a unit may be around a call that gathers its parameters.
bool MayGatherEarly(const Trace& trace) {
  return std::ranges::any_of(trace.calls, [&](const graph::TraceCall& call) {
    return call.gather_begin != graph::kNever &&
           MayRunAgain(trace, call.parent);
  });
}

// The operators [begin, end) of the forward pass that units may contain: those of a call that
// no other one that may be a unit is around, or of several of which runs may be units.
struct UnitRange {
  Time begin = 0;
  Time end = 0;
  double ms = 0;  // of its operators on the default stream
  // When backward asks for the first and the last tensor that is saved in it.
  Time first_asked = graph::kNever;
  Time last_asked = 0;
};

// Returns the ranges of a trace. If `has_runs`, runs of modules with numbers for names may be
// units (segment_plans.h).
std::vector<UnitRange> RangesOf(const Trace& trace, bool has_runs) {
  std::map<std::string, UnitRange> by_name;
  for (const graph::CallId c : trace.calls.ids()) {
    const graph::TraceCall& call = trace.calls[c];
    if (call.no_grad || MayRunAgain(trace, call.parent)) continue;
    const std::string& fqn = trace.modules[call.module].fqn;
    const size_t dot = fqn.rfind('.') + 1;
    const bool is_numbered =
        dot < fqn.size() &&
        fqn.find_first_not_of("0123456789", dot) == std::string::npos;
    const std::string name = has_runs && is_numbered
                                 ? fqn.substr(0, dot)
                                 : fmt::format("{}", graph::IndexOf(c));
    UnitRange& range = by_name.try_emplace(name, call.start).first->second;
    range.end = std::max(range.end, call.end);
  }
  std::vector<UnitRange> ranges;
  for (auto& [name, range] : by_name) {
    for (const OperatorId op : graph::OperatorsIn(range.begin, range.end)) {
      const TraceOperator& one = trace.operators[op];
      if (one.stream == 0 && !one.once) range.ms += one.runtime_ms;
    }
    for (const graph::SavedTensor& saved : trace.saved) {
      const bool is_inside =
          range.begin <= saved.packed && saved.packed <= range.end;
      if (!is_inside || saved.unpacked == graph::kNever) continue;
      range.first_asked = std::min(range.first_asked, saved.unpacked);
      range.last_asked = std::max(range.last_asked, saved.unpacked);
    }
    ranges.push_back(range);
  }
  return ranges;
}

// Returns a time that no plan's step takes less than if none runs less again on the default
// stream than `again_ms`: the most of bounds that cut the step in two before one of its
// operators.
double WorkBoundMs(const Trace& trace, const PlainStep& step,
                   const std::vector<UnitRange>& ranges, double again_ms) {
  Time first = graph::kNever;
  Time last = 0;
  for (const UnitRange& range : ranges) {
    first = std::min(first, range.first_asked);
    last = std::max(last, range.last_asked);
  }
  const OperatorId after = FirstFrom(trace, last);
  const double tail_ms =
      after == graph::kNoOperator ? 0 : LongestFrom(trace, after);
  // Casts may be made several times, and gathering earlier changes when operators start.
  const bool may_differ =
      MayGatherEarly(trace) ||
      std::ranges::any_of(trace.operators, [](const TraceOperator& op) {
        return !op.recasts.empty();
      });
  double bound_ms = 0;
  double work_ms = 0;  // of the default stream up to `after`, from the end on
  const Time end = after == graph::kNoOperator
                       ? static_cast<Time>(trace.operators.size())
                       : graph::StartOf(after);
  for (Time time = end - 1; time >= 0; --time) {
    const OperatorId op = graph::OperatorAt(time);
    if (trace.operators[op].stream != 0) continue;
    work_ms += trace.operators[op].runtime_ms;
    // The operators that may run again before this one.
    double before_ms = 0;
    for (const UnitRange& range : ranges) {
      if (range.first_asked <= time) before_ms += range.ms;
    }
    if (before_ms > 0 && may_differ) continue;
    bound_ms = std::max(bound_ms, step.StartOfOperator(op) + work_ms + tail_ms +
                                      std::max(0.0, again_ms - before_ms));
  }
  return bound_ms;
}

// Returns the run-times with those of other streams than the default one 0.
Times OfDefaultStream(const Trace& trace) {
  Times times = EstimatesOf(trace);
  for (const OperatorId op : trace.operators.ids()) {
    if (trace.operators[op].stream != 0) times[op] = 0;
  }
  return times;
}

// The operators of the forward pass that would run again before a wait.
struct HiddenGroup {
  double wait_ms = 0;
  double ms = 0;  // of all of them
  std::vector<OperatorId> operators = {};
};

// Returns the bytes that running an operator again frees: those of its results that autograd
// saves.
graph::IndexedVector<OperatorId, double> BytesSaved(const Trace& trace) {
  graph::IndexedVector<OperatorId, double> bytes(trace.operators.size(), 0);
  std::vector<StorageId> storages;
  for (const graph::SavedTensor& saved : trace.saved) {
    storages.push_back(saved.storage);
  }
  std::ranges::sort(storages);
  const auto repeated = std::ranges::unique(storages);
  storages.erase(repeated.begin(), repeated.end());
  for (const StorageId storage : storages) {
    const graph::TraceStorage& one = trace.storages[storage];
    if (one.born == graph::kNone) continue;
    bytes[one.born] += static_cast<double>(graph::AllocatedBytes(one.bytes));
  }
  return bytes;
}

// Returns the groups of the waits. An operator would run again when backward asks for what
// its call has saved.
std::vector<HiddenGroup> GroupsOf(const Trace& trace,
                                  const std::vector<Wait>& waits) {
  graph::IndexedVector<graph::CallId, Time> asked_at(trace.calls.size(),
                                                     graph::kNever);
  for (const graph::SavedTensor& saved : trace.saved) {
    for (graph::CallId call = saved.call; call != graph::kNone;
         call = trace.calls[call].parent) {
      asked_at[call] = std::min(asked_at[call], saved.unpacked);
    }
  }
  std::vector<HiddenGroup> groups;
  for (const Wait& wait : waits) groups.push_back({.wait_ms = wait.ms});
  for (const OperatorId op : graph::OperatorsIn(0, trace.forward_end)) {
    const TraceOperator& one = trace.operators[op];
    graph::CallId call = one.call;
    while (call != graph::kNone && asked_at[call] == graph::kNever) {
      call = trace.calls[call].parent;
    }
    if (call == graph::kNone || one.once || one.stream != 0) continue;
    const auto wait =
        std::ranges::upper_bound(waits, asked_at[call], {}, &Wait::time);
    if (wait == waits.end()) continue;
    HiddenGroup& group = groups[wait - waits.begin()];
    group.ms += one.runtime_ms;
    group.operators.push_back(op);
  }
  return groups;
}

// Returns run-times by which the operators of a group cost the share that its wait does not
// hide.
Times WithHiddenShares(const Trace& trace,
                       const std::vector<HiddenGroup>& groups) {
  Times times = EstimatesOf(trace);
  for (const HiddenGroup& group : groups) {
    const double share =
        group.ms > 0 ? std::max(kHiddenShare, 1 - group.wait_ms / group.ms) : 1;
    for (const OperatorId op : group.operators) times[op] *= share;
  }
  return times;
}

// Returns run-times by which operators cost nearly nothing as far as a wait hides them, in
// each group those first that free the most bytes for their time.
Times WithHiddenOperators(const Trace& trace,
                          const std::vector<HiddenGroup>& groups) {
  Times times = EstimatesOf(trace);
  const auto bytes = BytesSaved(trace);
  for (const HiddenGroup& group : groups) {
    std::vector<OperatorId> operators = group.operators;
    std::ranges::stable_sort(operators, [&](OperatorId one, OperatorId other) {
      return bytes[one] * times[other] > bytes[other] * times[one];
    });
    double left_ms = group.wait_ms;
    for (const OperatorId op : operators) {
      if (times[op] > left_ms) continue;
      left_ms -= times[op];
      times[op] *= kHiddenShare;
    }
  }
  return times;
}

// Returns whether everything that a plan may run again is on the default stream.
bool RunsAgainOnDefault(const Trace& trace) {
  return std::ranges::all_of(
      graph::OperatorsIn(0, trace.forward_end), [&](OperatorId op) {
        const TraceOperator& one = trace.operators[op];
        return one.once || one.stream == 0 || one.runtime_ms == 0;
      });
}

// Returns the plan with the least step of any plan that runs at least so long again on the
// default stream.
Plan WithBound(const Question& question, Plan plan, double again_ms) {
  const Trace& trace = *question.trace;
  PlanStreams& streams = *plan.streams;
  const double plain_ms = MayGatherEarly(trace) ? 0 : streams.baseline_ms;
  const bool has_runs = question.segments.kind != SegmentKind::kNone;
  const double work_ms =
      WorkBoundMs(trace, PlainStep(trace), RangesOf(trace, has_runs), again_ms);
  streams.least_step_ms =
      std::min(std::max(plain_ms, work_ms), streams.step_ms);
  return plan;
}

// Returns the plan with the bounds that need no search.
Plan WithLeastStep(const Question& question, Plan plan) {
  if (!plan.HasPlan() || !plan.streams || plan.offload) return plan;
  const double again_ms =
      RunsAgainOnDefault(*question.trace) ? plan.bound_ms : 0;
  return WithBound(question, std::move(plan), again_ms);
}

}  // namespace

Answer WithStreams(const Question& question, Answer answer,
                   const solver::SearchLimits& limits) {
  if (!answer.plan.streams) return answer;
  const Trace& trace = *question.trace;
  answer.plan = WithLeastStep(question, std::move(answer.plan));
  const Plan& plan = answer.plan;
  if (!plan.HasPlan() || !plan.streams || plan.offload) return answer;
  if (IsProvenStep(plan)) return answer;
  StepSearch search(question, plan, limits);
  if (!RunsAgainOnDefault(trace)) {
    const double again_ms =
        search.Search(OfDefaultStream(trace), question.options);
    answer.plan = WithBound(question, std::move(answer.plan), again_ms);
    if (IsProvenStep(plan)) return answer;
  }
  const double baseline_ms = plan.streams->baseline_ms;
  const std::vector<HiddenGroup> groups =
      GroupsOf(trace, PlainStep(trace).Waits(kLeastWait * baseline_ms));
  if (!groups.empty()) {
    search.Search(WithHiddenOperators(trace, groups), question.options);
    search.Search(WithHiddenShares(trace, groups), question.options);
  }
  const double step_ms =
      std::max(plan.streams->step_ms, plan.host ? plan.host->ms : 0);
  return search.WithShorter(std::move(answer), step_ms * (1 - kNearStreamStep));
}

}  // namespace acplan::problems
