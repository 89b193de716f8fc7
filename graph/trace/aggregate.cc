#include "graph/trace/aggregate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/trace/allocation.h"

namespace acplan::graph {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 53;
constexpr int64_t kMostTotalBytes = int64_t{1} << 62;
constexpr double kMostMs = 1e18;

void Add(MemorySnapshot& to, const MemorySnapshot& more) {
  for (size_t c = 0; c < to.size(); ++c) to[c] += more[c];
}

void Subtract(MemorySnapshot& from, const MemorySnapshot& less) {
  for (size_t c = 0; c < from.size(); ++c) from[c] -= less[c];
}

void Add(MemorySnapshot& to, MemoryCategory category, int64_t bytes) {
  to[category] += bytes;
  to[kTotal] += bytes;
}

// The first place of the largest value in any range, in constant time.
class RangeMaximum {
 public:
  explicit RangeMaximum(std::vector<int64_t> values)
      : values_(std::move(values)) {
    first_.emplace_back(values_.size());
    for (size_t i = 0; i < values_.size(); ++i)
      first_[0][i] = static_cast<int32_t>(i);
    for (size_t half = 1; 2 * half <= values_.size(); half *= 2) {
      const std::vector<int32_t>& below = first_.back();
      std::vector<int32_t> level(values_.size() - 2 * half + 1);
      for (size_t i = 0; i < level.size(); ++i)
        level[i] = Larger(below[i], below[i + half]);
      first_.push_back(std::move(level));
    }
  }

  int64_t value(int32_t i) const { return values_[i]; }

  // Of [begin, end), which must not be empty.
  int32_t Of(int32_t begin, int32_t end) const {
    const int level = std::bit_width(static_cast<uint32_t>(end - begin)) - 1;
    return Larger(first_[level][begin], first_[level][end - (1 << level)]);
  }

 private:
  int32_t Larger(int32_t a, int32_t b) const {
    if (values_[a] != values_[b]) return values_[a] > values_[b] ? a : b;
    return std::min(a, b);
  }

  std::vector<int64_t> values_;
  std::vector<std::vector<int32_t>> first_;  // of 2^level values from i on
};

// Bytes by category at every operator and between them.
class Timeline {
 public:
  explicit Timeline(const Trace& trace)
      : trace_(trace),
        count_(static_cast<int32_t>(trace.operators.size())),
        first_backward_(std::min(trace.forward_end + 1, trace.backward_end)) {
    std::vector<int32_t> settled(trace.storages.size(), 0);
    for (int32_t k = trace.forward_end; k < trace.backward_end; ++k)
      for (const int32_t s : trace.operators[k].outputs) settled[s] = k + 1;

    running_.resize(count_ + 1);
    between_.resize(count_ + 2);
    for (size_t s = 0; s < trace.storages.size(); ++s)
      AddStorage(trace.storages[s], settled[s]);
    for (int32_t k = 1; k <= count_; ++k) Add(running_[k], running_[k - 1]);
    for (int32_t t = 1; t <= count_; ++t) Add(between_[t], between_[t - 1]);

    by_death_.resize(trace.storages.size());
    for (size_t s = 0; s < by_death_.size(); ++s)
      by_death_[s] = static_cast<int32_t>(s);
    std::ranges::sort(by_death_, {},
                      [&](int32_t s) { return DeathAndBirth(s); });
    dead_.resize(by_death_.size() + 1);
    for (size_t i = 0; i < by_death_.size(); ++i) {
      dead_[i + 1] = dead_[i];
      const TraceStorage& storage = trace.storages[by_death_[i]];
      Add(dead_[i + 1], CategoryOf(storage), AllocatedBytes(storage.bytes));
    }
  }

  const MemorySnapshot& Running(int32_t op) const { return running_[op]; }

  std::vector<int64_t> Totals() const {
    std::vector<int64_t> totals(count_);
    for (int32_t k = 0; k < count_; ++k) totals[k] = running_[k][kTotal];
    return totals;
  }

  // At a time, without what is freed then.
  const MemorySnapshot& Between(int32_t time) const { return between_[time]; }

