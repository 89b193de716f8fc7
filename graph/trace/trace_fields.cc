#include "graph/trace/trace_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

namespace acplan::graph {

int32_t ParseInt(const JsonField& field, int32_t lowest, int32_t highest) {
  return static_cast<int32_t>(field.Int(lowest, highest));
}

int32_t ParseIndex(const JsonField& field, size_t count,
                   std::string_view what) {
  if (count == 0) field.Fail(fmt::format("no entry, as there are no {}", what));
  return ParseInt(field, 0, static_cast<int32_t>(count) - 1);
}

int32_t ParseIndexOrNone(const JsonField& field, size_t count) {
  return ParseInt(field, -1, static_cast<int32_t>(count) - 1);
}

int32_t ParseTimeOrNever(const JsonField& field, int32_t lowest,
                         int32_t highest) {
  if (field.IsNull()) return kNever;
  if (!field.json().is_number())
    field.Fail(fmt::format("a time from {} to {}, or null", lowest, highest));
  return ParseInt(field, lowest, highest);
}

bool ParseFlag(const JsonField& object, std::string_view key) {
  return Optional(object, key, [](const JsonField& f) { return f.Bool(); })
      .value_or(false);
}

std::vector<int32_t> ParseIndices(const JsonField& field, size_t storages) {
  const std::vector<JsonField> elements = field.Elements();
  std::vector<int32_t> indices;
  indices.reserve(elements.size());
  for (const JsonField& element : elements)
    indices.push_back(ParseIndex(element, storages, "storages"));
  return indices;
}

int32_t ParseOptionalTime(const JsonField& object, std::string_view key,
                          int32_t lowest, int32_t highest) {
  return Optional(object, key,
                  [&](const JsonField& f) {
                    return ParseTimeOrNever(f, lowest, highest);
                  })
      .value_or(kNever);
}

void ExpectAlive(const JsonField& field, const TraceStorage& storage,
                 int32_t time) {
  if (time < storage.born)
    field.Fail(fmt::format("a storage born by time {} (this one at {})", time,
                           storage.born));
  if (time > storage.freed)
    field.Fail(fmt::format("a storage alive at time {} (this one freed at {})",
                           time, storage.freed));
}

std::vector<int32_t> ParseLiveIndices(const JsonField& field,
                                      std::span<const TraceStorage> storages,
                                      int32_t time) {
  const std::vector<JsonField> elements = field.Elements();
  std::vector<int32_t> indices;
  indices.reserve(elements.size());
  for (const JsonField& element : elements) {
    indices.push_back(ParseIndex(element, storages.size(), "storages"));
    ExpectAlive(element, storages[indices.back()], time);
  }
  return indices;
}

void ExpectAscent(const JsonField& field, const std::vector<int32_t>& indices) {
  const auto fall =
      std::ranges::adjacent_find(indices, std::ranges::greater_equal());
  if (fall != indices.end())
    field.Elements()[fall - indices.begin() + 1].Fail(
        fmt::format("above {}, as entries ascend", *fall));
}

std::vector<int32_t> ParseAscendingLiveIndices(
    const JsonField& field, std::span<const TraceStorage> storages,
    int32_t time) {
  std::vector<int32_t> indices = ParseLiveIndices(field, storages, time);
  ExpectAscent(field, indices);
  return indices;
}

}  // namespace acplan::graph
