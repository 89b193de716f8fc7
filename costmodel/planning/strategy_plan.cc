#include "costmodel/planning/strategy_plan.h"

#include <algorithm>
#include <span>

#include "costmodel/llm/evaluation.h"
#include "costmodel/planning/stage_choice.h"

namespace acplan::costmodel {
namespace {

// What a block's policy costs a batch, were all blocks to have it.
struct PolicyTimes {
  double block = 0;  // seconds of a microbatch
  double fill = 0;   // of a stage, and of one that lacks a block
  double short_fill = 0;
  double batch = 0;    // without exposed communication of gradients
  double exposed = 0;  // that communication
  // What it is made from (DataParallelTimes).
  double comm_of_block = 0;
  double chunk_exposed = 0;
  double tail_exposed = 0;
  double chunk_balance = 0;
  double tail_balance = 0;
  double collisions = 0;  // on top of chunk_balance
};

// Whether communication of gradients counts as if computing could hide more
// than all of it, in chunks but the last and in the last: that is never more
// than what is exposed.
struct CountedComm {
  bool chunk = false;
  bool tail = false;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRoundingUp = 1 + 1e-13;

// Whether an operator that runs again takes longer in some blocks of a chunk
// than in others.
bool PlacesDiffer(const BlockOperators& operators) {
  return std::ranges::any_of(operators.operators, [](const Operator& op) {
    const StageComm& comm = op.recompute.repeated_comm;
    return comm.base_exposed != comm.edge_exposed;
  });
}

// The stages of an execution, and what they are chosen from.
class Planner {
 public:
  Planner(const System& system, const Execution& execution,
          const Schedule& schedule, const PlannedBlock& block, double cutoff)
      : system_(system),
        execution_(PlannedExecution(execution)),
        schedule_(schedule),
        block_(block),
        cutoff_(cutoff) {
    for (const BlockCosts& costs : block.policy_costs) {
      times_.push_back(TimesOf(costs));
    }
    least_block_time_ = MeanBlockTime(
        schedule, ComputeBatchTimes(system, execution_, schedule, block.costs,
                                    AllCorrections()));
  }

  StrategyPlan Plan() const {
    std::vector<double> batch;
    for (const PolicyTimes& times : times_) {
      batch.push_back(times.batch / schedule_.blocks);
    }
    double least_later = 0;
    for (int64_t stage = 1; stage < execution_.pipeline_par; ++stage) {
      least_later += LeastFill(stage);
    }
    const double cutoff = cutoff_ - LeastExposed();
    const Chosen first =
        Choose(0, block_.policies, batch, cutoff - least_later);
    if (!first.choice.is_feasible) return Smallest();
    const Later later = ChooseLater(least_later, cutoff - first.choice.bound);
    if (!later.is_feasible) return Smallest();
    StrategyPlan plan = Assemble(first, block_.policies, later);
    plan.bound = first.choice.bound + LeastExposed() + later.bound;
    if (CommunicationVaries()) {
      ImproveWithComm(later, plan);
      plan = Polished(plan);
    }
    plan.bound = std::min(plan.bound, plan.times.total);
    return plan;
  }

 private:
  struct Chosen {
    StageChoice choice;
    std::vector<size_t> policies;  // that were to choose from
  };

  // The stages after the first.
  struct Later {
    std::vector<Chosen> stages;
    bool is_feasible = true;
    double bound = 0;  // of the seconds that they fill
  };

  PolicyTimes TimesOf(const BlockCosts& costs) const {
    const BatchTimes times = ComputeBatchTimes(system_, execution_, schedule_,
                                               costs, AllCorrections());
    const DataParallelTimes& comm = times.data_parallel;
    PolicyTimes result;
    result.block = MeanBlockTime(schedule_, times);
    result.fill = StageFillTime(schedule_, times, false);
    result.short_fill = StageFillTime(schedule_, times, true);
    result.batch = times.total - comm.exposed;
    for (int64_t stage = 1; stage < execution_.pipeline_par; ++stage) {
      result.batch -= FillTime(result, stage);
    }
    result.exposed = comm.exposed;
    result.comm_of_block = comm.block_time;
    result.chunk_exposed = comm.exposed - comm.block_time - comm.tail_exposed;
    result.tail_exposed = comm.tail_exposed;
    result.chunk_balance = comm.chunk_balance;
    result.tail_balance = comm.tail_balance;
    result.collisions = comm.chunk_collisions;
    return result;
  }