  // What is freed at a time and born before another.
  MemorySnapshot FreedAt(int32_t time, int32_t born_before) const {
    const auto place = [&](std::pair<int32_t, int32_t> key) {
      return std::ranges::lower_bound(
                 by_death_, key, {},
                 [&](int32_t s) { return DeathAndBirth(s); }) -
             by_death_.begin();
    };
    MemorySnapshot freed = dead_[place({time, born_before})];
    Subtract(freed, dead_[place({time, -1})]);
    return freed;
  }

  // Of a storage that does not become a gradient.
  MemoryCategory CategoryOf(const TraceStorage& storage) const {
    switch (storage.category) {
      case StorageCategory::kParameter:
        return kParam;
      case StorageCategory::kBuffer:
        return kBuffer;
      case StorageCategory::kGradient:
        return kGrad;
      case StorageCategory::kOptimizer:
        return kOpt;
      case StorageCategory::kInput:
        return kOther;
      case StorageCategory::kActivation:
      case StorageCategory::kTemporary:
        break;
    }
    if (storage.born < 0) return kOther;
    if (storage.born < first_backward_) return kAct;
    return storage.born < trace_.backward_end ? kTemp : kOpt;
  }

 private:
  std::pair<int32_t, int32_t> DeathAndBirth(int32_t s) const {
    return {trace_.storages[s].freed, trace_.storages[s].born};
  }

  // `settled`: when a gradient is one.
  void AddStorage(const TraceStorage& storage, int32_t settled) {
    const int64_t bytes = AllocatedBytes(storage.bytes);
    const int32_t born = storage.born;
    const int32_t end =
        std::min(std::max(storage.freed, std::max(born, 0) + 1), count_);
    const int32_t last = std::min(storage.freed - 1, count_);
    const auto add = [&](MemoryCategory category, int32_t from, int32_t to) {
      const auto put = [&](std::vector<MemorySnapshot>& at, int32_t begin,
                           int32_t end_of) {
        begin = std::max(begin, 0);
        if (begin >= end_of) return;
        Add(at[begin], category, bytes);
        Add(at[end_of], category, -bytes);
      };
      put(running_, std::max(born, from), std::min(end, to));
      put(between_, std::max(born + 1, from), std::min(last + 1, to));
    };
    if (storage.category == StorageCategory::kGradient && born >= 0 &&
        born < trace_.backward_end) {
      const int32_t from = std::max(settled, born + 1);
      add(kTemp, 0, from);
      add(kGrad, from, kNever);
    } else {
      add(CategoryOf(storage), 0, kNever);
    }
  }

  const Trace& trace_;
  int32_t count_;
  int32_t first_backward_;               // after the loss's gradient
  std::vector<MemorySnapshot> running_;  // an operator: while it runs
  std::vector<MemorySnapshot> between_;  // a time
  std::vector<int32_t> by_death_;        // storages, by death and birth
  std::vector<MemorySnapshot> dead_;     // sums over the first of them
};

// "aten.mm.default" -> "mm".
std::string_view ShortName(std::string_view name) {
  const size_t begin = name.find('.');
  const size_t end = name.rfind('.');
  return begin < end ? name.substr(begin + 1, end - begin - 1) : name;
}

class Aggregation {
 public:
  explicit Aggregation(const Trace& trace)
      : trace_(trace), timeline_(trace), peaks_(timeline_.Totals()) {}

  Profile Run() {
    if (std::ranges::all_of(trace_.calls, [](const TraceCall& call) {
          return call.backward_start == kNever;
        }))
      throw InputError(
          "calls: expected backward_start and backward_end of the calls that "
          "have a backward, found none; record the trace anew");
    RequireSum();
    OrderCalls();
    FindWritten();
    FindSaves();
    SumForward();
    SumBackward();
    SumStates();
    Profile profile{.model = trace_.model,
                    .device = trace_.device,
                    .measured = MeasuredStep(),
                    .order = Orders(),
                    .modules = {}};
    for (size_t m = 0; m < trace_.modules.size(); ++m)
      if (!calls_of_[m].empty())
        profile.modules.push_back(ModuleAt(static_cast<int32_t>(m)));
    RequireRepresentable(profile);
    return profile;
  }

