#include "costmodel/planning/strategy_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "costmodel/llm/evaluation.h"
#include "costmodel/planning/plan_assembly.h"
#include "costmodel/planning/plan_input.h"
#include "costmodel/planning/plan_polish.h"
#include "costmodel/planning/stage_policies.h"

// A plan in four steps.
//
// Later stages hold no more than the first, and their seconds count only for what
// they add to the bubble. So the first stage and the others are chosen apart, and
// their bounds add up: no plan is faster than (1) the least seconds of a batch that
// the first stage's policies allow, (2) what the others fill at least, and (3) the
// communication of gradients that is exposed whatever is recomputed. Each choice is
// an integer knapsack (stage_choice.h), in which a policy costs as much as a batch
// would take were all blocks to have it, divided by the blocks: those seconds are
// linear in the numbers of blocks, but for the gradients' communication.
//
// (4) Where recomputation may hide that communication, what is exposed is a
// balance, which is linear, as long as that is positive, else the slowdown of
// computing. The first choice leaves it out; a second one counts the balances that
// are positive in the plan so far
// (ImprovedWithComm), for policies that are found anew with what hides nothing as a
// measure. The balance never exceeds what is exposed, so each of the two choices is
// a bound, and the larger holds. What is left comes in jumps, and a climb ends it
// (plan_polish.h). The plan is optimal where it meets the bound.
//
// `cutoff` shortens the search over strategies: where a bound reaches it, the rest
// of the plan need not be the best.

namespace acplan::costmodel {
namespace {

// Returns whether an operator that runs again takes longer in some blocks of a
// chunk than in others.
bool PlacesDiffer(const BlockOperators& operators) {
  return std::ranges::any_of(operators.operators, [](const Operator& op) {
    const StageComm& comm = op.recompute.repeated_comm;
    return comm.base_exposed != comm.edge_exposed;
  });
}

// Says in which chunks the communication of gradients counts as if computing could
// hide more than all of it, in chunks but the last and in the last: that is never
// more than what is exposed.
struct CountedComm {
  bool chunk = false;
  bool tail = false;
};

// The communication of gradients that is exposed, by the policies of a block.
class ExposedComm {
 public:
  ExposedComm(const Execution& execution, std::span<const PolicyTimes> times)
      : any_(times.front()),
        is_hidden_(execution.data_par > 1 && execution.data_par_overlap) {
    // No mixture of policies has fewer. The longer a chunk takes the fewer
    // there are.
    least_collisions_ =
        std::ranges::min(times, {}, &PolicyTimes::collisions).collisions;
    const double most =
        std::ranges::max(times, {}, &PolicyTimes::collisions).collisions;
    // Where nothing is exposed, only the slowdown of computing counts.
    chunk_varies_ = std::ranges::any_of(times, [&](const PolicyTimes& policy) {
      return policy.chunk_balance + most > 0;
    });
    tail_varies_ = std::ranges::any_of(times, [](const PolicyTimes& policy) {
      return policy.tail_balance > 0;
    });
  }

  // Returns whether what is exposed depends on the policies.
  bool Varies() const { return is_hidden_ && (chunk_varies_ || tail_varies_); }

  // Seconds that are exposed whatever the policies.
  double Least() const {
    if (!is_hidden_) return any_.exposed;
    return any_.comm_of_block + LeastChunk() + LeastTail();
  }

  // A lower bound on the seconds of a batch, linear in the policies' blocks.
  double WithComm(const PolicyTimes& times, const CountedComm& counted) const {
    return times.batch + times.comm_of_block +
           (counted.chunk ? times.chunk_balance + least_collisions_
                          : LeastChunk()) +
           (counted.tail ? times.tail_balance : LeastTail());
  }

 private:
  double LeastChunk() const { return chunk_varies_ ? 0 : any_.chunk_exposed; }
  double LeastTail() const { return tail_varies_ ? 0 : any_.tail_exposed; }

