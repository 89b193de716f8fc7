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

#include "graph/base/file_io.h"
#include "graph/base/json_fields.h"
#include "graph/base/message_text.h"
#include "graph/base/number_limits.h"
#include "graph/profile/model_json.h"
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

TraceStorage ParseStorage(const JsonField& field, int32_t forward_end,
                          int32_t operators) {
  TraceStorage storage;
  storage.bytes = field.Get("bytes").Bytes();
  storage.category = ParseCategory(field.Get("category"));
  const JsonField born = field.Get("born");
  storage.born = ParseInt(born, -1, operators - 1);
  const bool is_born_in_forward =
      storage.born != -1 && storage.born < forward_end;
  if (storage.category == StorageCategory::kGradient && is_born_in_forward)
    born.Fail(fmt::format(
        "-1 or at least {}, where the forward pass ends, for a gradient",
        forward_end));
  storage.freed = ParseTimeOrNever(field.Get("freed"),
                                   std::max(storage.born, 0), operators);
  if (is_born_in_forward)
    storage.scope_end =
        ParseTimeOrNever(field.Get("scope_end"), storage.born, operators);
  else if (field.Has("scope_end"))
    field.Get("scope_end")
        .Fail("none for a storage that is not born in the forward pass");
  return storage;
}

std::vector<TraceStorage> ParseStorages(const JsonField& field,
                                        int32_t forward_end,
                                        int32_t operators) {
  const std::vector<JsonField> elements = field.Elements();
  std::vector<TraceStorage> storages;
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
          .parameters = ParseIndices(field.Get("parameters"), storages),
          .buffers = ParseIndices(field.Get("buffers"), storages)};
}

std::string_view ParentOf(std::string_view fqn) {
  const size_t dot = fqn.rfind('.');
  return dot == std::string_view::npos ? "" : fqn.substr(0, dot);
}

std::vector<TraceModule> ParseModules(const JsonField& field, size_t storages) {
  const std::vector<JsonField> elements = field.Elements();
  if (elements.empty()) field.Fail("at least one module");
  std::vector<TraceModule> modules;
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
                        std::span<const TraceTensor> before, size_t storages,
                        int32_t operators) {
  TraceTensor tensor;
  tensor.storage = ParseIndex(field.Get("storage"), storages, "storages");
  const JsonField base = field.Get("base");
  tensor.base = ParseIndexOrNone(base, before.size());
  if (tensor.base != -1 && before[tensor.base].storage != tensor.storage)
    base.Fail(
        fmt::format("-1 or a tensor of the same storage, {}", tensor.storage));
  tensor.scope_end = ParseTimeOrNever(field.Get("scope_end"), 0, operators);
  return tensor;
}

std::vector<TraceTensor> ParseTensors(const JsonField& field, size_t storages,
                                      int32_t operators) {
  const std::vector<JsonField> elements = field.Elements();
  std::vector<TraceTensor> tensors;
  tensors.reserve(elements.size());
  for (const JsonField& element : elements)
    tensors.push_back(ParseTensor(element, tensors, storages, operators));
  return tensors;
}

TraceCall ParseCall(const JsonField& field, std::span<const TraceCall> before,
                    const Trace& trace) {
  const int32_t forward_end = trace.forward_end;
  TraceCall call;
  call.module =
      ParseIndex(field.Get("module"), trace.modules.size(), "modules");
  const JsonField parent = field.Get("parent");
  call.parent = ParseIndexOrNone(parent, before.size());
  const JsonField start = field.Get("start");
  call.start = ParseInt(start, 0, forward_end);
  const JsonField end = field.Get("end");
  call.end = ParseInt(end, call.start, forward_end);
  call.inputs = ParseIndices(field.Get("inputs"), trace.storages.size());
  call.outputs = ParseIndices(field.Get("outputs"), trace.storages.size());
  for (const JsonField& element : field.Get("arguments").Elements()) {
    call.arguments.push_back(
        ParseIndex(element, trace.tensors.size(), "tensors"));
    const int32_t storage = trace.tensors[call.arguments.back()].storage;
    if (std::ranges::find(call.inputs, storage) == call.inputs.end())
      element.Fail(fmt::format(
          "a tensor of a storage among the inputs (this one: {})", storage));
  }
  call.no_grad = ParseFlag(field, "no_grad");
  call.backward_start = ParseOptionalTime(field, "backward_start", forward_end,
                                          trace.backward_end);
  call.backward_end = ParseOptionalTime(
      field, "backward_end", std::min(call.backward_start, trace.backward_end),
      trace.backward_end);
  if ((call.backward_start == kNever) != (call.backward_end == kNever))
    field.Complain(
        "expected backward_start and backward_end or neither, found one");

  int32_t ancestor = static_cast<int32_t>(before.size()) - 1;
  int32_t sibling = -1;
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
  if (sibling != -1 && call.start < before[sibling].end)
    start.Fail(fmt::format("at least {}, where calls[{}], its sibling, ends",
                           before[sibling].end, sibling));
  if (call.parent != -1 && call.end > before[call.parent].end)
    end.Fail(fmt::format("at most {}, where its parent ends",
                         before[call.parent].end));
  return call;
}

