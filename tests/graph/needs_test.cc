#include "graph/trace/needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "graph/base/input_error.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr OperatorDecision kRecompute = OperatorDecision::kRecompute;
constexpr OperatorDecision kSave = OperatorDecision::kSave;
constexpr OperatorDecision kSkip = OperatorDecision::kSkip;

// Two calls of one module, each a chain of four operators: the input, a product
// (0), an operator with two results (1), a sum of the first of them (2), and
// what nobody needs (3). Backward asks for the result of the sum in the first
// call, and in the second for the product only.
class Chain : public ::testing::Test {
 protected:
  Chain() {
    trace_.modules = {{"M", "M", {}, {}}};
    trace_.storages = {{.bytes = 1}};
    trace_.forward_end = 8;
    trace_.backward_end = 10;
    for (CallId call = 0; call < 2; ++call) {
      const int32_t first = 4 * call;
      trace_.calls.push_back({.module = 0_module,
                              .start = first,
                              .end = first + 4,
                              .inputs = {},
                              .outputs = {}});
      const int32_t product = AddOperator({0}, 1);
      AddOperator({product}, 2);
      const int32_t sum = AddOperator({product + 1}, 1);
      AddOperator({sum}, 1);
      trace_.saved.push_back({.storage = call == 0 ? sum : product,
                              .packed = call == 0 ? 3 : 5,
                              .call = call,
                              .unpacked = 9 - call,
                              .local_end = 10 - call,
                              .released = 10 - call});
    }
    trace_.operators.resize(10);
  }

  // Returns the first of the storages that it creates.
  int32_t AddOperator(std::vector<StorageId> reads, int results) {
    const auto op = static_cast<int32_t>(trace_.operators.size());
    const auto first = static_cast<int32_t>(trace_.storages.size());
    TraceOperator made;
    made.call = op / 4;
    made.reads = std::move(reads);
    trace_.operators.push_back(made);
    for (StorageId s = first; s < first + results; ++s) {
      trace_.storages.push_back({.bytes = 512, .born = op});
      trace_.operators.back().creates.push_back(s);
      trace_.operators.back().outputs.push_back(s);
      trace_.operators.back().results.push_back(
          static_cast<int32_t>(trace_.tensors.size()));
      trace_.tensors.push_back({.storage = s, .op = op});
    }
    return first;
  }

  CheckpointedModule Policy(const std::vector<char>& saves) const {
    return NeedDrivenPolicies(trace_).Of(0, saves);
  }

  Trace trace_;
};

TEST_F(Chain, RunsAgainWhatIsNeededInAnyCall) {
  EXPECT_THAT(Policy({0, 0, 0, 0}).decisions,
              ElementsAre(kRecompute, kRecompute, kRecompute, kSkip));
  // The product is needed in the second call.
  EXPECT_THAT(Policy({0, 0, 1, 0}).decisions,
              ElementsAre(kRecompute, kSkip, kSave, kSkip));
  EXPECT_THAT(Policy({1, 0, 1, 1}).decisions,
              ElementsAre(kSave, kSkip, kSave, kSkip));
}

TEST_F(Chain, KeepsTheResultsThatAreNeeded) {
  const CheckpointedModule policy = Policy({1, 1, 0, 0});
  EXPECT_THAT(policy.decisions, ElementsAre(kSave, kSave, kRecompute, kSkip));
  EXPECT_THAT(policy.kept_results, ElementsAre(Pair(1, ElementsAre(0))));
  EXPECT_THAT(Policy({1, 0, 1, 0}).kept_results, IsEmpty());
}

TEST_F(Chain, RunsAgainWhatReturnsNoTensor) {
  trace_.operators[1_op].creates = trace_.operators[1_op].outputs = {};
  trace_.operators[1_op].results = {};
  trace_.operators[2_op].reads = {0_s};
  EXPECT_THAT(Policy({0, 0, 1, 0}).decisions,
              ElementsAre(kRecompute, kRecompute, kSave, kSkip));
  // The second call's recomputation does not get there, the first one's does.
  trace_.saved[0_saved].packed = 1;
  trace_.saved[0_saved].storage = 1_s;
  EXPECT_THAT(Policy({0, 0, 1, 0}).decisions,
              ElementsAre(kRecompute, kSkip, kSkip, kSkip));
}

// The trace has the storages of the indices and the elements of a sparse tensor,
// but no tensor of the one that operator 1 makes.
TEST_F(Chain, RunsAgainWhatMakesASparseTensor) {
  for (const int op : {1, 5}) {
    trace_.operators[op].opaque = true;
    trace_.operators[op].outputs = trace_.operators[op].results = {};
  }
  for (TraceTensor& tensor : trace_.tensors) {
    if (tensor.op == 1_op || tensor.op == 5_op) tensor.op = kNone;
  }
  EXPECT_THAT(Policy({0, 0, 0, 0}).decisions,
              ElementsAre(kRecompute, kRecompute, kRecompute, kSkip));
  // Even where the sum, which reads it, is there.
  const CheckpointedModule policy = Policy({1, 0, 1, 0});
  EXPECT_THAT(policy.decisions, ElementsAre(kSave, kRecompute, kSave, kSkip));
  trace_.operator_names = {"op"};
  EXPECT_NO_THROW(Simulate(trace_, {policy}));
  EXPECT_THROW(Simulate(trace_, {Policy({1, 1, 1, 0})}), InputError);
}

TEST_F(Chain, NeedsWhatIsWrittenToInPlace) {
  // Operator 3 adds to the sum, of which backward needs what comes out.
  trace_.operators[3_op].creates = trace_.operators[3_op].results = {};
  trace_.operators[3_op].outputs = trace_.operators[3_op].mutates =
      trace_.operators[3_op].reads;
  trace_.saved[0_saved].packed = 4;
  EXPECT_THAT(Policy({0, 0, 0, 0}).decisions,
              ElementsAre(kRecompute, kRecompute, kRecompute, kRecompute));
  EXPECT_THAT(Policy({0, 0, 1, 1}).decisions,
              ElementsAre(kRecompute, kSkip, kSave, kSave));
}

TEST_F(Chain, RefusesAnotherNumberOfOperators) {
  EXPECT_THROW(Policy({0, 0}), InputError);
}

}  // namespace
}  // namespace acplan::graph
