#include "cli/report/step_data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "problems/plan/trace_memory.h"

namespace acplan::cli {

using graph::LiveBytes;
using graph::Simulation;
using graph::StorageCategory;
using graph::Trace;
using nlohmann::ordered_json;

namespace {

struct Kind {
  std::string_view name;
  size_t place;  // index in LiveBytes
};

constexpr size_t PlaceOf(StorageCategory category) {
  return static_cast<size_t>(category);
}

// In order of permanence: bytes that are there all the time first, temporary
// ones last.
constexpr std::array<Kind, graph::kLiveKinds> kKinds = {{
    {"parameters", PlaceOf(StorageCategory::kParameter)},
    {"buffers", PlaceOf(StorageCategory::kBuffer)},
    {"optimizer", PlaceOf(StorageCategory::kOptimizer)},
    {"gradients", PlaceOf(StorageCategory::kGradient)},
    {"inputs", PlaceOf(StorageCategory::kInput)},
    {"activations", PlaceOf(StorageCategory::kActivation)},
    {"recomputed", graph::kRecomputedKind},
    {"temporaries", PlaceOf(StorageCategory::kTemporary)},
}};

int PhaseOf(const Trace& trace, const Simulation::Step& step) {
  if (step.redone != graph::kNone) return 2;
  if (StartOf(step.op) < trace.forward_end) return 0;
  return StartOf(step.op) < trace.backward_end ? 1 : 3;
}

// Returns the time when each step begins and, last, when the last one ends.
graph::IndexedVector<graph::StepId, double> BeginningsOf(
    const SampledRun& run) {
  graph::IndexedVector<graph::StepId, double> beginnings = {0};
  for (const Simulation::Step& step : run.detail.simulation.steps) {
    beginnings.push_back(beginnings.back() +
                         run.trace->operators[step.op].runtime_ms);
  }
  return beginnings;
}

ordered_json LiveBytesJson(const LiveBytes& bytes) {
  ordered_json json = ordered_json::array();
  for (const Kind& kind : kKinds) json.push_back(bytes[kind.place]);
  return json;
}

// The most lines of Python that are listed for a run's peak.
constexpr size_t kMostLines = 100;

// Rounds to a tenth of a microsecond: more digits than a screen shows.
double Rounded(double ms) { return std::round(ms * 1e4) / 1e4; }

// Returns, for each operator of a trace, the innermost module of the backward
// pass, as problems::ModuleAt does for a single step: kNone if none runs.
using CallOfOperator = graph::IndexedVector<graph::OperatorId, graph::CallId>;
CallOfOperator BackwardCalls(const Trace& trace) {
  CallOfOperator calls(trace.operators.size(), graph::kNone);
  for (const graph::CallId c : trace.calls.ids()) {
    const graph::TraceCall& call = trace.calls[c];
    if (trace.modules[call.module].IsSegment()) continue;
    if (call.backward_start == graph::kNever) continue;
    const graph::OperatorId end =
        std::min(calls.end_id(), graph::OperatorAt(call.backward_end));
    for (const graph::OperatorId op :
         graph::IdRange(graph::OperatorAt(call.backward_start), end)) {
      calls[op] = c;
    }
  }
  return calls;
}

// Writes samples column by column, which takes a third of the text.
class SampleColumns {
 public:
  explicit SampleColumns(const SampledRun& run)
      : run_(run),
        beginnings_(BeginningsOf(run)),
        backward_calls_(BackwardCalls(*run.trace)) {}

  // Adds a sample. `first`: the step that begins the sample's part.
  void Add(graph::StepId k, graph::StepId first) {
    const Simulation& simulation = run_.detail.simulation;
    const Simulation::Step& step = simulation.steps[k];
    const graph::TraceOperator& op = run_.trace->operators[step.op];
    columns_["begin_step"].push_back(first);
    columns_["begin_ms"].push_back(Rounded(beginnings_[first]));
    columns_["step"].push_back(k);
    columns_["ms"].push_back(Rounded(beginnings_[k]));
    columns_["operator"].push_back(
        operators_.Place(run_.trace->operator_names[op.name]));
    columns_["module"].push_back(modules_.Place(ModuleOf(step)));
    columns_["phase"].push_back(PhaseOf(*run_.trace, step));
    if (!run_.trace->sources.empty()) {
      columns_["line"].push_back(
          lines_.Place(graph::SourceOf(*run_.trace, step.op)));
    }
    columns_["bytes"].push_back(LiveBytesJson(run_.detail.by_kind[k]));
  }

  ordered_json ToJson() && {
    columns_["end_ms"] = Rounded(beginnings_.back());
    columns_["operators"] = operators_.list();
    columns_["modules"] = modules_.list();
    if (!run_.trace->sources.empty()) columns_["lines"] = lines_.list();
    return std::move(columns_);
  }

 private:
  std::string ModuleOf(const Simulation::Step& step) const {
    const Trace& trace = *run_.trace;
    graph::CallId call = trace.operators[step.op].call;
    const graph::Time time = StartOf(step.op);
    if (step.redone == graph::kNone && time >= trace.forward_end) {
      if (time >= trace.backward_end) return "optimizer step";
      call = backward_calls_[step.op];
    }
    return trace
        .modules[call == graph::kNone ? graph::ModuleId{0}
                                      : trace.calls[call].module]
        .fqn;
  }