 private:
  int32_t CallCount() const {
    return static_cast<int32_t>(trace_.calls.size());
  }

  void RequireSum() const {
    int64_t bytes = 0;
    for (const TraceStorage& storage : trace_.storages)
      bytes += AllocatedBytes(storage.bytes);
    if (bytes > kMostBytes)
      throw InputError(fmt::format(
          "storages: expected at most 2^53 bytes in all, found {}", bytes));
  }

  void OrderCalls() {
    calls_of_.resize(trace_.modules.size());
    subtree_end_.assign(CallCount(), CallCount());
    std::vector<int32_t> open;
    for (int32_t c = 0; c < CallCount(); ++c) {
      while (!open.empty() && open.back() != trace_.calls[c].parent) {
        subtree_end_[open.back()] = c;
        post_order_.push_back(open.back());
        open.pop_back();
      }
      open.push_back(c);
    }
    post_order_.insert(post_order_.end(), open.rbegin(), open.rend());
    std::vector<int32_t> around(trace_.modules.size(), 0);
    for (int32_t c = 0; c < CallCount(); ++c) {
      const int32_t m = trace_.calls[c].module;
      calls_of_[m].push_back(c);
      is_outermost_.push_back(c >= around[m] ? 1 : 0);
      around[m] = std::max(around[m], subtree_end_[c]);
    }
  }

  void FindSaves() {
    first_save_.assign(trace_.storages.size(), -1);
    asks_again_.assign(CallCount(), 0);
    recasts_.assign(CallCount(), 0);
    first_request_.assign(CallCount(), kNever);
    last_save_.assign(CallCount(), 0);
    const auto note = [&](int32_t c, int32_t request, int32_t save) {
      if (c < 0) return;
      first_request_[c] = std::min(first_request_[c], request);
      last_save_[c] = std::max(last_save_[c], save);
    };
    for (size_t i = trace_.saved.size(); i-- > 0;) {
      const SavedTensor& saved = trace_.saved[i];
      first_save_[saved.storage] = static_cast<int32_t>(i);
      note(saved.call, saved.unpacked, saved.packed);
      if (saved.call >= 0 && saved.unpacked_again) asks_again_[saved.call] = 1;
    }
    for (int32_t c = CallCount(); c-- > 0;) {
      const int32_t parent = trace_.calls[c].parent;
      note(parent, first_request_[c], last_save_[c]);
      if (parent >= 0 && asks_again_[c]) asks_again_[parent] = 1;
    }
    // A cast is from before each call around until one that made it.
    for (int32_t k = 0; k < trace_.forward_end; ++k)
      for (const int32_t cast : trace_.operators[k].recasts)
        for (int32_t c = trace_.operators[k].call;
             c >= 0 && cast < trace_.calls[c].start; c = trace_.calls[c].parent)
          recasts_[c] = 1;
  }

  // Summed call by call, so that equal calls have equal sums.
  void SumForward() {
    std::vector<double> call_ms(CallCount(), 0);
    for (const TraceOperator& op : trace_.operators)
      if (op.call >= 0) call_ms[op.call] += op.runtime_ms;
    forward_ms_.assign(trace_.modules.size(), 0);
    for (int32_t c = CallCount(); c-- > 0;)
      if (trace_.calls[c].parent >= 0)
        call_ms[trace_.calls[c].parent] += call_ms[c];
    for (size_t m = 0; m < calls_of_.size(); ++m)
      for (const int32_t c : calls_of_[m])
        if (is_outermost_[c]) forward_ms_[m] += call_ms[c];
  }

