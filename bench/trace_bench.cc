#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan {

namespace {

using graph::CallId;
using graph::CheckpointedModule;
using graph::IndexedVector;
using graph::kNever;
using graph::kNone;
using graph::ModuleId;
using graph::OperatorId;
using graph::StorageId;
using graph::TensorId;
using graph::Time;
using graph::Trace;

// What copies of a model, side by side, do in one step: the forward passes one
// after the other, the backward passes the other way round, then the optimizer.
class RepeatedTrace {
 public:
  RepeatedTrace(const Trace& trace, int32_t copies)
      : trace_(trace), copies_(copies) {}

  Trace Make() && {
    result_.model = trace_.model;
    result_.model.name += " x " + std::to_string(copies_);
    result_.device = trace_.device;
    result_.operator_names = trace_.operator_names;
    result_.forward_end = copies_ * trace_.forward_end;
    result_.backward_end = copies_ * trace_.backward_end;
    result_.operators.resize(copies_ * trace_.operators.size());
    const std::string root = trace_.modules.front().fqn + "s";
    result_.modules = {
        {.fqn = root, .class_name = root, .parameters = {}, .buffers = {}}};
    result_.calls = {{.end = result_.forward_end,
                      .inputs = {},
                      .outputs = {},
                      .backward_start = result_.forward_end,
                      .backward_end = result_.backward_end}};
    for (copy_ = 0; copy_ < copies_; ++copy_) AddCopy(root);
    return std::move(result_);
  }

 private:
  Time Passed(Time time, Time before, int32_t length, int32_t place) const {
    return copies_ * before + place * length + (time - before);
  }

  Time InForward(Time time) const {
    return Passed(time, 0, trace_.forward_end, copy_);
  }

  Time InBackward(Time time) const {
    return Passed(time, trace_.forward_end,
                  trace_.backward_end - trace_.forward_end,
                  copies_ - 1 - copy_);
  }

  // Returns the time in this copy: of an operator's start (`lag` 0), or of an event
  // that follows the operator at `time - lag`.
  Time At(Time time, int32_t lag) const {
    if (time == kNever) return kNever;
    const Time start = time - lag;
    if (start < 0) return time;
    if (start < trace_.forward_end) return InForward(time);
    if (start < trace_.backward_end) return InBackward(time);
    return Passed(
        time, trace_.backward_end,
        static_cast<int32_t>(trace_.operators.size()) - trace_.backward_end,
        copy_);
  }

  OperatorId CopyOf(OperatorId op) const {
    return graph::OperatorAt(At(StartOf(op), 0));
  }
  Time TimeAt(Time time) const { return At(time, 1); }

  // Returns the time in this copy of an event of the backward pass, its start included.
  Time RequestAt(Time time) const {
    return time == trace_.forward_end ? InBackward(time) : TimeAt(time);
  }

  // What is outside of all calls of a copy is in the one around all copies.
  CallId CallAround(Time time) const {
    return 0 < time && time < result_.forward_end ? CallId{0} : kNone;
  }

  template <typename Id>
  static Id Shifted(Id id, int32_t by) {
    return id == kNone ? id : Id{IndexOf(id) + by};
  }

  template <typename Id>
  std::vector<Id> Shifted(std::vector<Id> ids, size_t count) const {
    for (Id& id : ids) id = Shifted(id, copy_ * static_cast<int32_t>(count));
    return ids;
  }