  PolicyTimes any_;
  bool is_hidden_;
  double least_collisions_ = 0;
  bool chunk_varies_ = false;
  bool tail_varies_ = false;
};

// Returns the costs of each operator that runs again, the last of which
// measures what hides no communication. Computing hides it, without memory
// traffic and communication in the same network, and is slowed by it: of
// policies that take as long, those with less of these hide more.
std::vector<PolicyCosts> MeasuresWithComm(const PlanInput& input,
                                          const CountedComm& counted) {
  const Schedule& schedule = input.schedule;
  const Execution& execution = input.execution;
  const double windows =
      counted.chunk ? schedule.pipeline_par * (schedule.chunks - 1) : 0;
  const double tail = counted.tail ? 1 : 0;
  const double usage =
      input.system.networks[execution.data_par_net].processor_usage;
  const bool shares_network =
      execution.data_par_net == execution.tensor_par_net;
  std::vector<PolicyCosts> measures = input.block.seconds;
  for (size_t i = 0; i < measures.size(); ++i) {
    const RecomputeCosts& repeated =
        input.block.operators.operators[i].recompute;
    double idle = repeated.recompute.mem_time;
    if (shares_network) {
      idle += (schedule.base_blocks * repeated.repeated_comm.base_time +
               repeated.repeated_comm.edge_time) /
              schedule.blocks_per_chunk;
    }
    measures[i].back() =
        idle * (windows + (schedule.base_blocks > 0 ? tail : 0)) +
        repeated.recompute.flops_time * usage *
            (windows + tail / schedule.blocks_per_chunk);
  }
  return measures;
}

// Chooses the first stage for its time and the gradients' communication that it
// leaves exposed.
StrategyPlan ImprovedWithComm(const PlanInput& input, const ExposedComm& comm,
                              const LaterStages& later, StrategyPlan plan) {
  const DataParallelTimes& planned = plan.times.data_parallel;
  const CountedComm counted = {planned.chunk_balance > 0,
                               planned.tail_balance > 0};
  if (!counted.chunk && !counted.tail) return plan;
  const std::vector<BlockPolicy> policies =
      FindPolicies(input.block.operators, MeasuresWithComm(input, counted));
  std::vector<double> costs;
  for (const BlockPolicy& policy : policies) {
    const PolicyTimes times =
        ComputePolicyTimes(input, input.CostsOf(policy.kept));
    costs.push_back(comm.WithComm(times, counted) / input.schedule.blocks);
  }
  const FirstStage first{
      ChoosePolicies(input, 0, {policies, costs}, input.cutoff - later.bound),
      policies};
  const StageChoice& choice = first.chosen.choice;
  if (!choice.is_feasible) return plan;
  StrategyPlan other = Assemble(input, first, later);
  const double bound = std::max(plan.bound, choice.bound + later.bound);
  if (other.times.total < plan.times.total) plan = std::move(other);
  plan.bound = bound;
  return plan;
}

StrategyPlan PlanFor(const PlanInput& input) {
  std::vector<PolicyTimes> times;
  std::vector<double> costs;
  for (const BlockCosts& policy : input.block.policy_costs) {
    times.push_back(ComputePolicyTimes(input, policy));
    costs.push_back(times.back().batch / input.schedule.blocks);
  }
  const ExposedComm comm(input.execution, times);
  const double cutoff = input.cutoff - comm.Least();
  const FirstStage first{ChoosePolicies(input, 0, {input.block.policies, costs},
                                        cutoff - LeastLaterFill(input, times)),
                         input.block.policies};
  const StageChoice& choice = first.chosen.choice;
  if (!choice.is_feasible) return SmallestPlan(input);
  const LaterStages later =
      ChooseLaterStages(input, times, cutoff - choice.bound);
  if (!later.is_feasible) return SmallestPlan(input);
  StrategyPlan plan = Assemble(input, first, later);
  plan.bound = choice.bound + comm.Least() + later.bound;
  if (comm.Varies()) {
    plan =
        Polished(input, ImprovedWithComm(input, comm, later, std::move(plan)));
  }
  plan.bound = std::min(plan.bound, plan.times.total);
  return plan;
}

}  // namespace

const MemoryNeeds& FullestMemory(const StrategyPlan& plan) {
  return std::ranges::max_element(
             plan.stages, {},
             [](const StagePlan& stage) { return stage.memory.tier1; })
      ->memory;
}

PlannedBlock PlanBlock(const Model& model, const System& system,
                       const Execution& execution) {
  const Execution planned = PlannedExecution(execution);
  const Schedule schedule = ScheduleOf(model, planned);
  PlannedBlock block;
  block.costs = ComputeBlockCosts(model, system, planned, AllCorrections());
  block.operators = ListOperators(model, system, planned);
  const bool has_base = schedule.base_blocks > 0;
  const bool places_differ = has_base && PlacesDiffer(block.operators);
  for (const Operator& op : block.operators.operators) {
    const RecomputeCosts& repeated = op.recompute;
    const double run = repeated.recompute.time + repeated.weight_grad.time;
    const double base = run + repeated.repeated_comm.base_exposed;
    const double edge = run + repeated.repeated_comm.edge_exposed;
    block.seconds.push_back(places_differ ? PolicyCosts{base, edge}
                                          : PolicyCosts{edge});
  }
  block.policies = FindPolicies(block.operators, block.seconds);
  for (const BlockPolicy& policy : block.policies) {
    block.policy_costs.push_back(
        CostsWith(block.costs, block.operators, policy.kept));
  }
  return block;
}

StrategyPlan PlanWithBlock(const System& system, const Execution& execution,
                           const Schedule& schedule, const PlannedBlock& block,
                           double cutoff) {
  return PlanFor({.system = system,
                  .execution = PlannedExecution(execution),
                  .schedule = schedule,
                  .block = block,
                  .cutoff = cutoff});
}

StrategyPlan PlanStrategy(const Model& model, const System& system,
                          const Execution& execution) {
  StrategyPlan plan;
  plan.verdict = CheckFit(model, system, execution);
  if (!plan.verdict.Fits()) return plan;
  const Schedule schedule = ScheduleOf(model, execution);
  return PlanWithBlock(system, execution, schedule,
                       PlanBlock(model, system, execution));
}

double LeastBatchTime(const System& system, const Execution& execution,
                      const Schedule& schedule, const BlockCosts& costs) {
  BlockCosts least = costs;
  least.act_storage_space = 0;
  const BatchTimes times = ComputeBatchTimes(
      system, PlannedExecution(execution), schedule, least, AllCorrections());
  if (execution.data_par == 1 || !execution.data_par_overlap) {
    return times.total;
  }
  const DataParallelTimes& comm = times.data_parallel;
  double exposed = comm.block_time;
  // With as many microbatches as stages, recomputation takes longer than what
  // it hides.
  if (schedule.microbatches >= schedule.pipeline_par) {
    exposed +=
        std::max(0.0, comm.chunk_balance) + std::max(0.0, comm.tail_balance);
  }
  return times.total - comm.exposed + exposed;
}

}  // namespace acplan::costmodel
