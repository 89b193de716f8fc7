#include "graph/trace/model_tensors.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "graph/trace/trace_fields.h"

namespace acplan::graph {
namespace {

ModelTensor ParseModelTensor(const JsonField& field, const Trace& trace) {
  return {.storage = ParseId<StorageId>(field.Get("storage"),
                                        trace.storages.size(), "storages"),
          .bytes = field.Get("bytes").Bytes(),
          .dtype = field.Get("dtype").String(),
          .trained = ParseFlag(field, "trained")};
}

std::vector<ReadyGradient> ParseGradients(const JsonField& field,
                                          size_t parameters,
                                          const Trace& trace) {
  std::vector<ReadyGradient> gradients;
  std::set<int32_t> has_gradient;
  Time earliest = trace.forward_end;
  for (const JsonField& element : field.Elements()) {
    ReadyGradient gradient;
    const JsonField parameter = element.Get("parameter");
    gradient.parameter = ParseIndex(parameter, parameters, "parameters");
    if (!has_gradient.insert(gradient.parameter).second) {
      parameter.Fail("a parameter that no earlier gradient has");
    }
    gradient.ready =
        ParseInt(element.Get("ready"), earliest, trace.backward_end);
    earliest = gradient.ready;
    const JsonField storage = element.Get("storage");
    gradient.storage =
        ParseId<StorageId>(storage, trace.storages.size(), "storages");
    ExpectAlive(storage, trace.storages[gradient.storage], gradient.ready);
    gradients.push_back(gradient);
  }
  return gradients;
}

std::vector<ModelTensor> ParseList(const JsonField& field, const Trace& trace) {
  std::vector<ModelTensor> tensors;
  for (const JsonField& element : field.Elements()) {
    tensors.push_back(ParseModelTensor(element, trace));
  }
  return tensors;
}

nlohmann::ordered_json ListJson(const std::vector<ModelTensor>& tensors) {
  auto list = nlohmann::ordered_json::array();
  for (const ModelTensor& tensor : tensors) {
    nlohmann::ordered_json json = {{"storage", tensor.storage},
                                   {"bytes", tensor.bytes},
                                   {"dtype", tensor.dtype}};
    if (tensor.trained) json["trained"] = true;
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

ModelTensors ParseModelTensors(const JsonField& field, const Trace& trace) {
  ModelTensors tensors{.parameters = ParseList(field.Get("parameters"), trace),
                       .buffers = ParseList(field.Get("buffers"), trace),
                       .gradients = {}};
  tensors.gradients =
      ParseGradients(field.Get("gradients"), tensors.parameters.size(), trace);
  return tensors;
}

nlohmann::ordered_json ToJson(const ModelTensors& tensors) {
  auto gradients = nlohmann::ordered_json::array();
  for (const ReadyGradient& gradient : tensors.gradients) {
    gradients.push_back({{"parameter", gradient.parameter},
                         {"storage", gradient.storage},
                         {"ready", gradient.ready}});
  }
  return {{"parameters", ListJson(tensors.parameters)},
          {"buffers", ListJson(tensors.buffers)},
          {"gradients", std::move(gradients)}};
}

}  // namespace acplan::graph
