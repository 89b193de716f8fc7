#include "cli/llm/llm_search_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"

namespace acplan::cli {

namespace {

using costmodel::Candidate;
using costmodel::Execution;
using costmodel::SearchOutcome;

std::string OffloadText(const Execution& execution) {
  std::string text;
  if (execution.weight_offload) text += 'w';
  if (execution.activations_offload) text += 'a';
  if (execution.optimizer_offload) text += 'o';
  return text.empty() ? "-" : text;
}

std::string YesNo(bool value) { return value ? "yes" : "no"; }

std::vector<std::string> StrategyHeading() {
  return {"TP",   "PP",      "DP",         "chunks",  "batch",  "microbatch",
          "comm", "overlap", "DP overlap", "sharded", "offload"};
}

std::vector<std::string> StrategyCells(const Execution& e) {
  return {std::to_string(e.tensor_par),
          std::to_string(e.pipeline_par),
          std::to_string(e.data_par),
          std::to_string(e.pipeline_interleaving),
          std::to_string(e.batch_size),
          std::to_string(e.microbatch_size),
          std::string(costmodel::kTensorCommTypeNames[static_cast<size_t>(
              e.tensor_par_comm_type)]),
          std::string(costmodel::kTensorOverlapNames[static_cast<size_t>(
              e.tensor_par_overlap)]),
          YesNo(e.data_par_overlap),
          YesNo(e.optimizer_sharding),
          OffloadText(e)};
}

// A table of strategies, each with some cells before those of its execution.
class StrategyTable {
 public:
  explicit StrategyTable(std::vector<std::string> heading)
      : table_(std::vector<Table::Align>(
            heading.size() + StrategyHeading().size(), Table::Align::kRight)) {
    AddRow(std::move(heading), StrategyHeading());
    table_.AddRule();
  }

  void Add(std::vector<std::string> cells, const Execution& execution) {
    AddRow(std::move(cells), StrategyCells(execution));
  }

  std::string ToString(const Terminal& terminal) const {
    return table_.ToString(terminal);
  }

 private:
  void AddRow(std::vector<std::string> row, std::vector<std::string> rest) {
    std::ranges::move(rest, std::back_inserter(row));
    table_.AddRow(std::move(row));
  }

  Table table_;
};

std::string RateText(const Candidate& candidate) {
  return fmt::format("{:.5g}", candidate.sample_rate);
}

std::string BatchSecondsText(const Candidate& candidate) {
  return fmt::format("{:.5g}",
                     static_cast<double>(candidate.execution.batch_size) /
                         candidate.sample_rate);
}

// The time of recomputation in the first stage, as a share of the batch; or the
// fixed policy.
std::string RecomputeText(const RankedStrategy& strategy) {
  if (!strategy.plan) {
    return std::string(costmodel::kRecomputeNames[static_cast<size_t>(
        strategy.candidate.execution.activation_recompute)]);
  }
  const costmodel::BatchTimes& times = strategy.plan->times;
  const double seconds = times.recompute + times.repeated_comm_exposed;
  return fmt::format("{:.1f}%", 100 * seconds / times.total);
}

std::string StageText(const char* name, const costmodel::SearchStage& stage) {
  const SearchOutcome& outcome = stage.outcome;
  return fmt::format(
      "{:<15}{:>13} strategies, {:>11} feasible, best {:.6g} samples/s ({:.2f} "
      "s, {}/s)\n",
      name, FormatCount(outcome.counts.total), FormatCount(outcome.counts.good),
      BestRate(outcome), stage.seconds,
      FormatCount(static_cast<int64_t>(
          stage.seconds > 0
              ? static_cast<double>(outcome.counts.total) / stage.seconds
              : 0)));
}

std::string ProofText(const SearchOutcome& outcome) {
  if (outcome.was_interrupted) return "interrupted: others may be faster";
  if (IsProven(outcome)) return "proven: no strategy with any plan is faster";
  return fmt::format(
      "no strategy with any plan is faster than {:.6g} ({:.3f}%)",
      outcome.rate_bound, 100 * (outcome.rate_bound / BestRate(outcome) - 1));
}

}  // namespace

std::string SearchSummary(const costmodel::SearchProblem& problem,
                          const costmodel::StagedOutcome& found) {
  std::string text = fmt::format(
      "{} processors, batch {}, {}, {} of memory\n\n", problem.num_procs,
      problem.max_batch,
      costmodel::kDatatypeNames[static_cast<size_t>(problem.datatype)],
      graph::FormatManyBytes(problem.system.mem1.capacity));
  text += StageText("fixed policies", found.fixed);
  if (!found.plans) return text;
  text += StageText("plans", *found.plans);
  const double fixed = BestRate(found.fixed.outcome);
  const double best = BestRate(found.plans->outcome);
  if (fixed > 0) {
    text +=
        fmt::format("{:<15}{:+.2f}% samples/s; ", "", 100 * (best / fixed - 1));
  } else {
    text += fmt::format("{:<15}no fixed policy fits; ", "");
  }
  return text + ProofText(found.plans->outcome) + "\n";
}

std::string RankTable(std::span<const RankedStrategy> strategies,
                      const Terminal& terminal) {
  StrategyTable table(
      {"rank", "samples/s", "s a batch", "memory", "recompute"});
  size_t rank = 0;
  for (const RankedStrategy& strategy : strategies) {
    const Candidate& candidate = strategy.candidate;
    table.Add(
        {std::to_string(rank++), RateText(candidate),
         BatchSecondsText(candidate), graph::FormatManyBytes(candidate.memory),
         RecomputeText(strategy)},
        candidate.execution);
  }
  return table.ToString(terminal);
}

std::string FrontTable(const costmodel::RateFront& front,
                       const Terminal& terminal) {
  StrategyTable table({"budget", "memory", "samples/s", "s a batch"});
  for (const auto& [budget, best] : front.points) {
    table.Add(
        {graph::FormatManyBytes(budget), graph::FormatManyBytes(best.memory),
         RateText(best), BatchSecondsText(best)},
        best.execution);
  }
  return table.ToString(terminal);
}

}  // namespace acplan::cli
