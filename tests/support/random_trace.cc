#include "tests/support/random_trace.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace acplan::test_support {

using graph::CallId;
using graph::kNever;
using graph::kNone;
using graph::OperatorId;
using graph::SavedTensor;
using graph::StorageCategory;
using graph::StorageId;
using graph::TensorId;
using graph::Time;
using graph::Trace;
using graph::TraceCall;
using graph::TraceModule;
using graph::TraceOperator;
using graph::TraceStorage;

namespace {

constexpr std::array kNames = {
    "aten.mm.default",       "aten.addmm.default",
    "aten.view.default",     "aten.relu_.default",
    "aten.add.Tensor",       "aten.bernoulli.default",
    "aten._to_copy.default", "",
    "my \"ops\"::Ω\n"};

// Runs a step, operator by operator.
class Step {
 public:
  Step(std::mt19937& random, int operators) : random_(random), end_(operators) {
    trace_.forward_end = Below(end_ + 1);
    trace_.backward_end = Between(trace_.forward_end, end_);
  }

  Trace Run() {
    AddEarlierStorages();
    AddModules();
    for (int k = 0; k <= end_; ++k) {
      if (k <= trace_.forward_end) ActInForward(k);
      if (k < end_) RunOperator(k);
    }
    NameOperators();
    NameLines();
    for (int k = 7; k < end_; k += 16) {
      trace_.operators[OperatorId{k}].opaque = true;
    }
    trace_.model = {"random", "m", Below(100), Below(100), "bf16", "AdamW"};
    trace_.device = {"none", Below(100) / 3.0, Below(100) / 7.0};
    if (OneIn(2)) trace_.peak_bytes = Below(1 << 30);
    return std::move(trace_);
  }

 private:
  int Below(int64_t n) {
    return static_cast<int>(random_() % static_cast<uint64_t>(n));
  }
  int Between(int least, int most) { return least + Below(most - least + 1); }
  bool OneIn(int n) { return Below(n) == 0; }
  // Returns a time from `least` on: soon, at any time up to `most`, or never.
  int32_t Later(int32_t least, int32_t most) {
    if (OneIn(6)) return kNever;
    return OneIn(2) ? Between(least, most) : std::min(most, least + Below(4));
  }

  void AddEarlierStorages() {
    const std::array categories = {
        StorageCategory::kParameter, StorageCategory::kBuffer,
        StorageCategory::kGradient, StorageCategory::kOptimizer,
        StorageCategory::kInput};
    for (int i = Below(12); i > 0; --i)
      trace_.storages.push_back(
          {.bytes = Below(1 << 30),
           .category = categories[Below(std::ssize(categories))],
           .freed = OneIn(4) ? Between(0, end_) : kNever});
  }

  std::vector<StorageId> EarlierStorages(StorageCategory category) {
    std::vector<StorageId> storages;
    for (const StorageId s : trace_.storages.ids())
      if (trace_.storages[s].category == category && OneIn(3))
        storages.push_back(s);
    return storages;
  }

  void AddModules() {
    std::vector<std::string> names_around = {"m"};
    for (int i = 1 + Below(8); i > 0; --i) {
      trace_.modules.push_back(
          {.fqn = names_around.back(),
           .class_name = "Class" + std::to_string(Below(3)),
           .parameters = EarlierStorages(StorageCategory::kParameter),
           .buffers = EarlierStorages(StorageCategory::kBuffer)});
      while (names_around.size() > 1 && OneIn(2)) names_around.pop_back();
      names_around.push_back(names_around.back() + "." + std::to_string(i));
    }
  }

  // Begins and ends calls, and saves tensors.
  void ActInForward(int time) {
    const bool is_last = time == trace_.forward_end;
    for (int i = Below(4); i > 0; --i) {
      switch (Below(3)) {
        case 0:
          OpenCall(time);
          break;
        case 1:
          CloseCall(time);
          break;
        default:
          Save(time);
      }
    }
    while (is_last && open_call_ != kNone) CloseCall(time);
  }

  void OpenCall(int time) {
    trace_.calls.push_back(
        {.module = graph::ModuleId{Below(std::ssize(trace_.modules))},
         .parent = open_call_,
         .start = time,
         .inputs = LiveStorages(time),
         .outputs = {},
         .arguments = {},
         .no_grad = OneIn(8)});
    TraceCall& call = trace_.calls.back();
    for (StorageId storage : call.inputs)
      if (!OneIn(3) && TensorOf(storage) != kNone)
        call.arguments.push_back(TensorOf(storage));
    open_call_ = trace_.calls.last_id();
  }

  void CloseCall(int time) {
    if (open_call_ == kNone) return;
    TraceCall& call = trace_.calls[open_call_];
    call.end = time;
    call.outputs = LiveStorages(time);
    if (!OneIn(4)) {
      call.backward_start = Between(trace_.forward_end, trace_.backward_end);
      call.backward_end = Between(call.backward_start, trace_.backward_end);
    }
    open_call_ = call.parent;
  }

