#include "graph/allocator/allocator_config.h"

#include <gmock/gmock.h>

#include <string>

#include "graph/base/input_error.h"
#include "tests/graph/mebibytes.h"

namespace acplan::graph {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

AllocatorConfig Parse(const std::string& text, int minor = 15) {
  return ParseAllocatorConfig(text, "--allocator", {2, minor});
}

// Returns the error of a text, "" if it has none.
std::string ConfigErrorOf(const std::string& text, int minor = 15) {
  try {
    Parse(text, minor);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(AllocatorConfig, HasPyTorchsDefaults) {
  for (const char* text : {"", "native", " ", "backend:native"}) {
    const AllocatorConfig config = Parse(text);
    EXPECT_FALSE(config.expandable_segments);
    EXPECT_EQ(config.max_split_bytes, AllocatorConfig::kUnlimited);
    EXPECT_EQ(config.large_segment_bytes, 20 * kMiB);
    EXPECT_EQ(config.max_non_split_rounding_bytes, 20 * kMiB);
    EXPECT_EQ(config.memory_fraction, 1);
    EXPECT_EQ(config.garbage_collection_threshold, 0);
  }
}

TEST(AllocatorConfig, ReadsEveryOptionOfBlocks) {
  const AllocatorConfig config = Parse(
      "expandable_segments:True, max_split_size_mb:64,"
      "max_non_split_rounding_mb:48,garbage_collection_threshold:0.8,"
      "large_segment_size_mb:32,per_process_memory_fraction:0.5,"
      "throw_on_cudamalloc_oom:True,expandable_segments_reserve:0.25,");
  EXPECT_TRUE(config.expandable_segments);
  EXPECT_EQ(config.max_split_bytes, 64 * kMiB);
  EXPECT_EQ(config.max_non_split_rounding_bytes, 48 * kMiB);
  EXPECT_EQ(config.garbage_collection_threshold, 0.8);
  EXPECT_EQ(config.large_segment_bytes, 32 * kMiB);
  EXPECT_EQ(config.memory_fraction, 0.5);
  EXPECT_TRUE(config.refuses_early);
  ASSERT_TRUE(config.segment_reserve);
  EXPECT_TRUE(config.segment_reserve->is_share);
  EXPECT_EQ(config.segment_reserve->value, 0.25);
}

TEST(AllocatorConfig, ReadsAReserveInGibibytes) {
  const AllocatorConfig config = Parse("expandable_segments_reserve:1.5G");
  ASSERT_TRUE(config.segment_reserve);
  EXPECT_FALSE(config.segment_reserve->is_share);
  EXPECT_EQ(config.segment_reserve->value, 1536.0 * kMiB);
}

TEST(AllocatorConfig, SkipsOptionsThatBlocksDoNotDependOn) {
  EXPECT_EQ(ConfigErrorOf("pinned_use_cuda_host_register:True,"
                          "pinned_num_register_threads:8,"
                          "expandable_segments_reserve_by_class:[a:0.5,b:2G]"),
            "");
}

TEST(AllocatorConfig, TakesTheRoundingFromTheLargeSegmentWherever) {
  EXPECT_EQ(Parse("large_segment_size_mb:64").max_non_split_rounding_bytes,
            64 * kMiB);
  const AllocatorConfig config =
      Parse("max_non_split_rounding_mb:70,large_segment_size_mb:64");
  EXPECT_EQ(config.max_non_split_rounding_bytes, 70 * kMiB);
}

TEST(AllocatorConfig, ReadsDivisionsByInterval) {
  EXPECT_THAT(
      Parse("roundup_power2_divisions:[4:2,64:8,>:1]").roundup_divisions,
      ElementsAre(2, 2, 2, 0, 0, 0, 8, 1, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_EQ(Parse("roundup_power2_divisions:4").roundup_divisions[15], 4);
  EXPECT_EQ(Parse("roundup_power2_divisions:[]").roundup_divisions[0], 0);
}

TEST(AllocatorConfig, OldVersionsReplaceTheLastInterval) {
  EXPECT_EQ(
      Parse("roundup_power2_divisions:[64:8,>:1]", 9).roundup_divisions[6], 1);
  EXPECT_EQ(
      Parse("roundup_power2_divisions:[64:8,>:1]", 10).roundup_divisions[6], 8);
}

TEST(AllocatorConfig, NamesTheNearestOption) {
  EXPECT_EQ(ConfigErrorOf("max_split_size:64"),
            "--allocator: no option \"max_split_size\"; the nearest is "
            "max_split_size_mb");
  EXPECT_THAT(ConfigErrorOf("zzz:1"),
              HasSubstr("options are expandable_segments"));
  EXPECT_EQ(ConfigErrorOf(",expandable_segments:True").substr(0, 27),
            "--allocator: no option \",\";");
}

TEST(AllocatorConfig, NamesTheVersionThatAnOptionNeeds) {
  EXPECT_EQ(ConfigErrorOf("large_segment_size_mb:32", 10),
            "--allocator: large_segment_size_mb needs PyTorch 2.11, this is "
            "2.10");
  EXPECT_EQ(ConfigErrorOf("large_segment_size_mb:32", 11), "");
  EXPECT_THAT(ConfigErrorOf("per_process_memory_fraction:0.5", 9),
              HasSubstr("needs PyTorch 2.10"));
}

TEST(AllocatorConfig, RefusesWhatPyTorchRefuses) {
  EXPECT_EQ(ConfigErrorOf("max_split_size_mb:19"),
            "--allocator: max_split_size_mb: expected at least 20, found 19");
  EXPECT_THAT(ConfigErrorOf("max_split_size_mb:20", 9),
              HasSubstr("at least 21"));
  EXPECT_THAT(ConfigErrorOf("large_segment_size_mb:10"),
              HasSubstr("at least 11"));
  EXPECT_THAT(ConfigErrorOf("large_segment_size_mb:30,max_split_size_mb:25"),
              HasSubstr("at least 30"));
  EXPECT_THAT(ConfigErrorOf("max_split_size_mb:lots"),
              HasSubstr("expected a whole number, found \"lots\""));
  EXPECT_THAT(ConfigErrorOf("max_split_size_mb:-1"), HasSubstr("whole number"));
  EXPECT_THAT(ConfigErrorOf("max_split_size_mb"),
              HasSubstr("expected \":\" at the"));
  EXPECT_THAT(ConfigErrorOf("max_split_size_mb:"), HasSubstr("no value"));
  EXPECT_THAT(ConfigErrorOf("max_split_size_mb:64 expandable_segments:True"),
              HasSubstr("expected \",\", found \":\""));
  EXPECT_THAT(ConfigErrorOf("expandable_segments:true"),
              HasSubstr("expected True or False, found \"true\""));
  EXPECT_THAT(ConfigErrorOf("garbage_collection_threshold:1"),
              HasSubstr("between"));
  EXPECT_THAT(ConfigErrorOf("per_process_memory_fraction:2"),
              HasSubstr("0 to 1"));
  EXPECT_THAT(ConfigErrorOf("roundup_power2_divisions:3"),
              HasSubstr("power of two"));
  EXPECT_THAT(ConfigErrorOf("roundup_power2_divisions:[3:2]"),
              HasSubstr("power of two"));
  EXPECT_THAT(ConfigErrorOf("roundup_power2_divisions:[1:2"),
              HasSubstr("no value"));
  EXPECT_THAT(ConfigErrorOf("backend:cudaMallocAsync"),
              HasSubstr("not simulated"));
  EXPECT_THAT(ConfigErrorOf("backend:x"), HasSubstr("expected native"));
  EXPECT_THAT(ConfigErrorOf("expandable_segments_reserve:-1"),
              HasSubstr("more than"));
  EXPECT_THAT(ConfigErrorOf("expandable_segments_reserve:nan"),
              HasSubstr("number"));
}

TEST(PyTorchVersion, ReadsVersionsOfTheRange) {
  EXPECT_EQ(ParsePyTorchVersion("2.8", "x"), (PyTorchVersion{2, 8}));
  EXPECT_EQ(ParsePyTorchVersion("2.13.1", "x"), (PyTorchVersion{2, 13}));
  for (const char* text :
       {"", "2", "2.", "2.7", "2.16", "3.9", "two", "2.9x"}) {
    EXPECT_THROW(ParsePyTorchVersion(text, "x"), InputError) << text;
  }
}

}  // namespace
}  // namespace acplan::graph
