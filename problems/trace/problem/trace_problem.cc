#include "problems/trace/problem/trace_problem.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/unit_refusal.h"
#include "problems/model/unit_forest.h"
#include "problems/plan/trace_memory.h"
#include "problems/trace/problem/call_walk.h"
#include "problems/trace/problem/holders.h"
#include "solver/stop.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::GroupRule;
using graph::kNever;
using graph::OperatorGroups;
using graph::SavedTensor;
using graph::Trace;
using graph::TraceCall;

namespace {

std::map<std::string, int> NodesByName(const graph::Profile& profile,
                                       const graph::ModuleTree& tree) {
  std::map<std::string, int> node_of;
  for (int i = 0; i < tree.size(); ++i) {
    node_of[profile.modules[tree.node(i).module].fqn] = i;
  }
  return node_of;
}

struct Candidates {
  std::vector<CandidateCall> calls = {};  // in pre-order
  std::vector<int> innermost =
      {};  // a call of the trace: the innermost candidate
};

// `node_of_module`: a module of the trace: its node, -1 if it is no candidate.
Candidates CallsOfCandidates(const TraceProblem& problem,
                             const std::vector<int>& node_of_module) {
  const Trace& trace = *problem.trace;
  Candidates found;
  found.innermost.assign(trace.calls.size(), -1);
  for (int32_t c = 0; c < std::ssize(trace.calls); ++c) {
    const TraceCall& call = trace.calls[c];
    const int parent = call.parent < 0 ? -1 : found.innermost[call.parent];
    found.innermost[c] = parent;
    const int node = node_of_module[call.module];
    if (call.no_grad || node < 0) continue;
    const auto index = static_cast<int>(found.calls.size());
    found.calls.push_back({.call = c,
                           .module_node = node,
                           .parent = parent,
                           .last = index,
                           .frame_end = call.end,
                           .is_whole = problem.groups[node].groups.empty()});
    if (parent >= 0) found.calls[parent].is_innermost = false;
    found.innermost[c] = index;
  }
  for (size_t c = found.calls.size(); c-- > 0;) {
    if (found.calls[c].parent < 0) continue;
    CandidateCall& parent = found.calls[found.calls[c].parent];
    parent.last = std::max(parent.last, found.calls[c].last);
  }
  return found;
}

// Candidates with the times that their saved tensors give them.
std::vector<CandidateCall> WithTimes(const TraceProblem& problem,
                                     std::vector<CandidateCall> candidates) {
  for (const SavedTensor& saved : problem.trace->saved) {
    for (int c = CandidateAround(problem, saved); c >= 0;
         c = candidates[c].parent) {
      CandidateCall& candidate = candidates[c];
      candidate.first_request =
          std::min(candidate.first_request, saved.unpacked);
      candidate.stop = std::max(candidate.stop, saved.packed);
      candidate.frame_end = std::max(candidate.frame_end, saved.released);
    }
  }
  return candidates;
}

// A candidate with what it needs when it runs again, which adds to the need
// graphs if that is new. Only what may be needed is ever kept.
class NeedFinder {
 public:
  explicit NeedFinder(const TraceProblem& problem)
      : problem_(problem), saved_by_call_(*problem.trace) {}

  CandidateCall WithNeeds(CandidateCall candidate) {
    if (candidate.is_whole || candidate.first_request == kNever) {
      return candidate;
    }
    const OperatorGroups& groups = problem_.groups[candidate.module_node];
    NeedsOfStorages needs = NeedsOfCall(*problem_.trace, saved_by_call_,
                                        candidate.call, candidate.stop, groups);
    std::map<int, int> group_of;  // a result
    for (const NeedGraph::Operator& op : needs.graph.operators) {
      for (const int r : op.makes) group_of.try_emplace(r, op.group);
    }
    for (const auto& [r, group] : group_of) {
      const int32_t s = needs.storages[r];
      candidate.needed.emplace_back(s, r);
      if (groups.groups[group].rule != GroupRule::kRecompute) {
        candidate.results.emplace_back(s, group);
      }
    }
    std::ranges::sort(candidate.needed);
    std::ranges::sort(candidate.results);
    std::vector<int>& candidates = by_hash_[HashOf(needs.graph)];
    const auto same = std::ranges::find_if(
        candidates, [&](int g) { return graphs_[g] == needs.graph; });
    if (same != candidates.end()) {
      candidate.needs = *same;
      return candidate;
    }
    candidate.needs = static_cast<int>(graphs_.size());
    candidates.push_back(candidate.needs);
    graphs_.push_back(std::move(needs.graph));
    return candidate;
  }

