#include "problems/trace/relaxation/running_bytes.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "graph/base/flag.h"
#include "problems/trace/problem/holders.h"

namespace acplan::problems {

using graph::OperatorGroups;
using graph::Trace;
using graph::TraceCall;

namespace {

using Release = CountedBytes::Release;

// In forward a unit lets go of what it releases as the program does.
int64_t MostInForward(const TraceProblem& problem,
                      const CountedBytes& witnessed, CandidateId c) {
  const TraceCall& call = CallOf(problem, c);
  std::vector<int64_t> gone_bytes(call.OperatorCount() + 1, 0);
  for (const auto& [s, bytes] : witnessed.released[c]) {
    const graph::Time since = std::max(problem.held_until[s], call.start);
    if (since < call.end) gone_bytes[since - call.start] += bytes;
  }
  int64_t peak = 0;
  int64_t sum = 0;
  for (graph::Time t = call.start; t < call.end; ++t) {
    sum += gone_bytes[t - call.start];
    peak = std::max(peak, witnessed.live[t] - sum);
  }
  return peak;
}

// While it runs again, and until its frame is gone, where no unit that comes
// later in the walk is before the time.
int64_t MostInBackward(const TraceProblem& problem,
                       const CountedBytes& witnessed, CandidateId c) {
  const CandidateCall& candidate = problem.candidates[c];
  const auto step_end = static_cast<graph::Time>(problem.record_of.size());
  const int time_of_node = NodeAt(problem.forest, candidate.node).time;
  const graph::Time begin =
      std::max(candidate.first_request, problem.trace->forward_end);
  const graph::Time end = std::min(candidate.frame_end, step_end);
  std::vector<int64_t> late(std::max(end - begin, 0), 0);
  for (auto l = std::ranges::lower_bound(witnessed.late, c, {},
                                         &CountedBytes::Late::candidate);
       l != witnessed.late.end() && l->candidate <= candidate.last; ++l) {
    for (graph::Time t = std::max(l->begin, begin); t < std::min(l->end, end);
         ++t) {
      late[t - begin] += l->bytes;
    }
  }
  for (const graph::Gather& gather : candidate.gathers) {
    for (graph::Time t = begin; t < std::min(gather.begin, end); ++t) {
      late[t - begin] -= gather.ExtraBytes();
    }
  }
  int64_t peak = 0;
  for (graph::Time t = begin; t < end; ++t) {
    if (NodeAt(problem.forest, problem.record_of[t]).time > time_of_node) {
      continue;
    }
    peak = std::max(peak, witnessed.live[t] - late[t - begin] +
                              witnessed.kept_arguments[c]);
  }
  const WalkNodeId end_of_subtree =
      EndOfSubtree(problem.forest, candidate.node);
  for (graph::Time t = end; t < step_end; ++t) {
    const WalkNodeId record = problem.record_of[t];
    if (record < candidate.node || record >= end_of_subtree) break;
    peak = std::max(peak, witnessed.live[t]);
  }
  return peak;
}

bool RunsAgainInItsRecords(const TraceProblem& problem, CandidateId c) {
  const CandidateCall& candidate = problem.candidates[c];
  const auto step_end = static_cast<graph::Time>(problem.record_of.size());
  const graph::Time request = candidate.first_request;
  return request >= problem.trace->forward_end &&
         request < std::min(candidate.frame_end, step_end) &&
         NodeAt(problem.forest, problem.record_of[request]).time <=
             NodeAt(problem.forest, candidate.node).time;
}

// The needs of every policy of a call that keeps the decisions. If operators may not be
// skipped, everything is needed.
struct CertainNeeds {
  bool is_all = false;
  graph::IndexedVector<ResultId, graph::Flag> is_needed = {};
  std::set<int> runs = {};  // places of operators in the call

  bool Runs(int place) const { return is_all || runs.contains(place); }