  void SumBackward() {
    std::vector<double> before(trace_.operators.size() + 1, 0);
    for (size_t k = 0; k < trace_.operators.size(); ++k)
      before[k + 1] = before[k] + trace_.operators[k].runtime_ms;
    backward_ms_.assign(trace_.modules.size(), 0);
    for (size_t m = 0; m < calls_of_.size(); ++m) {
      std::vector<int32_t> calls = calls_of_[m];
      std::ranges::sort(
          calls, {}, [&](int32_t c) { return trace_.calls[c].backward_start; });
      int32_t counted = 0;
      for (const int32_t c : calls) {
        const TraceCall& call = trace_.calls[c];
        if (call.backward_start == kNever || call.backward_end <= counted)
          continue;
        backward_ms_[m] += before[call.backward_end] -
                           before[std::max(call.backward_start, counted)];
        counted = call.backward_end;
      }
    }
  }

  // Parameters and buffers of each module with those below it, each once.
  void SumStates() {
    const auto count = static_cast<int32_t>(trace_.modules.size());
    parent_of_.assign(count, -1);
    module_end_.assign(count, count);
    std::vector<int32_t> open;
    const auto holds = [&](int32_t module, int32_t below) {
      const std::string_view fqn = trace_.modules[module].fqn;
      return std::string_view(trace_.modules[below].fqn).starts_with(fqn) &&
             trace_.modules[below].fqn[fqn.size()] == '.';
    };
    for (int32_t m = 0; m < count; ++m) {
      while (!open.empty() && !holds(open.back(), m)) {
        module_end_[open.back()] = m;
        open.pop_back();
      }
      if (!open.empty()) parent_of_[m] = open.back();
      open.push_back(m);
    }
    parameter_bytes_ = SumOverSubtrees(&TraceModule::parameters);
    buffer_bytes_ = SumOverSubtrees(&TraceModule::buffers);
  }

  std::vector<int64_t> SumOverSubtrees(
      std::vector<int32_t> TraceModule::*storages) const {
    std::vector<int64_t> sums(trace_.modules.size(), 0);
    std::vector<int32_t> last(trace_.storages.size(), -1);
    for (size_t m = 0; m < sums.size(); ++m) {
      for (const int32_t s : trace_.modules[m].*storages) {
        const int64_t bytes = AllocatedBytes(trace_.storages[s].bytes);
        sums[m] += bytes;
        // Not twice where the modules that have it meet.
        int32_t meeting = last[s];
        while (meeting >= 0 && module_end_[meeting] <= static_cast<int32_t>(m))
          meeting = parent_of_[meeting];
        if (meeting >= 0) sums[meeting] -= bytes;
        last[s] = static_cast<int32_t>(m);
      }
    }
    for (size_t m = sums.size(); m-- > 0;)
      if (parent_of_[m] >= 0) sums[parent_of_[m]] += sums[m];
    return sums;
  }

  Measured MeasuredStep() const {
    Measured measured;
    const auto end = static_cast<int32_t>(trace_.operators.size());
    const auto peak = [&](int32_t begin) {
      return timeline_.Running(peaks_.Of(begin, end));
    };
    if (end > 0) measured.peak_bytes = peak(0)[kTotal];
    if (end > trace_.backward_end) {
      measured.opt_step_peak_categories = peak(trace_.backward_end);
      measured.opt_step_peak_bytes =
          (*measured.opt_step_peak_categories)[kTotal];
    }
    std::array<int64_t, kStorageCategories> before_step = {};
    for (const TraceStorage& storage : trace_.storages)
      if (storage.born < 0)
        before_step[static_cast<size_t>(storage.category)] +=
            AllocatedBytes(storage.bytes);
    const auto bytes = [&](StorageCategory category) {
      return before_step[static_cast<size_t>(category)];
    };
    measured.param_bytes = bytes(StorageCategory::kParameter);
    measured.grad_bytes = timeline_.Between(trace_.backward_end)[kGrad];
    measured.optimizer_bytes = bytes(StorageCategory::kOptimizer);
    measured.buffer_bytes = bytes(StorageCategory::kBuffer);
    measured.input_bytes = bytes(StorageCategory::kInput);
    return measured;
  }

