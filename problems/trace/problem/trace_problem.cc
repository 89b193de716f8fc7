#include "problems/trace/problem/trace_problem.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph/base/flag.h"
#include "graph/base/input_error.h"
#include "graph/trace/unit_refusal.h"
#include "problems/model/unit_forest.h"
#include "problems/plan/trace_memory.h"
#include "problems/trace/problem/call_walk.h"
#include "problems/trace/problem/holders.h"
#include "solver/stop.h"

namespace acplan::problems {

using graph::CallId;
using graph::CheckpointedModule;
using graph::GroupRule;
using graph::kNever;
using graph::ModuleId;
using graph::OperatorGroups;
using graph::OperatorId;
using graph::SavedTensor;
using graph::StorageId;
using graph::Trace;
using graph::TraceCall;

namespace {

std::map<std::string, TreeNodeId> NodesByName(const graph::Profile& profile,
                                              const graph::ModuleTree& tree) {
  std::map<std::string, TreeNodeId> node_of;
  for (int i = 0; i < tree.size(); ++i) {
    node_of[profile.modules[tree.node(i).module].fqn] = TreeNodeId{i};
  }
  return node_of;
}

using NeedGraphList = graph::IndexedVector<NeedGraphId, NeedGraph>;

struct Candidates {
  CandidateList calls = {};  // in pre-order
  // The innermost candidate around a call of the trace.
  graph::IndexedVector<CallId, CandidateId> innermost = {};
};

// `node_of_module`: the node of a module of the trace, if it is a candidate.
Candidates CallsOfCandidates(
    const TraceProblem& problem,
    const graph::IndexedVector<ModuleId, TreeNodeId>& node_of_module) {
  const Trace& trace = *problem.trace;
  Candidates candidates;
  candidates.innermost.assign(trace.calls.size(), graph::kNone);
  for (const CallId c : trace.calls.ids()) {
    const TraceCall& call = trace.calls[c];
    const CandidateId parent = call.parent == graph::kNone
                                   ? graph::kNone
                                   : candidates.innermost[call.parent];
    candidates.innermost[c] = parent;
    const TreeNodeId node = node_of_module[call.module];
    if (call.no_grad || node == graph::kNone) continue;
    const CandidateId id = candidates.calls.end_id();
    candidates.calls.push_back(
        {.call = c,
         .module_node = node,
         .parent = parent,
         .last = id,
         .frame_end = call.end,
         .is_whole = problem.groups[node].groups.empty()});
    if (parent != graph::kNone) candidates.calls[parent].is_innermost = false;
    candidates.innermost[c] = id;
  }
  for (const CandidateId c : std::views::reverse(candidates.calls.ids())) {
    const CandidateCall& call = candidates.calls[c];
    if (call.parent == graph::kNone) continue;
    CandidateCall& parent = candidates.calls[call.parent];
    parent.last = std::max(parent.last, call.last);
  }
  return candidates;
}

// Candidates with the times that their saved tensors give them, and what they gather.
CandidateList WithTimes(const TraceProblem& problem, CandidateList candidates) {
  for (const SavedTensor& saved : problem.trace->saved) {
    for (CandidateId c = CandidateAround(problem, saved); c != graph::kNone;
         c = candidates[c].parent) {
      CandidateCall& candidate = candidates[c];
      candidate.first_request =
          std::min(candidate.first_request, saved.unpacked);
      candidate.stop = std::max(candidate.stop, saved.packed);
      candidate.frame_end = std::max(candidate.frame_end, saved.released);
    }
  }
  const std::vector<graph::Gather> gathers = graph::GathersOf(*problem.trace);
  for (CandidateCall& c : candidates) {
    c.gathers = graph::EarlyGathers(*problem.trace, gathers, c.call,
                                    c.first_request, c.stop);
  }
  return candidates;
}

// Finds what candidates need when they run again, which adds to the need graphs if it
// is new. Only a result that may be needed is ever kept.
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
    std::map<ResultId, graph::GroupId> group_of;
    for (const NeedGraph::Operator& op : needs.graph.operators) {
      for (const ResultId r : op.makes) group_of.try_emplace(r, op.group);
    }
    for (const auto& [r, group] : group_of) {
      const StorageId s = needs.storages[r];
      candidate.needed_results.emplace_back(s, r);
      if (groups.groups[group].rule != GroupRule::kRecompute) {
        candidate.results.emplace_back(s, group);
      }
    }
    std::ranges::sort(candidate.needed_results);
    std::ranges::sort(candidate.results);
    std::vector<NeedGraphId>& equal_hashes = by_hash_[HashOf(needs.graph)];
    const auto same = std::ranges::find_if(
        equal_hashes, [&](NeedGraphId g) { return graphs_[g] == needs.graph; });
    if (same != equal_hashes.end()) {
      candidate.needs = *same;
      return candidate;
    }
    candidate.needs = graphs_.Add(std::move(needs.graph));
    equal_hashes.push_back(candidate.needs);
    return candidate;
  }