  bool IsNeeded(const CandidateCall& candidate,
                graph::StorageId storage) const {
    if (is_all) return true;
    const auto result = std::ranges::lower_bound(
        candidate.needed_results, std::pair(storage, ResultId{0}));
    return result != candidate.needed_results.end() &&
           result->first == storage && is_needed[result->second];
  }
};

CertainNeeds NeedsForCertain(const TraceProblem& problem,
                             const DecidedChoices& choices, CandidateId c) {
  const CandidateCall& candidate = problem.candidates[c];
  if (candidate.needs == graph::kNone) return {.is_all = true};
  const NeedGraph& graph = problem.need_graphs[candidate.needs];
  CertainNeeds certain;
  certain.is_needed.assign(graph.results, false);
  // A result that was written to in place may be needed in another state of it.
  graph::IndexedVector<ResultId, graph::Flag> is_asked(graph.results, false);
  for (const NeedGraph::Operator& op : graph.operators) {
    for (const ResultId r : op.requests)
      is_asked[r] = certain.is_needed[r] = true;
    const bool is_needed =
        op.is_always_needed ||
        std::ranges::any_of(op.makes, [&](ResultId r) { return is_asked[r]; });
    for (const ResultId r : op.makes) is_asked[r] = false;
    if (!is_needed ||
        choices.Recomputes(problem, candidate, op.group) != true) {
      continue;
    }
    certain.runs.insert(op.place);
    for (const ResultId r : op.reads) is_asked[r] = certain.is_needed[r] = true;
  }
  return certain;
}

// Casts are made anew, and kept as long as the call runs again. Returns what each
// operator of the call adds.
std::vector<int64_t> BytesOfCasts(const Trace& trace, const TraceCall& call,
                                  graph::Time stop) {
  std::vector<int64_t> bytes(stop - call.start, 0);
  std::set<graph::OperatorId> casts;
  for (const graph::OperatorId op : graph::OperatorsIn(call.start, stop)) {
    for (const graph::OperatorId cast : trace.operators[op].recasts) {
      if (StartOf(cast) >= call.start || !casts.insert(cast).second) continue;
      for (const graph::StorageId s : trace.operators[cast].creates) {
        bytes[call.PlaceOf(op)] += AllocatedBytesOf(trace, s);
      }
    }
  }
  return bytes;
}

// Returns, for each operator of a call up to `stop`, what is in use when it has run
// again: what was made again by then is there, or was saved; so is what is saved
// for later.
std::vector<int64_t> BytesWhenRunAgain(const TraceProblem& problem,
                                       const DecidedChoices& choices,
                                       const CountedBytes& witnessed,
                                       CandidateId c, graph::Time stop) {
  const Trace& trace = *problem.trace;
  const CandidateCall& candidate = problem.candidates[c];
  const TraceCall& call = CallOf(problem, c);
  const graph::Time request = candidate.first_request;
  // At each operator, what changes there.
  std::vector<int64_t> bytes(stop - call.start + 1, 0);
  if (candidate.is_whole) {
    bytes = BytesOfCasts(trace, call, stop);
    bytes.push_back(0);
  }
  bytes[0] += witnessed.live[request] + witnessed.kept_arguments[c];
  // It runs again before the operator that asks.
  for (const graph::StorageId s :
       trace.operators[graph::OperatorAt(request)].creates) {
    bytes[0] -= AllocatedBytesOf(trace, s);
  }
  const CertainNeeds certain = NeedsForCertain(problem, choices, c);
  const auto place_of = [&](graph::StorageId storage, graph::OperatorId op) {
    const std::optional<graph::GroupId> group =
        GroupThatKeeps(candidate, storage);
    const bool is_saved =
        group && !choices.Recomputes(problem, candidate, *group).value_or(true);
    return is_saved ? 0 : call.PlaceOf(op);
  };
  // In ascending order of storages.
  const std::vector<Release>& releases = witnessed.released[c];
  for (const auto& [s, released] : releases) {
    bytes[0] -= released;
    const graph::OperatorId born = trace.storages[s].born;
    const bool is_there = StartOf(born) >= call.start && StartOf(born) < stop &&
                          certain.IsNeeded(candidate, s);
    if (is_there) bytes[place_of(s, born)] += released;
  }
  // Other storages that it makes are there as long as the program holds them.
  for (const graph::OperatorId op : graph::OperatorsIn(call.start, stop)) {
    for (const graph::StorageId s : trace.operators[op].creates) {
      if (witnessed.live_end[s] > request ||
          std::ranges::binary_search(releases, s, {}, &Release::storage)) {
        continue;
      }
      const bool is_there =
          certain.Runs(call.PlaceOf(op)) ||
          (certain.IsNeeded(candidate, s) && place_of(s, op) == 0);
      if (!is_there) continue;
      const graph::Time end =
          std::clamp(trace.storages[s].scope_end, EndOf(op), stop);
      bytes[place_of(s, op)] += AllocatedBytesOf(trace, s);
      bytes[end - call.start] -= AllocatedBytesOf(trace, s);
    }
  }
  for (const graph::Gather& gather : candidate.gathers) {
    bytes[trace.calls[gather.call].start - call.start] += gather.ExtraBytes();
  }
  for (size_t k = 1; k < bytes.size(); ++k) bytes[k] += bytes[k - 1];
  return bytes;
}

// The most while operators run again that every policy runs again.
int64_t MostWhileRunningAgain(const TraceProblem& problem,
                              const DecidedChoices& choices,
                              const CountedBytes& witnessed, CandidateId c) {
  const CandidateCall& candidate = problem.candidates[c];
  const TraceCall& call = CallOf(problem, c);
  const graph::Time stop = std::min(call.end, candidate.stop);
  if (stop <= call.start) return 0;
  const OperatorGroups& groups = problem.groups[candidate.module_node];
  const CertainNeeds certain = NeedsForCertain(problem, choices, c);
  const std::vector<int64_t> bytes =
      BytesWhenRunAgain(problem, choices, witnessed, c, stop);
  int64_t peak = 0;
  for (int32_t k = 0; k < stop - call.start; ++k) {
    const bool runs =
        candidate.needs != graph::kNone
            ? certain.Runs(k)
            : candidate.is_whole ||
                  choices.Recomputes(problem, candidate, groups.group_of[k])
                      .value_or(false);
    if (runs) peak = std::max(peak, bytes[k]);
  }
  return peak;
}

}  // namespace

int64_t BytesWhileRunning(const TraceProblem& problem,
                          const DecidedChoices& choices,
                          const CountedBytes& witnessed, CandidateId c) {
  int64_t peak = std::max(MostInForward(problem, witnessed, c),
                          MostInBackward(problem, witnessed, c));
  if (RunsAgainInItsRecords(problem, c)) {
    peak =
        std::max(peak, MostWhileRunningAgain(problem, choices, witnessed, c));
  }
  return peak;
}

}  // namespace acplan::problems
