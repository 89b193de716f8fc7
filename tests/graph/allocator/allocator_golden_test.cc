#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/allocator/allocator_replay.h"
#include "graph/base/file_lines.h"

// Compares each event with what PyTorch's own allocator did
// (tests/campaigns/allocator.py --write-goldens).

namespace acplan::graph {
namespace {

struct GoldenCase {
  std::string name;
  AllocatorConfig config;
  int64_t device_bytes = 0;
  std::string events;
  std::vector<std::string> outcomes;
};

GoldenCase CaseOf(std::istringstream words, std::string_view line) {
  GoldenCase golden;
  golden.name = line;
  std::string version;
  std::string settings;
  words >> version >> golden.device_bytes >> settings;
  golden.config = ParseAllocatorConfig(settings, "settings",
                                       ParsePyTorchVersion(version, "version"));
  return golden;
}

std::vector<GoldenCase> ReadGoldens() {
  std::vector<GoldenCase> cases;
  ForEachLine(ACPLAN_TEST_DATA_DIR "/allocator/goldens.txt.gz",
              [&](std::string_view line) {
                if (line.starts_with("#")) return;
                if (line.starts_with("case ")) {
                  cases.push_back(CaseOf(
                      std::istringstream(std::string(line.substr(5))), line));
                  return;
                }
                const size_t bar = line.find(" | ");
                cases.back().events += line.substr(0, bar);
                cases.back().events += '\n';
                cases.back().outcomes.emplace_back(line.substr(bar + 3));
              });
  return cases;
}

// The outcome of an event as the file has it.
std::string OutcomeOf(const CachingAllocator& allocator, BlockId block) {
  std::ostringstream text;
  if (block == kNoBlock) {
    text << "-";
  } else {
    const Placement placement = allocator.PlacementOf(block);
    text << placement.segment << "+" << placement.offset;
  }
  const AllocatorCounts& counts = allocator.counts();
  text << " " << counts.allocated_bytes << " " << counts.reserved_bytes << " "
       << counts.retries << " " << counts.failures;
  return text.str();
}

TEST(AllocatorGoldens, EveryEventIsAsInPyTorch) {
  const std::vector<GoldenCase> cases = ReadGoldens();
  ASSERT_GE(cases.size(), 50);
  int64_t failures = 0;
  for (const GoldenCase& golden : cases) {
    const AllocatorEvents events =
        ParseAllocatorEvents(golden.events, golden.name);
    EventRunner runner(events, golden.config, golden.device_bytes);
    BlockId block = kNoBlock;
    // The sequences go on after failures.
    for (size_t k = 0; k < events.events.size(); ++k) {
      runner.Run(k, block);
      ASSERT_EQ(OutcomeOf(runner.allocator(), block), golden.outcomes[k])
          << golden.name << ", event " << k;
    }
    failures += runner.allocator().counts().failures;
  }
  EXPECT_GT(failures, 100);
}

}  // namespace
}  // namespace acplan::graph