  void Save(int time) {
    const std::vector<StorageId> live = LiveStorages(time);
    if (live.empty()) return;
    SavedTensor saved = {.storage = live[0],
                         .tensor = OneIn(4) ? kNone : TensorOf(live[0]),
                         .requires_grad = OneIn(2),
                         .packed = time,
                         .call = open_call_};
    saved.unpacked = Later(trace_.forward_end, end_);
    const bool is_unpacked = saved.unpacked != kNever;
    if (is_unpacked) saved.local_end = Between(saved.unpacked, end_);
    saved.released =
        Later(is_unpacked ? saved.unpacked : trace_.forward_end, end_);
    TraceStorage& storage = trace_.storages[saved.storage];
    storage.freed = std::max(storage.freed, saved.released);
    if (is_unpacked) storage.freed = std::max(storage.freed, saved.local_end);
    trace_.saved.push_back(saved);
  }

  void RunOperator(int k) {
    TraceOperator op;
    op.call = k < trace_.forward_end ? open_call_ : kNone;
    op.runtime_ms = OneIn(4) ? 0 : Below(1000) / 7.0;
    op.reads = LiveStorages(k);
    op.view = OneIn(4);
    op.random = OneIn(8);
    std::set<StorageId> outputs;
    for (StorageId storage : op.reads) {
      if (op.view || OneIn(6)) outputs.insert(storage);
      if (!op.view && OneIn(6)) op.mutates.push_back(storage);
    }
    if (!op.view) {
      for (int i = Below(3); i > 0; --i) {
        op.creates.push_back(Create(k));
        if (!OneIn(4)) outputs.insert(op.creates.back());
      }
    }
    op.outputs.assign(outputs.begin(), outputs.end());
    if (k < trace_.forward_end) {
      for (StorageId storage : op.outputs)
        if (!OneIn(5)) op.results.push_back(MakeTensor(storage, k));
      if (k > 0 && OneIn(10)) op.recasts = {OperatorId{Below(k)}};
    }
    std::ranges::shuffle(op.creates, random_);
    trace_.operators.push_back(std::move(op));
  }

  // Returns the youngest tensor of a storage, if any.
  TensorId TensorOf(StorageId storage) {
    for (const TensorId t : std::views::reverse(trace_.tensors.ids()))
      if (trace_.tensors[t].storage == storage) return t;
    return kNone;
  }

  TensorId MakeTensor(StorageId storage, int k) {
    const Time scope_end = trace_.storages[storage].scope_end;
    return trace_.tensors.Add(
        {.storage = storage,
         .base = TensorOf(storage),
         .op = OperatorId{k},
         .scope_end = OneIn(3) || scope_end == kNever
                          ? scope_end
                          : Between(std::min(k, scope_end), scope_end)});
  }

  StorageId Create(int k) {
    TraceStorage storage = {.bytes = OneIn(5) ? 0 : Below(1 << 30),
                            .born = OperatorId{k}};
    if (k < trace_.forward_end) {
      storage.category =
          OneIn(4) ? StorageCategory::kTemporary : StorageCategory::kActivation;
      storage.scope_end = Later(k, trace_.forward_end);
      storage.freed = storage.scope_end == kNever
                          ? Later(trace_.forward_end, end_)
                          : storage.scope_end;
    } else {
      const std::array categories = {
          StorageCategory::kGradient, StorageCategory::kOptimizer,
          StorageCategory::kActivation, StorageCategory::kTemporary};
      storage.category = categories[Below(std::ssize(categories))];
      storage.freed = Later(k, end_);
    }
    return trace_.storages.Add(storage);
  }

  // Returns a few of the storages that anything holds at a time, mostly young
  // ones.
  std::vector<StorageId> LiveStorages(int time) {
    const int count = static_cast<int>(trace_.storages.size());
    std::set<StorageId> live;
    for (int i = count == 0 ? 0 : Below(5); i > 0; --i) {
      const StorageId storage{count - 1 -
                              Below(OneIn(8) ? count : std::min(count, 20))};
      if (trace_.storages[storage].freed >= time) live.insert(storage);
    }
    return {live.begin(), live.end()};
  }

  void NameOperators() {
    std::vector<graph::OperatorNameId> ids(kNames.size(), kNone);
    for (TraceOperator& op : trace_.operators) {
      const int name = Below(std::ssize(kNames));
      if (ids[name] == kNone)
        ids[name] = trace_.operator_names.Add(kNames[name]);
      op.name = ids[name];
    }
  }

  // Gives some operators a line, in about half of all traces; not at random, so
  // that nothing else of a trace depends on it.
  void NameLines() {
    if (trace_.storages.size() % 2 == 0) return;
    for (int32_t line = 1; line <= 3; ++line) {
      trace_.sources.push_back(
          {.file = "model.py", .line = line, .function = "forward"});
    }
    for (const OperatorId k : trace_.operators.ids()) {
      const int32_t line = IndexOf(k) % 4;
      if (line != 3) trace_.operators[k].source = graph::SourceId{line};
    }
  }

  std::mt19937& random_;
  const int end_;
  Trace trace_;
  CallId open_call_ = kNone;
};

}  // namespace

Trace RandomTrace(std::mt19937& random, int operators) {
  return Step(random, operators).Run();
}

}  // namespace acplan::test_support
