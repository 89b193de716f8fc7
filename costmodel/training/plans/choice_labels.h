#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "costmodel/training/plans/policy_choice.h"

namespace acplan::costmodel {

// Numbers of layers of the policies so far.
struct ChoiceLabel {
  int64_t left = 0;  // layers of the kind that is walked
  double bytes = 0;
  double gpu = 0;
  double host = 0;
  double excess = 0;
  bool has_large = false;  // a policy of this kind that the bound t asks for
  int32_t record = -1;     // of how it came about, but for what it took last:
  int32_t kind = 0;
  int32_t policy = 0;
  int32_t count = 0;  // layers; 0: that is recorded, too
};

// What a label took after another record's.
struct ChoiceRecord {
  int32_t before = -1;
  int32_t kind = 0;
  int32_t policy = 0;
  int32_t count = 0;
};

// Records what a label took last, so that it may take more. Most labels are dropped
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
  bool is_last = false;  // of its kind: takes all layers that are left
};

struct FoundChoice {
  double seconds = std::numeric_limits<double>::infinity();
  int32_t record = -1;
};

// When a search for a choice ends before it is complete.
class ChoiceMeter {
 public:
  explicit ChoiceMeter(const ChoiceEffort& effort) : effort_(effort) {}

  // Asked once a label that is continued; `records` of labels there are in all.
  // The first time, the clock is asked: of many small searches none would be
  // stopped otherwise. A label may be continued by thousands of policies.
  bool IsStopped(size_t records) {
    constexpr size_t kMostRecords = 16'000'000;  // 256 MB
    constexpr int64_t kLabelsBetween = 16;
    is_stopped_ = is_stopped_ || records > kMostRecords ||
                  (effort_.is_stopped && asked_++ % kLabelsBetween == 0 &&
                   effort_.is_stopped());
    return is_stopped_;
  }
  // Whether it was stopped, or these are more labels than there may be at once.
  bool IsSpent(size_t labels) const {
    return is_stopped_ || labels > effort_.most_labels;
  }

 private:
  const ChoiceEffort& effort_;
  int64_t asked_ = 0;
  bool is_stopped_ = false;
};

// Adds labels to others that are in order, and drops those that another one stands
// for, with as many layers left, no more bytes and no more seconds by either measure.
void AddUndominated(std::vector<ChoiceLabel> added,
                    std::vector<ChoiceLabel>& labels);

}  // namespace acplan::costmodel