  double FillTime(const PolicyTimes& times, int64_t stage) const {
    return StageLacksBlock(schedule_, stage) ? times.short_fill : times.fill;
  }

  // A chunk of one block that a stage lacks takes no time.
  bool AddsFill(int64_t stage) const {
    return schedule_.base_blocks > 0 || !StageLacksBlock(schedule_, stage);
  }

  double LeastFill(int64_t stage) const {
    double least = kInfinity;
    for (const PolicyTimes& times : times_) {
      least = std::min(least, FillTime(times, stage));
    }
    return least;
  }

  bool OverlapsGradients() const {
    return execution_.data_par > 1 && execution_.data_par_overlap;
  }

  // Whether what is exposed depends on the policy: where nothing is, only the
  // slowdown of computing counts.
  bool ChunkVaries() const {
    const double most =
        std::ranges::max(times_, {}, &PolicyTimes::collisions).collisions;
    return std::ranges::any_of(times_, [&](const PolicyTimes& times) {
      return times.chunk_balance + most > 0;
    });
  }
  bool TailVaries() const {
    return std::ranges::any_of(times_, [](const PolicyTimes& times) {
      return times.tail_balance > 0;
    });
  }
  bool CommunicationVaries() const {
    return OverlapsGradients() && (ChunkVaries() || TailVaries());
  }

  // Of any mixture of policies. The longer a chunk takes the fewer there are.
  double LeastCollisions() const {
    return std::ranges::min(times_, {}, &PolicyTimes::collisions).collisions;
  }
  double LeastChunk() const {
    return ChunkVaries() ? 0 : times_.front().chunk_exposed;
  }
  double LeastTail() const {
    return TailVaries() ? 0 : times_.front().tail_exposed;
  }
  double LeastExposed() const {
    if (!OverlapsGradients()) return times_.front().exposed;
    return times_.front().comm_of_block + LeastChunk() + LeastTail();
  }

  double WithComm(const PolicyTimes& times, const CountedComm& counted) const {
    return times.batch + times.comm_of_block +
           (counted.chunk ? times.chunk_balance + LeastCollisions()
                          : LeastChunk()) +
           (counted.tail ? times.tail_balance : LeastTail());
  }

  KeptActivations KeptBy(int64_t stage, double bytes, double most) const {
    return {StageMicrobatches(schedule_, stage), bytes, most};
  }

  MemoryNeeds MemoryOf(int64_t stage, const KeptActivations& kept) const {
    return ComputeStageMemoryNeeds(execution_, StageBlocks(schedule_, stage),
                                   block_.costs, kept, AllCorrections());
  }

  // `costs`: of a block, by policy; what adds up to `cutoff` need not be least.
  Chosen Choose(int64_t stage, std::span<const BlockPolicy> policies,
                std::span<const double> costs, double cutoff) const {
    const MemoryNeeds states = MemoryOf(stage, KeptBy(stage, 0, 0));
    // A plan that takes all there is fits, whatever the rounding: by less than
    // a byte.
    const double room1 = system_.mem1.capacity * kRoundingUp - states.tier1;
    const double room2 = system_.mem2.capacity * kRoundingUp - states.tier2;
    const bool offloads = execution_.activations_offload;
    Chosen chosen;
    if (room1 < 0 || room2 < 0) return chosen;
    std::vector<BlockChoice> choices;
    for (size_t i = 0; i < policies.size(); ++i) {
      if (offloads && policies[i].bytes > room1) break;
      if (!choices.empty()) {
        if (choices.back().cost <= costs[i]) continue;
        if (choices.back().bytes == policies[i].bytes) {
          choices.pop_back();
          chosen.policies.pop_back();
        }
      }
      choices.push_back({policies[i].bytes, costs[i]});
      chosen.policies.push_back(i);
    }
    chosen.choice = ChooseForBlocks(
        choices, static_cast<int64_t>(StageBlocks(schedule_, stage)),
        StageMicrobatches(schedule_, stage), offloads ? room2 : room1,
        {.cutoff = cutoff});
    return chosen;
  }