  NeedGraphList TakeGraphs() { return std::move(graphs_); }

 private:
  const TraceProblem& problem_;
  const SavedByCall saved_by_call_;
  NeedGraphList graphs_;
  std::unordered_map<size_t, std::vector<NeedGraphId>> by_hash_;
};

// The storages that a policy of a candidate may save, with their groups.
std::vector<std::pair<StorageId, graph::GroupId>> SavableResults(
    const TraceProblem& problem, const CandidateCall& candidate) {
  if (candidate.is_whole || candidate.first_request == kNever) return {};
  const Trace& trace = *problem.trace;
  const TraceCall& call = trace.calls[candidate.call];
  const OperatorGroups& groups = problem.groups[candidate.module_node];
  std::map<StorageId, graph::GroupId> results;
  for (const OperatorId op : call.Operators()) {
    for (const StorageId s : trace.operators[op].outputs) {
      results.try_emplace(s, groups.group_of[call.PlaceOf(op)]);
    }
  }
  const auto ms = GroupMs(problem, candidate);
  // An operator that costs nothing to run again is never saved.
  std::erase_if(results, [&](const auto& result) {
    const GroupRule rule = groups.groups[result.second].rule;
    return rule == GroupRule::kRecompute ||
           (rule == GroupRule::kFree && ms[result.second] == 0);
  });
  return {results.begin(), results.end()};
}

graph::IndexedVector<StorageId, std::vector<CandidateId>> FramesOfStorages(
    const TraceProblem& problem) {
  graph::IndexedVector<StorageId, std::vector<CandidateId>> frames_of(
      problem.trace->storages.size());
  for (const CandidateId c : problem.candidates.ids()) {
    // A candidate that never runs again lets go of everything when its call ends.
    if (problem.candidates[c].first_request == kNever) continue;
    for (const StorageId s : CallOf(problem, c).inputs) {
      std::vector<CandidateId>& frames = frames_of[s];
      if (frames.empty() || frames.back() != c) frames.push_back(c);
    }
  }
  return frames_of;
}

// Modules of the trace as candidates.
struct CandidateModules {
  // The node of a module in the tree, if it is a candidate.
  graph::IndexedVector<ModuleId, TreeNodeId> node_of;
  // A module that is none, why in words, and the place with what to do.
  struct Refused {
    ModuleId module = {};
    std::string kind, details = {};
  };
  std::vector<Refused> refused = {};
};

// Adds the modules that have no policy: those that may run again as a whole are
// candidates.
class WholeUnits {
 public:
  WholeUnits(const TraceProblem& problem, CandidateModules& modules)
      : problem_(problem), facts_(*problem.trace), modules_(modules) {}

  void Add(ModuleId module, const UnitChoices::Refused& refused) {
    const std::optional<graph::UnitRefusal> obstacle =
        graph::FindUnitRefusal(facts_, module);
    const std::optional<std::string> of_whole =
        graph::RefusalOfWhole(facts_, module);
    const bool may_run_again =
        !refused.has_statistics && !of_whole &&
        SimulatedUse(problem_, {{.module = module}}).has_value();
    if (may_run_again) {
      modules_.node_of[module] = TreeNodeId{refused.node};
      return;
    }
    CandidateModules::Refused why{module, refused.kind, refused.details};
    if (obstacle) {
      why.kind = "it cannot be an AC unit, because " +
                 graph::KindText(obstacle->obstacle);
      why.details = graph::PlaceText(*obstacle, *problem_.trace);
    }
    if (obstacle && of_whole && !of_whole->empty())
      why.details += "; " + *of_whole;
    modules_.refused.push_back(std::move(why));
  }

 private:
  const TraceProblem& problem_;
  const graph::CallFacts facts_;
  CandidateModules& modules_;
};

