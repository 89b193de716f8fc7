// One in twenty of the labels that are added is not dominated, so to sort the others would take
// most of the time of a search. Labels are divided into buckets of ascending bytes first, which
// takes a time linear in their number. A label that one of a lower bucket dominates is dropped
// where it is found; only the others of its bucket are sorted.
#include "costmodel/training/plans/choice_labels.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>

namespace acplan::costmodel {
namespace {

// The least pairs of both measures so far: as the GPU's seconds rise, the host's fall.
class Staircase {
 public:
  // Returns whether an existing pair takes no longer by either measure.
  bool StandsFor(double gpu, double host) const {
    const auto after = After(gpu);
    return after != least_.begin() && std::prev(after)->second <= host;
  }
  // Adds a pair that no existing one stands for.
  void Add(double gpu, double host) {
    auto first = After(gpu);
    if (first != least_.begin() && std::prev(first)->first == gpu) --first;
    auto last = first;
    while (last != least_.end() && last->second >= host) ++last;
    const auto place = least_.erase(first, last);
    least_.insert(place, {gpu, host});
  }
  void Clear() { least_.clear(); }

 private:
  using Pairs = std::vector<std::pair<double, double>>;

  Pairs::const_iterator After(double gpu) const {
    return std::upper_bound(
        least_.begin(), least_.end(), gpu,
        [](double value, const auto& pair) { return value < pair.first; });
  }

  Pairs least_ = {};
};

// The place of each label: that of the labels with as many remaining layers, and in it that of
// the labels with about as many bytes. Places ascend in the order of AddUndominated's result.
class LabelPlaces {
 public:
  explicit LabelPlaces(std::span<const ChoiceLabel> labels) {
    least_ = labels.front().bytes;
    double most = least_;
    int64_t most_layers = labels.front().open_layers;
    least_layers_ = most_layers;
    for (const ChoiceLabel& label : labels) {
      least_ = std::min(least_, label.bytes);
      most = std::max(most, label.bytes);
      least_layers_ = std::min(least_layers_, label.open_layers);
      most_layers = std::max(most_layers, label.open_layers);
    }
    groups_ = 2 * static_cast<size_t>(most_layers - least_layers_ + 1);
    constexpr size_t kLabelsOfBucket = 8;
    constexpr size_t kMostBuckets = 256;
    buckets_ = std::clamp<size_t>(labels.size() / (kLabelsOfBucket * groups_),
                                  1, kMostBuckets);
    if (most > least_) {
      scale_ = static_cast<double>(buckets_) / (most - least_);
    }
  }

  size_t Count() const { return groups_ * buckets_; }
  bool IsFirstOfGroup(size_t place) const { return place % buckets_ == 0; }
  size_t PlaceOf(const ChoiceLabel& label) const {
    const auto group = static_cast<size_t>(
        2 * (label.open_layers - least_layers_) + (label.has_large ? 1 : 0));
    const auto bucket = static_cast<size_t>((label.bytes - least_) * scale_);
    return group * buckets_ + std::min(bucket, buckets_ - 1);
  }

 private:
  int64_t least_layers_ = 0;
  double least_ = 0;  // bytes
  size_t groups_ = 0;
  size_t buckets_ = 0;
  double scale_ = 0;
};

// The labels in the order of their places.
struct PlacedLabels {
  std::vector<uint32_t> order = {};  // indices of labels
  std::vector<uint32_t> ends = {};   // of each place, in `order`
};

PlacedLabels InOrder(std::span<const ChoiceLabel> labels,
                     const LabelPlaces& places) {
  PlacedLabels placed{.order = std::vector<uint32_t>(labels.size()),
                      .ends = std::vector<uint32_t>(places.Count())};
  std::vector<uint32_t> place_of;
  place_of.reserve(labels.size());
  for (const ChoiceLabel& label : labels) {
    place_of.push_back(static_cast<uint32_t>(places.PlaceOf(label)));
    ++placed.ends[place_of.back()];
  }
  uint32_t begin = 0;
  for (uint32_t& end : placed.ends) begin += std::exchange(end, begin);
  // The begin of a place becomes its end as its labels arrive.
  for (uint32_t i = 0; i < labels.size(); ++i) {
    placed.order[placed.ends[place_of[i]]++] = i;
  }
  return placed;
}

// A function object, so that sorting inlines it. Equal labels keep their order.
struct IsBefore {
  bool operator()(const ChoiceLabel* a, const ChoiceLabel* b) const {
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    if (a->gpu != b->gpu) return a->gpu < b->gpu;
    return a->host != b->host ? a->host < b->host : a < b;
  }
};

}  // namespace

void AddUndominated(std::vector<ChoiceLabel> added_labels,
                    std::vector<ChoiceLabel>& labels) {
  if (added_labels.empty()) return;
  if (labels.empty()) {
    labels = std::move(added_labels);
  } else {
    labels.insert(labels.end(), added_labels.begin(), added_labels.end());
  }
  const LabelPlaces places(labels);
  const PlacedLabels placed = InOrder(labels, places);
  Staircase stairs;
  std::vector<ChoiceLabel> kept_labels;
  std::vector<const ChoiceLabel*> bucket;
  uint32_t begin = 0;
  for (size_t place = 0; place < places.Count(); ++place) {
    if (places.IsFirstOfGroup(place)) stairs.Clear();
    bucket.clear();
    for (uint32_t i = begin; i < placed.ends[place]; ++i) {
      const ChoiceLabel& label = labels[placed.order[i]];
      if (!stairs.StandsFor(label.gpu, label.host)) bucket.push_back(&label);
    }
    begin = placed.ends[place];
    std::sort(bucket.begin(), bucket.end(), IsBefore());
    for (const ChoiceLabel* label : bucket) {
      if (stairs.StandsFor(label->gpu, label->host)) continue;
      stairs.Add(label->gpu, label->host);
      kept_labels.push_back(*label);
    }
  }
  labels = std::move(kept_labels);
}

}  // namespace acplan::costmodel
