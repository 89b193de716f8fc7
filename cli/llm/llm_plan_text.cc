#include "cli/llm/llm_plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/llm/llm_text.h"
#include "cli/terminal/text.h"

namespace acplan::cli {

namespace {

using costmodel::FixedPolicy;
using costmodel::MemoryParts;
using costmodel::PlanRecord;
using costmodel::PlanStatus;
using costmodel::PolicyRecord;
using costmodel::StageRecord;
using enum Table::Align;

std::string Bytes(double bytes) { return HumanBytes(bytes); }

bool UsesTier2(const PlanRecord& record) {
  return std::ranges::any_of(record.fixed, [](const FixedPolicy& policy) {
    return policy.memory.tier2 > 0;
  });
}

std::string PolicyName(const FixedPolicy& policy) {
  return fmt::format(
      "{}{}", costmodel::kRecomputeNames[static_cast<size_t>(policy.recompute)],
      policy.seq_par_ag_redo ? " + seq_par_ag_redo" : "");
}

std::string Heading(const PlanRecord& record, const Terminal& terminal) {
  const costmodel::Execution& execution = record.execution;
  return LlmHeading(execution, record.application, record.system, terminal) +
         fmt::format(
             "{} samples a batch, {} microbatches of {}; budget {} a "
             "processor\n",
             FormatCount(execution.batch_size),
             FormatCount(execution.NumMicrobatches()),
             execution.microbatch_size, Bytes(record.budget_bytes));
}

// Consecutive stages that do the same.
std::vector<std::span<const StageRecord>> GroupStages(
    std::span<const StageRecord> stages) {
  std::vector<std::span<const StageRecord>> groups;
  size_t first = 0;
  for (size_t i = 1; i <= stages.size(); ++i) {
    if (i < stages.size() && stages[i].policies == stages[first].policies) {
      continue;
    }
    groups.push_back(stages.subspan(first, i - first));
    first = i;
  }
  return groups;
}

std::string PolicyLine(const PolicyRecord& policy, int64_t blocks) {
  std::string recomputed =
      fmt::format(": {}", fmt::join(policy.recomputed, ", "));
  if (policy.kept.empty()) recomputed = " all, their input alone is kept";
  if (policy.recomputed.empty()) recomputed = " nothing";
  return fmt::format("  {} of {} blocks recompute{}\n", policy.blocks, blocks,
                     recomputed);
}

std::string Policies(std::span<const StageRecord> stages,
                     const Terminal& terminal) {
  std::string text;
  for (const std::span<const StageRecord> group : GroupStages(stages)) {
    const StageRecord& first = group.front();
    text += terminal.Bold(group.size() == 1
                              ? fmt::format("stage {}", first.stage)
                              : fmt::format("stages {} to {}, each",
                                            first.stage, group.back().stage));
    text += "\n";
    for (const PolicyRecord& policy : first.policies) {
      text += PolicyLine(policy, first.blocks);
    }
  }
  return text + "\n";
}

std::string StageTable(std::span<const StageRecord> stages, bool has_tier2,
                       const Terminal& terminal) {
  Table table({kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight});
  const auto add = [&](std::vector<std::string> cells,
                       const std::string& tier2) {
    if (has_tier2) cells.insert(cells.begin() + 5, tier2);
    table.AddRow(std::move(cells));
  };
  add({"stage", "blocks", "in flight", "memory", "activations", "microbatch",
       "over all kept"},
      "tier 2");
  for (const StageRecord& stage : stages) {
    add({fmt::to_string(stage.stage), fmt::to_string(stage.blocks),
         fmt::format("{:.4g}", stage.microbatches_in_flight),
         Bytes(stage.memory.tier1), Bytes(stage.memory.activations),
         HumanSeconds(stage.seconds),
         FormatChange(stage.seconds - stage.recompute_seconds, stage.seconds)},
        Bytes(stage.memory.tier2));
  }
  return table.ToString(terminal);
}

std::string Comparison(const PlanRecord& record, const Terminal& terminal) {
  const bool has_tier2 = UsesTier2(record);
  const bool has_plan = record.status != PlanStatus::kInfeasible;
  Table table({kLeft, kRight, kRight, kRight, kRight, kRight, kRight});
  const auto add = [&](std::vector<std::string> cells,
                       const std::string& tier2) {
    if (has_tier2) cells.insert(cells.begin() + 2, tier2);
    table.AddRow(std::move(cells));
  };
  const bool compares = has_plan && record.is_corrected;
  add({"policy", "memory", "fits", "batch", "samples/s",
       compares ? "the plan's time" : ""},
      "tier 2");
  const auto rate = [&](double seconds) {
    return fmt::format(
        "{:.4g}", static_cast<double>(record.execution.batch_size) / seconds);
  };
  for (const FixedPolicy& policy : record.fixed) {
    add({PolicyName(policy), Bytes(policy.memory.tier1),
         policy.fits ? "yes" : "no", HumanSeconds(policy.total_time),
         rate(policy.total_time),
         compares ? FormatChange(policy.total_time, record.times.total) : ""},
        Bytes(policy.memory.tier2));
  }
  if (compares) {
    MemoryParts most;
    for (const StageRecord& stage : record.stages) {
      most.tier1 = std::max(most.tier1, stage.memory.tier1);
      most.tier2 = std::max(most.tier2, stage.memory.tier2);
    }
    table.AddRule();
    add({"plan", Bytes(most.tier1), "yes", HumanSeconds(record.times.total),
         rate(record.times.total)},
        Bytes(most.tier2));
  }
  std::string text = table.ToString(terminal);
  if (record.is_corrected) {
    text += terminal.Dim("none keeps everything: the baseline") + "\n";
  }
  return text;
}

std::string GainText(const PlanRecord& record) {
  const auto best = FastestThatFits(record.fixed);
  if (!best) return "no fixed policy fits\n";
  const double saved = best->total_time - record.times.total;
  const std::string rival =
      fmt::format("{}, the fastest fixed policy that fits", PolicyName(*best));
  if (std::abs(saved) <= 1e-9 * best->total_time) {
    return fmt::format("as fast as {}\n", rival);
  }
  return fmt::format("{} ({:.2f}%) {} a batch than {}\n",
                     HumanSeconds(std::abs(saved)),
                     100 * std::abs(saved) / best->total_time,
                     saved > 0 ? "less" : "more", rival);
}

std::string VerdictText(const PlanRecord& record, const Terminal& terminal) {
  if (record.status == PlanStatus::kOptimal) {
    return fmt::format("{}: no plan is faster\n", terminal.Green("optimal"));
  }
  return fmt::format("{}: no plan is faster than {} (gap {})\n",
                     terminal.Yellow("feasible"), HumanSeconds(*record.bound),
                     FormatPercentUp((record.times.total - *record.bound) /
                                     record.times.total));
}

std::string InfeasibleTable(const PlanRecord& record,
                            std::span<const StageRecord> stages,
                            const Terminal& terminal) {
  const bool has_tier2 = UsesTier2(record);
  Table table({kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight,
               kRight, kRight, kRight});
  const auto add = [&](std::vector<std::string> cells,
                       const std::vector<std::string>& tier2) {
    if (has_tier2) cells.insert(cells.end(), tier2.begin(), tier2.end());
    table.AddRow(std::move(cells));
  };
  const auto missing = [](double needed, double capacity) {
    return needed > capacity ? Bytes(needed - capacity) : "";
  };
  add({"stage", "in flight", "needed", "missing", "weights", "activations",
       "their gradients", "weight gradients", "optimizer"},
      {"tier 2", "missing"});
  for (const StageRecord& stage : stages) {
    const MemoryParts& memory = stage.memory;
    add({fmt::to_string(stage.stage),
         fmt::format("{:.4g}", stage.microbatches_in_flight),
         Bytes(memory.tier1), missing(memory.tier1, record.budget_bytes),
         Bytes(memory.weights), Bytes(memory.activations),
         Bytes(memory.activation_gradients), Bytes(memory.weight_gradients),
         Bytes(memory.optimizer)},
        {Bytes(memory.tier2), missing(memory.tier2, record.tier2_bytes)});
  }
  return table.ToString(terminal);
}

// A tier that is too small.
std::string LackText(std::string_view tier, double needed, double capacity) {
  return fmt::format(
      "the least that a plan needs{}: {}, {} more than there is\n", tier,
      FormatBytesExactly(std::llround(std::ceil(needed))),
      Bytes(needed - capacity));
}

std::string InfeasibleText(const PlanRecord& record,
                           std::span<const StageRecord> stages,
                           const Terminal& terminal) {
  std::string text = "\nwhere every block keeps as little as it can\n" +
                     InfeasibleTable(record, stages, terminal) + "\n" +
                     Comparison(record, terminal) + "\n" +
                     terminal.Yellow("infeasible") + ": no plan fits in ";
  double tier1 = 0;
  double tier2 = 0;
  for (const StageRecord& stage : record.stages) {
    tier1 = std::max(tier1, stage.memory.tier1);
    tier2 = std::max(tier2, stage.memory.tier2);
  }
  text +=
      tier1 > record.budget_bytes
          ? FormatBytesExactly(std::llround(record.budget_bytes))
          : FormatBytesExactly(std::llround(record.tier2_bytes)) + " of tier 2";
  text += "\n";
  if (tier1 > record.budget_bytes) {
    text += LackText("", tier1, record.budget_bytes);
  }
  if (tier2 > record.tier2_bytes) {
    text += LackText(" in tier 2", tier2, record.tier2_bytes);
  }
  return text;
}

// The text of a plan in mode calculon.
std::string FixedChoiceText(const PlanRecord& record,
                            const Terminal& terminal) {
  std::string text = "\n" + Comparison(record, terminal) + "\n";
  const auto best = FastestThatFits(record.fixed);
  if (best) text += TimeTable(record.times, terminal) + "\n";
  text += terminal.Dim(
              "mode calculon: recomputation is no sum over operators there, so "
              "only the fixed policies are compared") +
          "\n";
  if (best) {
    return text + fmt::format("{}: the fastest fixed policy that fits\n",
                              terminal.Green(PolicyName(*best)));
  }
  const FixedPolicy& least = *std::ranges::min_element(
      record.fixed, {},
      [](const FixedPolicy& fixed) { return fixed.memory.tier1; });
  text += fmt::format("{}: no fixed policy fits in {}\n",
                      terminal.Yellow("infeasible"),
                      FormatBytesExactly(std::llround(record.budget_bytes)));
  const MemoryParts& memory = least.memory;
  return text +
         fmt::format(
             "{} needs least, {}: weights {} + activations {} + activation "
             "gradients {} + weight gradients {} + optimizer {}\n",
             PolicyName(least), Bytes(memory.tier1), Bytes(memory.weights),
             Bytes(memory.activations), Bytes(memory.activation_gradients),
             Bytes(memory.weight_gradients), Bytes(memory.optimizer));
}

std::string FoundText(const PlanRecord& record,
                      std::span<const StageRecord> stages,
                      const Terminal& terminal) {
  return fmt::format("the plan takes {} a batch: {}\n\n",
                     HumanSeconds(record.times.total),
                     terminal.Bold(fmt::format("{:.4g} samples/s",
                                               record.SampleRate()))) +
         Policies(stages, terminal) +
         StageTable(stages, UsesTier2(record), terminal) + "\n" +
         TimeTable(record.times, terminal) + "\n" +
         Comparison(record, terminal) + "\n" + VerdictText(record, terminal) +
         GainText(record);
}

}  // namespace

std::string PlanText(const PlanRecord& record, bool first_stage_only,
                     const Terminal& terminal) {
  std::span<const StageRecord> stages = record.stages;
  if (first_stage_only && !stages.empty()) stages = stages.first(1);
  std::string text = Heading(record, terminal);
  if (!record.is_corrected) {
    text += FixedChoiceText(record, terminal);
  } else if (record.status == PlanStatus::kInfeasible) {
    text += InfeasibleText(record, stages, terminal);
  } else {
    text += FoundText(record, stages, terminal);
  }
  text.pop_back();
  return text;
}

}  // namespace acplan::cli