  ModuleOrders Orders() const {
    std::vector<int32_t> pre(CallCount());
    for (int32_t c = 0; c < CallCount(); ++c) pre[c] = c;
    std::vector<int32_t> firsts;
    for (const int32_t c : post_order_)
      if (calls_of_[trace_.calls[c].module].front() == c) firsts.push_back(c);
    // At equal times backward enters a call before the calls inside it, and
    // leaves it after them, the last one first.
    std::vector<int32_t> bw_pre(post_order_.rbegin(), post_order_.rend());
    std::ranges::stable_sort(
        bw_pre, {}, [&](int32_t c) { return trace_.calls[c].backward_start; });
    std::vector<int32_t> bw_post(pre.rbegin(), pre.rend());
    std::ranges::stable_sort(
        bw_post, {}, [&](int32_t c) { return trace_.calls[c].backward_end; });
    const auto with_backward = [&](std::vector<int32_t>& calls) {
      std::erase_if(calls, [&](int32_t c) {
        return trace_.calls[c].backward_start == kNever;
      });
    };
    with_backward(bw_pre);
    with_backward(bw_post);
    return {.fw_pre = ModulesOf(pre),
            .bw_pre = ModulesOf(bw_pre),
            .fw_post = ModulesOf(firsts),
            .bw_post = ModulesOf(bw_post)};
  }

  std::vector<std::string> ModulesOf(const std::vector<int32_t>& calls) const {
    std::vector<std::string> fqns;
    std::vector<char> is_named(trace_.modules.size(), 0);
    for (const int32_t c : calls) {
      const int32_t m = trace_.calls[c].module;
      if (!std::exchange(is_named[m], 1)) fqns.push_back(trace_.modules[m].fqn);
    }
    return fqns;
  }

  static std::vector<int32_t> Distinct(std::vector<int32_t> storages) {
    std::ranges::sort(storages);
    const auto twice = std::ranges::unique(storages);
    storages.erase(twice.begin(), twice.end());
    return storages;
  }

  int64_t BytesOf(const std::vector<int32_t>& storages) const {
    int64_t bytes = 0;
    for (const int32_t s : Distinct(storages))
      bytes += AllocatedBytes(trace_.storages[s].bytes);
    return bytes;
  }

  MemorySnapshot BeforeForward(const TraceCall& call) const {
    MemorySnapshot snapshot = timeline_.Between(call.start);
    AddFreed(snapshot, call.inputs, call.start, -1);
    return snapshot;
  }

  MemorySnapshot AfterForward(const TraceCall& call) const {
    if (call.start == call.end) {
      std::vector<int32_t> held = call.inputs;
      held.insert(held.end(), call.outputs.begin(), call.outputs.end());
      MemorySnapshot snapshot = timeline_.Between(call.end);
      AddFreed(snapshot, held, call.end, -1);
      return snapshot;
    }
    MemorySnapshot snapshot = timeline_.Between(call.end);
    Add(snapshot, timeline_.FreedAt(call.end, call.start));
    AddFreed(snapshot, call.outputs, call.end, call.start);
    return snapshot;
  }

  // At the end of the pass whoever asked for it still holds the loss.
  MemorySnapshot AfterBackward(const TraceCall& call) const {
    MemorySnapshot snapshot = timeline_.Between(call.backward_end);
    if (call.backward_end == trace_.backward_end)
      Add(snapshot,
          timeline_.FreedAt(trace_.backward_end, trace_.forward_end + 1));
    return snapshot;
  }

  // Those of these storages that are freed at a time and born before it, at
  // another time at the earliest.
  void AddFreed(MemorySnapshot& snapshot, const std::vector<int32_t>& storages,
                int32_t time, int32_t born_from) const {
    for (const int32_t s : Distinct(storages)) {
      const TraceStorage& storage = trace_.storages[s];
      if (storage.freed == time && storage.born >= born_from &&
          storage.born < time)
        Add(snapshot, timeline_.CategoryOf(storage),
            AllocatedBytes(storage.bytes));
    }
  }

  // The first largest of the bytes at the start and while the operators run.
  MemorySnapshot PeakFrom(const MemorySnapshot& start, int32_t begin,
                          int32_t end) const {
    if (begin == end) return start;
    const int32_t op = peaks_.Of(begin, end);
    return peaks_.value(op) > start[kTotal] ? timeline_.Running(op) : start;
  }