  void AddCopy(const std::string& root) {
    const auto storages = [&](const std::vector<StorageId>& ids) {
      return Shifted(ids, trace_.storages.size());
    };
    const auto tensors = [&](const std::vector<TensorId>& ids) {
      return Shifted(ids, trace_.tensors.size());
    };
    const auto storage_shift =
        copy_ * static_cast<int32_t>(trace_.storages.size());
    const auto tensor_shift =
        copy_ * static_cast<int32_t>(trace_.tensors.size());
    const auto call_shift =
        1 + copy_ * static_cast<int32_t>(trace_.calls.size());
    const auto module_shift =
        1 + copy_ * static_cast<int32_t>(trace_.modules.size());

    const std::string& old_root = trace_.modules.front().fqn;
    for (graph::TraceModule module : trace_.modules) {
      module.fqn.replace(0, old_root.size(),
                         root + ".copy" + std::to_string(copy_));
      module.parameters = storages(module.parameters);
      module.buffers = storages(module.buffers);
      result_.modules.push_back(std::move(module));
    }
    for (graph::TraceCall call : trace_.calls) {
      call.module = Shifted(call.module, module_shift);
      call.parent =
          call.parent == kNone ? CallId{0} : Shifted(call.parent, call_shift);
      call.start = InForward(call.start);
      call.end = InForward(call.end);
      call.inputs = storages(call.inputs);
      call.outputs = storages(call.outputs);
      call.arguments = tensors(call.arguments);
      call.backward_start = RequestAt(call.backward_start);
      call.backward_end = RequestAt(call.backward_end);
      result_.calls.push_back(std::move(call));
    }
    for (const OperatorId k : trace_.operators.ids()) {
      graph::TraceOperator op = trace_.operators[k];
      const bool is_forward = StartOf(k) < trace_.forward_end;
      op.call = op.call == kNone ? (is_forward ? CallId{0} : kNone)
                                 : Shifted(op.call, call_shift);
      op.reads = storages(op.reads);
      op.creates = storages(op.creates);
      op.outputs = storages(op.outputs);
      op.mutates = storages(op.mutates);
      op.results = tensors(op.results);
      for (OperatorId& cast : op.recasts) cast = CopyOf(cast);
      result_.operators[CopyOf(k)] = std::move(op);
    }
    for (graph::TraceStorage storage : trace_.storages) {
      storage.born = CopyOf(storage.born);
      storage.freed = TimeAt(storage.freed);
      storage.scope_end = TimeAt(storage.scope_end);
      result_.storages.push_back(storage);
    }
    for (graph::TraceTensor tensor : trace_.tensors) {
      tensor.storage = Shifted(tensor.storage, storage_shift);
      tensor.base = Shifted(tensor.base, tensor_shift);
      tensor.op = CopyOf(tensor.op);
      tensor.scope_end = TimeAt(tensor.scope_end);
      result_.tensors.push_back(tensor);
    }
    for (graph::SavedTensor saved : trace_.saved) {
      saved.storage = Shifted(saved.storage, storage_shift);
      saved.tensor = Shifted(saved.tensor, tensor_shift);
      saved.packed = InForward(saved.packed);
      saved.call = saved.call == kNone ? CallAround(saved.packed)
                                       : Shifted(saved.call, call_shift);
      saved.unpacked = RequestAt(saved.unpacked);
      saved.local_end = RequestAt(saved.local_end);
      saved.released = RequestAt(saved.released);
      result_.saved.push_back(saved);
    }
  }

  const Trace& trace_;
  int32_t copies_;
  int32_t copy_ = 0;
  Trace result_;
};

struct Case {
  std::string name;
  Trace trace;
  std::string text;
};

IndexedVector<ModuleId, int> CallsByModule(const Trace& trace) {
  IndexedVector<ModuleId, int> calls(trace.modules.size(), 0);
  for (const graph::TraceCall& call : trace.calls) ++calls[call.module];
  return calls;
}

bool IsInside(std::string_view fqn, std::string_view around) {
  return fqn.size() > around.size() && fqn.starts_with(around) &&
         fqn[around.size()] == '.';
}

// Entries of lists of modules, "layers.3", that are in no other one.
std::vector<ModuleId> Blocks(const Trace& trace) {
  const IndexedVector<ModuleId, int> calls = CallsByModule(trace);
  std::vector<ModuleId> blocks;
  for (const ModuleId m : trace.modules.ids()) {
    const std::string& fqn = trace.modules[m].fqn;
    const bool is_entry =
        fqn.find_first_not_of("0123456789", fqn.rfind('.') + 1) ==
        std::string::npos;
    const bool is_outermost =
        blocks.empty() || !IsInside(fqn, trace.modules[blocks.back()].fqn);
    if (calls[m] > 0 && is_entry && is_outermost) blocks.push_back(m);
  }
  return blocks;
}

// Those that PyTorch would run.
std::vector<CheckpointedModule> Accepted(
    const Trace& trace, const std::vector<CheckpointedModule>& candidates) {
  std::vector<CheckpointedModule> units;
  for (const CheckpointedModule& unit : candidates) {
    try {
      Simulate(trace, {unit});
      units.push_back(unit);
    } catch (const InputError&) {
    }
  }
  return units;
}

std::vector<CheckpointedModule> NoUnits(const Trace&) { return {}; }

std::vector<CheckpointedModule> BlockUnits(const Trace& trace) {
  std::vector<CheckpointedModule> units;
  for (const ModuleId m : Blocks(trace)) units.push_back({.module = m});
  return Accepted(trace, units);
}

// The products are saved, all else runs again.
std::vector<CheckpointedModule> SelectiveUnits(const Trace& trace) {
  std::vector<CheckpointedModule> units;
  for (const ModuleId m : Blocks(trace)) {
    const auto call =
        std::ranges::find(trace.calls, m, &graph::TraceCall::module);
    CheckpointedModule unit{.module = m};
    for (const OperatorId op : call->Operators()) {
      const std::string_view name =
          trace.operator_names[trace.operators[op].name];
      const bool is_product = name.find("mm") != name.npos ||
                              name.find("attention") != name.npos ||
                              name.find("convolution") != name.npos;
      unit.decisions.push_back(graph::SaveOrRecompute(is_product));
    }
    units.push_back(std::move(unit));
  }
  return Accepted(trace, units);
}

// Blocks and everything in them that has children.
std::vector<CheckpointedModule> NestedUnits(const Trace& trace) {
  const IndexedVector<ModuleId, int> calls = CallsByModule(trace);
  std::vector<CheckpointedModule> units;
  for (const ModuleId block : Blocks(trace)) {
    units.push_back({.module = block});
    const std::string& around = trace.modules[block].fqn;
    for (const ModuleId m :
         graph::IdRange(Next(block), trace.modules.last_id())) {
      const std::string& fqn = trace.modules[m].fqn;
      if (!IsInside(fqn, around)) break;
      if (calls[m] > 0 && IsInside(trace.modules[Next(m)].fqn, fqn)) {
        units.push_back({.module = m});
      }
    }
  }
  return Accepted(trace, units);
}

void CountOperators(benchmark::State& state, const Trace& trace) {
  const auto count = static_cast<double>(trace.operators.size());
  state.counters["operators"] = count;
  state.counters["each"] =
      benchmark::Counter(count, benchmark::Counter::kIsIterationInvariantRate |
                                    benchmark::Counter::kInvert);
}

void TimeParsing(benchmark::State& state, const Case& input) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(graph::ParseTrace(input.text, input.name));
  }
  CountOperators(state, input.trace);
}

