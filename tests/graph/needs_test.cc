#include "graph/trace/needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "graph/base/flag.h"
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
// (0), an operator with two results (1), a sum of the first of them (2), and an
// operator whose result nothing needs (3). Backward asks for the result of the
// sum in the first call, and for the product only in the second.
class Chain : public ::testing::Test {
 protected:
  Chain() {
    trace_.modules = {{"M", "M", {}, {}}};
    trace_.storages = {{.bytes = 1}};
    trace_.forward_end = 8;
    trace_.backward_end = 10;
    for (const CallId call : {0_call, 1_call}) {
      const Time first = 4 * IndexOf(call);
      const Time end = 10 - IndexOf(call);
      trace_.calls.push_back({.module = 0_module,
                              .start = first,
                              .end = first + 4,
                              .inputs = {},
                              .outputs = {}});
      const StorageId product = AddOperator({0_s}, 1);
      AddOperator({product}, 2);
      const StorageId sum = AddOperator({Next(product)}, 1);
      AddOperator({sum}, 1);
      trace_.saved.push_back({.storage = call == 0_call ? sum : product,
                              .packed = call == 0_call ? 3 : 5,
                              .call = call,
                              .unpacked = end - 1,
                              .local_end = end,
                              .released = end});
    }
    trace_.operators.resize(10);
  }

  // Returns the first of the storages that it creates.
  StorageId AddOperator(std::vector<StorageId> reads, int results) {
    const StorageId first = trace_.storages.end_id();
    const OperatorId id = trace_.operators.Add({.reads = std::move(reads),
                                                .creates = {},
                                                .outputs = {},
                                                .mutates = {}});
    TraceOperator& op = trace_.operators[id];
    op.call = CallId{IndexOf(id) / 4};
    for (int k = 0; k < results; ++k) {
      const StorageId s = trace_.storages.Add({.bytes = 512, .born = id});
      op.creates.push_back(s);
      op.outputs.push_back(s);
      op.results.push_back(trace_.tensors.Add({.storage = s, .op = id}));
    }
    return first;
  }

  CheckpointedModule Policy(const std::vector<Flag>& saves) const {
    return NeedDrivenPolicies(trace_).PolicyFor(0_module, saves);
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
  // The second call's recomputation stops before that, the first one's does
  // not.
  trace_.saved[0_saved].packed = 1;
  trace_.saved[0_saved].storage = 1_s;
  EXPECT_THAT(Policy({0, 0, 1, 0}).decisions,
              ElementsAre(kRecompute, kSkip, kSkip, kSkip));
}

// The trace has the storages of the indices and the elements of a sparse
// tensor, but no tensor for the one that operator 1 makes.
TEST_F(Chain, RunsAgainWhatMakesASparseTensor) {
  for (const OperatorId op : {1_op, 5_op}) {
    trace_.operators[op].opaque = true;
    trace_.operators[op].outputs.clear();
    trace_.operators[op].results.clear();
  }
  for (TraceTensor& tensor : trace_.tensors) {
    if (tensor.op == 1_op || tensor.op == 5_op) tensor.op = kNone;
  }
  EXPECT_THAT(Policy({0, 0, 0, 0}).decisions,
              ElementsAre(kRecompute, kRecompute, kRecompute, kSkip));
  // Even if the sum, which reads it, is there.
  const CheckpointedModule policy = Policy({1, 0, 1, 0});
  EXPECT_THAT(policy.decisions, ElementsAre(kSave, kRecompute, kSave, kSkip));
  trace_.operator_names = {"op"};
  EXPECT_NO_THROW(Simulate(trace_, {policy}));
  EXPECT_THROW(Simulate(trace_, {Policy({1, 1, 1, 0})}), InputError);
}

TEST_F(Chain, NeedsWhatIsWrittenToInPlace) {
  // Operator 3 adds to the sum, and backward needs the outcome.
  trace_.operators[3_op].creates.clear();
  trace_.operators[3_op].results.clear();
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
