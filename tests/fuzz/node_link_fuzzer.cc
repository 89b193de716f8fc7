// All bytes are an accepted node-link graph whose nodes read values made before
// them, and which, with every node once, is a schedule on whose peak two ways
// of counting agree, or an InputError of one line. Built with
// -fsanitize=fuzzer, or with replay_main.cc.

#include <fmt/format.h>

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <string_view>

#include "graph/base/input_error.h"
#include "graph/schedule/node_link.h"
#include "problems/check/schedule_check.h"
#include "problems/schedule/schedule_problem.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"

namespace {

using namespace acplan::graph;
using namespace acplan::problems;

void CheckNodes(const ScheduleGraph& graph) {
  Require(!graph.nodes.empty(), "a node");
  Require(graph.values.size() == graph.nodes.size(), "a value a node");
  for (int32_t n = 0; n < std::ssize(graph.nodes); ++n) {
    const ScheduleNode& node = graph.nodes[n];
    Require(node.ms >= 0 && graph.values[n].bytes >= 0, "no less than 0");
    Require(graph.values[n].maker == n, "values in the order of their makers");
    Require(std::set(node.reads.begin(), node.reads.end()).size() ==
                node.reads.size(),
            "each input once");
    for (const int32_t value : node.reads)
      Require(value >= 0 && value < n, "a value that is there");
  }
}

}  // namespace

// Returns nodes that read earlier ones, with either words for bytes and time.
std::string ValidInput(unsigned seed) {
  std::mt19937 random(seed);
  const int count = 1 + static_cast<int>(random() % 12);
  std::string nodes;
  std::string links;
  for (int n = 0; n < count; ++n) {
    const bool is_long = random() % 2 == 0;
    nodes +=
        fmt::format(R"({}{{"id": {}, "{}": {}, "{}": {}}})", n > 0 ? ", " : "",
                    n, is_long ? "duration" : "cost_cpu", random() % 100,
                    is_long ? "out_cost" : "cost_ram", random() % 1000);
    for (int read = 0; read < n; ++read) {
      if (random() % 3 > 0) continue;
      links += fmt::format(R"({}{{"source": {}, "target": {}}})",
                           links.empty() ? "" : ", ", read, n);
    }
  }
  return fmt::format(R"({{"nodes": [{}], "links": [{}]}})", nodes, links);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const ScheduleGraph graph = ParseNodeLink(text, "fuzz.json");
    CheckNodes(graph);
    const ScheduleRun run = RunSchedule(graph, WithoutRecomputation(graph));
    Require(
        run.peak_bytes == ComputeScheduleEffect(graph, run.sequence).peak_bytes,
        "one peak");
  } catch (const acplan::InputError& error) {
    CheckMessage(error);
  }
  return 0;
}
