#include "problems/trace/trace_problem.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/allocation.h"
#include "problems/model/unit_forest.h"
#include "problems/plan/trace_memory.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::GroupRule;
using graph::kNever;
using graph::OperatorGroups;
using graph::SavedTensor;
using graph::Trace;
using graph::TraceCall;

using Candidate = TraceProblem::Candidate;

namespace {

int64_t BytesOf(const Trace& trace, int32_t storage) {
  return graph::AllocatedBytes(trace.storages[storage].bytes);
}

// Until when autograd holds what it saved, outside of units and made again.
int32_t HeldUntil(const SavedTensor& saved) {
  return saved.unpacked == kNever ? saved.released
                                  : std::max(saved.released, saved.local_end);
}
int32_t CopyHeldUntil(const SavedTensor& saved) {
  return saved.unpacked == kNever ? saved.released : saved.local_end;
}

bool Has(const std::vector<int>& values, int value) {
  return std::ranges::find(values, value) != values.end();
}

const TraceCall& CallOf(const TraceProblem& problem, int candidate) {
  return problem.trace->calls[problem.candidates[candidate].call];
}

// The innermost candidate around a saved tensor, or -1.
int CandidateAround(const TraceProblem& problem, const SavedTensor& saved) {
  return saved.call < 0 ? -1 : problem.candidate_of[saved.call];
}

// When the witness lets go of its storage, if it is in no unit.
int32_t EndOf(const TraceProblem& problem, int32_t storage,
              const Witness& witness) {
  if (witness.kind != Witness::Kind::kSavedTensor) return problem.held[storage];
  const SavedTensor& saved = problem.trace->saved[witness.index];
  return std::max(problem.held[storage], CandidateAround(problem, saved) < 0
                                             ? HeldUntil(saved)
                                             : CopyHeldUntil(saved));
}

// When nothing holds a storage any more without units.
int32_t EndWithoutUnits(const TraceProblem& problem, int32_t storage) {
  int32_t end = problem.held[storage];
  for (const int32_t k : problem.saved_of[storage]) {
    end = std::max(end, HeldUntil(problem.trace->saved[k]));
  }
  return end;
}

// Whether a candidate, as a unit, keeps a saved tensor from holding its
// storage between its two runs.
bool Releases(const TraceProblem& problem, int candidate, int32_t storage,
              int32_t end) {
  return !Has(problem.frames_of[storage], candidate) &&
         problem.held[storage] <
             std::min(problem.candidates[candidate].first_request, end);
}

// The group of operators of a candidate whose saving keeps a storage.
std::optional<int> GroupOf(const Candidate& candidate, int32_t storage) {
  const auto found =
      std::ranges::lower_bound(candidate.results, std::pair(storage, -1));
  const bool is_result =
      found != candidate.results.end() && found->first == storage;
  return is_result ? std::optional(found->second) : std::nullopt;
}

bool IsOfCandidate(const Witness& witness) {
  return witness.kind == Witness::Kind::kArgument ||
         witness.kind == Witness::Kind::kResult;
}

// Whether there is one of a candidate inside this one's.
bool HasInside(const TraceProblem& problem,
               const std::vector<Witness>& witnesses, const Witness& around) {
  return IsOfCandidate(around) &&
         std::ranges::any_of(witnesses, [&](const Witness& witness) {
           return IsOfCandidate(witness) && witness.index > around.index &&
                  witness.index <= problem.candidates[around.index].last;
         });
}

int CountReleasing(const TraceProblem& problem, int32_t saved_index) {
  const SavedTensor& saved = problem.trace->saved[saved_index];
  int count = 0;
  for (int c = CandidateAround(problem, saved); c >= 0;
       c = problem.candidates[c].parent) {
    count += Has(problem.frames_of[saved.storage], c) ? 0 : 1;
  }
  return count;
}

// A group of a candidate's operators: how long those run that run again.
std::vector<double> GroupMs(const TraceProblem& problem,
                            const Candidate& candidate) {
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

class Builder {
 public:
  Builder(const Trace& trace, const graph::Profile& profile,
          const graph::ModuleTree& tree, const JointProblemOptions& options)
      : trace_(trace),
        profile_(profile),
        tree_(tree),
        options_(options),
        count_(static_cast<int32_t>(trace.operators.size())),
        problem_{.trace = &trace, .simulator = graph::Simulator(trace)} {}

  TraceProblem Run() {
    FindCandidates();
    FindTimes();
    FindHolders();
    problem_.forest.max_units = options_.max_units;
    AddNodes(roots_);
    AddNode(-1);
    PlaceTimes();
    problem_.bytes_of_rank = BytesOfRank(trace_, options_.memory);
    return std::move(problem_);
  }

 private:
  // Calls of modules that may be units, in pre-order.
  void FindCandidates() {
    JointProblemOptions options = options_;
    options.memory.model = MemoryModel::kSnapshot;
    UnitChoices choices = ChoicesOfUnits(profile_, tree_, options);
    problem_.warnings = choices.forest.Warnings();
    problem_.groups = std::move(choices.groups);

    std::map<std::string, int> node_of;
    for (int i = 0; i < tree_.size(); ++i) {
      node_of[profile_.modules[tree_.node(i).module].fqn] = i;
    }
    std::vector<Candidate>& candidates = problem_.candidates;
    problem_.candidate_of.assign(trace_.calls.size(), -1);
    std::vector<int> calls(tree_.size(), 0);
    for (int32_t c = 0; c < std::ssize(trace_.calls); ++c) {
      const TraceCall& call = trace_.calls[c];
      const int around =
          call.parent < 0 ? -1 : problem_.candidate_of[call.parent];
      problem_.candidate_of[c] = around;
      if (call.no_grad) continue;
      const auto node = node_of.find(trace_.modules[call.module].fqn);
      if (node == node_of.end()) continue;
      const bool is_whole = problem_.groups[node->second].groups.empty();
      if (is_whole && !(choices.forest.may_be_unit[node->second] &&
                        MayRunAgainWhole(call.module))) {
        continue;
      }
      if (is_whole) {
        const std::string fqn = trace_.modules[call.module].fqn;
        std::erase_if(problem_.warnings, [&](const std::string& line) {
          return line.starts_with(fqn + ": no operator statistics");
        });
      }
      const auto index = static_cast<int>(candidates.size());
      candidates.push_back({.call = c,
                            .module_node = node->second,
                            .parent = around,
                            .last = index,
                            .frame_end = call.end,
                            .is_whole = is_whole});
      if (around >= 0) candidates[around].is_innermost = false;
      children_.emplace_back();
      (around < 0 ? roots_ : children_[around]).push_back(index);
      problem_.candidate_of[c] = index;
      if (++calls[node->second] > 1) problem_.has_repeated_calls = true;
    }
    for (size_t c = candidates.size(); c-- > 0;) {
      if (candidates[c].parent < 0) continue;
      Candidate& around = candidates[candidates[c].parent];
      around.last = std::max(around.last, candidates[c].last);
    }
  }

  // Whether a module has no policy only because its calls run different
  // operators, and running them again leaves things as they were.
  bool MayRunAgainWhole(int32_t module) const {
    std::vector<const TraceCall*> calls;
    for (const TraceCall& call : trace_.calls) {
      if (call.module == module) calls.push_back(&call);
    }
    const auto names = [&](const TraceCall& call) {
      std::vector<int32_t> result;
      for (int32_t op = call.start; op < call.end; ++op) {
        result.push_back(trace_.operators[op].name);
      }
      return result;
    };
    bool differ = false;
    for (const TraceCall* call : calls) {
      differ |= names(*call) != names(*calls.front());
      for (int32_t op = call->start; op < call->end; ++op) {
        const graph::TraceOperator& of = trace_.operators[op];
        if (of.random && call->arguments.empty()) return false;
        for (const int32_t s : of.mutates) {
          if (trace_.storages[s].born < call->start) return false;
        }
      }
    }
    if (!differ) return false;
    try {
      problem_.simulator.Simulate({{.module = module}});
      return true;
    } catch (const InputError&) {
      return false;
    }
  }

  void FindTimes() {
    for (const SavedTensor& saved : trace_.saved) {
      for (int c = CandidateAround(problem_, saved); c >= 0;
           c = problem_.candidates[c].parent) {
        Candidate& candidate = problem_.candidates[c];
        candidate.first_request =
            std::min(candidate.first_request, saved.unpacked);
        candidate.stop = std::max(candidate.stop, saved.packed);
        candidate.frame_end = std::max(candidate.frame_end, saved.released);
      }
    }
  }

  void FindHolders() {
    const size_t n = trace_.storages.size();
    problem_.held = graph::HeldByOthers(trace_);
    problem_.saved_of.resize(n);
    problem_.frames_of.resize(n);
    problem_.makers_of.resize(n);
    for (int32_t k = 0; k < std::ssize(trace_.saved); ++k) {
      problem_.saved_of[trace_.saved[k].storage].push_back(k);
    }
    for (int c = 0; c < std::ssize(problem_.candidates); ++c) {
      Candidate& candidate = problem_.candidates[c];
      // What never runs again lets go of everything when its call ends.
      if (candidate.first_request == kNever) continue;
      const TraceCall& call = trace_.calls[candidate.call];
      for (const int32_t s : call.inputs) {
        if (!Has(problem_.frames_of[s], c)) problem_.frames_of[s].push_back(c);
      }
      if (candidate.is_whole) continue;
      const OperatorGroups& groups = problem_.groups[candidate.module_node];
      std::map<int32_t, int> results;
      for (int32_t op = call.start; op < call.end; ++op) {
        for (const int32_t s : trace_.operators[op].outputs) {
          results.try_emplace(s, groups.group_of[op - call.start]);
        }
      }
      const std::vector<double> ms = GroupMs(problem_, candidate);
      for (const auto& [s, group] : results) {
        const GroupRule rule = groups.groups[group].rule;
        // Nor is saved what costs nothing to make again.
        if (rule == GroupRule::kRecompute) continue;
        if (rule == GroupRule::kFree && ms[group] == 0) continue;
        candidate.results.emplace_back(s, group);
        problem_.makers_of[s].push_back(c);
      }
    }
  }

  int AddNode(int candidate) {
    const auto node = static_cast<int>(problem_.forest.nodes.size());
    problem_.forest.nodes.push_back({});
    problem_.candidate_at.push_back(candidate);
    if (candidate < 0) problem_.forest.nodes[node].time = next_time_++;
    return node;
  }

  // A leaf before each call; the record after the last one is that of the
  // candidate around.
  void AddNodes(const std::vector<int>& siblings) {
    std::vector<ModuleProblem::Node>& nodes = problem_.forest.nodes;
    for (const int c : siblings) {
      AddNode(-1);
      const int node = AddNode(c);
      problem_.candidates[c].node = node;
      AddNodes(children_[c]);
      nodes[node].subtree_size = static_cast<int>(nodes.size()) - node;
      nodes[node].time = next_time_++;
    }
  }

  // The record that follows a candidate.
  int RecordAfter(int c) const {
    const std::vector<ModuleProblem::Node>& nodes = problem_.forest.nodes;
    const auto next_of = [&](int d) {
      const int node = problem_.candidates[d].node;
      return node + nodes[node].subtree_size;
    };
    const int around = problem_.candidates[c].parent;
    return around >= 0 && next_of(c) == next_of(around)
               ? problem_.candidates[around].node
               : next_of(c);
  }

  void PlaceTimes() {
    PlaceForward();
    // Units are before a time until they run again.
    const std::vector<ModuleProblem::Node>& nodes = problem_.forest.nodes;
    std::vector<int> by_request(problem_.candidates.size());
    for (size_t c = 0; c < by_request.size(); ++c) {
      by_request[c] = static_cast<int>(c);
    }
    // What never runs again has let go of all at the end of its frame.
    const auto request = [&](int c) {
      return std::min(problem_.candidates[c].first_request,
                      problem_.candidates[c].frame_end);
    };
    std::ranges::sort(by_request, std::greater<>(), request);
    int last = 0;
    auto next = by_request.begin();
    for (int32_t t = count_ - 1; t >= trace_.forward_end; --t) {
      for (; next != by_request.end() && request(*next) > t; ++next) {
        const int record = RecordAfter(*next);
        if (nodes[record].time > nodes[last].time) last = record;
      }
      problem_.record_of[t] = InsideRunning(last, t);
    }
  }

  // A record just before a candidate that runs again at a time is one inside it
  // as well.
  int InsideRunning(int record, int32_t t) const {
    const auto is_call = [&](int node) {
      return node < std::ssize(problem_.candidate_at) &&
             problem_.candidate_at[node] >= 0;
    };
    // Leaves stand before calls.
    while (!is_call(record) && is_call(record + 1)) {
      const Candidate& candidate =
          problem_.candidates[problem_.candidate_at[record + 1]];
      if (candidate.first_request > t || candidate.frame_end <= t) break;
      record = FirstRecordIn(candidate);
    }
    return record;
  }

  // Inside the innermost candidate that runs, after what has ended in it.
  void PlaceForward() {
    problem_.record_of.resize(count_);
    int inside = -1;
    int record = 0;
    int next = 0;
    for (int32_t t = 0; t < trace_.forward_end; ++t) {
      for (;;) {
        if (inside >= 0 && CallOf(problem_, inside).end <= t) {
          record = RecordAfter(inside);
          inside = problem_.candidates[inside].parent;
        } else if (next < std::ssize(problem_.candidates) &&
                   CallOf(problem_, next).start <= t) {
          inside = next++;
          record = FirstRecordIn(problem_.candidates[inside]);
        } else {
          break;
        }
      }
      problem_.record_of[t] = record;
    }
  }

  static int FirstRecordIn(const Candidate& candidate) {
    return candidate.is_innermost ? candidate.node : candidate.node + 1;
  }

  const Trace& trace_;
  const graph::Profile& profile_;
  const graph::ModuleTree& tree_;
  const JointProblemOptions& options_;
  const int32_t count_;
  TraceProblem problem_;
  std::vector<int> roots_;
  std::vector<std::vector<int>> children_;
  int next_time_ = 0;
};

// What witnesses hold, as a joint problem.
class Relaxation {
 public:
  Relaxation(const TraceProblem& problem, const Witnesses& witnesses,
             const std::vector<Decision>& decisions)
      : problem_(problem),
        trace_(*problem.trace),
        count_(static_cast<int32_t>(trace_.operators.size())),
        live_(problem.bytes_of_rank),
        released_(problem.candidates.size()),
        kept_results_(problem.candidates.size()),
        kept_arguments_(problem.candidates.size(), 0),
        is_no_unit_(problem.candidates.size(), 0),
        must_be_unit_(problem.candidates.size(), 0),
        is_unit_(problem.candidates.size(), 0),
        live_end_(witnesses.size(), 0) {
    live_.push_back(0);
    for (size_t t = live_.size() - 1; t-- > 1;) live_[t] -= live_[t - 1];
    for (const Decision& decision : decisions) {
      switch (decision.kind) {
        case Decision::Kind::kLife:
          if (!decision.is_so) DecideDead(decision);
          break;
        case Decision::Kind::kUnit:
          DecideUnit(decision);
          break;
        case Decision::Kind::kGroup:
          is_recomputed_[{decision.of, decision.at}] = decision.is_so;
          break;
      }
    }
    for (int32_t s = 0; s < std::ssize(witnesses); ++s) {
      for (const Witness& witness : witnesses[s]) {
        Add(s, witness, HasInside(problem_, witnesses[s], witness));
      }
    }
    for (int32_t t = 1; t <= count_; ++t) live_[t] += live_[t - 1];
    for (const Late& late : late_) {
      for (int32_t t = late.begin; t < late.end; ++t) live_[t] += late.bytes;
    }
  }

  TraceRelaxation Run() {
    result_.joint.relaxed = problem_.forest;
    std::vector<ModuleProblem::Node>& nodes = result_.joint.relaxed.nodes;
    for (int32_t t = 0; t < count_; ++t) {
      double& bytes = nodes[problem_.record_of[t]].base_bytes;
      bytes = std::max(bytes, static_cast<double>(live_[t]));
    }
    // Where it may be none, one around it must be one.
    for (size_t c = problem_.candidates.size(); c-- > 0;) {
      if (!must_be_unit_[c] || !is_no_unit_[c]) continue;
      const int around = problem_.candidates[c].parent;
      must_be_unit_[c] = 0;
      is_impossible_ |= around < 0;
      if (around >= 0) must_be_unit_[around] = 1;
    }
    result_.joint.policies_of.assign(nodes.size(), -1);
    result_.kind_of_group.resize(nodes.size());
    for (int c = 0; c < std::ssize(problem_.candidates); ++c) {
      nodes[problem_.candidates[c].node].unit_base_bytes =
          static_cast<double>(MostInside(c));
      AddPolicies(c);
      if (must_be_unit_[c]) RequireUnit(c);
    }
    is_impossible_ |= HasTooManyUnits();
    if (is_impossible_) {
      result_.joint.relaxed.fixed_bytes = std::numeric_limits<double>::max();
    }
    result_.joint.policies = policies_.Take();
    LimitCalls();
    DropUselessLimit(result_.joint.relaxed);
    return std::move(result_);
  }

 private:
  struct Release {
    int32_t storage;
    int64_t bytes;
  };
  struct Late {
    int candidate;
    int32_t begin, end;
    int64_t bytes;
  };

  // A unit that discards nothing is none in the relaxation. Then records inside
  // it ask for no more than it does.
  void RequireUnit(int c) {
    std::vector<ModuleProblem::Node>& nodes = result_.joint.relaxed.nodes;
    const int node = problem_.candidates[c].node;
    if (!nodes[node].curve.empty()) {
      nodes[node].must_be_unit = true;
      return;
    }
    for (int k = node; k < node + nodes[node].subtree_size; ++k) {
      nodes[k].base_bytes =
          std::min(nodes[k].base_bytes, *nodes[node].unit_base_bytes);
    }
  }

  bool HasTooManyUnits() const {
    const std::optional<int>& most = problem_.forest.max_units;
    std::set<int> modules;
    for (size_t c = 0; c < problem_.candidates.size(); ++c) {
      if (is_unit_[c]) modules.insert(problem_.candidates[c].module_node);
    }
    return most && std::ssize(modules) > *most;
  }

  // In the relaxation each call of a module is a unit.
  void LimitCalls() {
    std::optional<int>& most = result_.joint.relaxed.max_units;
    if (!most || !problem_.has_repeated_calls) return;
    std::map<int, int> calls_of;  // a module
    for (const Candidate& candidate : problem_.candidates) {
      ++calls_of[candidate.module_node];
    }
    std::vector<int> calls;
    for (const auto& [module, count] : calls_of) calls.push_back(count);
    std::ranges::sort(calls, std::greater<>());
    const size_t modules = std::min(calls.size(), static_cast<size_t>(*most));
    most = std::accumulate(calls.begin(),
                           calls.begin() + static_cast<ptrdiff_t>(modules), 0);
  }

  // What is not live has no holder.
  void DecideDead(const Decision& decision) {
    const int32_t s = decision.of;
    const int32_t time = decision.at;
    const auto holds_argument = [&](int c) {
      return Has(problem_.frames_of[s], c) &&
             CallOf(problem_, c).start <= time &&
             problem_.candidates[c].frame_end > time;
    };
    is_impossible_ |= problem_.held[s] > time;
    for (const int32_t k : problem_.saved_of[s]) {
      const SavedTensor& saved = trace_.saved[k];
      if (saved.packed > time || HeldUntil(saved) <= time) continue;
      // Some unit keeps it from holding: this one, where none around it is one.
      int c = CandidateAround(problem_, saved);
      while (c >= 0 && holds_argument(c)) c = problem_.candidates[c].parent;
      is_impossible_ |= c < 0;
      if (c >= 0) must_be_unit_[c] = 1;
    }
    for (const int c : problem_.frames_of[s]) {
      if (holds_argument(c)) is_no_unit_[c] = 1;
    }
    for (const int c : problem_.makers_of[s]) {
      const Candidate& candidate = problem_.candidates[c];
      const bool holds =
          CallOf(problem_, c).end <= time && candidate.first_request > time;
      if (!holds) continue;
      const int group = *GroupOf(candidate, s);
      if (Known(candidate, group) == false) {
        is_no_unit_[c] = 1;
      } else {
        is_recomputed_[{candidate.module_node, group}] = true;
      }
    }
  }

  void DecideUnit(const Decision& decision) {
    for (int c = 0; c < std::ssize(problem_.candidates); ++c) {
      if (problem_.candidates[c].module_node != decision.of) continue;
      if (!decision.is_so) {
        is_no_unit_[c] = 1;
        continue;
      }
      must_be_unit_[c] = 1;
      is_unit_[c] = 1;
      for (int a = problem_.candidates[c].parent; a >= 0;
           a = problem_.candidates[a].parent) {
        is_no_unit_[a] = 1;
      }
    }
  }

  // Whether a group of a candidate is known to be recomputed, or saved.
  std::optional<bool> Known(const Candidate& candidate, int group) const {
    const auto known = is_recomputed_.find({candidate.module_node, group});
    if (known != is_recomputed_.end()) return known->second;
    switch (problem_.groups[candidate.module_node].groups[group].rule) {
      case GroupRule::kRecompute:
        return true;
      case GroupRule::kSave:
        return false;
      case GroupRule::kFree:
        break;
    }
    return std::nullopt;
  }

  // Of candidates inside each other the innermost stand for the time before.
  void Add(int32_t s, const Witness& witness, bool has_inside) {
    const double share =
        witness.share * static_cast<double>(BytesOf(trace_, s));
    const auto bytes = static_cast<int64_t>(share);
    const int32_t begin = std::max(trace_.storages[s].born, 0);
    int32_t end = EndOf(problem_, s, witness);
    switch (witness.kind) {
      case Witness::Kind::kProgram:
        break;
      case Witness::Kind::kDecided:
        // What is live at a time has been so since it was made.
        end = witness.index + 1;
        break;
      case Witness::Kind::kSavedTensor:
        for (int c = CandidateAround(problem_, trace_.saved[witness.index]);
             c >= 0; c = problem_.candidates[c].parent) {
          if (!Releases(problem_, c, s, end)) continue;
          released_[c].push_back({s, static_cast<int64_t>(std::ceil(share))});
        }
        AddLate(trace_.saved[witness.index], end, bytes);
        break;
      case Witness::Kind::kArgument:
        kept_arguments_[witness.index] += bytes;
        end = std::min(end, CallOf(problem_, witness.index).end);
        break;
      case Witness::Kind::kResult:
        kept_results_[witness.index].push_back({s, bytes});
        end = std::min(end, CallOf(problem_, witness.index).end);
        break;
    }
    if (has_inside) return;
    end = std::min(std::max(end, begin + 1), count_);
    live_end_[s] = std::max(live_end_[s], end);
    if (begin >= end) return;
    live_[begin] += bytes;
    live_[end] -= bytes;
  }

  // In the record of the innermost candidate around it a saved tensor holds as
  // long as without units: where one further out is a unit, the record is not
  // used.
  void AddLate(const SavedTensor& saved, int32_t end, int64_t bytes) {
    const int c = CandidateAround(problem_, saved);
    if (c < 0 || end < trace_.forward_end) return;
    const int32_t late_end =
        std::min({HeldUntil(saved), problem_.candidates[c].frame_end, count_});
    for (int32_t t = end; t < late_end; ++t) {
      const int record = problem_.record_of[t];
      const Candidate& around = problem_.candidates[c];
      const bool is_inside =
          record >= around.node &&
          record <
              around.node + problem_.forest.nodes[around.node].subtree_size;
      if (is_inside) late_.push_back({c, t, t + 1, bytes});
    }
  }

  // The least bytes at times whose records are in the subtree of a candidate, at
  // the peak of those times, where it is a unit.
  int64_t MostInside(int c) const {
    const Candidate& candidate = problem_.candidates[c];
    const TraceCall& call = CallOf(problem_, c);
    std::vector<int64_t> gone(call.end - call.start + 1, 0);
    for (const auto& [s, bytes] : released_[c]) {
      const int32_t from = std::max(problem_.held[s], call.start);
      if (from < call.end) gone[from - call.start] += bytes;
    }
    int64_t most = 0;
    int64_t sum = 0;
    for (int32_t t = call.start; t < call.end; ++t) {
      sum += gone[t - call.start];
      most = std::max(most, live_[t] - sum);
    }
    // While it runs again, and until its frame is gone, where no unit that comes
    // later in the walk is before the time.
    const std::vector<ModuleProblem::Node>& nodes = problem_.forest.nodes;
    const int32_t begin = std::max(candidate.first_request, trace_.forward_end);
    const int32_t end = std::min(candidate.frame_end, count_);
    std::vector<int64_t> late(std::max(end - begin, 0), 0);
    for (const Late& l : late_) {
      if (l.candidate < c || l.candidate > candidate.last) continue;
      for (int32_t t = std::max(l.begin, begin); t < std::min(l.end, end);
           ++t) {
        late[t - begin] += l.bytes;
      }
    }
    for (int32_t t = begin; t < end; ++t) {
      if (nodes[problem_.record_of[t]].time > nodes[candidate.node].time) {
        continue;
      }
      most = std::max(most, live_[t] - late[t - begin] + kept_arguments_[c]);
    }
    for (int32_t t = end; t < count_; ++t) {
      const int record = problem_.record_of[t];
      const bool is_inside =
          record >= candidate.node &&
          record < candidate.node + nodes[candidate.node].subtree_size;
      if (!is_inside) break;
      most = std::max(most, live_[t]);
    }
    const bool runs_again =
        begin == candidate.first_request && begin < end &&
        nodes[problem_.record_of[begin]].time <= nodes[candidate.node].time;
    return runs_again ? std::max(most, MostWhileRunningAgain(c)) : most;
  }

  // The most while operators run again that every policy runs again. What was
  // made again by then is there, or was saved; so is what is saved for later.
  int64_t MostWhileRunningAgain(int c) const {
    const Candidate& candidate = problem_.candidates[c];
    const TraceCall& call = CallOf(problem_, c);
    const OperatorGroups& groups = problem_.groups[candidate.module_node];
    const int32_t request = candidate.first_request;
    const int32_t stop = std::min(call.end, candidate.stop);
    if (stop <= call.start) return 0;
    int64_t live = live_[request] + kept_arguments_[c];
    // It runs again before the operator that asks.
    for (const int32_t s : trace_.operators[request].creates) {
      live -= BytesOf(trace_, s);
    }
    // Changes at operators of the call, of what is there when they run again.
    std::vector<int64_t> change(stop - call.start + 1, 0);
    std::vector<char> is_counted(trace_.storages.size(), 0);
    const auto is_saved = [&](int32_t s) {
      const std::optional<int> group = GroupOf(candidate, s);
      return group && !Known(candidate, *group).value_or(true);
    };
    for (const auto& [s, bytes] : released_[c]) {
      live -= bytes;
      const int32_t born = trace_.storages[s].born;
      is_counted[s] = 1;
      if (born < call.start || born >= stop) continue;
      change[is_saved(s) ? 0 : born - call.start] += bytes;
    }
    for (int32_t op = call.start; op < stop; ++op) {
      for (const int32_t s : trace_.operators[op].creates) {
        if (is_counted[s] || live_end_[s] > request) continue;
        const int64_t bytes = BytesOf(trace_, s);
        const int32_t end =
            std::clamp(trace_.storages[s].scope_end, op + 1, stop);
        change[is_saved(s) ? 0 : op - call.start] += bytes;
        change[end - call.start] -= bytes;
      }
    }
    // Casts are made anew, and kept as long as it runs.
    std::set<int32_t> casts;
    for (int32_t op = call.start; candidate.is_whole && op < stop; ++op) {
      for (const int32_t cast : trace_.operators[op].recasts) {
        if (cast >= call.start || !casts.insert(cast).second) continue;
        for (const int32_t s : trace_.operators[cast].creates) {
          change[op - call.start] += BytesOf(trace_, s);
        }
      }
    }
    int64_t most = 0;
    for (int32_t op = call.start; op < stop; ++op) {
      live += change[op - call.start];
      const bool runs =
          candidate.is_whole ||
          Known(candidate, groups.group_of[op - call.start]).value_or(false);
      if (runs) most = std::max(most, live);
    }
    return most;
  }

  void AddPolicies(int c) {
    const Candidate& candidate = problem_.candidates[c];
    if (is_no_unit_[c]) return;
    const OperatorGroups& groups = problem_.groups[candidate.module_node];
    std::vector<int64_t> bytes(groups.groups.size(), 0);
    const std::vector<double> ms = GroupMs(problem_, candidate);
    const auto add = [&](const Release& of) {
      const std::optional<int> group = GroupOf(candidate, of.storage);
      if (group) bytes[*group] += of.bytes;
    };
    JointProblem::Policies policies;
    for (const Release& release : released_[c]) {
      policies.base_bytes += release.bytes;
      add(release);
    }
    policies.base_bytes -= kept_arguments_[c];
    std::ranges::for_each(kept_results_[c], add);
    if (candidate.is_whole) {
      policies.base_ms = WholeMs(problem_, candidate);
    }
    std::vector<int> kind_of(groups.groups.size(), TraceRelaxation::kSaved);
    std::map<std::pair<int64_t, double>, std::vector<int>> alike;
    for (int g = 0; g < std::ssize(groups.groups); ++g) {
      const std::optional<bool> known = Known(candidate, g);
      if (known.value_or(ms[g] == 0)) {
        kind_of[g] = TraceRelaxation::kRecomputed;
        policies.base_ms += ms[g];
        continue;
      }
      policies.base_bytes -= bytes[g];
      if (!known && bytes[g] > 0) alike[{bytes[g], ms[g]}].push_back(g);
    }
    for (const auto& [kind, of] : alike) {
      policies.kinds.push_back({.bytes = kind.first,
                                .ms = kind.second,
                                .count = static_cast<int>(of.size())});
    }
    std::ranges::stable_sort(policies.kinds, {}, [](const GroupKind& kind) {
      return kind.ms / static_cast<double>(kind.bytes);
    });
    for (int k = 0; k < std::ssize(policies.kinds); ++k) {
      const GroupKind& kind = policies.kinds[k];
      for (const int g : alike.at({kind.bytes, kind.ms})) kind_of[g] = k;
    }
    result_.kind_of_group[candidate.node] = std::move(kind_of);
    result_.joint.relaxed.nodes[candidate.node].curve = HullOf(policies);
    result_.joint.policies_of[candidate.node] =
        policies_.IndexOf(std::move(policies));
  }

  const TraceProblem& problem_;
  const Trace& trace_;
  const int32_t count_;
  std::vector<int64_t> live_;  // a time: b(t)
  // A candidate: what D_c has more and less.
  std::vector<std::vector<Release>> released_, kept_results_;
  std::vector<int64_t> kept_arguments_;
  std::vector<Late> late_;
  // A candidate: none, one that is or one around it must be, one that is.
  std::vector<char> is_no_unit_, must_be_unit_, is_unit_;
  bool is_impossible_ = false;  // what was decided
  std::vector<int32_t>
      live_end_;  // a storage: when no witness holds it any more
  std::map<std::pair<int, int>, bool> is_recomputed_;  // module node, group
  PolicyTable policies_;
  TraceRelaxation result_;
};

bool IsAmong(const std::vector<Witness>& holders, int candidate) {
  return std::ranges::find(holders, candidate, &Witness::index) !=
         holders.end();
}

// Holders of which only some hold in any plan, with equal shares: at most so
// many of them do that are not inside each other.
std::vector<Witness> Shared(const TraceProblem& problem,
                            std::vector<Witness> holders) {
  const auto most = std::ranges::count_if(holders, [&](const Witness& holder) {
    return !HasInside(problem, holders, holder);
  });
  for (Witness& holder : holders)
    holder.share = 1.0 / static_cast<double>(most);
  return holders;
}

}  // namespace

TraceProblem BuildTraceProblem(const Trace& trace,
                               const graph::Profile& profile,
                               const graph::ModuleTree& tree,
                               const JointProblemOptions& options) {
  return Builder(trace, profile, tree, options).Run();
}

double WholeMs(const TraceProblem& problem, const Candidate& candidate) {
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

Witnesses FirstWitnesses(const TraceProblem& problem) {
  using enum Witness::Kind;
  const Trace& trace = *problem.trace;
  const int32_t peak = std::max(UseOf(problem, {}).peak_step, 0);
  Witnesses witnesses(trace.storages.size());
  for (int32_t s = 0; s < std::ssize(witnesses); ++s) {
    // The tensor that the fewest units keep from holding, of those that hold at
    // the peak; of equals the one that holds longest.
    Witness best;
    auto rank = std::pair(std::numeric_limits<int>::max(), 0);
    for (const int32_t k : problem.saved_of[s]) {
      const Witness witness{.kind = kSavedTensor, .index = k};
      const int32_t end = EndOf(problem, s, witness);
      const int late = end > peak ? 0 : 1 << 20;
      const auto next = std::pair(late + CountReleasing(problem, k), -end);
      if (next >= rank) continue;
      rank = next;
      best = witness;
    }
    if (EndWithoutUnits(problem, s) > peak) {
      witnesses[s] = {best};
      continue;
    }
    std::vector<Witness> holders;
    for (const int c : problem.makers_of[s]) {
      if (problem.candidates[c].first_request > peak) {
        holders.push_back({.kind = kResult, .index = c});
      }
    }
    for (const int c : problem.frames_of[s]) {
      if (problem.candidates[c].frame_end > peak && !IsAmong(holders, c)) {
        holders.push_back({.kind = kArgument, .index = c});
      }
    }
    witnesses[s] = holders.empty() ? std::vector{best}
                                   : Shared(problem, std::move(holders));
  }
  return witnesses;
}

std::vector<Witness> Blended(std::vector<Witness> of,
                             const std::vector<Witness>& with, double weight) {
  for (Witness& witness : of) witness.share *= 1 - weight;
  for (const Witness& witness : with) {
    const auto same = std::ranges::find_if(of, [&](const Witness& w) {
      return w.kind == witness.kind && w.index == witness.index;
    });
    if (same == of.end()) {
      of.push_back(witness);
      of.back().share *= weight;
    } else {
      same->share += weight * witness.share;
    }
  }
  return of;
}

TraceRelaxation Relax(const TraceProblem& problem, const Witnesses& witnesses,
                      const std::vector<Decision>& decisions) {
  return Relaxation(problem, witnesses, decisions).Run();
}

std::vector<char> RecomputedGroups(const TraceRelaxation& relaxation,
                                   const ChosenUnit& unit) {
  const std::vector<int>& kind_of = relaxation.kind_of_group[unit.node];
  std::vector<char> recomputed(kind_of.size(), 0);
  std::vector<int> left = unit.counts;
  for (size_t g = kind_of.size(); g-- > 0;) {
    const int kind = kind_of[g];
    const bool is_recomputed =
        kind == TraceRelaxation::kRecomputed || (kind >= 0 && left[kind]-- > 0);
    recomputed[g] = is_recomputed ? 1 : 0;
  }
  return recomputed;
}

std::vector<CheckpointedModule> CheckpointedModules(
    const TraceProblem& problem, const TraceRelaxation& relaxation,
    const std::vector<ChosenUnit>& units) {
  std::map<int32_t, std::vector<char>> save_of;  // a module
  for (const ChosenUnit& unit : units) {
    const int c = problem.candidate_at[unit.node];
    const OperatorGroups& groups =
        problem.groups[problem.candidates[c].module_node];
    std::vector<char>& save =
        save_of
            .try_emplace(CallOf(problem, c).module, groups.group_of.size(), 1)
            .first->second;
    const std::vector<char> recomputed = RecomputedGroups(relaxation, unit);
    for (size_t g = 0; g < recomputed.size(); ++g) {
      if (!recomputed[g]) continue;
      for (const int op : groups.groups[g].ops) save[op] = 0;
    }
  }
  // Other calls of a module may be units, those around them or inside them.
  const std::map<int32_t, std::vector<char>> all = save_of;
  for (const Candidate& candidate : problem.candidates) {
    for (int a = candidate.parent; a >= 0; a = problem.candidates[a].parent) {
      if (!all.contains(CallOf(problem, a).module)) continue;
      save_of.erase(problem.trace->calls[candidate.call].module);
    }
  }
  std::vector<CheckpointedModule> modules;
  for (auto& [module, save] : save_of) {
    modules.push_back({.module = module, .save = std::move(save)});
  }
  return modules;
}

std::vector<Miscounted> FindMiscounted(
    const TraceProblem& problem, const std::vector<CheckpointedModule>& modules,
    int32_t time, const Witnesses& witnesses) {
  using enum Witness::Kind;
  const Trace& trace = *problem.trace;
  std::vector<const CheckpointedModule*> unit_of(problem.candidates.size());
  for (int c = 0; c < std::ssize(problem.candidates); ++c) {
    const auto unit = std::ranges::find(modules, CallOf(problem, c).module,
                                        &CheckpointedModule::module);
    if (unit != modules.end()) unit_of[c] = &*unit;
  }
  const auto is_before = [&](int c) {
    return unit_of[c] && CallOf(problem, c).end <= time &&
           problem.candidates[c].first_request > time;
  };
  const auto saves = [&](int c, int32_t s) {
    const std::optional<int> group = GroupOf(problem.candidates[c], s);
    const OperatorGroups& groups =
        problem.groups[problem.candidates[c].module_node];
    return group && unit_of[c]->save[groups.groups[*group].ops.front()] != 0;
  };
  const auto holds_argument = [&](int c) {
    return unit_of[c] && CallOf(problem, c).start <= time &&
           problem.candidates[c].frame_end > time;
  };
  const auto unit_around = [&](const SavedTensor& saved) {
    int c = CandidateAround(problem, saved);
    while (c >= 0 && !unit_of[c]) c = problem.candidates[c].parent;
    return c;
  };
  // What the relaxation counts.
  const auto share_held = [&](int32_t s, const Witness& witness) {
    bool holds = false;
    switch (witness.kind) {
      case kProgram:
        holds = problem.held[s] > time;
        break;
      case kDecided:
        holds = witness.index >= time;
        break;
      case kSavedTensor: {
        const int32_t end = EndOf(problem, s, witness);
        const int c = unit_around(trace.saved[witness.index]);
        holds = end > time && (c < 0 || !is_before(c) ||
                               !Releases(problem, c, s, end) || saves(c, s));
        break;
      }
      case kArgument:
        holds = holds_argument(witness.index);
        break;
      case kResult:
        holds = is_before(witness.index) && saves(witness.index, s);
        break;
    }
    return holds ? witness.share : 0;
  };
  std::vector<Miscounted> found;
  for (int32_t s = 0; s < std::ssize(witnesses); ++s) {
    if (trace.storages[s].born > time) continue;
    double counted = 0;
    for (const Witness& w : witnesses[s]) counted += share_held(s, w);
    const auto missing = static_cast<int64_t>(
        (1 - counted) * static_cast<double>(BytesOf(trace, s)));
    if (missing < graph::kAllocationUnit / 2) continue;
    const auto add = [&](std::vector<Witness> holders) {
      found.push_back(
          {.storage = s, .bytes = missing, .witnesses = std::move(holders)});
    };
    if (problem.held[s] > time) {
      add({{.kind = kProgram}});
      continue;
    }
    int best = -1;
    for (const int32_t k : problem.saved_of[s]) {
      const SavedTensor& saved = trace.saved[k];
      const bool holds = saved.packed <= time && unit_around(saved) < 0 &&
                         HeldUntil(saved) > time;
      if (holds && (best < 0 || CountReleasing(problem, k) <
                                    CountReleasing(problem, best))) {
        best = k;
      }
    }
    if (best >= 0) {
      add({{.kind = kSavedTensor, .index = best}});
      continue;
    }
    std::vector<Witness> holders;
    for (const int c : problem.makers_of[s]) {
      if (is_before(c) && saves(c, s)) {
        holders.push_back({.kind = kResult, .index = c});
      }
    }
    for (const int c : problem.frames_of[s]) {
      if (holds_argument(c) && !IsAmong(holders, c)) {
        holders.push_back({.kind = kArgument, .index = c});
      }
    }
    if (!holders.empty()) {
      add(Shared(problem, std::move(holders)));
      continue;
    }
    // Made again, by a unit that uses it.
    for (const int32_t k : problem.saved_of[s]) {
      const SavedTensor& saved = trace.saved[k];
      const int c = unit_around(saved);
      if (c >= 0 && problem.candidates[c].first_request <= time &&
          CopyHeldUntil(saved) > time) {
        add({{.kind = kSavedTensor, .index = k}});
        found.back().is_copy = true;
        break;
      }
    }
  }
  return found;
}

graph::Simulation UseOf(const TraceProblem& problem,
                        const std::vector<CheckpointedModule>& modules) {
  return OnRank(problem.simulator.Simulate(modules), problem.bytes_of_rank);
}

}  // namespace acplan::problems
