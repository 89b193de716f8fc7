#include "problems/trace/relaxation/running_bytes.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "problems/trace/problem/holders.h"

namespace acplan::problems {

using graph::OperatorGroups;
using graph::Trace;
using graph::TraceCall;

namespace {

using Release = CountedBytes::Release;

// In forward a unit lets go of what it releases as the program does.
int64_t MostInForward(const TraceProblem& problem, const CountedBytes& counted,
                      int c) {
  const TraceCall& call = CallOf(problem, c);
  std::vector<int64_t> gone(call.end - call.start + 1, 0);
  for (const auto& [s, bytes] : counted.released[c]) {
    const int32_t since = std::max(problem.held[s], call.start);
    if (since < call.end) gone[since - call.start] += bytes;
  }
  int64_t peak = 0;
  int64_t sum = 0;
  for (int32_t t = call.start; t < call.end; ++t) {
    sum += gone[t - call.start];
    peak = std::max(peak, counted.live[t] - sum);
  }
  return peak;
}

// While it runs again, and until its frame is gone, where no unit that comes
// later in the walk is before the time.
int64_t MostInBackward(const TraceProblem& problem, const CountedBytes& counted,
                       int c) {
  const CandidateCall& candidate = problem.candidates[c];
  const auto count = static_cast<int32_t>(problem.record_of.size());
  const std::vector<ModuleProblem::Node>& nodes = problem.forest.nodes;
  const int32_t begin =
      std::max(candidate.first_request, problem.trace->forward_end);
  const int32_t end = std::min(candidate.frame_end, count);
  std::vector<int64_t> late(std::max(end - begin, 0), 0);
  for (auto l = std::ranges::lower_bound(counted.late, c, {},
                                         &CountedBytes::Late::candidate);
       l != counted.late.end() && l->candidate <= candidate.last; ++l) {
    for (int32_t t = std::max(l->begin, begin); t < std::min(l->end, end);
         ++t) {
      late[t - begin] += l->bytes;
    }
  }
  int64_t peak = 0;
  for (int32_t t = begin; t < end; ++t) {
    if (nodes[problem.record_of[t]].time > nodes[candidate.node].time) {
      continue;
    }
    peak = std::max(
        peak, counted.live[t] - late[t - begin] + counted.kept_arguments[c]);
  }
  const int beyond = candidate.node + nodes[candidate.node].subtree_size;
  for (int32_t t = end; t < count; ++t) {
    const int record = problem.record_of[t];
    if (record < candidate.node || record >= beyond) break;
    peak = std::max(peak, counted.live[t]);
  }
  return peak;
}

bool RunsAgainInItsRecords(const TraceProblem& problem, int c) {
  const CandidateCall& candidate = problem.candidates[c];
  const auto count = static_cast<int32_t>(problem.record_of.size());
  const std::vector<ModuleProblem::Node>& nodes = problem.forest.nodes;
  const int32_t request = candidate.first_request;
  return request >= problem.trace->forward_end &&
         request < std::min(candidate.frame_end, count) &&
         nodes[problem.record_of[request]].time <= nodes[candidate.node].time;
}

// What every policy of a call needs that keeps the decisions. Where operators may
// not be skipped everything is.
struct CertainNeeds {
  bool is_all = false;
  std::vector<char> is_needed = {};  // a result of the need graph
  std::set<int> runs = {};           // places of operators in the call

  bool Runs(int place) const { return is_all || runs.contains(place); }