  std::vector<NeedGraph> TakeGraphs() { return std::move(graphs_); }

 private:
  const TraceProblem& problem_;
  const SavedByCall saved_by_call_;
  std::vector<NeedGraph> graphs_;
  std::unordered_map<size_t, std::vector<int>>
      by_hash_;  // indices into graphs_
};

// The storages that a policy of a candidate may save, with their groups.
std::vector<std::pair<int32_t, int>> SavableResults(
    const TraceProblem& problem, const CandidateCall& candidate) {
  if (candidate.is_whole || candidate.first_request == kNever) return {};
  const Trace& trace = *problem.trace;
  const TraceCall& call = trace.calls[candidate.call];
  const OperatorGroups& groups = problem.groups[candidate.module_node];
  std::map<int32_t, int> results;
  for (int32_t op = call.start; op < call.end; ++op) {
    for (const int32_t s : trace.operators[op].outputs) {
      results.try_emplace(s, groups.group_of[op - call.start]);
    }
  }
  const std::vector<double> ms = GroupMs(problem, candidate);
  // What costs nothing to make again is never saved.
  std::erase_if(results, [&](const auto& result) {
    const GroupRule rule = groups.groups[result.second].rule;
    return rule == GroupRule::kRecompute ||
           (rule == GroupRule::kFree && ms[result.second] == 0);
  });
  return {results.begin(), results.end()};
}

std::vector<std::vector<int>> FramesOfStorages(const TraceProblem& problem) {
  std::vector<std::vector<int>> frames_of(problem.trace->storages.size());
  for (int c = 0; c < std::ssize(problem.candidates); ++c) {
    // What never runs again lets go of everything when its call ends.
    if (problem.candidates[c].first_request == kNever) continue;
    for (const int32_t s : CallOf(problem, c).inputs) {
      std::vector<int>& frames = frames_of[s];
      if (frames.empty() || frames.back() != c) frames.push_back(c);
    }
  }
  return frames_of;
}

// Modules of the trace as candidates.
struct CandidateModules {
  std::vector<int> node_of;  // a module: its node in the tree, -1: no candidate
  // A module that is none, why in words, and the place with what to do.
  struct Refused {
    int32_t module = 0;
    std::string kind, details;
  };
  std::vector<Refused> refused = {};
};

// Adds the modules that have no policy: those that may run again as a whole are
// candidates.
class WholeUnits {
 public:
  WholeUnits(const TraceProblem& problem, CandidateModules& found)
      : problem_(problem), facts_(*problem.trace), found_(found) {}

  void Add(int32_t module, const UnitChoices::Refused& refused) {
    const std::optional<graph::UnitRefusal> obstacle =
        graph::FindUnitRefusal(facts_, module);
    const std::optional<std::string> of_whole =
        graph::RefusalOfWhole(facts_, module);
    const bool may_run_again =
        !refused.has_statistics && !of_whole &&
        SimulatedUse(problem_, {{.module = module}}).has_value();
    if (may_run_again) {
      found_.node_of[module] = refused.node;
      return;
    }
    CandidateModules::Refused why{module, refused.kind, refused.details};
    if (obstacle) {
      why.kind = "no AC unit: " + graph::KindText(obstacle->obstacle);
      why.details = graph::PlaceText(*obstacle, *problem_.trace);
    }
    if (obstacle && of_whole && !of_whole->empty())
      why.details += "; " + *of_whole;
    found_.refused.push_back(std::move(why));
  }

