#include "costmodel/training/confidence/error_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace acplan::costmodel {
namespace {

using graph::CsvRow;

constexpr std::array<std::string_view, kRunSizes> kSizeColumns = {
    "active_parameters", "seq", "gpus", "tp", "pp", "cp", "ep", "fsdp", "mbs"};

constexpr std::array<std::string_view, 4> kLeftOutNames = {
    "nothing", "group", "source", "generation"};
constexpr std::array<std::string_view, 3> kWidthNames = {"16", "8", "4"};
constexpr std::array<std::string_view, 3> kRecomputedNames = {"none", "some",
                                                              "all"};

// Returns the value whose name is in a cell.
template <typename Value>
Value ValueNamed(const CsvRow& row, std::string_view column,
                 std::span<const std::string_view> names) {
  const auto place = std::ranges::find(names, row.Text(column));
  if (place == names.end()) {
    row.Fail(column, fmt::format("one of {}", fmt::join(names, ", ")));
  }
  return static_cast<Value>(place - names.begin());
}

template <typename Value>
std::string_view NameOf(Value value, std::span<const std::string_view> names) {
  return names[static_cast<size_t>(value)];
}

std::string TextOf(const CsvRow& row, std::string_view column) {
  if (!row.Has(column)) row.Fail(column, "a name");
  return row.Text(column);
}

RunError ReadError(const CsvRow& row) {
  RunError error{.id = TextOf(row, "id"),
                 .source = TextOf(row, "source"),
                 .group = TextOf(row, "group"),
                 .ratio = row.Positive("measured_by_predicted")};
  error.left_out = ValueNamed<LeftOut>(row, "left_out", kLeftOutNames);
  RunKind& kind = error.kind;
  kind.gpu = TextOf(row, "gpu");
  kind.software = TextOf(row, "software");
  kind.width = ValueNamed<ProductWidth>(row, "bits", kWidthNames);
  kind.has_experts = row.Whole("experts", 0) > 0;
  kind.recomputed =
      ValueNamed<RecomputedPart>(row, "recomputed", kRecomputedNames);
  for (size_t i = 0; i < kRunSizes; ++i) {
    kind.sizes[i] = std::log2(row.Positive(kSizeColumns[i]));
  }
  kind.is_wide = row.Whole("wide", 0) > 0;
  kind.host = row.PositiveOr("host", 0);
  kind.communication = row.PositiveOr("communication", 0);
  kind.bubble = row.PositiveOr("bubble", 0);
  return error;
}

// Returns a share as a cell: empty if it rounds to 0.
std::string ShareCell(double share) {
  return share < 5e-5 ? "" : fmt::format("{:.4f}", share);
}

std::string RowOf(const RunError& error) {
  const RunKind& kind = error.kind;
  std::string text = fmt::format(
      "{},{},{},{},{},{},{},{},{}", graph::CsvCell(error.id),
      graph::CsvCell(error.source), graph::CsvCell(error.group),
      NameOf(error.left_out, kLeftOutNames), graph::CsvCell(kind.gpu),
      graph::CsvCell(kind.software), NameOf(kind.width, kWidthNames),
      kind.has_experts ? 1 : 0, NameOf(kind.recomputed, kRecomputedNames));
  for (const double size : kind.sizes) {
    text += fmt::format(",{:.6g}", std::exp2(size));
  }
  return text + fmt::format(",{},{},{},{},{:.4f}\n", ShareCell(kind.host),
                            ShareCell(kind.communication),
                            ShareCell(kind.bubble), kind.is_wide ? 1 : 0,
                            error.ratio);
}

}  // namespace

bool IsErrorTable(const graph::CsvTable& table) {
  return table.places.contains("measured_by_predicted");
}

std::vector<RunError> ReadRunErrors(const graph::CsvTable& table) {
  std::vector<RunError> errors;
  for (size_t i = 0; i < table.rows.size(); ++i) {
    errors.push_back(ReadError(CsvRow(table, i)));
  }
  return errors;
}

std::string RunErrorsCsv(std::span<const RunError> errors) {
  std::string text = fmt::format(
      "id,source,group,left_out,gpu,software,bits,experts,recomputed,{},host,"
      "communication,bubble,wide,measured_by_predicted\n",
      fmt::join(kSizeColumns, ","));
  for (const RunError& error : errors) text += RowOf(error);
  return text;
}

}  // namespace acplan::costmodel