CandidateModules FindCandidateModules(
    const TraceProblem& problem,
    const std::map<std::string, TreeNodeId>& node_of,
    const std::vector<UnitChoices::Refused>& refused) {
  const Trace& trace = *problem.trace;
  graph::IndexedVector<ModuleId, graph::Flag> has_gradients(
      trace.modules.size(), false);
  for (const TraceCall& call : trace.calls) {
    if (!call.no_grad) has_gradients[call.module] = true;
  }
  CandidateModules candidates;
  candidates.node_of.assign(trace.modules.size(), graph::kNone);
  const auto holds_sharded = graph::HoldSharded(trace);
  std::optional<WholeUnits> whole;
  for (const ModuleId m : trace.modules.ids()) {
    const auto node = node_of.find(trace.modules[m].fqn);
    if (!has_gradients[m] || node == node_of.end()) continue;
    const bool has_policy = !problem.groups[node->second].groups.empty();
    if (holds_sharded[m] && !(has_policy && problem.may_skip)) {
      const char* why = "it holds sharded modules and has no policy that skips";
      candidates.refused.push_back({m, why});
      continue;
    }
    if (has_policy) candidates.node_of[m] = node->second;
    if (has_policy) continue;
    const auto why = std::ranges::find(refused, IndexOf(node->second),
                                       &UnitChoices::Refused::node);
    if (why == refused.end()) continue;
    if (!whole) whole.emplace(problem, candidates);
    whole->Add(m, *why);
  }
  return candidates;
}

// Returns for each module the bytes of activations that autograd saves in its calls and
// that no candidate inside of these calls could free.
graph::IndexedVector<ModuleId, int64_t> BytesThatStay(
    const TraceProblem& problem) {
  const Trace& trace = *problem.trace;
  std::vector<std::pair<ModuleId, StorageId>> stay;
  for (const SavedTensor& saved : trace.saved) {
    if (trace.storages[saved.storage].born == graph::kNone) continue;
    const CandidateId candidate = CandidateAround(problem, saved);
    const CallId last = candidate == graph::kNone
                            ? CallId{graph::kNone}
                            : problem.candidates[candidate].call;
    // The modules with a call inside of c that is around the tensor.
    std::vector<ModuleId> inner;
    for (CallId c = saved.call; c != graph::kNone; c = trace.calls[c].parent) {
      const ModuleId module = trace.calls[c].module;
      if (std::ranges::find(inner, module) != inner.end()) continue;
      inner.push_back(module);
      if (last < c) stay.emplace_back(module, saved.storage);
    }
  }
  std::ranges::sort(stay);
  const auto same = std::ranges::unique(stay);
  stay.erase(same.begin(), same.end());
  graph::IndexedVector<ModuleId, int64_t> bytes(trace.modules.size(), 0);
  for (const auto& [module, storage] : stay) {
    bytes[module] += AllocatedBytesOf(trace, storage);
  }
  return bytes;
}

// Returns warnings of modules that are no candidates. Segments have none: their modules
// have.
WarningsByType NoUnits(const TraceProblem& problem,
                       const CandidateModules& modules) {
  WarningsByType warnings;
  const auto bytes = BytesThatStay(problem);
  for (const CandidateModules::Refused& why : modules.refused) {
    const graph::TraceModule& module = problem.trace->modules[why.module];
    if (module.IsSegment()) continue;
    warnings.Add(module.fqn, why.kind, why.details, bytes[why.module]);
  }
  return warnings;
}

// Adds modules with children of which no call may be one of a unit, and whose
// activations stay.
void AddBarred(const TraceProblem& problem, const graph::Profile& profile,
               WarningsByType& warnings) {
  const Trace& trace = *problem.trace;
  std::set<std::string> leaves;
  for (const graph::Module& module : profile.modules) {
    if (module.is_leaf) leaves.insert(module.fqn);
  }
  graph::IndexedVector<ModuleId, graph::Flag> may_be(trace.modules.size(),
                                                     false);
  for (const TraceCall& call : trace.calls) {
    if (!call.no_grad) may_be[call.module] = true;
  }
  const auto bytes = BytesThatStay(problem);
  for (const ModuleId m : trace.modules.ids()) {
    const graph::TraceModule& module = trace.modules[m];
    if (may_be[m] || module.IsSegment() || leaves.contains(module.fqn))
      continue;
    if (bytes[m] == 0) continue;
    warnings.Add(
        module.fqn, "it cannot be an AC unit, because it may not run again",
        ": more than one backward pass asks for what it saves, a transform of "
        "functions runs in it, or it receives other parameters; the modules "
        "around or inside of it may be units",
        bytes[m]);
  }
}

