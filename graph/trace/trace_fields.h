#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/base/json_fields.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The typed values of a trace file: ids, times, lists. Each function throws
// InputError, as JsonField does, if the value is another one.

inline constexpr std::string_view kTraceFormat = "acplan.trace";
inline constexpr int kTraceVersion = 1;
inline constexpr int64_t kMostMicrobatches = int64_t{1} << 20;

using TraceStorages = IndexedVector<StorageId, TraceStorage>;

int32_t ParseInt(const JsonField& field, int32_t lowest, int32_t highest);

// Returns an index below `count`; `what` names the entries.
int32_t ParseIndex(const JsonField& field, size_t count, std::string_view what);

// Returns the id of one of `count` entries; `what` names them.
template <IdType Id>
Id ParseId(const JsonField& field, size_t count, std::string_view what) {
  return Id{ParseIndex(field, count, what)};
}

// Returns the id of one of `count` entries, or kNone for -1.
template <IdType Id>
Id ParseIdOrNone(const JsonField& field, size_t count) {
  return Id{ParseInt(field, -1, static_cast<int32_t>(count) - 1)};
}

// Returns a time; kNever for null.
Time ParseTimeOrNever(const JsonField& field, Time lowest, Time highest);

// Returns a time; kNever for null and if there is none.
Time ParseOptionalTime(const JsonField& object, std::string_view key,
                       Time lowest, Time highest);

// Returns the begin and the end of a part of [lowest, highest], which are `name`_`first`
// and `name`_end of an object; kNever for both if there is none.
std::pair<Time, Time> ParsePeriod(const JsonField& object,
                                  std::string_view name, std::string_view first,
                                  Time lowest, Time highest);

// Returns a boolean; false if there is none.
bool ParseFlag(const JsonField& object, std::string_view key);

// Returns the stream of an object; 0, the default stream, if there is none.
int32_t ParseStream(const JsonField& object);

// Returns a list of operators that have ended by a time; empty if there is none.
std::vector<OperatorId> ParseEarlierOperators(const JsonField& object,
                                              std::string_view key, Time time);

// Returns a list of some of `count` storages.
std::vector<StorageId> ParseStorageIds(const JsonField& field, size_t count);

// Returns a list of storages that are alive at a time.
std::vector<StorageId> ParseLiveStorages(const JsonField& field,
                                         const TraceStorages& storages,
                                         Time time);

// Returns a list of storages that are alive at a time and ascend.
std::vector<StorageId> ParseAscendingLiveStorages(const JsonField& field,
                                                  const TraceStorages& storages,
                                                  Time time);

// Refuses a storage that is not alive at a time. `field` names the storage.
void ExpectAlive(const JsonField& field, const TraceStorage& storage,
                 Time time);

// Refuses the entry at a place of a list, which is not above the one before it.
[[noreturn]] void FailAscent(const JsonField& list, size_t place,
                             int32_t before);

// Refuses ids that do not ascend. `field` is their list.
template <IdType Id>
void ExpectAscent(const JsonField& field, const std::vector<Id>& ids) {
  for (size_t k = 1; k < ids.size(); ++k) {
    if (ids[k] <= ids[k - 1]) FailAscent(field, k, IndexOf(ids[k - 1]));
  }
}

}  // namespace acplan::graph
