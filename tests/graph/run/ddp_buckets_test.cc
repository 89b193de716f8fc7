#include "graph/run/ddp_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Tensors of one type.
std::vector<BucketTensor> Floats(const std::vector<int64_t>& bytes) {
  std::vector<BucketTensor> tensors;
  for (const int64_t size : bytes) {
    tensors.push_back({.bytes = size, .dtype = "float32"});
  }
  return tensors;
}

TEST(Buckets, EndWithTheTensorThatFillsThem) {
  EXPECT_THAT(AssignBuckets(Floats({10, 90, 99, 100, 300, 1}), {100},
                            BucketOrder::kWhenFull),
              ElementsAre(Bucket{100, 2}, Bucket{199, 2}, Bucket{300, 1},
                          Bucket{1, 1}));
}

TEST(Buckets, HaveTheLastLimitOnceTheOthersAreUsed) {
  EXPECT_THAT(AssignBuckets(Floats({10, 10, 10, 10, 10}), {10, 20},
                            BucketOrder::kWhenFull),
              ElementsAre(Bucket{10, 1}, Bucket{20, 2}, Bucket{20, 2}));
}

TEST(Buckets, AreOfOneType) {
  const std::vector<BucketTensor> tensors{{30, "float32"},
                                          {40, "bfloat16"},
                                          {50, "bfloat16"},
                                          {60, "float32"},
                                          {70, "float32"}};
  EXPECT_THAT(AssignBuckets(tensors, {90}, BucketOrder::kWhenFull),
              ElementsAre(Bucket{90, 2}, Bucket{90, 2}, Bucket{70, 1}));
  EXPECT_THAT(AssignBuckets(tensors, {1'000}, BucketOrder::kByFirstTensor),
              ElementsAre(Bucket{160, 3}, Bucket{90, 2}));
  EXPECT_THAT(AssignBuckets(tensors, {1'000}, BucketOrder::kWhenFull),
              ElementsAre(Bucket{90, 2}, Bucket{160, 3}));
}

// Parameters of 1, 2, 3 and 4 MiB, whose gradients are ready in another order; the
// second is not trained.
ModelTensors Model() {
  ModelTensors model;
  for (const int64_t mebibytes : {1, 2, 3, 4}) {
    model.parameters.push_back({.storage = 0_s,
                                .bytes = mebibytes << 20,
                                .dtype = "float32",
                                .trained = mebibytes != 2});
  }
  model.gradients = {{.parameter = 3, .storage = 1_s, .ready = 5},
                     {.parameter = 0, .storage = 2_s, .ready = 6},
                     {.parameter = 2, .storage = 3_s, .ready = 6}};
  return model;
}

TEST(Buckets, AreOneAtFirstAndThenInTheOrderOfGradients) {
  const DdpOptions options;
  EXPECT_THAT(FirstBuckets(Model(), options), ElementsAre(Bucket{8 << 20, 3}));
  EXPECT_THAT(RebuiltBuckets(Model(), options),
              ElementsAre(Bucket{4 << 20, 1}, Bucket{4 << 20, 2}));
}

TEST(Buckets, ThatStayAreReversed) {
  const DdpOptions options{.find_unused_parameters = true};
  EXPECT_THAT(FirstBuckets(Model(), options),
              ElementsAre(Bucket{7 << 20, 2}, Bucket{1 << 20, 1}));
}

TEST(Buckets, OfGradientsThatNeverComeAreLast) {
  ModelTensors model = Model();
  model.gradients.pop_back();
  EXPECT_THAT(
      RebuiltBuckets(model, {.bucket_bytes = 1 << 20}),
      ElementsAre(Bucket{4 << 20, 1}, Bucket{1 << 20, 1}, Bucket{3 << 20, 1}));
}

TEST(Buckets, OfOneTensorAreBroadcastWithoutACopy) {
  constexpr int64_t kMebibyte = 1 << 20;
  EXPECT_THAT(
      BroadcastCopies(Floats({300 * kMebibyte, kMebibyte, 249 * kMebibyte, 7})),
      ElementsAre(0, 250 * kMebibyte, 0));
}

TEST(DdpArguments, AreThoseOfPyTorch) {
  EXPECT_EQ(ParseDdpOptions("default", "--ddp"), DdpOptions());
  EXPECT_EQ(ParseDdpOptions("bucket_cap_mb:0.5,static_graph:True,"
                            "broadcast_buffers:False",
                            "--ddp"),
            (DdpOptions{.bucket_bytes = 1 << 19,
                        .first_bucket_bytes = 1 << 19,
                        .static_graph = true,
                        .broadcast_buffers = false}));
}

TEST(DdpArguments, ThatAreOthersAreRefused) {
  const auto refusal = [](std::string_view text) -> std::string {
    try {
      ParseDdpOptions(text, "--ddp");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal("bucket:1"), HasSubstr("--ddp: expected default, or"));
  EXPECT_THAT(refusal("bucket_cap_mb:0"), HasSubstr("a number above 0"));
  EXPECT_THAT(refusal("bucket_cap_mb"), HasSubstr("bucket_cap_mb: expected"));
  EXPECT_THAT(refusal("static_graph:yes"), HasSubstr("True or False"));
  EXPECT_THAT(refusal("static_graph:True,"), HasSubstr("at the end"));
  EXPECT_THAT(refusal(""), HasSubstr("at the end"));
}

}  // namespace
}  // namespace acplan::graph
