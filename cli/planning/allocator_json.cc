#include "cli/planning/allocator_json.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "cli/input/device_offer.h"
#include "cli/planning/allocator_text.h"

namespace acplan::cli {

using nlohmann::ordered_json;

ordered_json AllocatorJson(const AllocatorQuestion& question,
                           const graph::AllocatorCounts& counts,
                           const std::optional<graph::LeastDevice>& least) {
  ordered_json json = {
      {"torch_version", TorchVersionText(question.config)},
      {"device_bytes",
       question.device_bytes ? ordered_json(*question.device_bytes) : nullptr}};
  if (question.offer) json["gpu"] = OfferJson(*question.offer);
  json["allocated_bytes"] = counts.peak_allocated_bytes;
  json["reserved_bytes"] = counts.peak_reserved_bytes;
  if (question.wants_least_device) {
    json["least_device_bytes"] = least ? ordered_json(least->bytes) : nullptr;
    if (least) json["least_device_proven"] = least->is_least;
  }
  json["retries"] = counts.retries;
  return json;
}

ordered_json ReclaimsJson(const std::vector<graph::Reclaim>& reclaims,
                          const EventPlace& place_of) {
  ordered_json list = ordered_json::array();
  for (const graph::Reclaim& reclaim : reclaims) {
    ordered_json json = place_of(reclaim.event);
    json["collected_bytes"] = reclaim.collected_bytes;
    json["oversize_bytes"] = reclaim.oversize_bytes;
    json["released_bytes"] = reclaim.released_bytes;
    json["retry"] = reclaim.is_retry;
    list.push_back(std::move(json));
  }
  return list;
}

ordered_json FailureJson(const std::optional<graph::ReplayFailure>& failure,
                         const EventPlace& place_of) {
  if (!failure) return nullptr;
  ordered_json json = place_of(failure->event);
  json["bytes"] = failure->bytes;
  json["stream"] = failure->stream;
  json["allocated_bytes"] = failure->allocated_bytes;
  json["reserved_bytes"] = failure->reserved_bytes;
  json["free_bytes"] = failure->free_bytes;
  return json;
}

ordered_json SegmentsJson(const std::vector<graph::SegmentUse>& list) {
  ordered_json segments = ordered_json::array();
  for (const graph::SegmentUse& use : list) {
    segments.push_back(
        {{"segment", use.number},
         {"offset", use.offset},
         {"stream", use.stream},
         {"pool", use.is_small ? "small" : "large"},
         {"private_pool",
          use.private_pool ? ordered_json(*use.private_pool) : nullptr},
         {"expandable", use.is_expandable},
         {"bytes", use.bytes},
         {"allocated_bytes", use.allocated_bytes},
         {"largest_free_bytes", use.largest_free_bytes},
         {"blocks", use.blocks}});
  }
  return segments;
}

std::vector<LineHoles> HolesByLine(const std::vector<HoleBesideLines>& holes) {
  std::map<std::string, int64_t> bytes;
  for (const HoleBesideLines& hole : holes) {
    for (const std::string& line :
         std::set<std::string>(hole.lines.begin(), hole.lines.end())) {
      bytes[line] += hole.bytes;
    }
  }
  std::vector<LineHoles> sums;
  for (auto& [line, sum] : bytes) sums.push_back({.line = line, .bytes = sum});
  std::ranges::stable_sort(sums, std::ranges::greater(), &LineHoles::bytes);
  return sums;
}

ordered_json BesideHolesJson(const std::vector<LineHoles>& sums) {
  ordered_json json = ordered_json::array();
  for (const LineHoles& sum : sums) {
    json.push_back({{"source", sum.line}, {"hole_bytes", sum.bytes}});
  }
  return json;
}

}  // namespace acplan::cli
