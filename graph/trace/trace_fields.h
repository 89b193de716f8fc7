#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "graph/base/json_fields.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The typed values of a trace file: indices, times, lists. Each function throws
// InputError, as JsonField does, where the value is another one.

inline constexpr std::string_view kTraceFormat = "acplan.trace";
inline constexpr int kTraceVersion = 1;
inline constexpr int64_t kMostMicrobatches = int64_t{1} << 20;

int32_t ParseInt(const JsonField& field, int32_t lowest, int32_t highest);

// An index below `count`; `what` names the entries.
int32_t ParseIndex(const JsonField& field, size_t count, std::string_view what);

// The same, or -1.
int32_t ParseIndexOrNone(const JsonField& field, size_t count);

// A time, or null, which is kNever.
int32_t ParseTimeOrNever(const JsonField& field, int32_t lowest,
                         int32_t highest);

// A time that may be missing, which is kNever, too.
int32_t ParseOptionalTime(const JsonField& object, std::string_view key,
                          int32_t lowest, int32_t highest);

// A boolean that may be missing, which is false.
bool ParseFlag(const JsonField& object, std::string_view key);

// A list of storages.
std::vector<int32_t> ParseIndices(const JsonField& field, size_t storages);

// A list of storages that are alive at a time.
std::vector<int32_t> ParseLiveIndices(const JsonField& field,
                                      std::span<const TraceStorage> storages,
                                      int32_t time);

// The same, ascending.
std::vector<int32_t> ParseAscendingLiveIndices(
    const JsonField& field, std::span<const TraceStorage> storages,
    int32_t time);

// `field` names the storage.
void ExpectAlive(const JsonField& field, const TraceStorage& storage,
                 int32_t time);

// `field` is the list of these indices.
void ExpectAscent(const JsonField& field, const std::vector<int32_t>& indices);

}  // namespace acplan::graph
