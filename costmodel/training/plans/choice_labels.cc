#include "costmodel/training/plans/choice_labels.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

namespace acplan::costmodel {
namespace {

// The least pairs of both measures so far: as the GPU's seconds rise, the host's fall.
class Staircase {
 public:
  // Returns whether an existing pair takes no longer by either measure; if not, adds this
  // one.
  bool StandsFor(double gpu, double host) {
    auto after = least_.upper_bound(gpu);
    if (after != least_.begin() && std::prev(after)->second <= host) {
      return true;
    }
    if (after != least_.begin() && std::prev(after)->first == gpu) --after;
    while (after != least_.end() && after->second >= host) {
      after = least_.erase(after);
    }
    least_.emplace_hint(after, gpu, host);
    return false;
  }
  void Clear() { least_.clear(); }

 private:
  std::map<double, double> least_ = {};
};

// A function object, so that sorting inlines it: most of a search's time is spent here.
struct IsBefore {
  bool operator()(const ChoiceLabel& a, const ChoiceLabel& b) const {
    if (a.open_layers != b.open_layers) return a.open_layers < b.open_layers;
    if (a.has_large != b.has_large) return b.has_large;
    if (a.bytes != b.bytes) return a.bytes < b.bytes;
    return std::tie(a.gpu, a.host) < std::tie(b.gpu, b.host);
  }
};

}  // namespace

void AddUndominated(std::vector<ChoiceLabel> added_labels,
                    std::vector<ChoiceLabel>& labels) {
  std::sort(added_labels.begin(), added_labels.end(), IsBefore());
  const auto middle = static_cast<std::ptrdiff_t>(labels.size());
  labels.insert(labels.end(), added_labels.begin(), added_labels.end());
  std::inplace_merge(labels.begin(), labels.begin() + middle, labels.end(),
                     IsBefore());
  Staircase stairs;
  size_t kept_count = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const ChoiceLabel label = labels[i];
    if (kept_count > 0 &&
        (labels[kept_count - 1].open_layers != label.open_layers ||
         labels[kept_count - 1].has_large != label.has_large)) {
      stairs.Clear();
    }
    if (!stairs.StandsFor(label.gpu, label.host)) labels[kept_count++] = label;
  }
  labels.resize(kept_count);
}

}  // namespace acplan::costmodel