// `trace` has the modules, the storages, the tensors and the ends of the
// passes.
std::vector<TraceCall> ParseCalls(const JsonField& field, const Trace& trace) {
  const std::vector<JsonField> elements = field.Elements();
  std::vector<TraceCall> calls;
  calls.reserve(elements.size());
  for (const JsonField& element : elements)
    calls.push_back(ParseCall(element, calls, trace));
  return calls;
}

// Innermost calls, -1 where there is none.
struct InnermostCalls {
  std::vector<int32_t> of_operator;  // that runs the operator
  std::vector<int32_t> at_time;      // that starts before and ends after
};

InnermostCalls FindInnermostCalls(std::span<const TraceCall> calls,
                                  int32_t operators) {
  InnermostCalls innermost;
  int32_t open = -1;
  size_t next = 0;
  for (int32_t time = 0; time <= operators; ++time) {
    const auto close = [&] {
      while (open != -1 && calls[open].end <= time) open = calls[open].parent;
    };
    close();
    innermost.at_time.push_back(open);
    for (; next < calls.size() && calls[next].start == time; ++next)
      open = static_cast<int32_t>(next);
    close();
    innermost.of_operator.push_back(open);
  }
  return innermost;
}

std::vector<int32_t> ParseResults(const JsonField& field, int32_t index,
                                  const TraceOperator& op, const Trace& trace) {
  const std::vector<JsonField> elements = field.Elements();
  if (!elements.empty() && index >= trace.forward_end)
    field.Fail("none after the forward pass");
  std::vector<int32_t> results;
  for (const JsonField& element : elements) {
    results.push_back(ParseIndex(element, trace.tensors.size(), "tensors"));
    const int32_t storage = trace.tensors[results.back()].storage;
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

std::vector<SourceLine> ParseSources(const JsonField& field) {
  std::vector<SourceLine> sources;
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

using NameIndex = std::unordered_map<std::string_view, int32_t>;

TraceOperator ParseOperator(const JsonField& field, int32_t index,
                            const NameIndex& names, const Trace& trace,
                            int32_t innermost_call) {
  TraceOperator op;
  op.name = names.at(field.Get("name").String());
  const JsonField call = field.Get("call");
  op.call = ParseIndexOrNone(call, trace.calls.size());
  if (op.call != innermost_call)
    call.Fail(fmt::format("{}, the innermost call around it", innermost_call));
  op.runtime_ms = field.Get("runtime_ms").NonNegativeNumber();
  op.reads =
      ParseAscendingLiveIndices(field.Get("reads"), trace.storages, index);
  op.creates = ParseIndices(field.Get("creates"), trace.storages.size());
  op.outputs =
      ParseAscendingLiveIndices(field.Get("outputs"), trace.storages, index);
  op.mutates = Optional(field, "mutates", [&](const JsonField& f) {
                 return ParseLiveIndices(f, trace.storages, index);
               }).value_or(std::vector<int32_t>());
  op.results = Optional(field, "results", [&](const JsonField& f) {
                 return ParseResults(f, index, op, trace);
               }).value_or(std::vector<int32_t>());
  op.view = ParseFlag(field, "view");
  op.random = ParseFlag(field, "random");
  op.opaque = ParseFlag(field, "opaque");
  op.recasts =
      Optional(field, "recasts", [&](const JsonField& f) {
        std::vector<int32_t> recasts;
        for (const JsonField& element : f.Elements())
          recasts.push_back(ParseIndex(element, index, "operators before it"));
        return recasts;
      }).value_or(std::vector<int32_t>());
  op.source = Optional(field, "source", [&](const JsonField& f) {
                return ParseIndex(f, trace.sources.size(), "sources");
              }).value_or(-1);
  return op;
}

std::vector<std::string> DistinctNames(std::span<const JsonField> operators) {
  std::vector<std::string> names;
  std::unordered_set<std::string> seen;
  for (const JsonField& op : operators) {
    std::string name = op.Get("name").String();
    if (seen.insert(name).second) names.push_back(std::move(name));
  }
  return names;
}

// `trace` has the names of the operators, the sources, the calls and the
// storages.
std::vector<TraceOperator> ParseOperators(
    std::span<const JsonField> elements, const Trace& trace,
    const std::vector<int32_t>& innermost_calls) {
  NameIndex names;
  for (const std::string& name : trace.operator_names)
    names.emplace(name, static_cast<int32_t>(names.size()));
  std::vector<TraceOperator> operators;
  operators.reserve(elements.size());
  for (size_t k = 0; k < elements.size(); ++k)
    operators.push_back(ParseOperator(elements[k], static_cast<int32_t>(k),
                                      names, trace, innermost_calls[k]));
  return operators;
}

// Throws InputError unless each operator creates exactly what is born in it.
void CheckBirths(std::span<const JsonField> operator_fields,
                 const JsonField& storage_field, const Trace& trace) {
  std::vector<bool> created(trace.storages.size(), false);
  for (size_t k = 0; k < trace.operators.size(); ++k) {
    const std::vector<int32_t>& creates = trace.operators[k].creates;
    for (size_t i = 0; i < creates.size(); ++i) {
      const int32_t born = trace.storages[creates[i]].born;
      if (born == static_cast<int32_t>(k) && !created[creates[i]]) {
        created[creates[i]] = true;
        continue;
      }
      const JsonField field = operator_fields[k].Get("creates").Elements()[i];
      if (born == static_cast<int32_t>(k))
        field.Fail("a storage that is not listed before");
      field.Fail(
          fmt::format("a storage born in operator {} (this one: {})", k, born));
    }
  }
  for (size_t i = 0; i < trace.storages.size(); ++i)
    if (trace.storages[i].born != -1 && !created[i])
      storage_field.Elements()[i].Get("born").Fail(
          "-1 or an operator that has this storage among its creates");
}

SavedTensor ParseSavedTensor(const JsonField& field, const Trace& trace,
                             const std::vector<int32_t>& calls_at_time) {
  const int32_t end = static_cast<int32_t>(trace.operators.size());
  SavedTensor saved;
  const JsonField storage = field.Get("storage");
  saved.storage = ParseIndex(storage, trace.storages.size(), "storages");
  const JsonField tensor = field.Get("tensor");
  saved.tensor = ParseIndexOrNone(tensor, trace.tensors.size());
  if (saved.tensor != -1 &&
      trace.tensors[saved.tensor].storage != saved.storage)
    tensor.Fail(
        fmt::format("-1 or a tensor of the same storage, {}", saved.storage));
  saved.requires_grad = ParseFlag(field, "requires_grad");
  saved.packed = ParseInt(field.Get("packed"), 0, trace.forward_end);
  ExpectAlive(storage, trace.storages[saved.storage], saved.packed);

  const JsonField call = field.Get("call");
  saved.call = ParseIndexOrNone(call, trace.calls.size());
  const int32_t least = calls_at_time[saved.packed];
  const bool is_around =
      saved.call == -1 || (trace.calls[saved.call].start <= saved.packed &&
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

std::vector<SavedTensor> ParseSaved(const JsonField& field, const Trace& trace,
                                    const std::vector<int32_t>& calls_at_time) {
  const std::vector<JsonField> elements = field.Elements();
  std::vector<SavedTensor> saved;
  saved.reserve(elements.size());
  for (const JsonField& element : elements) {
    const int32_t last = saved.empty() ? 0 : saved.back().packed;
    saved.push_back(ParseSavedTensor(element, trace, calls_at_time));
    if (saved.back().packed < last)
      element.Get("packed").Fail(
          fmt::format("at least {}, the time of the entry before", last));
  }
  return saved;
}

// By tensor: the operator whose result it is, or -1.
std::vector<int32_t> FindMakers(std::span<const JsonField> operator_fields,
                                const Trace& trace) {
  std::vector<int32_t> makers(trace.tensors.size(), -1);
  int32_t last = -1;
  for (size_t k = 0; k < trace.operators.size(); ++k) {
    for (const int32_t tensor : trace.operators[k].results) {
      if (tensor <= last)
        operator_fields[k].Get("results").Fail(fmt::format(
            "tensors above {}, as those of operators ascend", last));
      last = tensor;
      makers[tensor] = static_cast<int32_t>(k);
    }
  }
  return makers;
}

}  // namespace

Trace ReadTrace(const std::filesystem::path& path) {
  return ParseTrace(ReadFile(path), path.string());
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

  trace.microbatches =
      Optional(root, "accumulate", [](const JsonField& field) {
        return field.Int(1, kMostMicrobatches);
      }).value_or(1);

  const std::vector<JsonField> operators = root.Get("operators").Elements();
  const int32_t end = static_cast<int32_t>(operators.size());
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
                      .value_or(std::vector<SourceLine>());
  trace.operators = ParseOperators(operators, trace, innermost.of_operator);
  CheckBirths(operators, storages, trace);
  const std::vector<int32_t> makers = FindMakers(operators, trace);
  for (size_t t = 0; t < makers.size(); ++t) trace.tensors[t].op = makers[t];
  trace.saved = ParseSaved(root.Get("saved"), trace, innermost.at_time);
  return trace;
}

}  // namespace acplan::graph
