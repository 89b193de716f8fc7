#include "graph/device/device_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "graph/base/csv_table.h"
#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"

namespace acplan::graph {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

int64_t BytesOfGib(double gib) { return static_cast<int64_t>(gib * kGib); }

// Returns the letters and digits of a name, in small letters.
std::string KeyOf(std::string_view name) {
  std::string key;
  for (const char c : name) {
    const auto letter = static_cast<unsigned char>(c);
    if (c == ' ' || c == '-' || c == '_') continue;
    key += static_cast<char>(std::tolower(letter));
  }
  return key;
}

std::optional<double> PositiveIfAny(const CsvRow& row,
                                    std::string_view column) {
  if (!row.Has(column)) return std::nullopt;
  return row.Positive(column);
}

DeviceSource SourceOfRow(const CsvRow& row) {
  DeviceSource source{.gpu = row.Stated("gpu"),
                      .aliases = {},
                      .architecture = row.Stated("architecture"),
                      .nominal_gib = row.Positive("nominal_gib"),
                      .capacity_gib = PositiveIfAny(row, "capacity_gib"),
                      .context_gib = PositiveIfAny(row, "context_gib"),
                      .software = row.Text("software"),
                      .source = row.Stated("source")};
  std::istringstream aliases(row.Text("aliases"));
  for (std::string alias; aliases >> alias;) source.aliases.push_back(alias);
  if (source.capacity_gib.value_or(0) > source.nominal_gib) {
    row.Fail("capacity_gib", "at most nominal_gib");
  }
  if (source.context_gib &&
      *source.context_gib >= source.capacity_gib.value_or(0)) {
    row.Fail("context_gib", "less than capacity_gib");
  }
  return source;
}

bool IsNamed(const DeviceSource& source, const std::string& key) {
  return KeyOf(source.gpu) == key ||
         std::ranges::any_of(source.aliases, [&](const std::string& alias) {
           return KeyOf(alias) == key;
         });
}

DeviceOffer OfferOfGpu(const DeviceTable& table, const DeviceSource& of_gpu) {
  std::optional<double> capacity;
  std::optional<double> context;
  for (const DeviceSource& source : table.sources) {
    if (source.architecture != of_gpu.architecture) continue;
    if (source.context_gib) {
      context = std::max(context.value_or(0), *source.context_gib);
    }
    if (source.gpu == of_gpu.gpu && source.capacity_gib) {
      capacity =
          std::min(capacity.value_or(of_gpu.nominal_gib), *source.capacity_gib);
    }
  }
  return {.gpu = of_gpu.gpu,
          .architecture = of_gpu.architecture,
          .capacity_bytes = BytesOfGib(
              capacity.value_or(kShareOfNominal * of_gpu.nominal_gib)),
          .context_bytes = BytesOfGib(context.value_or(kDefaultContextGib)),
          .has_capacity = capacity.has_value(),
          .has_context = context.has_value()};
}

}  // namespace

DeviceTable ParseDeviceTable(std::string_view text, std::string_view file) {
  const CsvTable csv = ParseCsv(text, file);
  DeviceTable table;
  for (size_t i = 0; i < csv.rows.size(); ++i) {
    const CsvRow row(csv, i);
    DeviceSource source = SourceOfRow(row);
    for (const DeviceSource& other : table.sources) {
      if (other.gpu != source.gpu) continue;
      if (other.nominal_gib != source.nominal_gib) {
        row.Fail("nominal_gib", "that of the GPU's other rows");
      }
      if (other.architecture != source.architecture) {
        row.Fail("architecture", "that of the GPU's other rows");
      }
    }
    table.sources.push_back(std::move(source));
  }
  return table;
}

DeviceTable ReadDeviceTable(const std::filesystem::path& path) {
  return ParseDeviceTable(ReadJsonText(path), path.string());
}

std::optional<DeviceOffer> FindOffer(const DeviceTable& table,
                                     std::string_view name) {
  const std::string key = KeyOf(name);
  const auto first = std::ranges::find_if(
      table.sources,
      [&](const DeviceSource& source) { return IsNamed(source, key); });
  if (first == table.sources.end()) return std::nullopt;
  return OfferOfGpu(table, *first);
}

DeviceOffer OfferOf(const DeviceTable& table, std::string_view name,
                    std::string_view what) {
  if (const auto offer = FindOffer(table, name)) return *offer;
  const std::vector<std::string> names = DeviceNames(table);
  const std::vector<std::string> near = NearestNames(KeyOf(name), names, 1);
  throw InputError(fmt::format(
      "{}: expected a size (24GiB) or a GPU ({}), found {}{}", what,
      fmt::join(names, ", "), Quoted(name, 100),
      near.empty() ? "" : fmt::format("; did you mean {}?", near[0])));
}

DeviceOffer OfferOfUnlisted(std::string_view gpu, int64_t capacity_bytes) {
  return {.gpu = std::string(gpu),
          .architecture = "",
          .capacity_bytes = capacity_bytes,
          .context_bytes = BytesOfGib(kDefaultContextGib),
          .has_capacity = true,
          .has_context = false};
}

std::vector<std::string> DeviceNames(const DeviceTable& table) {
  std::vector<std::string> names;
  for (const DeviceSource& source : table.sources) {
    if (std::ranges::find(names, source.gpu) == names.end()) {
      names.push_back(source.gpu);
    }
  }
  return names;
}

}  // namespace acplan::graph
