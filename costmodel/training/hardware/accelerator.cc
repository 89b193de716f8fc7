#include "costmodel/training/hardware/accelerator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;

// Reads a name, which is printed unchanged.
std::string Name(const JsonField& object) {
  const JsonField field = object.Get("name");
  std::string name = field.String();
  if (graph::HasControls(name))
    field.Fail("a name without control or invisible characters");
  return name;
}

double InRange(const JsonField& field, double least, double most) {
  const double number = field.Number();
  if (number < least || number > most) {
    field.Fail(fmt::format("a number from {:g} to {:g}", least, most));
  }
  return number;
}

// Returns the value of a figure that has a source.
JsonField SourcedValue(const JsonField& object, std::string_view key) {
  const JsonField field = object.Get(key);
  if (field.Get("from").String().empty()) {
    field.Get("from").Fail("the source of the number");
  }
  return field.Get("value");
}

double Sourced(const JsonField& object, std::string_view key, double least,
               double most) {
  return InRange(SourcedValue(object, key), least, most);
}

KernelConstants ReadKernels(const JsonField& field) {
  KernelConstants kernels{
      .tile_overhead = Sourced(field, "tile_overhead", 0, 1e4),
      .idle_share = Sourced(field, "idle_share", 0, 1),
      .small_head_share = Sourced(field, "small_head_share", .01, 1),
      .nvlink_latency = Sourced(field, "nvlink_latency_us", 0, 1e4) * 1e-6};
  const JsonField tiles = SourcedValue(field, "tiles");
  const std::vector<JsonField> rows = tiles.Elements();
  if (rows.size() != kernels.tiles.size()) {
    tiles.Fail(fmt::format("{} sizes of tiles", kernels.tiles.size()));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<JsonField> figures = rows[i].Elements();
    if (figures.size() != 3) rows[i].Fail("rows, columns and share of a tile");
    kernels.tiles.at(i) = {.rows = InRange(figures[0], 1, 1e4),
                           .columns = InRange(figures[1], 1, 1e4),
                           .share = InRange(figures[2], .01, 1)};
  }
  return kernels;
}

Accelerator ReadAccelerator(const JsonField& field) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  const auto share = [&](std::string_view key) {
    return Sourced(field, key, .01, 1);
  };
  return {.name = Name(field),
          .memory = Sourced(field, "memory_gib", 1, 1e4) * kGiB,
          .offer = {},
          .multiprocessors = Sourced(field, "multiprocessors", 1, 1e4),
          .bf16_rate = Sourced(field, "bf16_tflops", 1e-6, 1e6) * 1e12,
          .fp8_rate = Sourced(field, "fp8_tflops", 0, 1e6) * 1e12,
          .fp4_rate = Sourced(field, "fp4_tflops", 0, 1e6) * 1e12,
          .memory_rate = Sourced(field, "memory_gbs", 1e-3, 1e6) * 1e9,
          .nvlink_rate = Sourced(field, "nvlink_gbs", 1e-3, 1e6) * 1e9,
          .host_rate = Sourced(field, "host_gbs", 1e-3, 1e6) * 1e9,
          .nvlink_domain =
              static_cast<int64_t>(Sourced(field, "nvlink_domain", 1, 1e4)),
          .network_rate = Sourced(field, "network_gbs", .01, 1e4) * 1e9,
          .product_share = share("product_share"),
          .fp8_product_share = share("fp8_product_share"),
          .flash_share = share("flash_share"),
          .flash_new_share = share("flash_new_share"),
          .memory_share = share("memory_share"),
          .nvlink_share = share("nvlink_share"),
          .host_factor = Sourced(field, "host_factor", .01, 100)};
}

SoftwareStack ReadStack(const JsonField& field) {
  return {
      .name = Name(field),
      .matches = field.Get("matches").Strings(),
      .host_seconds = Sourced(field, "host_us", 0, 1e4) * 1e-6,
      .elementwise = Sourced(field, "elementwise", .1, 20),
      .network_share = Sourced(field, "network_share", .01, 1),
      .network_latency = Sourced(field, "network_latency_us", 0, 1e4) * 1e-6,
      .iteration_seconds = Sourced(field, "iteration_ms", 0, 1e5) * 1e-3,
      .product_factor = Sourced(field, "product_factor", .1, 2),
      .attention_factor = Sourced(field, "attention_factor", .1, 2),
      .fuses_experts = Sourced(field, "fuses_experts", 0, 1) > .5,
      .hidden_share = Sourced(field, "hidden_share", 0, 1)};
}

std::vector<Accelerator> ReadAccelerators(const JsonField& root) {
  std::vector<Accelerator> accelerators;
  for (const JsonField& field : root.Get("accelerators").Elements()) {
    accelerators.push_back(ReadAccelerator(field));
  }
  return accelerators;
}

// Returns a name in capitals, with hyphens for spaces: RTX-PRO-6000.
std::string Capitals(std::string_view text) {
  std::string capitals(text);
  for (char& letter : capitals) {
    if (letter >= 'a' && letter <= 'z') {
      letter = static_cast<char>(letter - 'a' + 'A');
    }
    if (letter == ' ') letter = '-';
  }
  return capitals;
}

// Returns whether a word of a GPU's name is its memory, its power, its form or the kind of
// its nodes, in capitals: 80GB, 500W, SXM5, NVL72.
bool IsOfVariant(std::string_view word) {
  constexpr std::array<std::string_view, 5> kForms = {"SXM", "PCIE", "OAM",
                                                      "HBM", "NVL"};
  const auto begins = [&](std::string_view form) {
    return word.starts_with(form);
  };
  if (std::ranges::any_of(kForms, begins)) return true;
  const size_t digits = word.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos) return false;
  const std::string_view unit = word.substr(digits);
  return unit == "GB" || unit == "GIB" || unit == "W";
}

