#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/joint/joint_graph.h"

namespace acplan::graph {

// A step as a graph whose operators may run in any order and any number of times, as long
// as the first runs follow the order of `nodes`. Schedules are made of it
// (problems/schedule/schedule_problem.h).

// A value that a node makes.
struct ScheduleValue {
  std::string name;
  int64_t bytes = 0;
  int32_t maker = 0;         // a node
  bool is_returned = false;  // it has to be there at the end

  bool operator==(const ScheduleValue&) const = default;
};

struct ScheduleNode {
  std::string name;
  double ms = 0;                    // or another unit: that of the file
  std::vector<int32_t> reads = {};  // values of earlier nodes, each once
  std::vector<int32_t> makes = {};  // values
  bool may_run_again = true;
  int64_t scratch_bytes = 0;  // only while it runs

  bool operator==(const ScheduleNode&) const = default;
};

struct ScheduleGraph {
  std::string name = {};
  std::string time_unit = {};  // "ms", or empty if the file has none
  int64_t held_bytes = 0;  // in addition to the values, during the whole step
  std::vector<ScheduleValue> values = {};
  std::vector<ScheduleNode> nodes = {};

  bool operator==(const ScheduleGraph&) const = default;
};

// Converts a joint graph to one without passes, in the order of its nodes. Its inputs are
// held during the whole step; the inputs that arrive with the backward pass are made, once,
// by a node of no time before the first node of backward. Throws InputError,
// "buffers[3].keep: ...", if a buffer may not be kept from forward to backward, since
// schedules know no passes, and if there is no node.
ScheduleGraph ToScheduleGraph(const JointGraph& joint);

}  // namespace acplan::graph
