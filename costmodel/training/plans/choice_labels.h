#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "costmodel/training/plans/policy_choice.h"

namespace acplan::costmodel {

// The numbers of layers that have each of the policies so far.
struct ChoiceLabel {
  int64_t open_layers = 0;  // the remaining layers of the current kind
  double bytes = 0;
  double gpu = 0;
  double host = 0;
  double excess = 0;
  // Has a policy of this kind that the bound t requires.
  bool has_large = false;
  // The record of the label's history, except for its last step, which follows:
  int32_t record = -1;
  int32_t kind = 0;
  int32_t policy = 0;
  int32_t count = 0;  // layers; 0 if this step is recorded, too
};

// A step of a label, after the steps of an earlier record.
struct ChoiceRecord {
  int32_t before = -1;
  int32_t kind = 0;
  int32_t policy = 0;
  int32_t count = 0;
};

// Records a label's last step, so that it can take another one. Most labels are dropped
// before that.
inline void RecordLast(ChoiceLabel& label, std::vector<ChoiceRecord>& records) {
  if (label.count == 0) return;
  records.push_back({label.record, label.kind, label.policy, label.count});
  label.record = static_cast<int32_t>(records.size()) - 1;
  label.count = 0;
}

// A policy in the order of the search.
struct ChoiceStep {
  size_t kind = 0;
  size_t policy = 0;
  double excess = 0;
  bool is_last = false;  // the last of its kind: takes all remaining layers
};

struct FoundChoice {
  double seconds = std::numeric_limits<double>::infinity();
  int32_t record = -1;
};

// The limits of a search for a choice, which end it before it is complete.
class ChoiceMeter {
 public:
  explicit ChoiceMeter(const ChoiceEffort& effort) : effort_(effort) {}

  // Returns whether the search has to stop. Called once for each label that is continued;
  // `records` is the number of records of all labels. The first call reads the clock:
  // otherwise none of many small searches would ever be stopped. A label may be continued
  // by thousands of policies.
  bool IsStopped(size_t records) {
    constexpr size_t kMostRecords = 16'000'000;  // 256 MB
    constexpr int64_t kLabelsBetween = 16;
    is_stopped_ = is_stopped_ || records > kMostRecords ||
                  (effort_.is_stopped && calls_++ % kLabelsBetween == 0 &&
                   effort_.is_stopped());
    return is_stopped_;
  }
  // Returns whether the search was stopped, or `labels` is more than the limit.
  bool IsSpent(size_t labels) const {
    return is_stopped_ || labels > effort_.most_labels;
  }

 private:
  const ChoiceEffort& effort_;
  int64_t calls_ = 0;
  bool is_stopped_ = false;
};

// Adds labels to others, and drops those that another one dominates: one with as many
// remaining layers, no more bytes and no more seconds by either measure. The result is sorted
// by remaining layers, a policy that the bound t requires, and bytes.
void AddUndominated(std::vector<ChoiceLabel> added_labels,
                    std::vector<ChoiceLabel>& labels);

}  // namespace acplan::costmodel