// Returns whether policies have a choice about a group. Groups that nothing needs give
// none where operators may be skipped.
graph::IndexedVector<TreeNodeId, GroupFlags> ChoicesOfGroups(
    const TraceProblem& problem) {
  graph::IndexedVector<TreeNodeId, GroupFlags> is_choice(problem.groups.size());
  for (const TreeNodeId node : is_choice.ids()) {
    for (const graph::OperatorGroup& group : problem.groups[node].groups) {
      is_choice[node].push_back(!problem.may_skip &&
                                group.rule == GroupRule::kFree);
    }
  }
  for (const CandidateCall& candidate : problem.candidates) {
    if (candidate.needs == graph::kNone) continue;
    const TreeNodeId node = candidate.module_node;
    for (const NeedGraph::Operator& op :
         problem.need_graphs[candidate.needs].operators) {
      const GroupRule rule = problem.groups[node].groups[op.group].rule;
      if (rule == GroupRule::kFree) is_choice[node][op.group] = true;
    }
  }
  return is_choice;
}

graph::IndexedVector<TreeNodeId, CandidateId> FirstOfNodes(
    const TraceProblem& problem) {
  graph::IndexedVector<TreeNodeId, CandidateId> first_of(problem.groups.size(),
                                                         graph::kNone);
  for (const CandidateId c : problem.candidates.ids()) {
    CandidateId& first = first_of[problem.candidates[c].module_node];
    if (first == graph::kNone) first = c;
  }
  return first_of;
}

bool HasRepeatedCalls(const CandidateList& candidates) {
  std::set<TreeNodeId> modules;
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
  problem.groups = graph::IndexedVector<TreeNodeId, OperatorGroups>(
      std::move(choices.groups));
  problem.bytes_of_rank = BytesOfRank(trace, options.memory);
  const CandidateModules modules = FindCandidateModules(
      problem, NodesByName(profile, tree), choices.refused);
  Candidates candidates = CallsOfCandidates(problem, modules.node_of);
  problem.candidate_of = std::move(candidates.innermost);
  problem.has_repeated_calls = HasRepeatedCalls(candidates.calls);
  problem.candidates = WithTimes(problem, std::move(candidates.calls));
  problem.first_of_node = FirstOfNodes(problem);
  problem.no_units = NoUnits(problem, modules);
  problem.warnings = choices.forest.Warnings();
  std::ranges::move(problem.no_units.Lines(),
                    std::back_inserter(problem.warnings));
  AddBarred(problem, profile, problem.no_units);

  const size_t storages = trace.storages.size();
  problem.held_until = graph::HeldUnderEveryPlan(trace);
  problem.saved_of.resize(storages);
  for (const graph::SavedId k : trace.saved.ids()) {
    problem.saved_of[trace.saved[k].storage].push_back(k);
  }
  problem.frames_of = FramesOfStorages(problem);
  problem.makers_of.resize(storages);
  NeedFinder needs(problem);
  for (const CandidateId c : problem.candidates.ids()) {
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
  for (const CandidateId c : walk.node_of.ids()) {
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
  std::set<OperatorId> casts;
  double ms = 0;
  for (const OperatorId op :
       graph::OperatorsIn(call.start, std::min(call.end, candidate.stop))) {
    ms += trace.operators[op].runtime_ms;
    for (const OperatorId cast : trace.operators[op].recasts) {
      if (StartOf(cast) < call.start && casts.insert(cast).second) {
        ms += trace.operators[cast].runtime_ms;
      }
    }
  }
  return ms;
}

graph::IndexedVector<graph::GroupId, double> GroupMs(
    const TraceProblem& problem, const CandidateCall& candidate) {
  const OperatorGroups& groups = problem.groups[candidate.module_node];
  graph::IndexedVector<graph::GroupId, double> ms(groups.groups.size(), 0);
  if (candidate.is_whole || candidate.first_request == kNever) return ms;
  const Trace& trace = *problem.trace;
  const TraceCall& call = trace.calls[candidate.call];
  const graph::Time end = std::min(call.end, candidate.stop);
  for (const OperatorId op : graph::OperatorsIn(call.start, end)) {
    ms[groups.group_of[call.PlaceOf(op)]] += trace.operators[op].runtime_ms;
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