  const SampledRun& run_;
  graph::IndexedVector<graph::StepId, double> beginnings_;
  CallOfOperator backward_calls_;
  Names operators_, modules_, lines_;
  ordered_json columns_ = {{"begin_step", ordered_json::array()},
                           {"begin_ms", ordered_json::array()},
                           {"step", ordered_json::array()},
                           {"ms", ordered_json::array()},
                           {"operator", ordered_json::array()},
                           {"module", ordered_json::array()},
                           {"phase", ordered_json::array()},
                           {"bytes", ordered_json::array()}};
};

}  // namespace

ordered_json KindNames() {
  ordered_json names = ordered_json::array();
  for (const Kind& kind : kKinds) names.push_back(kind.name);
  return names;
}

size_t KindPlace(size_t place) {
  return static_cast<size_t>(std::ranges::find(kKinds, place, &Kind::place) -
                             kKinds.begin());
}

std::vector<StepSample> SampleSteps(const std::vector<int64_t>& live_bytes,
                                    size_t most) {
  const size_t parts = std::min(most, live_bytes.size());
  std::vector<StepSample> samples;
  for (size_t part = 0; part < parts; ++part) {
    const size_t first = part * live_bytes.size() / parts;
    const size_t end = (part + 1) * live_bytes.size() / parts;
    size_t step = first;
    for (size_t k = first; k < end; ++k) {
      if (live_bytes[k] > live_bytes[step]) step = k;
    }
    samples.push_back({.first = first, .step = step});
  }
  return samples;
}

graph::DetailedSimulation DetailOnRank(graph::DetailedSimulation detail,
                                       const Trace& trace,
                                       const problems::MemoryOptions& memory) {
  if (memory.world_size == 1) return detail;
  const auto times = problems::TimesOf(detail.simulation);
  const auto bytes = BytesOfRankByCategory(trace, memory);
  for (const graph::StepId k : times.ids()) {
    for (size_t c = 0; c < graph::kStorageCategories; ++c) {
      detail.by_kind[k][c] += bytes[graph::OperatorAt(times[k])][c];
    }
  }
  detail.simulation = problems::OnRank(std::move(detail.simulation),
                                       BytesOfRank(trace, memory));
  return detail;
}

ordered_json RunJson(const SampledRun& run) {
  const Simulation& simulation = run.detail.simulation;
  ordered_json json;
  json["name"] = run.name;
  json["steps"] = simulation.steps.size();
  json["recomputed_operators"] = std::ranges::count_if(
      simulation.steps,
      [](const auto& step) { return step.redone != graph::kNone; });
  json["recompute_ms"] = simulation.recompute_ms;
  json["peak_bytes"] = simulation.peak_bytes;
  const std::vector<StepSample> samples =
      SampleSteps(simulation.live_bytes.values());
  SampleColumns columns(run);
  for (size_t s = 0; s < samples.size(); ++s) {
    const auto step = graph::IdAt<graph::StepId>(samples[s].step);
    columns.Add(step, graph::IdAt<graph::StepId>(samples[s].first));
    if (step == simulation.peak_step) {
      json["peak_sample"] = s;
    }
  }
  if (simulation.peak_step != graph::kNone) {
    json["peak_by_kind"] =
        LiveBytesJson(run.detail.by_kind[simulation.peak_step]);
  }
  json["samples"] = std::move(columns).ToJson();
  return json;
}

ordered_json LinesJson(const Trace& trace, const graph::PeakAccount& peak) {
  struct Line {
    int64_t bytes = 0;
    std::set<std::string> operators = {};
  };
  std::map<std::string, Line> lines;
  for (const graph::PeakStorage& storage : peak.storages) {
    Line& line = lines[graph::SourceOf(trace, storage.op)];
    line.bytes += storage.bytes;
    if (storage.op == graph::kNone) continue;
    line.operators.insert(
        trace.operator_names[trace.operators[storage.op].name]);
  }
  std::vector<std::pair<std::string, Line>> sorted(lines.begin(), lines.end());
  std::ranges::stable_sort(sorted, std::ranges::greater(),
                           [](const auto& line) { return line.second.bytes; });
  ordered_json json = ordered_json::array();
  for (const auto& [source, line] : sorted) {
    if (json.size() == kMostLines) break;
    json.push_back({{"source", source},
                    {"bytes", line.bytes},
                    {"operators", line.operators}});
  }
  return json;
}

ordered_json AnswerJson(const problems::Plan& plan) {
  ordered_json json;
  json["status"] = ToString(plan.status);
  if (plan.limit) json["limit"] = *plan.limit;
  if (plan.budget_bytes > 0) json["budget_bytes"] = plan.budget_bytes;
  if (plan.reserve_bytes > 0) json["reserve_bytes"] = plan.reserve_bytes;
  const auto add = [&](const char* key, double value) {
    if (value != problems::kNotStated) json[key] = value;
  };
  add("recompute_ms", plan.recompute_ms);
  add("bound_ms", plan.bound_ms);
  add("gap", plan.gap);
  add("overhead", plan.overhead);
  add("step_ms", plan.baseline.runtime_ms);
  json["seconds"] = plan.solver.seconds;
  json["solver"] = plan.solver.name;
  if (plan.offload) json["stall_ms"] = plan.offload->stall_ms;
  if (plan.any_schedule) {
    json["any_schedule_bound_ms"] = plan.any_schedule->bound_ms;
  }
  json["units"] = plan.modules.size();
  return json;
}

}  // namespace acplan::cli
