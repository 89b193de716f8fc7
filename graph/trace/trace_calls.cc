#include "graph/trace/trace_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "graph/trace/trace_fields.h"

namespace acplan::graph {
namespace {

// `call` has its inputs and its arguments.
std::vector<StorageId> ParseFurtherInputs(const JsonField& field,
                                          const TraceCall& call,
                                          const Trace& trace) {
  std::vector<StorageId> storages;
  for (const JsonField& element : field.Elements()) {
    const auto s =
        ParseId<StorageId>(element, trace.storages.size(), "storages");
    const bool is_input =
        std::ranges::find(call.inputs, s) != call.inputs.end();
    const bool is_argument = std::ranges::any_of(
        call.arguments,
        [&](TensorId t) { return trace.tensors[t].storage == s; });
    const bool is_new = std::ranges::find(storages, s) == storages.end();
    if (!is_input || is_argument || !is_new) {
      element.Fail(
          "a storage among the inputs, of none of the arguments, and each "
          "once");
    }
    storages.push_back(s);
  }
  return storages;
}

TraceCall ParseCall(const JsonField& field, const TraceCalls& before,
                    const Trace& trace) {
  const Time forward_end = trace.forward_end;
  TraceCall call;
  call.module =
      ParseId<ModuleId>(field.Get("module"), trace.modules.size(), "modules");
  const JsonField parent = field.Get("parent");
  call.parent = ParseIdOrNone<CallId>(parent, before.size());
  const JsonField start = field.Get("start");
  call.start = ParseInt(start, 0, forward_end);
  const JsonField end = field.Get("end");
  call.end = ParseInt(end, call.start, forward_end);
  call.inputs = ParseStorageIds(field.Get("inputs"), trace.storages.size());
  call.outputs = ParseStorageIds(field.Get("outputs"), trace.storages.size());
  for (const JsonField& element : field.Get("arguments").Elements()) {
    call.arguments.push_back(
        ParseId<TensorId>(element, trace.tensors.size(), "tensors"));
    const StorageId storage = trace.tensors[call.arguments.back()].storage;
    if (std::ranges::find(call.inputs, storage) == call.inputs.end())
      element.Fail(fmt::format(
          "a tensor of a storage among the inputs (this one: {})", storage));
  }
  if (field.Has("further_inputs")) {
    call.further_inputs =
        ParseFurtherInputs(field.Get("further_inputs"), call, trace);
  }
  call.no_grad = ParseFlag(field, "no_grad");
  std::tie(call.backward_start, call.backward_end) =
      ParsePeriod(field, "backward", "start", forward_end, trace.backward_end);
  std::tie(call.gather_begin, call.gather_end) =
      ParsePeriod(field, "gather", "begin", forward_end, trace.backward_end);

  CallId ancestor = before.last_id();
  CallId sibling = kNone;
  while (ancestor > call.parent) {
    sibling = ancestor;
    ancestor = before[ancestor].parent;
  }
  if (ancestor != call.parent)
    parent.Fail(
        fmt::format("-1, or calls[{}] or a call around it", before.size() - 1));
  if (!before.empty() && call.start < before.back().start)
    start.Fail(fmt::format("at least {}, the start of the call before",
                           before.back().start));
  if (sibling != kNone && call.start < before[sibling].end)
    start.Fail(fmt::format("at least {}, where calls[{}], its sibling, ends",
                           before[sibling].end, sibling));
  if (call.parent != kNone && call.end > before[call.parent].end)
    end.Fail(fmt::format("at most {}, where its parent ends",
                         before[call.parent].end));
  return call;
}

}  // namespace

TraceCalls ParseCalls(const JsonField& field, const Trace& trace) {
  const std::vector<JsonField> elements = field.Elements();
  TraceCalls calls;
  calls.reserve(elements.size());
  for (const JsonField& element : elements)
    calls.push_back(ParseCall(element, calls, trace));
  return calls;
}

InnermostCalls FindInnermostCalls(const TraceCalls& calls, Time operators) {
  InnermostCalls innermost;
  CallId open = kNone;
  CallId next{0};
  for (Time time = 0; time <= operators; ++time) {
    const auto close = [&] {
      while (open != kNone && calls[open].end <= time)
        open = calls[open].parent;
    };
    close();
    innermost.at_time.push_back(open);
    for (; next < calls.end_id() && calls[next].start == time;
         next = Next(next))
      open = next;
    close();
    innermost.of_operator.push_back(open);
  }
  return innermost;
}

int32_t GivenCount(const TraceCall& call) {
  return static_cast<int32_t>(call.arguments.size() +
                              call.further_inputs.size());
}

StorageId GivenStorage(const Trace& trace, const TraceCall& call,
                       int32_t place) {
  const auto arguments = static_cast<int32_t>(call.arguments.size());
  return place < arguments ? trace.tensors[call.arguments[place]].storage
                           : call.further_inputs[place - arguments];
}

}  // namespace acplan::graph
