#include "problems/offload/cover_units.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "graph/base/flag.h"
#include "problems/trace/problem/unit_policies.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::OperatorDecision;
using graph::Trace;

namespace {

// The number of calls from which on a class is called often.
constexpr int kOften = 3;

struct ClassOfUnits {
  int calls = 0;
  int64_t bytes = 0;
  std::vector<CandidateId> candidates = {};
};

// Returns the bytes of storages born in a call that autograd saves.
int64_t SavedBytes(const Trace& trace, graph::CallId call) {
  std::set<graph::StorageId> seen_storages;
  int64_t bytes = 0;
  const graph::TraceCall& now = trace.calls[call];
  for (const graph::SavedTensor& saved : trace.saved) {
    const graph::OperatorId born = trace.storages[saved.storage].born;
    const bool is_of_call = saved.packed > now.start &&
                            saved.packed <= now.end &&
                            StartOf(born) >= now.start;
    if (is_of_call && seen_storages.insert(saved.storage).second) {
      bytes += trace.storages[saved.storage].bytes;
    }
  }
  return bytes;
}

// Returns the classes of modules in the order in which they become units: those
// that are called often before the others, and the most bytes first.
std::vector<ClassOfUnits> ClassesOf(const TraceProblem& problem) {
  const Trace& trace = *problem.trace;
  std::map<std::string, ClassOfUnits> by_name;
  for (const CandidateId c : problem.candidates.ids()) {
    const CandidateCall& candidate = problem.candidates[c];
    const graph::TraceModule& module =
        trace.modules[trace.calls[candidate.call].module];
    if (candidate.is_whole || module.IsSegment()) continue;
    ClassOfUnits& unit_class = by_name[module.class_name];
    ++unit_class.calls;
    unit_class.bytes += SavedBytes(trace, candidate.call);
    unit_class.candidates.push_back(c);
  }
  std::vector<ClassOfUnits> classes;
  for (auto& [name, unit_class] : by_name) {
    if (unit_class.bytes > 0) classes.push_back(std::move(unit_class));
  }
  std::ranges::stable_sort(classes, [](const auto& a, const auto& b) {
    const bool is_a_often = a.calls >= kOften;
    const bool is_b_often = b.calls >= kOften;
    return is_a_often != is_b_often ? is_a_often : a.bytes > b.bytes;
  });
  return classes;
}

// The candidates that are units, in one, or around one.
class TakenCandidates {
 public:
  TakenCandidates(const TraceProblem& problem,
                  const std::vector<CheckpointedModule>& units)
      : problem_(problem), is_taken_(problem.candidates.size(), false) {
    for (const CheckpointedModule& unit : units) Take(unit.module);
  }

  void Take(graph::ModuleId module) {
    for (const CandidateId c : CandidatesOf(module)) {
      for (const CandidateId inner :
           graph::IdRange(c, Next(problem_.candidates[c].last))) {
        is_taken_[inner] = true;
      }
      for (CandidateId outer = c; outer != graph::kNone;
           outer = problem_.candidates[outer].parent) {
        is_taken_[outer] = true;
      }
    }
  }

  bool IsFree(graph::ModuleId module) const {
    CandidateId last = graph::kNone;
    for (const CandidateId c : CandidatesOf(module)) {
      // Not free if one of its calls is inside another.
      if (is_taken_[c] || c <= last) return false;
      last = problem_.candidates[c].last;
    }
    return true;
  }

 private:
  std::vector<CandidateId> CandidatesOf(graph::ModuleId module) const {
    std::vector<CandidateId> candidates;
    for (const CandidateId c : problem_.candidates.ids()) {
      const graph::CallId call = problem_.candidates[c].call;
      if (problem_.trace->calls[call].module == module) candidates.push_back(c);
    }
    return candidates;
  }

  const TraceProblem& problem_;
  graph::IndexedVector<CandidateId, graph::Flag> is_taken_;
};

// Returns the unit that keeps all that it can, or nothing. Returns nothing for a module
// without groups.
std::optional<CheckpointedModule> UnitOf(const TraceProblem& problem,
                                         const CandidateCall& candidate,
                                         bool keeps_results) {
  GroupFlags is_saved;
  for (const graph::OperatorGroup& group :
       problem.groups[candidate.module_node].groups) {
    const bool may_save = group.rule != graph::GroupRule::kRecompute;
    is_saved.push_back(may_save && keeps_results);
  }
  if (is_saved.empty()) return std::nullopt;
  return UnitThatSaves(problem, candidate.module_node, is_saved);
}

}  // namespace

std::vector<CheckpointedModule> WithCover(const TraceProblem& problem,
                                          std::vector<CheckpointedModule> units,
                                          const CoverChoice& choice) {
  const Trace& trace = *problem.trace;
  TakenCandidates taken_candidates(problem, units);
  const std::vector<ClassOfUnits> classes = ClassesOf(problem);
  for (size_t k = choice.skipped_classes; k < classes.size(); ++k) {
    for (const CandidateId c : classes[k].candidates) {
      if (choice.max_units && std::ssize(units) >= *choice.max_units) {
        return units;
      }
      const CandidateCall& candidate = problem.candidates[c];
      const graph::ModuleId module = trace.calls[candidate.call].module;
      if (!taken_candidates.IsFree(module)) continue;
      std::optional<CheckpointedModule> unit =
          UnitOf(problem, candidate, choice.keeps_results);
      if (!unit) continue;
      units.push_back(std::move(*unit));
      if (SimulatedUse(problem, units)) {
        taken_candidates.Take(module);
      } else {
        units.pop_back();
      }
    }
  }
  return units;
}

std::vector<CheckpointedModule> WithPartsOf(
    const TraceProblem& problem, graph::ModuleId module,
    std::vector<CheckpointedModule> units) {
  const Trace& trace = *problem.trace;
  std::erase_if(units, [&](const CheckpointedModule& unit) {
    return unit.module == module;
  });
  TakenCandidates taken_candidates(problem, units);
  for (const CandidateId c : problem.candidates.ids()) {
    const CandidateCall& candidate = problem.candidates[c];
    if (candidate.parent == graph::kNone) continue;
    const graph::CallId outer = problem.candidates[candidate.parent].call;
    const graph::ModuleId part = trace.calls[candidate.call].module;
    const bool is_part =
        trace.calls[outer].module == module && taken_candidates.IsFree(part);
    if (!is_part) continue;
    std::optional<CheckpointedModule> unit =
        UnitOf(problem, candidate, /*keeps_results=*/false);
    if (!unit) continue;
    units.push_back(std::move(*unit));
    if (SimulatedUse(problem, units)) {
      taken_candidates.Take(part);
    } else {
      units.pop_back();
    }
  }
  return units;
}

std::vector<CheckpointedModule> WithoutOffload(
    std::vector<CheckpointedModule> units) {
  for (CheckpointedModule& unit : units) {
    unit.offloaded_arguments.clear();
    std::ranges::replace(unit.decisions, OperatorDecision::kOffload,
                         OperatorDecision::kSave);
  }
  return units;
}

}  // namespace acplan::problems