  Module ModuleAt(int32_t m) const {
    Module module;
    module.fqn = trace_.modules[m].fqn;
    module.is_leaf = module_end_[m] == m + 1;
    module.param_per_module = parameter_bytes_[m];
    module.grad_per_module = parameter_bytes_[m];
    module.buffer_per_module = buffer_bytes_[m];
    module.fw_runtime_per_module = forward_ms_[m];
    module.bw_runtime_per_module = backward_ms_[m];
    module.calls = static_cast<int>(calls_of_[m].size());
    module.held_per_module = HeldBytes(m);
    TakeSnapshots(m, module);
    if (!module.is_leaf) module.sac = OperatorsOf(m);
    return module;
  }

  void TakeSnapshots(int32_t m, Module& module) const {
    ModuleSnapshots& snap = module.snap.emplace();
    for (const int32_t c : calls_of_[m]) {
      const TraceCall& call = trace_.calls[c];
      const MemorySnapshot pre = BeforeForward(call);
      const MemorySnapshot post = AfterForward(call);
      const int64_t output = BytesOf(call.outputs);
      if (is_outermost_[c])
        module.act_fw_per_module +=
            std::max<int64_t>(0, post[kAct] - pre[kAct] - output);
      const MemorySnapshot peak = PeakFrom(pre, call.start, call.end);
      if (!snap.peak_fw || peak[kTotal] >= (*snap.peak_fw)[kTotal]) {
        snap.pre_fw = pre;
        snap.post_fw = post;
        snap.peak_fw = peak;
        module.input_per_module = BytesOf(call.inputs);
        module.output_per_module = output;
      }
      if (call.backward_start == kNever) continue;
      const MemorySnapshot& pre_bw = timeline_.Between(call.backward_start);
      const MemorySnapshot peak_bw =
          PeakFrom(pre_bw, call.backward_start, call.backward_end);
      if (!snap.peak_bw || peak_bw[kTotal] >= (*snap.peak_bw)[kTotal]) {
        snap.pre_bw = pre_bw;
        snap.post_bw = AfterBackward(call);
        snap.peak_bw = peak_bw;
      }
    }
    module.act_total = (*snap.post_fw)[kAct];
    module.no_backward = !snap.pre_bw;
    if (module.no_backward) return;
    module.grad_total = (*snap.pre_bw)[kGrad];
    module.act_bw_per_module = (*snap.peak_bw)[kAct];
    module.act_grad_per_module = (*snap.peak_bw)[kTemp] - (*snap.pre_bw)[kTemp];
  }

  int64_t HeldBytes(int32_t m) const {
    std::vector<int32_t> held;
    for (const int32_t c : calls_of_[m]) {
      if (first_request_[c] == kNever) continue;
      for (const int32_t s : trace_.calls[c].inputs)
        if (trace_.storages[s].freed < first_request_[c]) held.push_back(s);
    }
    return BytesOf(held);
  }

  // What operators of a call, counted from its start, must be treated alike for
  // what is written to in place, and which cannot be saved.
  struct InPlaceRules {
    std::set<std::pair<int, int>> ties;  // an operator, its parent
    std::set<int> unsavable;
  };

  InPlaceRules InPlaceRulesOf(const std::vector<int32_t>& calls) const {
    InPlaceRules rules;
    for (const int32_t c : calls) {
      const TraceCall& call = trace_.calls[c];
      for (int32_t k = call.start; k < call.end; ++k) {
        const TraceOperator& op = trace_.operators[k];
        for (const int32_t s : op.mutates) {
          if (!std::ranges::binary_search(op.outputs, s)) continue;
          const int32_t born = trace_.storages[s].born;
          rules.ties.emplace(k - call.start,
                             (born >= call.start ? born : k) - call.start);
          if (born >= call.start) continue;
          // What reads it before another one writes to it.
          const auto& [writers, readers] = written_.at(s);
          const int32_t last =
              *std::prev(std::ranges::lower_bound(writers, call.end));
          for (const int32_t reader : readers) {
            if (reader > k && reader < last)
              rules.ties.emplace(reader - call.start, k - call.start);
          }
        }
        for (const int32_t s : op.creates) {
          const auto written = written_.find(s);
          if (written == written_.end() ||
              !std::ranges::binary_search(op.outputs, s)) {
            continue;
          }
          const auto& [writers, readers] = written->second;
          int32_t last = k;
          for (const int32_t writer : writers) {
            if (writer < call.end) {
              rules.ties.emplace(writer - call.start, k - call.start);
              last = writer;
            } else if (writer < first_request_[c]) {
              rules.unsavable.insert(k - call.start);
            }
          }
          for (const int32_t reader : readers) {
            if (reader < last)
              rules.ties.emplace(reader - call.start, k - call.start);
          }
        }
      }
    }
    return rules;
  }

