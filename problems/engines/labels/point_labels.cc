#include "problems/engines/labels/point_labels.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace acplan::problems {

PointLabels Envelope(std::span<const PointLabel> a,
                     std::span<const PointLabel> b) {
  PointLabels merged;
  merged.reserve(a.size() + b.size());
  size_t i = a.size();
  size_t j = b.size();
  int64_t least = std::numeric_limits<int64_t>::max();
  const auto offer = [&](const PointLabel& next) {
    if (next.ticks >= least) return;
    least = next.ticks;
    merged.push_back(next);
  };
  while (i > 0 && j > 0) {
    const PointLabel& x = a[i - 1];
    const PointLabel& y = b[j - 1];
    const bool takes_x =
        x.bytes > y.bytes || (x.bytes == y.bytes && x.ticks <= y.ticks);
    offer(takes_x ? x : y);
    takes_x ? --i : --j;
  }
  for (; i > 0; --i) offer(a[i - 1]);
  for (; j > 0; --j) offer(b[j - 1]);
  std::ranges::reverse(merged);
  return merged;
}

void CutTo(int64_t need, PointLabels& labels) {
  labels.erase(labels.begin(),
               std::ranges::lower_bound(labels, need, {}, &PointLabel::bytes));
}

void CapAt(int64_t need, PointLabels& labels) {
  const auto enough =
      std::ranges::lower_bound(labels, need, {}, &PointLabel::bytes);
  if (enough != labels.end()) labels.erase(enough + 1, labels.end());
}

void DropDearerCounts(std::vector<PointLabels>& lists) {
  if (lists.size() <= 1) return;
  PointLabels least = lists[0];
  for (size_t k = 1; k < lists.size(); ++k) {
    PointLabels better;
    for (const PointLabel& label : lists[k]) {
      const auto rival =
          std::ranges::lower_bound(least, label.bytes, {}, &PointLabel::bytes);
      if (rival == least.end() || rival->ticks > label.ticks) {
        better.push_back(label);
      }
    }
    lists[k] = std::move(better);
    least = Envelope(least, lists[k]);
  }
}

}  // namespace acplan::problems
