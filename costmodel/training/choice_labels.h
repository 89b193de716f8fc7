#pragma once

#include <cstdint>
#include <vector>

namespace acplan::costmodel {

// Numbers of layers of the policies so far.
struct ChoiceLabel {
  int64_t left = 0;  // layers of the kind that is walked
  double bytes = 0;
  double gpu = 0;
  double host = 0;
  double excess = 0;
  bool has_large = false;  // a policy of this kind that the bound t asks for
  int64_t record = -1;     // of how it came about
};

// Adds labels to others that are in order, and drops those that another one stands
// for, with as many layers left, no more bytes and no more seconds by either measure.
void AddUndominated(std::vector<ChoiceLabel> added,
                    std::vector<ChoiceLabel>& labels);

}  // namespace acplan::costmodel
