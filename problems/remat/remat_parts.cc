#include "problems/remat/remat_parts.h"

#include <algorithm>
#include <utility>

namespace acplan::problems {

void RematRows::Wish(const std::optional<RematMoment>& moment) {
  if (!moment) return;
  const bool is_known = std::ranges::find(rows, *moment) != rows.end() ||
                        std::ranges::find(wished, *moment) != wished.end();
  if (!is_known) wished.push_back(*moment);
}

bool RematRows::Add() {
  rows.insert(rows.end(), wished.begin(), wished.end());
  return !std::exchange(wished, {}).empty();
}

std::vector<RematMoment> RematRows::RowsOf(const RematPart& part) const {
  std::vector<RematMoment> part_rows;
  for (const RematMoment& row : rows) {
    const RematCondition* condition = part.On(row);
    if (condition == nullptr || condition->is_met) part_rows.push_back(row);
  }
  return part_rows;
}

std::optional<RematMoment> RematRows::OpenIn(const RematPart& part) const {
  for (const RematMoment& row : rows) {
    if (row.kind == RematMoment::Kind::kAgain && part.On(row) == nullptr)
      return row;
  }
  return std::nullopt;
}

}  // namespace acplan::problems