  std::vector<double> LaterCosts(int64_t stage) const {
    std::vector<double> costs;
    for (const PolicyTimes& times : times_) {
      costs.push_back(AddsFill(stage) ? FillTime(times, stage) /
                                            StageBlocks(schedule_, stage)
                                      : times.block);
    }
    return costs;
  }

  // Stages with as many blocks that hold as much have one answer.
  // `least`: LeastFill of all.
  Later ChooseLater(double least, double cutoff) const {
    Later later;
    later.bound = least;
    std::vector<Chosen>& stages = later.stages;
    for (int64_t stage = 1; stage < execution_.pipeline_par; ++stage) {
      if (StageBlocks(schedule_, stage) < 1) break;
      const double others = later.bound - LeastFill(stage);
      if (stage > 1 &&
          StageBlocks(schedule_, stage) == StageBlocks(schedule_, stage - 1) &&
          (StageMicrobatches(schedule_, stage) ==
               StageMicrobatches(schedule_, stage - 1) ||
           KeepsMost(stages.back()))) {
        stages.push_back(stages.back());
      } else {
        stages.push_back(Choose(stage, block_.policies, LaterCosts(stage),
                                AddsFill(stage) ? cutoff - others : kInfinity));
      }
      const StageChoice& choice = stages.back().choice;
      if (!choice.is_feasible) {
        later.is_feasible = false;
        break;
      }
      if (AddsFill(stage)) later.bound = others + choice.bound;
    }
    return later;
  }

  static bool KeepsMost(const Chosen& chosen) {
    const StageChoice& choice = chosen.choice;
    return choice.is_feasible &&
           std::all_of(choice.counts.begin(), choice.counts.end() - 1,
                       [](int64_t count) { return count == 0; });
  }

  StagePlan StageOf(int64_t stage, const Chosen& chosen,
                    std::span<const BlockPolicy> policies) const {
    StagePlan plan{
        .stage = stage,
        .blocks = static_cast<int64_t>(StageBlocks(schedule_, stage)),
        .in_flight = StageMicrobatches(schedule_, stage)};
    double bytes = 0;
    double most = 0;
    for (size_t i = 0; i < chosen.policies.size(); ++i) {
      const int64_t count = chosen.choice.counts[i];
      if (count == 0) continue;
      const BlockPolicy& policy = policies[chosen.policies[i]];
      plan.policies.push_back({policy.kept, count});
      bytes += static_cast<double>(count) * policy.bytes;
      most = std::max(most, policy.bytes);
    }
    plan.memory = MemoryOf(stage, KeptBy(stage, bytes, most));
    return plan;
  }

  StrategyPlan Assemble(const Chosen& first,
                        std::span<const BlockPolicy> first_policies,
                        const Later& later) const {
    StrategyPlan plan;
    plan.stages.push_back(StageOf(0, first, first_policies));
    for (size_t i = 0; i < later.stages.size(); ++i) {
      plan.stages.push_back(StageOf(static_cast<int64_t>(i) + 1,
                                    later.stages[i], block_.policies));
    }
    SetTimes(plan);
    return plan;
  }

  void SetTimes(StrategyPlan& plan) const {
    std::vector<BlockShare> shares;
    for (const PolicyShare& policy : plan.stages.front().policies) {
      shares.push_back({CostsWith(block_.costs, block_.operators, policy.kept),
                        static_cast<double>(policy.blocks)});
    }
    plan.times = shares.size() == 1
                     ? ComputeBatchTimes(system_, execution_, schedule_,
                                         shares[0].costs, AllCorrections())
                     : ComputeBatchTimes(system_, execution_, schedule_, shares,
                                         AllCorrections());
    double saved = 0;
    for (StagePlan& stage : plan.stages) {
      const bool lacks_block = StageLacksBlock(schedule_, stage.stage);
      if (stage.stage > 0) {
        saved += StageFillTime(schedule_, plan.times, lacks_block);
      }
      stage.seconds = stage.recompute_seconds = 0;
      for (const PolicyShare& policy : stage.policies) {
        const double blocks = static_cast<double>(policy.blocks);
        const BatchTimes times = ComputeBatchTimes(
            system_, execution_, schedule_,
            CostsWith(block_.costs, block_.operators, policy.kept),
            AllCorrections());
        const double seconds = MeanBlockTime(schedule_, times);
        stage.seconds += blocks * seconds;
        stage.recompute_seconds += blocks * (seconds - least_block_time_);
        if (stage.stage > 0) {
          saved -= blocks / static_cast<double>(stage.blocks) *
                   StageFillTime(schedule_, times, lacks_block);
        }
      }
    }
    plan.times.bubble -= saved;
    plan.times.total -= saved;
  }