// Returns whether a name is that of a GPU followed by words on its variant: H200-141GB.
bool IsVariantOf(std::string_view gpu, std::string_view name) {
  if (!name.starts_with(gpu)) return false;
  for (name.remove_prefix(gpu.size()); !name.empty();) {
    if (name.front() != '-') return false;
    name.remove_prefix(1);
    const std::string_view word = name.substr(0, name.find('-'));
    if (!IsOfVariant(word)) return false;
    name.remove_prefix(word.size());
  }
  return true;
}

}  // namespace

double Accelerator::Rate(ProductPrecision precision) const {
  switch (precision) {
    case ProductPrecision::kBf16:
      return bf16_rate;
    case ProductPrecision::kNvfp4:
      return fp4_rate;
    default:
      return fp8_rate;
  }
}

TrainingSystems ParseTrainingSystems(std::string_view text,
                                     std::string_view file) {
  const nlohmann::json document = graph::ParseJson(text, file);
  const JsonField root(document, std::string(file));
  TrainingSystems systems{.accelerators = ReadAccelerators(root)};
  const JsonField stacks = root.Get("software");
  for (const JsonField& field : stacks.Elements()) {
    systems.stacks.push_back(ReadStack(field));
  }
  if (systems.stacks.empty())
    stacks.Fail("at least one generation of software");
  systems.kernels = ReadKernels(root.Get("kernels"));
  return systems;
}

TrainingSystems ReadTrainingSystems(const std::filesystem::path& path) {
  return ParseTrainingSystems(graph::ReadJsonText(path), path.string());
}

std::vector<Accelerator> ReadOwnAccelerators(
    const std::filesystem::path& path) {
  const std::string file = path.string();
  const nlohmann::json document =
      graph::ParseJson(graph::ReadJsonText(path), file);
  const JsonField root(document, file);
  const JsonField format = root.Get("format");
  if (format.String() != "acplan.system") format.Fail("\"acplan.system\"");
  const JsonField version = root.Get("version");
  if (version.Int(0, INT32_MAX) != 1) version.Fail("1");
  std::vector<Accelerator> accelerators = ReadAccelerators(root);
  if (accelerators.empty()) {
    root.Get("accelerators").Fail("at least one GPU");
  }
  return accelerators;
}

TrainingSystems WithOffers(TrainingSystems systems,
                           const graph::DeviceTable& devices) {
  for (Accelerator& gpu : systems.accelerators) {
    const auto stated_bytes = static_cast<int64_t>(gpu.memory);
    gpu.offer = graph::FindOffer(devices, gpu.name);
    if (!gpu.offer) {
      gpu.offer = graph::OfferOfUnlisted(gpu.name, stated_bytes);
    }
    gpu.offer->capacity_bytes =
        std::min(gpu.offer->capacity_bytes, stated_bytes);
  }
  return systems;
}

const Accelerator& FindAccelerator(const TrainingSystems& systems,
                                   std::string_view name) {
  const std::string capitals = Capitals(name);
  std::vector<std::string> known_names;
  const Accelerator* abbreviated = nullptr;
  const Accelerator* longest = nullptr;
  for (const Accelerator& gpu : systems.accelerators) {
    const std::string known_name = Capitals(gpu.name);
    if (known_name == capitals) return gpu;
    known_names.push_back(known_name);
    if (abbreviated == nullptr && known_name.starts_with(capitals + '-')) {
      abbreviated = &gpu;
    }
    if (IsVariantOf(known_name, capitals) &&
        (longest == nullptr || gpu.name.size() > longest->name.size())) {
      longest = &gpu;
    }
  }
  const Accelerator* best = abbreviated == nullptr ? longest : abbreviated;
  if (best == nullptr) {
    std::vector<std::string> names = known_names;
    for (const std::string& known_name : known_names) {
      names.push_back(known_name.substr(0, known_name.find('-')));
    }
    const auto nearest = graph::NearestNames(capitals, names, 1);
    throw InputError(fmt::format(
        "gpu: expected one of {}, found {}{}", fmt::join(known_names, ", "),
        graph::Quoted(name),
        nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest[0])));
  }
  return *best;
}

const SoftwareStack* MatchingStack(const TrainingSystems& systems,
                                   std::string_view software) {
  const SoftwareStack* best = nullptr;
  size_t longest = 0;
  for (const SoftwareStack& stack : systems.stacks) {
    if (software == stack.name) return &stack;
    for (const std::string& beginning : stack.matches) {
      if (beginning.size() > longest && software.starts_with(beginning)) {
        best = &stack;
        longest = beginning.size();
      }
    }
  }
  return best;
}

std::string ExpectedSoftware(const TrainingSystems& systems,
                             std::string_view software) {
  std::vector<std::string> known_names;
  for (const SoftwareStack& stack : systems.stacks) {
    known_names.insert(known_names.end(), stack.matches.begin(),
                       stack.matches.end());
  }
  const std::vector<std::string> nearest =
      graph::NearestNames(software, known_names, 1);
  return fmt::format(
      "a name that begins with one of {}{}", fmt::join(known_names, ", "),
      nearest.empty() ? "" : " (the nearest: " + nearest[0] + ")");
}

const SoftwareStack& FindStack(const TrainingSystems& systems,
                               std::string_view software) {
  const SoftwareStack* stack = MatchingStack(systems, software);
  if (stack == nullptr) {
    throw InputError(fmt::format("software: expected {}, found {}",
                                 ExpectedSoftware(systems, software),
                                 graph::Quoted(software)));
  }
  return *stack;
}

}  // namespace acplan::costmodel