 private:
  const TraceProblem& problem_;
  const graph::CallFacts facts_;
  CandidateModules& found_;
};

CandidateModules FindCandidateModules(
    const TraceProblem& problem, const std::map<std::string, int>& node_of,
    const std::vector<UnitChoices::Refused>& refused) {
  const Trace& trace = *problem.trace;
  std::vector<char> has_gradients(trace.modules.size(), 0);
  for (const TraceCall& call : trace.calls) {
    if (!call.no_grad) has_gradients[call.module] = 1;
  }
  CandidateModules found{.node_of = std::vector<int>(trace.modules.size(), -1)};
  std::optional<WholeUnits> whole;
  for (int32_t m = 0; m < std::ssize(trace.modules); ++m) {
    const auto node = node_of.find(trace.modules[m].fqn);
    if (!has_gradients[m] || node == node_of.end()) continue;
    if (!problem.groups[node->second].groups.empty()) {
      found.node_of[m] = node->second;
      continue;
    }
    const auto why =
        std::ranges::find(refused, node->second, &UnitChoices::Refused::node);
    if (why == refused.end()) continue;
    if (!whole) whole.emplace(problem, found);
    whole->Add(m, *why);
  }
  return found;
}

// Returns for each module the bytes of activations that autograd saves in its calls and
// that no candidate inside of these calls could free.
std::vector<int64_t> BytesThatStay(const TraceProblem& problem) {
  const Trace& trace = *problem.trace;
  std::vector<std::pair<int32_t, int32_t>> stay;  // modules and storages
  for (const SavedTensor& saved : trace.saved) {
    if (trace.storages[saved.storage].born < 0) continue;
    const int candidate = CandidateAround(problem, saved);
    const int32_t last =
        candidate < 0 ? -1 : problem.candidates[candidate].call;
    std::vector<int32_t>
        inner;  // modules with a call inside of c, around the tensor
    for (int32_t c = saved.call; c >= 0; c = trace.calls[c].parent) {
      const int32_t module = trace.calls[c].module;
      if (std::ranges::find(inner, module) != inner.end()) continue;
      inner.push_back(module);
      if (last < c) stay.emplace_back(module, saved.storage);
    }
  }
  std::ranges::sort(stay);
  const auto same = std::ranges::unique(stay);
  stay.erase(same.begin(), same.end());
  std::vector<int64_t> bytes(trace.modules.size(), 0);
  for (const auto& [module, storage] : stay) {
    bytes[module] += AllocatedBytesOf(trace, storage);
  }
  return bytes;
}

// Segments are not told of: their modules are.
WarningsByType NoUnits(const TraceProblem& problem,
                       const CandidateModules& modules) {
  WarningsByType told;
  const std::vector<int64_t> bytes = BytesThatStay(problem);
  for (const CandidateModules::Refused& why : modules.refused) {
    const graph::TraceModule& module = problem.trace->modules[why.module];
    if (module.IsSegment()) continue;
    told.Add(module.fqn, why.kind, why.details, bytes[why.module]);
  }
  return told;
}

// Adds modules with children of which no call may be one of a unit, and whose
// activations stay.
void AddBarred(const TraceProblem& problem, const graph::Profile& profile,
               WarningsByType& told) {
  const Trace& trace = *problem.trace;
  std::set<std::string> leaves;
  for (const graph::Module& module : profile.modules) {
    if (module.is_leaf) leaves.insert(module.fqn);
  }
  std::vector<char> may_be(trace.modules.size(), 0);
  for (const TraceCall& call : trace.calls) {
    if (!call.no_grad) may_be[call.module] = 1;
  }
  const std::vector<int64_t> bytes = BytesThatStay(problem);
  for (int32_t m = 0; m < std::ssize(trace.modules); ++m) {
    const graph::TraceModule& module = trace.modules[m];
    if (may_be[m] || module.IsSegment() || leaves.contains(module.fqn))
      continue;
    if (bytes[m] == 0) continue;
    told.Add(
        module.fqn, "no AC unit: it may not run again",
        ": more than one backward pass asks for what it saves, a transform of "
        "functions runs in it, or it is given other parameters",
        bytes[m]);
  }
}

// A node and a group: whether policies have a choice. Groups that nothing needs
// give none where operators may be skipped.
std::vector<std::vector<char>> ChoicesOfGroups(const TraceProblem& problem) {
  std::vector<std::vector<char>> is_choice(problem.groups.size());
  for (size_t node = 0; node < is_choice.size(); ++node) {
    for (const graph::OperatorGroup& group : problem.groups[node].groups) {
      is_choice[node].push_back(
          !problem.may_skip && group.rule == GroupRule::kFree ? 1 : 0);
    }
  }
  for (const CandidateCall& candidate : problem.candidates) {
    if (candidate.needs < 0) continue;
    const int node = candidate.module_node;
    for (const NeedGraph::Operator& op :
         problem.need_graphs[candidate.needs].operators) {
      const GroupRule rule = problem.groups[node].groups[op.group].rule;
      if (rule == GroupRule::kFree) is_choice[node][op.group] = 1;
    }
  }
  return is_choice;
}

std::vector<int> FirstOfNodes(const TraceProblem& problem) {
  std::vector<int> first_of(problem.groups.size(), -1);
  for (int c = 0; c < std::ssize(problem.candidates); ++c) {
    int& first = first_of[problem.candidates[c].module_node];
    if (first < 0) first = c;
  }
  return first_of;
}

bool HasRepeatedCalls(const std::vector<CandidateCall>& candidates) {
  std::set<int> modules;
  for (const CandidateCall& candidate : candidates) {
    modules.insert(candidate.module_node);
  }
  return modules.size() < candidates.size();
}

}  // namespace

