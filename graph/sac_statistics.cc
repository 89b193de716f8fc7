#include "graph/sac_statistics.h"

#include <numeric>
#include <utility>

namespace acplan::graph {
namespace {

int Find(const std::vector<int>& parent, int i) {
  while (parent[i] != i) i = parent[i];
  return i;
}

}  // namespace

int64_t ForcedSavedBytes(const SacStatistics& sac) {
  const size_t n = sac.memory.size();
  std::vector<bool> view_like(n, false);
  for (int op : sac.view_like_ops) view_like[op] = true;

  std::vector<int> parent(n);
  std::iota(parent.begin(), parent.end(), 0);
  std::vector<int> size(n, 1);
  auto tie = [&](int a, int b) {
    if (view_like[a] || view_like[b]) return;
    a = Find(parent, a);
    b = Find(parent, b);
    if (a == b) return;
    if (size[a] < size[b]) std::swap(a, b);
    parent[b] = a;
    size[a] += size[b];
  };
  for (auto [op, source] : sac.inplace_ops) tie(op, source);
  int random = -1;
  for (int op : sac.rand_ops) {
    if (view_like[op]) continue;
    if (random >= 0) tie(random, op);
    random = op;
  }

  std::vector<bool> forced(n, false);
  for (auto [op, source] : sac.inplace_ops)
    if (op == source && !view_like[op]) forced[Find(parent, op)] = true;
  if (sac.force_store_random && random >= 0)
    forced[Find(parent, random)] = true;

  int64_t bytes = 0;
  for (size_t i = 0; i < n; ++i)
    if (!view_like[i] && forced[Find(parent, static_cast<int>(i))])
      bytes += sac.memory[i];
  return bytes;
}

}  // namespace acplan::graph