void TimeAggregation(benchmark::State& state, const Case& input) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(Aggregate(input.trace));
  }
  CountOperators(state, input.trace);
}

void TimePreparation(benchmark::State& state, const Case& input) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(graph::Simulator(input.trace));
  }
  CountOperators(state, input.trace);
}

using UnitsOf = std::vector<CheckpointedModule> (*)(const Trace&);

void TimeSimulation(benchmark::State& state, const Case& input,
                    UnitsOf units_of) {
  const std::vector<CheckpointedModule> units = units_of(input.trace);
  const graph::Simulator simulator(input.trace);
  size_t steps = 0;
  for (auto _ : state) {
    steps = simulator.Simulate(units).steps.size();
    benchmark::DoNotOptimize(steps);
  }
  CountOperators(state, input.trace);
  state.counters["units"] = static_cast<double>(units.size());
  state.counters["steps"] = static_cast<double>(steps);
}

template <typename Function, typename... Arguments>
void Register(const std::string& what, const std::shared_ptr<Case>& input,
              Function function, Arguments... arguments) {
  benchmark::RegisterBenchmark(
      (what + "/" + input->name).c_str(),
      [=](benchmark::State& state) { function(state, *input, arguments...); })
      ->Unit(benchmark::kMicrosecond);
}

void RegisterAll(std::string name, Trace trace) {
  std::string text = graph::ToJson(trace);
  const auto input = std::make_shared<Case>(
      Case{std::move(name), std::move(trace), std::move(text)});
  Register("parse", input, TimeParsing);
  Register("aggregate", input, TimeAggregation);
  Register("prepare", input, TimePreparation);
  Register("simulate/none", input, TimeSimulation, NoUnits);
  Register("simulate/blocks", input, TimeSimulation, BlockUnits);
  Register("simulate/selective", input, TimeSimulation, SelectiveUnits);
  Register("simulate/nested", input, TimeSimulation, NestedUnits);
}

Trace ReadAndTime(const std::filesystem::path& path, const std::string& name) {
  benchmark::RegisterBenchmark(
      ("read/" + name).c_str(),
      [path](benchmark::State& state) {
        for (auto _ : state) {
          benchmark::DoNotOptimize(graph::ReadTrace(path));
        }
      })
      ->Unit(benchmark::kMicrosecond);
  return graph::ReadTrace(path);
}

std::vector<std::filesystem::path> BundledTraces() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(ACPLAN_TRACE_DIR)) {
    if (entry.path().string().ends_with(".trace.json.gz")) {
      paths.push_back(entry.path());
    }
  }
  std::ranges::sort(paths);
  return paths;
}

std::string NameOf(const std::filesystem::path& path) {
  const std::string file = path.filename().string();
  return file.substr(0, file.find('.'));
}

}  // namespace

}  // namespace acplan

// Times the bundled traces, one of them repeated, and the traces that are named.
int main(int argc, char** argv) {
  using namespace acplan;
  constexpr int32_t kCopies = 17;
  benchmark::Initialize(&argc, argv);
  try {
    for (const auto& path : BundledTraces()) {
      Trace trace = ReadAndTime(path, NameOf(path));
      if (NameOf(path) == "gpt2") {
        RegisterAll("gpt2_repeated", RepeatedTrace(trace, kCopies).Make());
      }
      RegisterAll(NameOf(path), std::move(trace));
    }
    for (int i = 1; i < argc; ++i) {
      RegisterAll(NameOf(argv[i]), ReadAndTime(argv[i], NameOf(argv[i])));
    }
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
