#include "graph/trace/trace_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
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

Time ParseTimeOrNever(const JsonField& field, Time lowest, Time highest) {
  if (field.IsNull()) return kNever;
  if (!field.json().is_number())
    field.Fail(fmt::format("a time from {} to {}, or null", lowest, highest));
  return ParseInt(field, lowest, highest);
}

std::pair<Time, Time> ParsePeriod(const JsonField& object,
                                  std::string_view name, std::string_view first,
                                  Time lowest, Time highest) {
  const std::string begin_key = fmt::format("{}_{}", name, first);
  const std::string end_key = fmt::format("{}_end", name);
  const Time begin = ParseOptionalTime(object, begin_key, lowest, highest);
  const Time end =
      ParseOptionalTime(object, end_key, std::min(begin, highest), highest);
  if ((begin == kNever) != (end == kNever)) {
    object.Complain(fmt::format("expected {} and {} or neither, found one",
                                begin_key, end_key));
  }
  return {begin, end};
}

bool ParseFlag(const JsonField& object, std::string_view key) {
  return Optional(object, key, [](const JsonField& f) { return f.Bool(); })
      .value_or(false);
}

int32_t ParseStream(const JsonField& object) {
  return Optional(object, "stream",
                  [](const JsonField& f) {
                    return ParseInt(f, 0, std::numeric_limits<int32_t>::max());
                  })
      .value_or(0);
}

std::vector<OperatorId> ParseEarlierOperators(const JsonField& object,
                                              std::string_view key, Time time) {
  std::vector<OperatorId> operators;
  if (!object.Has(key)) return operators;
  for (const JsonField& element : object.Get(key).Elements()) {
    operators.push_back(ParseId<OperatorId>(element, static_cast<size_t>(time),
                                            "operators before it"));
  }
  return operators;
}

std::vector<StorageId> ParseStorageIds(const JsonField& field, size_t count) {
  const std::vector<JsonField> elements = field.Elements();
  std::vector<StorageId> ids;
  ids.reserve(elements.size());
  for (const JsonField& element : elements)
    ids.push_back(ParseId<StorageId>(element, count, "storages"));
  return ids;
}

Time ParseOptionalTime(const JsonField& object, std::string_view key,
                       Time lowest, Time highest) {
  return Optional(object, key,
                  [&](const JsonField& f) {
                    return ParseTimeOrNever(f, lowest, highest);
                  })
      .value_or(kNever);
}

void ExpectAlive(const JsonField& field, const TraceStorage& storage,
                 Time time) {
  if (time < StartOf(storage.born))
    field.Fail(fmt::format("a storage born by time {} (this one at {})", time,
                           storage.born));
  if (time > storage.freed)
    field.Fail(fmt::format("a storage alive at time {} (this one freed at {})",
                           time, storage.freed));
}

std::vector<StorageId> ParseLiveStorages(const JsonField& field,
                                         const TraceStorages& storages,
                                         Time time) {
  const std::vector<JsonField> elements = field.Elements();
  std::vector<StorageId> ids;
  ids.reserve(elements.size());
  for (const JsonField& element : elements) {
    ids.push_back(ParseId<StorageId>(element, storages.size(), "storages"));
    ExpectAlive(element, storages[ids.back()], time);
  }
  return ids;
}

void FailAscent(const JsonField& list, size_t place, int32_t before) {
  list.Elements()[place].Fail(
      fmt::format("above {}, as entries ascend", before));
}

std::vector<StorageId> ParseAscendingLiveStorages(const JsonField& field,
                                                  const TraceStorages& storages,
                                                  Time time) {
  std::vector<StorageId> ids = ParseLiveStorages(field, storages, time);
  ExpectAscent(field, ids);
  return ids;
}

}  // namespace acplan::graph
