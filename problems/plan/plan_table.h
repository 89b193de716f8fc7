#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "problems/plan/plan.h"

namespace acplan::problems {

// Plans for inputs of several lengths, and the file `acplan.plan_table`, version 1
// (docs/file_formats.md).

// The plan for the lengths above the entry before, up to this one.
struct TableEntry {
  int64_t longest = 0;
  Plan plan;  // its statements are about a step of that length

  bool IsFor(int64_t length) const { return length <= longest; }
};

struct PlanTable {
  std::string model;
  int64_t memory_bytes = 0;  // of the device, with the reserve
  int64_t reserve_bytes = 0;
  std::vector<TableEntry> entries = {};  // ascending, at least one
  PlanDevice device = {};                // of the run of all batches
  // The most plans that the table was allowed to have.
  int64_t most_plans = 1;
  // The lengths that an entry might end with, ascending.
  std::vector<int64_t> switches = {};
  // Means over the batches of training: of operators that run again; what no
  // table recomputes less than, that ends its entries at `switches` and whose live
  // bytes are at most what the device has.
  double recompute_ms = 0;
  double bound_ms = 0;
  double seconds = 0;  // of the search

  // Returns (recompute - bound) / recompute; 0 where nothing runs again.
  double Gap() const;

  // Returns the entry for a length; the last one for what is longer than all.
  const TableEntry& EntryFor(int64_t length) const;
};

// Returns whether a file's text has the format's name.
bool IsPlanTable(std::string_view text);

// Reads a table (.json or .json.gz). Throws InputError as ReadPlan, and for entries
// that do not ascend or none.
PlanTable ReadPlanTable(const std::filesystem::path& path);
PlanTable ParsePlanTable(std::string_view text, std::string_view name);

// Returns the text of the file, numbers in full precision.
std::string ToJson(const PlanTable& table);

}  // namespace acplan::problems
