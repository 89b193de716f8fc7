// All bytes are an accepted joint graph that is the same after it is written
// and read again, whose nodes read buffers made before them, and whose step can
// be simulated, or an InputError of one line. Built with -fsanitize=fuzzer, or
// with replay_main.cc.

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_simulation.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"
#include "tests/support/random_joint.h"

namespace {

using namespace acplan::graph;

void CheckNodes(const JointGraph& graph) {
  std::set<std::string> names;
  std::set<int32_t> to_be_made;
  for (const JointNode& node : graph.nodes) {
    Require(names.insert(node.name).second, "names of their own");
    Require(node.ms >= 0 && node.scratch_bytes >= 0, "no less than 0");
    for (const int32_t b : node.makes)
      Require(to_be_made.insert(b).second, "one maker");
  }
  for (const JointNode& node : graph.nodes) {
    for (const int32_t b : node.reads)
      Require(!to_be_made.contains(b), "a buffer that is there");
    for (const int32_t b : node.makes) to_be_made.erase(b);
  }
}

// Throws InputError if rules of the graph contradict each other.
void CheckStep(const JointGraph& graph) {
  const JointSimulator simulator(graph);
  const JointRun run = simulator.Run(simulator.AllKept());
  Require(run.live_bytes.size() == run.steps.size(), "bytes of every step");
  int64_t peak = graph.held_bytes;
  for (const int64_t bytes : run.live_bytes) peak = std::max(peak, bytes);
  Require(run.peak_bytes == peak, "the most of all steps");
  Require(std::ranges::all_of(
              run.live_bytes,
              [&](int64_t bytes) { return bytes >= graph.held_bytes; }),
          "no less than what is held");
}

}  // namespace

std::string ValidInput(unsigned seed) {
  std::mt19937 random(seed);
  return ToJson(acplan::test_support::RandomJoint(
      random, {.forward = 2 + static_cast<int>(random() % 6),
               .backward = 2 + static_cast<int>(random() % 6),
               .has_rules = random() % 2 == 0}));
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  JointGraph graph;
  try {
    graph = ParseJointGraph(text, "fuzz.json");
    CheckNodes(graph);
    Require(ParseJointGraph(ToJson(graph), "fuzz.json") == graph,
            "the same graph after writing and reading");
  } catch (const acplan::InputError& error) {
    CheckMessage(error);
    return 0;
  }
  for (const JointNode& node : graph.nodes) {
    Require(!node.tied_to || !graph.nodes[*node.tied_to].tied_to,
            "a tie to a node without one");
  }
  try {
    CheckStep(graph);
  } catch (const acplan::InputError& error) {
    CheckMessage(error, "node '");
  }
  return 0;
}
