#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/profile/model_json.h"
#include "graph/trace/host_times_json.h"
#include "graph/trace/model_tensors.h"
#include "graph/trace/trace.h"
#include "graph/trace/trace_fields.h"

namespace acplan::graph {
namespace {

// Indexed by StorageCategory.
constexpr std::array<std::string_view, kStorageCategories> kCategoryNames = {
    "parameter", "buffer",     "gradient", "optimizer",
    "input",     "activation", "temporary"};

using Json = nlohmann::ordered_json;

Json TimeJson(Time time) { return time == kNever ? Json() : Json(time); }

Json ModuleJson(const TraceModule& module) {
  return {{"fqn", module.fqn},
          {"class", module.class_name},
          {"parameters", module.parameters},
          {"buffers", module.buffers}};
}

Json CallJson(const TraceCall& call) {
  Json json = {{"module", call.module},  {"parent", call.parent},
               {"start", call.start},    {"end", call.end},
               {"inputs", call.inputs},  {"arguments", call.arguments},
               {"outputs", call.outputs}};
  if (!call.further_inputs.empty()) {
    json["further_inputs"] = call.further_inputs;
  }
  if (call.no_grad) json["no_grad"] = true;
  if (call.backward_start != kNever) {
    json["backward_start"] = call.backward_start;
    json["backward_end"] = call.backward_end;
  }
  if (call.gather_begin != kNever) {
    json["gather_begin"] = call.gather_begin;
    json["gather_end"] = call.gather_end;
  }
  return json;
}

Json OperatorJson(const TraceOperator& op, const std::string& name) {
  Json json = {{"name", name},
               {"call", op.call},
               {"runtime_ms", op.runtime_ms},
               {"reads", op.reads},
               {"creates", op.creates},
               {"outputs", op.outputs}};
  if (!op.results.empty()) json["results"] = op.results;
  if (!op.mutates.empty()) json["mutates"] = op.mutates;
  if (op.view) json["view"] = true;
  if (op.random) json["random"] = true;
  if (op.opaque) json["opaque"] = true;
  if (op.once) json["once"] = true;
  if (!op.recasts.empty()) json["recasts"] = op.recasts;
  if (op.source != kNone) json["source"] = op.source;
  if (op.stream != 0) json["stream"] = op.stream;
  if (!op.waits.empty()) json["waits"] = op.waits;
  return json;
}

Json StorageJson(const TraceStorage& storage, Time forward_end) {
  Json json = {
      {"bytes", storage.bytes},
      {"category", kCategoryNames[static_cast<size_t>(storage.category)]},
      {"born", storage.born},
      {"freed", TimeJson(storage.freed)}};
  if (storage.born != kNone && StartOf(storage.born) < forward_end)
    json["scope_end"] = TimeJson(storage.scope_end);
  if (storage.stream != 0) json["stream"] = storage.stream;
  if (storage.host_bytes != 0) json["host_bytes"] = storage.host_bytes;
  return json;
}

Json TensorJson(const TraceTensor& tensor) {
  return {{"storage", tensor.storage},
          {"base", tensor.base},
          {"scope_end", TimeJson(tensor.scope_end)}};
}

Json SavedJson(const SavedTensor& saved) {
  Json json = {{"storage", saved.storage},
               {"tensor", saved.tensor},
               {"packed", saved.packed},
               {"call", saved.call},
               {"unpacked", TimeJson(saved.unpacked)},
               {"local_end", TimeJson(saved.local_end)},
               {"released", TimeJson(saved.released)}};
  if (saved.requires_grad) json["requires_grad"] = true;
  if (saved.unpacked_again) json["unpacked_again"] = true;
  return json;
}

Json SourceJson(const SourceLine& source) {
  return {{"file", source.file},
          {"line", source.line},
          {"function", source.function}};
}

// One entry a line.
template <typename Id, typename Entry, typename MakeJson>
std::string ArrayText(const IndexedVector<Id, Entry>& entries,
                      MakeJson make_json) {
  if (entries.empty()) return "[]";
  std::string text = "[";
  for (const Entry& entry : entries) {
    text += text.size() == 1 ? "\n" : ",\n";
    text += CompactText(make_json(entry));
  }
  return text + "\n]";
}

}  // namespace

std::string_view ToString(StorageCategory category) {
  return kCategoryNames[static_cast<size_t>(category)];
}

ModuleId FindModule(const Trace& trace, std::string_view fqn) {
  for (const ModuleId m : trace.modules.ids()) {
    if (trace.modules[m].fqn == fqn) return m;
  }
  return kNone;
}

std::string SourceOf(const Trace& trace, OperatorId op) {
  if (op == kNone) return "";
  const SourceId source = trace.operators[op].source;
  if (source == kNone) return "";
  const SourceLine& line = trace.sources[source];
  return fmt::format("{}:{}", OneLine(line.file, line.file.size()), line.line);
}

std::string ToJson(const Trace& trace) {
  Json measured = Json::object();
  if (trace.peak_bytes) measured["peak_bytes"] = *trace.peak_bytes;
  return fmt::format(
      "{{\n\"format\":\"{}\",\n\"version\":{},\n\"model\":{},\n\"device\":{},\n"
      "\"measured\":{},\n{}\"forward_end\":{},\n\"backward_end\":{},\n"
      "\"modules\":{},\n\"calls\":{},\n\"operators\":{},\n\"storages\":{},\n"
      "\"tensors\":{},\n\"saved\":{}{}{}{}\n}}\n",
      kTraceFormat, kTraceVersion, CompactText(ModelInfoJson(trace.model)),
      CompactText(DeviceInfoJson(trace.device)), CompactText(measured),
      trace.microbatches == 1
          ? ""
          : fmt::format("\"accumulate\":{},\n", trace.microbatches),
      trace.forward_end, trace.backward_end,
      ArrayText(trace.modules, ModuleJson), ArrayText(trace.calls, CallJson),
      ArrayText(trace.operators,
                [&](const TraceOperator& op) {
                  return OperatorJson(op, trace.operator_names[op.name]);
                }),
      ArrayText(trace.storages,
                [&](const TraceStorage& storage) {
                  return StorageJson(storage, trace.forward_end);
                }),
      ArrayText(trace.tensors, TensorJson), ArrayText(trace.saved, SavedJson),
      trace.sources.empty()
          ? ""
          : ",\n\"sources\":" + ArrayText(trace.sources, SourceJson),
      trace.model_tensors
          ? ",\n\"model_tensors\":" + CompactText(ToJson(*trace.model_tensors))
          : "",
      trace.host ? ",\n\"host\":" + CompactText(ToJson(*trace.host)) : "");
}

}  // namespace acplan::graph