  // Storages of the forward pass that are written to in place: when, and what
  // reads them, views apart.
  void FindWritten() {
    for (int32_t k = 0; k < trace_.backward_end; ++k)
      for (const int32_t s : trace_.operators[k].mutates)
        written_[s].first.push_back(k);
    for (int32_t k = 0; k < trace_.forward_end; ++k) {
      if (trace_.operators[k].view) continue;
      for (const int32_t s : trace_.operators[k].reads)
        if (const auto found = written_.find(s); found != written_.end())
          found->second.second.push_back(k);
    }
  }

  // Whether PyTorch can run a call again, with a policy.
  bool CanBeUnit(int32_t c) const {
    const TraceCall& call = trace_.calls[c];
    if (call.no_grad) return false;
    for (const int32_t t : call.arguments) {
      const auto written = written_.find(trace_.tensors[t].storage);
      if (written == written_.end()) continue;
      const std::vector<int32_t>& writers = written->second.first;
      const auto next = std::ranges::lower_bound(writers, call.start);
      if (next != writers.end() && *next < first_request_[c]) return false;
    }
    // What it writes to in place and others do after it.
    for (int32_t k = call.start; k < std::min(call.end, last_save_[c]); ++k) {
      for (const int32_t s : trace_.operators[k].mutates) {
        const std::vector<int32_t>& writers = written_.at(s).first;
        const auto next = std::ranges::lower_bound(writers, call.end);
        if (trace_.storages[s].born < call.start && next != writers.end() &&
            *next < first_request_[c])
          return false;
      }
    }
    return !asks_again_[c] && !recasts_[c];
  }

  bool RunSameOperators(const TraceCall& a, const TraceCall& b) const {
    if (&a == &b) return true;
    if (a.end - a.start != b.end - b.start) return false;
    for (int32_t k = 0; k < a.end - a.start; ++k) {
      const TraceOperator& of_a = trace_.operators[a.start + k];
      const TraceOperator& of_b = trace_.operators[b.start + k];
      if (of_a.name != of_b.name || of_a.view != of_b.view ||
          of_a.random != of_b.random)
        return false;
    }
    return true;
  }

  // A call runs again up to its last save.
  int32_t EndOfRecomputation(int32_t c) const {
    return first_request_[c] == kNever ? 0 : last_save_[c];
  }

  // Bytes that saving what an operator returns would add: results of the call
  // that outlive the forward pass are there anyway. What never runs again is
  // not worth saving unless that is free all the time.
  int64_t SavedBytes(int32_t c, int32_t k,
                     const std::vector<int32_t>& results) const {
    const TraceOperator& op = trace_.operators[k];
    const int32_t kept_until =
        k < EndOfRecomputation(c) ? trace_.forward_end + 1 : first_request_[c];
    int64_t bytes = 0;
    for (const int32_t s : op.creates)
      if (std::ranges::binary_search(op.outputs, s) &&
          (trace_.storages[s].freed < kept_until ||
           !std::ranges::binary_search(results, s)))
        bytes += AllocatedBytes(trace_.storages[s].bytes);
    return bytes;
  }

  // Whether autograd has saved all that an operator returns when a call ends.
  bool IsSavedByEndOf(int32_t c, const TraceOperator& op) const {
    return !op.outputs.empty() &&
           std::ranges::all_of(op.outputs, [&](int32_t s) {
             if (first_save_[s] < 0) return false;
             const SavedTensor& saved = trace_.saved[first_save_[s]];
             return saved.packed < trace_.calls[c].end ||
                    (saved.packed == trace_.calls[c].end && saved.call >= c &&
                     saved.call < subtree_end_[c]);
           });
  }

