#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/joint/joint_graph.h"

namespace acplan::graph {

// A step as a graph whose operators may run in any order and any number of times, as long
// as the first runs follow the order of `nodes`: what schedules are made of
// (problems/schedule/schedule_problem.h).

// What a node makes.
struct ScheduleValue {
  std::string name;
  int64_t bytes = 0;
  int32_t maker = 0;         // a node
  bool is_returned = false;  // it is there at the end

  bool operator==(const ScheduleValue&) const = default;
};

struct ScheduleNode {
  std::string name;
  double ms = 0;                    // or of another unit: the file's
  std::vector<int32_t> reads = {};  // values of earlier nodes, each once
  std::vector<int32_t> makes = {};  // values
  bool may_run_again = true;
  int64_t scratch_bytes = 0;  // only while it runs

  bool operator==(const ScheduleNode&) const = default;
};

struct ScheduleGraph {
  std::string name = {};
  std::string time_unit = {};  // "ms", or nothing where the file has none
  int64_t held_bytes = 0;      // beside the values, during the whole step
  std::vector<ScheduleValue> values = {};
  std::vector<ScheduleNode> nodes = {};

  bool operator==(const ScheduleGraph&) const = default;
};

// A joint graph as one without passes, in the order of its nodes. Its inputs are held
// during the whole step; what comes with backward is made, once, by a node of no time
// before the first node of backward. Throws InputError, "buffers[3].keep: ...", where a
// buffer may not be kept from forward to backward: schedules know no passes; and where
// there is no node.
ScheduleGraph ToScheduleGraph(const JointGraph& joint);

}  // namespace acplan::graph