  bool IsNeeded(const CandidateCall& candidate, int32_t storage) const {
    if (is_all) return true;
    const auto found =
        std::ranges::lower_bound(candidate.needed, std::pair(storage, -1));
    return found != candidate.needed.end() && found->first == storage &&
           is_needed[found->second] != 0;
  }
};

CertainNeeds NeedsForCertain(const TraceProblem& problem,
                             const DecidedChoices& choices, int c) {
  const CandidateCall& candidate = problem.candidates[c];
  if (candidate.needs < 0) return {.is_all = true};
  const NeedGraph& graph = problem.need_graphs[candidate.needs];
  CertainNeeds certain = {.is_needed = std::vector<char>(graph.results, 0)};
  // What is needed of what was written to in place may be another state of it.
  std::vector<char> is_asked(graph.results, 0);
  for (const NeedGraph::Operator& op : graph.operators) {
    for (const int r : op.asked) is_asked[r] = certain.is_needed[r] = 1;
    const bool is_needed =
        op.is_always_needed ||
        std::ranges::any_of(op.makes, [&](int r) { return is_asked[r] != 0; });
    for (const int r : op.makes) is_asked[r] = 0;
    if (!is_needed ||
        choices.Recomputes(problem, candidate, op.group) != true) {
      continue;
    }
    certain.runs.insert(op.place);
    for (const int r : op.reads) is_asked[r] = certain.is_needed[r] = 1;
  }
  return certain;
}

// Casts are made anew, and kept as long as the call runs again. Returns what each
// operator of the call adds.
std::vector<int64_t> BytesOfCasts(const Trace& trace, const TraceCall& call,
                                  int32_t stop) {
  std::vector<int64_t> made(stop - call.start, 0);
  std::set<int32_t> casts;
  for (int32_t op = call.start; op < stop; ++op) {
    for (const int32_t cast : trace.operators[op].recasts) {
      if (cast >= call.start || !casts.insert(cast).second) continue;
      for (const int32_t s : trace.operators[cast].creates) {
        made[op - call.start] += AllocatedBytesOf(trace, s);
      }
    }
  }
  return made;
}

// Returns, for each operator of a call up to `stop`, what is in use when it has run
// again: what was made again by then is there, or was saved; so is what is saved
// for later.
std::vector<int64_t> BytesWhenRunAgain(const TraceProblem& problem,
                                       const DecidedChoices& choices,
                                       const CountedBytes& counted, int c,
                                       int32_t stop) {
  const Trace& trace = *problem.trace;
  const CandidateCall& candidate = problem.candidates[c];
  const TraceCall& call = CallOf(problem, c);
  const int32_t request = candidate.first_request;
  // At each operator, what changes there.
  std::vector<int64_t> bytes(stop - call.start + 1, 0);
  if (candidate.is_whole) {
    bytes = BytesOfCasts(trace, call, stop);
    bytes.push_back(0);
  }
  bytes[0] += counted.live[request] + counted.kept_arguments[c];
  // It runs again before the operator that asks.
  for (const int32_t s : trace.operators[request].creates) {
    bytes[0] -= AllocatedBytesOf(trace, s);
  }
  const CertainNeeds certain = NeedsForCertain(problem, choices, c);
  const auto place_of = [&](int32_t storage, int32_t op) {
    const std::optional<int> group = GroupThatKeeps(candidate, storage);
    const bool is_saved =
        group && !choices.Recomputes(problem, candidate, *group).value_or(true);
    return is_saved ? 0 : op - call.start;
  };
  // Sorted by storage.
  const std::vector<Release>& releases = counted.released[c];
  for (const auto& [s, released] : releases) {
    bytes[0] -= released;
    const int32_t born = trace.storages[s].born;
    const bool is_there =
        born >= call.start && born < stop && certain.IsNeeded(candidate, s);
    if (is_there) bytes[place_of(s, born)] += released;
  }
  // What else it makes is there as long as the program holds it.
  for (int32_t op = call.start; op < stop; ++op) {
    for (const int32_t s : trace.operators[op].creates) {
      if (counted.live_end[s] > request ||
          std::ranges::binary_search(releases, s, {}, &Release::storage)) {
        continue;
      }
      const bool is_there =
          certain.Runs(op - call.start) ||
          (certain.IsNeeded(candidate, s) && place_of(s, op) == 0);
      if (!is_there) continue;
      const int32_t end = std::clamp(trace.storages[s].scope_end, op + 1, stop);
      bytes[place_of(s, op)] += AllocatedBytesOf(trace, s);
      bytes[end - call.start] -= AllocatedBytesOf(trace, s);
    }
  }
  for (size_t k = 1; k < bytes.size(); ++k) bytes[k] += bytes[k - 1];
  return bytes;
}

// The most while operators run again that every policy runs again.
int64_t MostWhileRunningAgain(const TraceProblem& problem,
                              const DecidedChoices& choices,
                              const CountedBytes& counted, int c) {
  const CandidateCall& candidate = problem.candidates[c];
  const TraceCall& call = CallOf(problem, c);
  const int32_t stop = std::min(call.end, candidate.stop);
  if (stop <= call.start) return 0;
  const OperatorGroups& groups = problem.groups[candidate.module_node];
  const CertainNeeds certain = NeedsForCertain(problem, choices, c);
  const std::vector<int64_t> bytes =
      BytesWhenRunAgain(problem, choices, counted, c, stop);
  int64_t peak = 0;
  for (int32_t k = 0; k < stop - call.start; ++k) {
    const bool runs =
        candidate.needs >= 0
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
                          const CountedBytes& counted, int c) {
  int64_t peak = std::max(MostInForward(problem, counted, c),
                          MostInBackward(problem, counted, c));
  if (RunsAgainInItsRecords(problem, c)) {
    peak = std::max(peak, MostWhileRunningAgain(problem, choices, counted, c));
  }
  return peak;
}

}  // namespace acplan::problems