  // Chooses the first stage for its time and the gradients' communication that
  // it leaves exposed. What hides that is computing, without memory traffic and
  // communication in the same network, and computing is slowed by it: of
  // policies that take as long, those with less of these hide more.
  void ImproveWithComm(const Later& later, StrategyPlan& plan) const {
    const DataParallelTimes& comm = plan.times.data_parallel;
    const CountedComm counted = {comm.chunk_balance > 0, comm.tail_balance > 0};
    if (!counted.chunk && !counted.tail) return;
    const double windows =
        counted.chunk ? schedule_.pipeline_par * (schedule_.chunks - 1) : 0;
    const double tail = counted.tail ? 1 : 0;
    const double usage =
        system_.networks[execution_.data_par_net].processor_usage;
    const bool shares_network =
        execution_.data_par_net == execution_.tensor_par_net;
    std::vector<PolicyCosts> measures = block_.seconds;
    for (size_t i = 0; i < measures.size(); ++i) {
      const RecomputeCosts& again = block_.operators.operators[i].recompute;
      double idle = again.recompute.mem_time;
      if (shares_network) {
        idle += (schedule_.base_blocks * again.repeated_comm.base_time +
                 again.repeated_comm.edge_time) /
                schedule_.blocks_per_chunk;
      }
      measures[i].back() =
          idle * (windows + (schedule_.base_blocks > 0 ? tail : 0)) +
          again.recompute.flops_time * usage *
              (windows + tail / schedule_.blocks_per_chunk);
    }
    const std::vector<BlockPolicy> policies =
        FindPolicies(block_.operators, measures);
    std::vector<double> costs;
    for (const BlockPolicy& policy : policies) {
      const BlockCosts block_costs =
          CostsWith(block_.costs, block_.operators, policy.kept);
      costs.push_back(WithComm(TimesOf(block_costs), counted) /
                      schedule_.blocks);
    }
    const Chosen first = Choose(0, policies, costs, cutoff_ - later.bound);
    if (!first.choice.is_feasible) return;
    const StrategyPlan other = Assemble(first, policies, later);
    const double bound = std::max(plan.bound, first.choice.bound + later.bound);
    if (other.times.total < plan.times.total) plan = other;
    plan.bound = bound;
  }

  // Seconds of a batch but for what later stages fill, with such a first stage.
  double FirstSeconds(std::span<const PolicyShare> policies) const {
    std::vector<BlockShare> shares;
    for (const PolicyShare& policy : policies) {
      shares.push_back({CostsWith(block_.costs, block_.operators, policy.kept),
                        static_cast<double>(policy.blocks)});
    }
    const BatchTimes times = ComputeBatchTimes(system_, execution_, schedule_,
                                               shares, AllCorrections());
    const double missing = schedule_.missing_blocks;
    return times.total - missing * StageFillTime(schedule_, times, true) -
           (schedule_.pipeline_par - 1 - missing) *
               StageFillTime(schedule_, times, false);
  }

  MemoryNeeds FirstMemory(std::span<const PolicyShare> policies) const {
    double bytes = 0;
    double most = 0;
    for (const PolicyShare& policy : policies) {
      const double each = KeptBytes(block_.operators, policy.kept);
      bytes += static_cast<double>(policy.blocks) * each;
      most = std::max(most, each);
    }
    return MemoryOf(0, KeptBy(0, bytes, most));
  }

