#include "problems/remat/link_use.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <unordered_map>

#include "graph/base/flag.h"

namespace acplan::problems {

using graph::JointGraph;
using graph::JointMove;
using graph::JointRun;
using graph::KeptLife;
using graph::MovedId;
using graph::OffloadEvent;
using graph::StepId;

StepBegins BeginsOf(const JointGraph& graph, const JointRun& run) {
  StepBegins begins = {0};
  begins.reserve(run.steps.size() + 1);
  for (const JointRun::Step& step : run.steps)
    begins.push_back(begins.back() + graph.nodes[step.node].ms);
  return begins;
}

graph::OffloadUse LinkUse(const JointGraph& graph,
                          const std::vector<KeptLife>& lives,
                          const std::vector<JointMove>& moves) {
  using enum OffloadEvent::Kind;
  std::unordered_map<int32_t, const KeptLife*> life_of;
  for (const KeptLife& life : lives) life_of.emplace(life.buffer, &life);
  graph::OffloadUse use;
  std::vector<std::tuple<int32_t, OffloadEvent::Kind, int32_t, MovedId>> order;
  for (const JointMove& move : moves) {
    const KeptLife& life = *life_of.at(move.buffer);
    const int64_t bytes = graph.buffers[move.buffer].bytes;
    const auto id = static_cast<MovedId>(use.storages.size());
    use.storages.push_back({.bytes = bytes,
                            .away_begin = StepId{move.release},
                            .away_end = StepId{move.fetch}});
    use.sent_bytes += bytes;
    use.host_peak_bytes += bytes;
    order.emplace_back(life.maker_step + 1, kSend, life.maker_step, id);
    order.emplace_back(move.release, kRelease, life.maker_step, id);
    order.emplace_back(move.fetch, kFetch, life.first_backward, id);
    order.emplace_back(life.first_backward, kUse, life.maker_step, id);
  }
  std::ranges::sort(order);
  for (const auto& [step, kind, rank, id] : order)
    use.events.push_back({.kind = kind, .step = StepId{step}, .storage = id});
  return use;
}

double StallMs(const StepBegins& begins, const graph::OffloadUse& use,
               const graph::LinkRates& rates) {
  const graph::IndexedVector<MovedId, graph::Flag> all(use.storages.size(),
                                                       true);
  return graph::TimeOnLink(begins, use, all, rates).stall_ms;
}

double StallMs(const JointGraph& graph, const JointRun& run,
               const graph::LinkRates& rates) {
  return StallMs(BeginsOf(graph, run),
                 LinkUse(graph, graph::MovableLives(graph, run), run.moves),
                 rates);
}

}  // namespace acplan::problems
