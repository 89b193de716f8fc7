#include "graph/trace/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "graph/base/flag.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/base/number_limits.h"
#include "graph/profile/model_json.h"
#include "graph/trace/host_times_json.h"
#include "graph/trace/model_tensors.h"
#include "graph/trace/trace_calls.h"
#include "graph/trace/trace_fields.h"

namespace acplan::graph {
namespace {

StorageCategory ParseCategory(const JsonField& field) {
  const std::string name = field.String();
  std::vector<std::string_view> names;
  for (size_t c = 0; c < kStorageCategories; ++c) {
    const auto category = static_cast<StorageCategory>(c);
    if (ToString(category) == name) return category;
    names.push_back(ToString(category));
  }
  field.Fail(fmt::format("one of {}", fmt::join(names, ", ")));
}

int64_t ParseHostBytes(const JsonField& storage, int64_t device_bytes) {
  if (!storage.Has("host_bytes")) return 0;
  const JsonField field = storage.Get("host_bytes");
  if (device_bytes > 0)
    field.Fail("none for a storage with bytes on the device");
  return field.Bytes();
}

TraceStorage ParseStorage(const JsonField& field, Time forward_end,
                          Time operators) {
  TraceStorage storage;
  storage.bytes = field.Get("bytes").Bytes();
  storage.category = ParseCategory(field.Get("category"));
  const JsonField born = field.Get("born");
  storage.born = ParseIdOrNone<OperatorId>(born, operators);
  const bool is_born_in_forward =
      storage.born != kNone && StartOf(storage.born) < forward_end;
  if (storage.category == StorageCategory::kGradient && is_born_in_forward)
    born.Fail(fmt::format(
        "-1 or at least {}, where the forward pass ends, for a gradient",
        forward_end));
  storage.freed = ParseTimeOrNever(
      field.Get("freed"), std::max(StartOf(storage.born), 0), operators);
  if (is_born_in_forward)
    storage.scope_end = ParseTimeOrNever(field.Get("scope_end"),
                                         StartOf(storage.born), operators);
  else if (field.Has("scope_end"))
    field.Get("scope_end")
        .Fail("none for a storage that is not born in the forward pass");
  storage.stream = ParseStream(field);
  storage.host_bytes = ParseHostBytes(field, storage.bytes);
  return storage;
}

TraceStorages ParseStorages(const JsonField& field, Time forward_end,
                            Time operators) {
  const std::vector<JsonField> elements = field.Elements();
  TraceStorages storages;
  storages.reserve(elements.size());
  int64_t total = 0;
  for (const JsonField& element : elements) {
    storages.push_back(ParseStorage(element, forward_end, operators));
    total += storages.back().bytes;
    if (total > kMostTotalBytes)
      field.Complain("expected at most 2^62 bytes in all, found more");
  }
  return storages;
}

TraceModule ParseModule(const JsonField& field, size_t storages) {
  return {.fqn = ParseFqn(field.Get("fqn")),
          .class_name = field.Get("class").String(),
          .parameters = ParseStorageIds(field.Get("parameters"), storages),
          .buffers = ParseStorageIds(field.Get("buffers"), storages)};
}

std::string_view ParentOf(std::string_view fqn) {
  const size_t dot = fqn.rfind('.');
  return dot == std::string_view::npos ? "" : fqn.substr(0, dot);
}

IndexedVector<ModuleId, TraceModule> ParseModules(const JsonField& field,
                                                  size_t storages) {
  const std::vector<JsonField> elements = field.Elements();
  if (elements.empty()) field.Fail("at least one module");
  IndexedVector<ModuleId, TraceModule> modules;
  for (const JsonField& element : elements)
    modules.push_back(ParseModule(element, storages));

  std::vector<std::string_view> fqns;
  for (const TraceModule& module : modules) fqns.push_back(module.fqn);
  IndexFqns(field, fqns);
  std::vector<std::string_view> open = {fqns[0]};
  for (size_t i = 1; i < fqns.size(); ++i) {
    while (!open.empty() && open.back() != ParentOf(fqns[i])) open.pop_back();
    if (open.empty())
      elements[i].Get("fqn").Fail(
          fmt::format("a child of {} or of a module around it, in pre-order",
                      Quoted(fqns[i - 1])));
    open.push_back(fqns[i]);
  }
  return modules;
}

TraceTensor ParseTensor(const JsonField& field,
                        const IndexedVector<TensorId, TraceTensor>& before,
                        size_t storages, Time operators) {
  TraceTensor tensor;
  tensor.storage =
      ParseId<StorageId>(field.Get("storage"), storages, "storages");
  const JsonField base = field.Get("base");
  tensor.base = ParseIdOrNone<TensorId>(base, before.size());
  if (tensor.base != kNone && before[tensor.base].storage != tensor.storage)
    base.Fail(
        fmt::format("-1 or a tensor of the same storage, {}", tensor.storage));
  tensor.scope_end = ParseTimeOrNever(field.Get("scope_end"), 0, operators);
  return tensor;
}

IndexedVector<TensorId, TraceTensor> ParseTensors(const JsonField& field,
                                                  size_t storages,
                                                  Time operators) {
  const std::vector<JsonField> elements = field.Elements();
  IndexedVector<TensorId, TraceTensor> tensors;
  tensors.reserve(elements.size());
  for (const JsonField& element : elements)
    tensors.push_back(ParseTensor(element, tensors, storages, operators));
  return tensors;
}

std::vector<TensorId> ParseResults(const JsonField& field, OperatorId id,
                                   const TraceOperator& op,
                                   const Trace& trace) {
  const std::vector<JsonField> elements = field.Elements();
  if (!elements.empty() && StartOf(id) >= trace.forward_end)
    field.Fail("none after the forward pass");
  std::vector<TensorId> results;
  for (const JsonField& element : elements) {
    results.push_back(
        ParseId<TensorId>(element, trace.tensors.size(), "tensors"));
    const StorageId storage = trace.tensors[results.back()].storage;
    if (!std::ranges::binary_search(op.outputs, storage))
      element.Fail(fmt::format(
          "a tensor of a storage among the outputs (this one: {})", storage));
  }
  ExpectAscent(field, results);
  return results;
}

// As long as a path may be on Linux.
constexpr size_t kLongestFile = 4096;

SourceLine ParseSource(const JsonField& field) {
  SourceLine source = {.file = field.Get("file").String(),
                       .line = ParseInt(field.Get("line"), 1,
                                        std::numeric_limits<int32_t>::max()),
                       .function = field.Get("function").String()};
  if (source.file.empty() || source.file.size() > kLongestFile) {
    field.Get("file").Fail(
        fmt::format("the name of a file, of 1 to {} bytes", kLongestFile));
  }
  return source;
}

IndexedVector<SourceId, SourceLine> ParseSources(const JsonField& field) {
  IndexedVector<SourceId, SourceLine> sources;
  std::map<std::tuple<std::string, int32_t, std::string>, size_t> places;
  for (const JsonField& element : field.Elements()) {
    const SourceLine source = ParseSource(element);
    const auto [at, is_new] = places.try_emplace(
        {source.file, source.line, source.function}, sources.size());
    if (!is_new) {
      element.Complain(fmt::format(
          "expected a line that no other is, found that of sources[{}]",
          at->second));
    }
    sources.push_back(source);
  }
  return sources;
}

using NameIds = std::unordered_map<std::string_view, OperatorNameId>;

TraceOperator ParseOperator(const JsonField& field, OperatorId id,
                            const NameIds& names, const Trace& trace,
                            CallId innermost_call) {
  TraceOperator op;
  op.name = names.at(field.Get("name").String());
  const JsonField call = field.Get("call");
  op.call = ParseIdOrNone<CallId>(call, trace.calls.size());
  if (op.call != innermost_call)
    call.Fail(fmt::format("{}, the innermost call around it", innermost_call));
  op.runtime_ms = field.Get("runtime_ms").NonNegativeNumber();
  const Time start = StartOf(id);
  op.reads =
      ParseAscendingLiveStorages(field.Get("reads"), trace.storages, start);
  op.creates = ParseStorageIds(field.Get("creates"), trace.storages.size());
  op.outputs =
      ParseAscendingLiveStorages(field.Get("outputs"), trace.storages, start);
  op.mutates = Optional(field, "mutates", [&](const JsonField& f) {
                 return ParseLiveStorages(f, trace.storages, start);
               }).value_or(std::vector<StorageId>());
  op.results = Optional(field, "results", [&](const JsonField& f) {
                 return ParseResults(f, id, op, trace);
               }).value_or(std::vector<TensorId>());
  op.view = ParseFlag(field, "view");
  op.random = ParseFlag(field, "random");
  op.opaque = ParseFlag(field, "opaque");
  op.once = ParseFlag(field, "once");
  op.recasts = ParseEarlierOperators(field, "recasts", start);
  op.source = Optional(field, "source", [&](const JsonField& f) {
                return ParseId<SourceId>(f, trace.sources.size(), "sources");
              }).value_or(kNone);
  op.stream = ParseStream(field);
  op.waits = ParseEarlierOperators(field, "waits", start);
  if (!op.waits.empty()) ExpectAscent(field.Get("waits"), op.waits);
  return op;
}

IndexedVector<OperatorNameId, std::string> DistinctNames(
    std::span<const JsonField> operators) {
  IndexedVector<OperatorNameId, std::string> names;
  std::unordered_set<std::string> earlier;
  for (const JsonField& op : operators) {
    std::string name = op.Get("name").String();
    if (earlier.insert(name).second) names.push_back(std::move(name));
  }
  return names;
}

// `trace` has the names of the operators, the sources, the calls and the
// storages.
IndexedVector<OperatorId, TraceOperator> ParseOperators(
    std::span<const JsonField> elements, const Trace& trace,
    const IndexedVector<OperatorId, CallId>& innermost_calls) {
  NameIds names;
  for (const OperatorNameId n : trace.operator_names.ids())
    names.emplace(trace.operator_names[n], n);
  IndexedVector<OperatorId, TraceOperator> operators;
  operators.reserve(elements.size());
  for (const JsonField& element : elements) {
    const OperatorId op = operators.end_id();
    operators.push_back(
        ParseOperator(element, op, names, trace, innermost_calls[op]));
  }
  return operators;
}

// Throws InputError unless each operator creates exactly what is born in it.
void CheckBirths(std::span<const JsonField> operator_fields,
                 const JsonField& storage_field, const Trace& trace) {
  IndexedVector<StorageId, Flag> is_created(trace.storages.size(), false);
  for (const OperatorId op : trace.operators.ids()) {
    const JsonField& operator_field = operator_fields[IndexOf(op)];
    const std::vector<StorageId>& creates = trace.operators[op].creates;
    for (size_t i = 0; i < creates.size(); ++i) {
      const OperatorId born = trace.storages[creates[i]].born;
      if (born == op && !is_created[creates[i]]) {
        is_created[creates[i]] = true;
        continue;
      }
      const JsonField field = operator_field.Get("creates").Elements()[i];
      if (born == op) field.Fail("a storage that is not listed before");
      field.Fail(fmt::format("a storage born in operator {} (this one: {})", op,
                             born));
    }
  }
  for (const StorageId s : trace.storages.ids())
    if (trace.storages[s].born != kNone && !is_created[s])
      storage_field.Elements()[IndexOf(s)].Get("born").Fail(
          "-1 or an operator that has this storage among its creates");
}

SavedTensor ParseSavedTensor(const JsonField& field, const Trace& trace,
                             const std::vector<CallId>& calls_at_time) {
  const auto end = static_cast<Time>(trace.operators.size());
  SavedTensor saved;
  const JsonField storage = field.Get("storage");
  saved.storage =
      ParseId<StorageId>(storage, trace.storages.size(), "storages");
  const JsonField tensor = field.Get("tensor");
  saved.tensor = ParseIdOrNone<TensorId>(tensor, trace.tensors.size());
  if (saved.tensor != kNone &&
      trace.tensors[saved.tensor].storage != saved.storage)
    tensor.Fail(
        fmt::format("-1 or a tensor of the same storage, {}", saved.storage));
  saved.requires_grad = ParseFlag(field, "requires_grad");
  saved.packed = ParseInt(field.Get("packed"), 0, trace.forward_end);
  ExpectAlive(storage, trace.storages[saved.storage], saved.packed);

  const JsonField call = field.Get("call");
  saved.call = ParseIdOrNone<CallId>(call, trace.calls.size());
  const CallId least = calls_at_time[saved.packed];
  const bool is_around =
      saved.call == kNone || (trace.calls[saved.call].start <= saved.packed &&
                              trace.calls[saved.call].end >= saved.packed);
  if (!is_around || saved.call < least)
    call.Fail(
        fmt::format("{}, the innermost call around time {}, or one that "
                    "starts or ends then",
                    least, saved.packed));

  saved.unpacked = ParseTimeOrNever(field.Get("unpacked"), saved.packed, end);
  const bool is_unpacked = saved.unpacked != kNever;
  const JsonField local_end = field.Get("local_end");
  if (is_unpacked)
    saved.local_end = ParseInt(local_end, saved.unpacked, end);
  else if (!local_end.IsNull())
    local_end.Fail("null, as it is never unpacked");
  saved.released = ParseTimeOrNever(
      field.Get("released"), is_unpacked ? saved.unpacked : saved.packed, end);
  saved.unpacked_again = ParseFlag(field, "unpacked_again");
  return saved;
}

IndexedVector<SavedId, SavedTensor> ParseSaved(
    const JsonField& field, const Trace& trace,
    const std::vector<CallId>& calls_at_time) {
  const std::vector<JsonField> elements = field.Elements();
  IndexedVector<SavedId, SavedTensor> saved;
  saved.reserve(elements.size());
  for (const JsonField& element : elements) {
    const Time last = saved.empty() ? 0 : saved.back().packed;
    saved.push_back(ParseSavedTensor(element, trace, calls_at_time));
    if (saved.back().packed < last)
      element.Get("packed").Fail(
          fmt::format("at least {}, the time of the entry before", last));
  }
  return saved;
}

// Finds the operator whose result each tensor is, if any.
void SetMakers(std::span<const JsonField> operator_fields, Trace& trace) {
  TensorId last = kNone;
  for (const OperatorId op : trace.operators.ids()) {
    for (const TensorId tensor : trace.operators[op].results) {
      if (tensor <= last)
        operator_fields[IndexOf(op)].Get("results").Fail(fmt::format(
            "tensors above {}, as those of operators ascend", last));
      last = tensor;
      trace.tensors[tensor].op = op;
    }
  }
}

}  // namespace

Trace ReadTrace(const std::filesystem::path& path) {
  return ParseTrace(ReadJsonText(path), path.string());
}

Trace ParseTrace(std::string_view text, std::string_view name) {
  const nlohmann::json document = ParseJson(text, name);
  const JsonField root(document, std::string(name));
  RequireFormat(root, kTraceFormat, kTraceVersion);

  Trace trace;
  trace.model = Optional(root, "model", ParseModelInfo).value_or(ModelInfo());
  trace.device =
      Optional(root, "device", ParseDeviceInfo).value_or(DeviceInfo());
  if (root.Has("measured"))
    trace.peak_bytes =
        Optional(root.Get("measured"), "peak_bytes",
                 [](const JsonField& field) { return field.Bytes(); });

  trace.microbatches = Optional(root, "accumulate", [](const JsonField& field) {
                         return field.Int(1, kMostMicrobatches);
                       }).value_or(1);

  const std::vector<JsonField> operators = root.Get("operators").Elements();
  const auto end = static_cast<Time>(operators.size());
  trace.forward_end = ParseInt(root.Get("forward_end"), 0, end);
  trace.backward_end =
      ParseInt(root.Get("backward_end"), trace.forward_end, end);
  const JsonField storages = root.Get("storages");
  trace.storages = ParseStorages(storages, trace.forward_end, end);
  trace.modules = ParseModules(root.Get("modules"), trace.storages.size());
  trace.tensors = ParseTensors(root.Get("tensors"), trace.storages.size(), end);
  trace.calls = ParseCalls(root.Get("calls"), trace);
  const InnermostCalls innermost = FindInnermostCalls(trace.calls, end);
  trace.operator_names = DistinctNames(operators);
  trace.sources = Optional(root, "sources", ParseSources)
                      .value_or(IndexedVector<SourceId, SourceLine>());
  trace.operators = ParseOperators(operators, trace, innermost.of_operator);
  CheckBirths(operators, storages, trace);
  SetMakers(operators, trace);
  trace.saved = ParseSaved(root.Get("saved"), trace, innermost.at_time);
  trace.model_tensors = Optional(
      root, "model_tensors",
      [&](const JsonField& field) { return ParseModelTensors(field, trace); });
  trace.host = Optional(root, "host", ParseHostTimes);
  return trace;
}

}  // namespace acplan::graph