  // With `blocks` of the i-th share given another policy.
  static std::vector<PolicyShare> Moved(std::vector<PolicyShare> policies,
                                        size_t i, int64_t blocks,
                                        KeptTensors kept) {
    policies[i].blocks -= blocks;
    const auto at = std::ranges::find(policies, kept, &PolicyShare::kept);
    if (at == policies.end()) {
      policies.push_back({kept, blocks});
    } else {
      at->blocks += blocks;
    }
    std::erase_if(policies,
                  [](const PolicyShare& share) { return share.blocks == 0; });
    return policies;
  }

  // A first stage that fits, and its FirstSeconds.
  struct FirstStage {
    std::vector<PolicyShare> policies;
    double seconds = kInfinity;
  };

  // `best`, or what is better and fits.
  FirstStage Better(FirstStage best, std::vector<PolicyShare> policies) const {
    const double seconds = FirstSeconds(policies);
    if (seconds >= best.seconds * (1 - 1e-12) ||
        !CheckMemory(system_, FirstMemory(policies)).Fits()) {
      return best;
    }
    return {std::move(policies), seconds};
  }

  // Gives one block, or all that share a policy, another one, while that helps.
  FirstStage Climb(FirstStage from) const {
    constexpr int kMostRounds = 20;
    for (int round = 0; round < kMostRounds; ++round) {
      FirstStage best = from;
      for (size_t i = 0; i < from.policies.size(); ++i) {
        const PolicyShare& share = from.policies[i];
        for (const BlockPolicy& policy : block_.policies) {
          if (policy.kept == share.kept) continue;
          best =
              Better(std::move(best), Moved(from.policies, i, 1, policy.kept));
          if (share.blocks == 1) continue;
          best = Better(std::move(best),
                        Moved(from.policies, i, share.blocks, policy.kept));
        }
      }
      if (best.seconds == from.seconds) break;
      from = std::move(best);
    }
    return from;
  }

  // What hides communication comes in jumps, which no linear cost sees: climbs
  // from the plan, and from the best policy for all blocks.
  StrategyPlan Polished(const StrategyPlan& plan) const {
    if (plan.IsOptimal() || plan.bound >= cutoff_) return plan;
    FirstStage same;
    for (const BlockPolicy& policy : block_.policies) {
      same = Better(std::move(same),
                    {{policy.kept, static_cast<int64_t>(schedule_.blocks)}});
    }
    const std::vector<PolicyShare>& planned = plan.stages.front().policies;
    FirstStage best = Climb({planned, FirstSeconds(planned)});
    if (!same.policies.empty()) {
      same = Climb(std::move(same));
      if (same.seconds < best.seconds) best = std::move(same);
    }
    std::ranges::sort(best.policies, {}, [&](const PolicyShare& share) {
      return KeptBytes(block_.operators, share.kept);
    });
    StrategyPlan other = plan;
    StagePlan& first = other.stages.front();
    first.policies = std::move(best.policies);
    first.memory = FirstMemory(first.policies);
    SetTimes(other);
    return other.times.total < plan.times.total ? other : plan;
  }

  StrategyPlan Smallest() const {
    StrategyPlan plan;
    const BlockPolicy& policy = block_.policies.front();
    for (int64_t stage = 0; stage < execution_.pipeline_par; ++stage) {
      const double blocks = StageBlocks(schedule_, stage);
      if (blocks < 1) break;
      StagePlan& one = plan.stages.emplace_back(
          StagePlan{.stage = stage,
                    .blocks = static_cast<int64_t>(blocks),
                    .in_flight = StageMicrobatches(schedule_, stage)});
      one.policies = {{policy.kept, one.blocks}};
      one.memory =
          MemoryOf(stage, KeptBy(stage, blocks * policy.bytes, policy.bytes));
      if (plan.verdict.Fits()) {
        plan.verdict = CheckMemory(system_, one.memory);
      }
    }
    SetTimes(plan);
    return plan;
  }

  const System& system_;
  Execution execution_;
  const Schedule& schedule_;
  const PlannedBlock& block_;
  double cutoff_;
  double least_block_time_ = 0;
  std::vector<PolicyTimes> times_;
};

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
    const RecomputeCosts& again = op.recompute;
    const double run = again.recompute.time + again.weight_grad.time;
    const double base = run + again.repeated_comm.base_exposed;
    const double edge = run + again.repeated_comm.edge_exposed;
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
  return Planner(system, execution, schedule, block, cutoff).Plan();
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