TraceProblem BuildTraceProblem(const Trace& trace,
                               const graph::Profile& profile,
                               const graph::ModuleTree& tree,
                               const JointProblemOptions& options) {
  TraceProblem problem{.trace = &trace,
                       .simulator = graph::Simulator(trace),
                       .may_skip = options.may_skip};
  if (options.may_skip) problem.need_driven.emplace(trace);
  JointProblemOptions snapshot_options = options;
  snapshot_options.memory.model = MemoryModel::kSnapshot;
  UnitChoices choices = ChoicesOfUnits(profile, tree, snapshot_options);
  problem.groups = std::move(choices.groups);
  problem.bytes_of_rank = BytesOfRank(trace, options.memory);
  const CandidateModules modules = FindCandidateModules(
      problem, NodesByName(profile, tree), choices.refused);
  Candidates found = CallsOfCandidates(problem, modules.node_of);
  problem.candidate_of = std::move(found.innermost);
  problem.has_repeated_calls = HasRepeatedCalls(found.calls);
  problem.candidates = WithTimes(problem, std::move(found.calls));
  problem.first_of_node = FirstOfNodes(problem);
  problem.no_units = NoUnits(problem, modules);
  problem.warnings = choices.forest.Warnings();
  std::ranges::move(problem.no_units.Lines(),
                    std::back_inserter(problem.warnings));
  AddBarred(problem, profile, problem.no_units);

  const size_t storages = trace.storages.size();
  problem.held = graph::HeldByOthers(trace);
  problem.saved_of.resize(storages);
  for (int32_t k = 0; k < std::ssize(trace.saved); ++k) {
    problem.saved_of[trace.saved[k].storage].push_back(k);
  }
  problem.frames_of = FramesOfStorages(problem);
  problem.makers_of.resize(storages);
  NeedFinder needs(problem);
  for (int c = 0; c < std::ssize(problem.candidates); ++c) {
    CandidateCall& candidate = problem.candidates[c];
    if (problem.may_skip) {
      candidate = needs.WithNeeds(std::move(candidate));
    } else {
      candidate.results = SavableResults(problem, candidate);
    }
    for (const auto& [s, group] : candidate.results) {
      problem.makers_of[s].push_back(c);
    }
  }
  problem.need_graphs = needs.TakeGraphs();
  problem.is_choice = ChoicesOfGroups(problem);

  CallWalk walk = WalkOverCalls(trace, problem.candidates);
  for (size_t c = 0; c < walk.node_of.size(); ++c) {
    problem.candidates[c].node = walk.node_of[c];
  }
  problem.forest = std::move(walk.forest);
  problem.forest.max_units = options.max_units;
  problem.candidate_at = std::move(walk.candidate_at);
  problem.record_of = std::move(walk.record_of);
  return problem;
}

double WholeMs(const TraceProblem& problem, const CandidateCall& candidate) {
  if (candidate.first_request == kNever) return 0;
  const Trace& trace = *problem.trace;
  const TraceCall& call = trace.calls[candidate.call];
  std::set<int32_t> casts;
  double ms = 0;
  for (int32_t op = call.start; op < std::min(call.end, candidate.stop); ++op) {
    ms += trace.operators[op].runtime_ms;
    for (const int32_t cast : trace.operators[op].recasts) {
      if (cast < call.start && casts.insert(cast).second) {
        ms += trace.operators[cast].runtime_ms;
      }
    }
  }
  return ms;
}

std::vector<double> GroupMs(const TraceProblem& problem,
                            const CandidateCall& candidate) {
  const OperatorGroups& groups = problem.groups[candidate.module_node];
  std::vector<double> ms(groups.groups.size(), 0);
  if (candidate.is_whole || candidate.first_request == kNever) return ms;
  const Trace& trace = *problem.trace;
  const TraceCall& call = trace.calls[candidate.call];
  const int32_t end = std::min(call.end, candidate.stop);
  for (int32_t op = call.start; op < end; ++op) {
    ms[groups.group_of[op - call.start]] += trace.operators[op].runtime_ms;
  }
  return ms;
}

std::optional<graph::Simulation> SimulatedUse(
    const TraceProblem& problem,
    const std::vector<CheckpointedModule>& modules) {
  solver::StopIfDue();
  try {
    return OnRank(problem.simulator.Simulate(modules), problem.bytes_of_rank);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace acplan::problems