  std::optional<SacStatistics> OperatorsOf(int32_t m) const {
    const std::vector<int32_t>& calls = calls_of_[m];
    const TraceCall& first = trace_.calls[calls.front()];
    for (const int32_t c : calls)
      if (!is_outermost_[c] || !CanBeUnit(c) ||
          !RunSameOperators(first, trace_.calls[c]))
        return std::nullopt;
    const InPlaceRules rules = InPlaceRulesOf(calls);

    SacStatistics sac;
    sac.inplace_ops.assign(rules.ties.begin(), rules.ties.end());
    const auto count = static_cast<size_t>(first.end - first.start);
    sac.func_names.reserve(count);
    sac.runtimes.assign(count, 0);
    sac.memory.assign(count, 0);
    for (int32_t k = first.start; k < first.end; ++k) {
      const TraceOperator& op = trace_.operators[k];
      const int i = k - first.start;
      sac.func_names.emplace_back(ShortName(trace_.operator_names[op.name]));
      if (op.view || rules.unsavable.contains(i))
        sac.view_like_ops.push_back(i);
      if (op.random) sac.rand_ops.push_back(i);
      if (IsSavedByEndOf(calls.front(), op))
        sac.saved_autograd_ops.push_back(i);
    }
    for (const int32_t c : calls) {
      const TraceCall& call = trace_.calls[c];
      const std::vector<int32_t> results = Distinct(call.outputs);
      for (size_t i = 0; i < count; ++i) {
        const int32_t k = call.start + static_cast<int32_t>(i);
        if (k < EndOfRecomputation(c))
          sac.runtimes[i] += trace_.operators[k].runtime_ms;
        sac.memory[i] += SavedBytes(c, k, results);
      }
      if (call.arguments.empty()) sac.force_store_random = true;
    }
    return sac;
  }

  void RequireRepresentable(const Profile& profile) const {
    int64_t total = 0;
    for (const Module& m : profile.modules) {
      for (const int64_t bytes :
           {m.param_per_module, m.grad_per_module, m.act_fw_per_module,
            m.buffer_per_module, m.held_per_module}) {
        total += bytes;
        if (bytes > kMostBytes || total > kMostTotalBytes)
          throw InputError(
              fmt::format("module {}: expected at most 2^53 bytes, and 2^62 of "
                          "all modules, "
                          "found {} and {}",
                          Quoted(m.fqn), bytes, total));
      }
      for (const double ms : {m.fw_runtime_per_module, m.bw_runtime_per_module})
        if (ms > kMostMs)
          throw InputError(
              fmt::format("module {}: expected at most 1e18 ms, found {}",
                          Quoted(m.fqn), ms));
    }
  }

  const Trace& trace_;
  Timeline timeline_;
  RangeMaximum peaks_;
  std::vector<std::vector<int32_t>> calls_of_;  // a module
  std::vector<char> is_outermost_;    // a call: not in another of its module
  std::vector<int32_t> subtree_end_;  // a call
  std::vector<int32_t> post_order_;   // of calls
  // A call: when backward first asks for what was saved in it, and when the
  // last of that was saved.
  std::vector<int32_t> first_request_, last_save_;
  std::vector<int32_t> first_save_;  // a storage, in Trace::saved
  // A call: backward asks twice for something; autocast would cast a weight
  // again.
  std::vector<char> asks_again_, recasts_;
  std::unordered_map<int32_t,
                     std::pair<std::vector<int32_t>, std::vector<int32_t>>>
      written_;
  std::vector<double> forward_ms_, backward_ms_;
  std::vector<int32_t> parent_of_, module_end_;  // a module
  std::vector<int64_t> parameter_bytes_, buffer_bytes_;
};

}  // namespace

Profile Aggregate(const Trace& trace) { return Aggregation(trace).Run(); }

}  // namespace acplan::graph
