#include "costmodel/calculon/hardware/system.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/number_limits.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;

// The least valid positive number, so that quotients by such numbers stay finite.
constexpr double kLeast = 1e-9;

double Positive(const JsonField& field) {
  const double number = field.Number();
  if (!(number > 0)) field.Fail("a number above 0");
  if (number < kLeast) field.Fail("a number of at least 1e-9");
  return number;
}

// Parses a number in (0, 1].
double Share(const JsonField& field) {
  const double share = Positive(field);
  if (share > 1) field.Fail("a number above 0, at most 1");
  return share;
}

// Parses pairs of a size, in `unit`, and an efficiency.
std::vector<EfficiencyStep> ReadSteps(const JsonField& field, double unit) {
  std::vector<EfficiencyStep> steps;
  for (const JsonField& pair : field.Elements()) {
    const std::vector<JsonField> parts = pair.Elements();
    if (parts.size() != 2) pair.Fail("a size and an efficiency");
    const EfficiencyStep step{parts[0].Number() * unit, Share(parts[1])};
    if (!steps.empty() && step.least_size >= steps.back().least_size) {
      parts[0].Fail("a size below the one before it");
    }
    steps.push_back(step);
  }
  if (steps.empty()) field.Fail("at least one size and its efficiency");
  if (steps.back().least_size > 0) {
    field.Complain(
        fmt::format("expected the last size to be 0, so that no operation is "
                    "left out, found {:g}",
                    steps.back().least_size / unit));
  }
  return steps;
}

Processor ReadProcessor(const JsonField& field) {
  if (!field.json().is_object()) field.Fail("an object");
  Processor processor;
  bool has_any = false;
  for (size_t i = 0; i < kDatatypes; ++i) {
    if (!field.json().contains(kDatatypeNames[i])) continue;
    const JsonField engine = field.Get(kDatatypeNames[i]);
    processor.engines[i] =
        EfficiencyCurve(Positive(engine.Get("tflops")) * 1e12,
                        ReadSteps(engine.Get("gflops_efficiency"), 1e9));
    has_any = true;
  }
  if (!has_any) {
    field.Complain(fmt::format("expected one of the datatypes {}, found none",
                               fmt::join(kDatatypeNames, ", ")));
  }
  return processor;
}

Memory ReadMemory(const JsonField& field) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  return {
      .capacity = field.Get("GiB").NonNegativeNumber() * kGiB,
      .bandwidth = EfficiencyCurve(Positive(field.Get("GBps")) * 1e9,
                                   ReadSteps(field.Get("MB_efficiency"), 1e6))};
}

template <size_t kCount>
void RefuseOthers(const JsonField& field,
                  const std::array<std::string_view, kCount>& known_names) {
  for (const auto& [key, unused] : field.json().items()) {
    if (std::ranges::find(known_names, key) == known_names.end()) {
      field.Get(key).Complain(fmt::format("expected only the keys {}",
                                          fmt::join(known_names, ", ")));
    }
  }
}

NetworkVolume ReadVolume(const JsonField& field, NetworkOperation operation) {
  const std::vector<JsonField> parts = field.Elements();
  if (parts.size() != 2) field.Fail("a scalar and an offset");
  NetworkVolume volume{.scalar = Positive(parts[0])};
  if (operation == NetworkOperation::kPointToPoint) {
    if (!parts[1].IsNull()) parts[1].Fail("null, p2p has no offset");
    return volume;
  }
  volume.offset = parts[1].Number();
  if (volume.offset < -2) parts[1].Fail("an offset of at least -2");
  return volume;
}

Network ReadNetwork(const JsonField& field) {
  constexpr std::array<std::string_view, 7> kKeys = {
      "bandwidth", "efficiency",     "size",           "latency",
      "ops",       "must_be_filled", "processor_usage"};
  Network network;
  network.bandwidth = Positive(field.Get("bandwidth")) * 1e9;
  network.efficiency = Share(field.Get("efficiency"));
  network.size = field.Get("size").Int(0, graph::kMostExactInteger);
  network.latency = field.Get("latency").NonNegativeNumber();
  network.must_be_filled = field.Get("must_be_filled").Bool();
  const JsonField usage = field.Get("processor_usage");
  network.processor_usage = usage.NonNegativeNumber();
  if (network.processor_usage >= 1) usage.Fail("a number from 0 to below 1");
  const JsonField operations = field.Get("ops");
  for (size_t i = 0; i < kNetworkOperations; ++i) {
    network.volumes[i] = ReadVolume(operations.Get(kNetworkOperationNames[i]),
                                    static_cast<NetworkOperation>(i));
  }
  RefuseOthers(operations, kNetworkOperationNames);
  RefuseOthers(field, kKeys);
  return network;
}

bool ReadIsRoofline(const JsonField& field) {
  const std::string mode = field.String();
  if (mode != "roofline" && mode != "no_overlap") {
    field.Fail("\"roofline\" or \"no_overlap\"");
  }
  return mode == "roofline";
}

}  // namespace

System ParseSystem(std::string_view text, std::string_view file) {
  const nlohmann::json document = graph::ParseJson(text, file);
  const JsonField root(document, std::string(file));
  System system;
  system.matrix = ReadProcessor(root.Get("matrix"));
  system.vector = ReadProcessor(root.Get("vector"));
  system.mem1 = ReadMemory(root.Get("mem1"));
  system.mem2 = ReadMemory(root.Get("mem2"));
  system.is_roofline = ReadIsRoofline(root.Get("processing_mode"));
  const JsonField networks = root.Get("networks");
  for (const JsonField& network : networks.Elements()) {
    system.networks.push_back(ReadNetwork(network));
  }
  if (system.networks.empty()) networks.Fail("at least one network");
  return system;
}

System ReadSystem(const std::filesystem::path& path) {
  return ParseSystem(graph::ReadJsonText(path), path.string());
}

}  // namespace acplan::costmodel
