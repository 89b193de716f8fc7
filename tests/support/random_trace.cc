#include "tests/support/random_trace.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace acplan::test_support {

using graph::kNever;
using graph::SavedTensor;
using graph::StorageCategory;
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
    for (int k = 7; k < end_; k += 16) trace_.operators[k].opaque = true;
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

  std::vector<int32_t> EarlierStorages(StorageCategory category) {
    std::vector<int32_t> storages;
    for (size_t i = 0; i < trace_.storages.size(); ++i)
      if (trace_.storages[i].category == category && OneIn(3))
        storages.push_back(static_cast<int32_t>(i));
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
    while (is_last && open_call_ != -1) CloseCall(time);
  }

  void OpenCall(int time) {
    trace_.calls.push_back({.module = Below(std::ssize(trace_.modules)),
                            .parent = open_call_,
                            .start = time,
                            .inputs = LiveStorages(time),
                            .outputs = {},
                            .arguments = {},
                            .no_grad = OneIn(8)});
    TraceCall& call = trace_.calls.back();
    for (int32_t storage : call.inputs)
      if (!OneIn(3) && TensorOf(storage) >= 0)
        call.arguments.push_back(TensorOf(storage));
    open_call_ = static_cast<int32_t>(trace_.calls.size()) - 1;
  }

  void CloseCall(int time) {
    if (open_call_ == -1) return;
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
    const std::vector<int32_t> live = LiveStorages(time);
    if (live.empty()) return;
    SavedTensor saved = {.storage = live[0],
                         .tensor = OneIn(4) ? -1 : TensorOf(live[0]),
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
    op.call = k < trace_.forward_end ? open_call_ : -1;
    op.runtime_ms = OneIn(4) ? 0 : Below(1000) / 7.0;
    op.reads = LiveStorages(k);
    op.view = OneIn(4);
    op.random = OneIn(8);
    std::set<int32_t> outputs;
    for (int32_t storage : op.reads) {
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
      for (int32_t storage : op.outputs)
        if (!OneIn(5)) op.results.push_back(MakeTensor(storage, k));
      if (k > 0 && OneIn(10)) op.recasts = {Below(k)};
    }
    std::ranges::shuffle(op.creates, random_);
    trace_.operators.push_back(std::move(op));
  }

  // Returns the youngest tensor of a storage, or -1.
  int32_t TensorOf(int32_t storage) {
    for (auto t = static_cast<int32_t>(trace_.tensors.size()) - 1; t >= 0; --t)
      if (trace_.tensors[t].storage == storage) return t;
    return -1;
  }

  int32_t MakeTensor(int32_t storage, int k) {
    const int32_t scope_end = trace_.storages[storage].scope_end;
    trace_.tensors.push_back(
        {.storage = storage,
         .base = TensorOf(storage),
         .op = k,
         .scope_end = OneIn(3) || scope_end == kNever
                          ? scope_end
                          : Between(std::min(k, scope_end), scope_end)});
    return static_cast<int32_t>(trace_.tensors.size()) - 1;
  }

  int32_t Create(int k) {
    TraceStorage storage = {.bytes = OneIn(5) ? 0 : Below(1 << 30), .born = k};
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
    trace_.storages.push_back(storage);
    return static_cast<int32_t>(trace_.storages.size()) - 1;
  }

  // Returns a few of the storages that anything holds at a time, mostly young
  // ones.
  std::vector<int32_t> LiveStorages(int time) {
    const int count = static_cast<int>(trace_.storages.size());
    std::set<int32_t> live;
    for (int i = count == 0 ? 0 : Below(5); i > 0; --i) {
      const int32_t storage =
          count - 1 - Below(OneIn(8) ? count : std::min(count, 20));
      if (trace_.storages[storage].freed >= time) live.insert(storage);
    }
    return {live.begin(), live.end()};
  }

  void NameOperators() {
    std::vector<int32_t> index(kNames.size(), -1);
    for (TraceOperator& op : trace_.operators) {
      const int name = Below(std::ssize(kNames));
      if (index[name] == -1) {
        index[name] = static_cast<int32_t>(trace_.operator_names.size());
        trace_.operator_names.emplace_back(kNames[name]);
      }
      op.name = index[name];
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
    for (size_t k = 0; k < trace_.operators.size(); ++k) {
      if (k % 4 != 3) trace_.operators[k].source = static_cast<int32_t>(k % 4);
    }
  }

  std::mt19937& random_;
  const int end_;
  Trace trace_;
  int32_t open_call_ = -1;
};

}  // namespace

Trace RandomTrace(std::mt19937& random, int operators) {
  return Step(random, operators).Run();
}

}  // namespace acplan::test_support
