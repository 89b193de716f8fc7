#include "cli/training/strategy_question.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "cli/terminal/human_numbers.h"
#include "cli/terminal/terminal.h"
#include "cli/training/strategy_text.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::RankedStrategy;
using costmodel::StrategySettings;
using costmodel::StrategySpace;
using costmodel::TrainingJob;

// Refuses settings that a strategy may have and the space of strategies has
// not.
void RefuseUnsearched(const StrategySettings& settings) {
  if (const auto sp = settings.find("sp");
      sp != settings.end() && sp->second.value != "true") {
    throw InputError(
        fmt::format("{}: expected true, as searches always use sequence "
                    "parallelism beside tensor parallelism; found {}",
                    sp->second.place, graph::Quoted(sp->second.value)));
  }
  for (const char* key : {"first_layers", "last_layers", "counts_embedding",
                          "counts_logits", "layout", "dp"}) {
    const auto setting = settings.find(key);
    if (setting == settings.end()) continue;
    throw InputError(fmt::format(
        "{}: expected no value in a search, which chooses it (train show reads "
        "it); found {}",
        setting->second.place, graph::Quoted(setting->second.value)));
  }
}

StrategySpace SpaceOf(const TrainingJob& job,
                      const StrategySettings& settings) {
  StrategySpace space = WholeSpace(job);
  const costmodel::TrainingStrategy& s = job.strategy;
  const auto says = [&](std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (settings.contains(key)) return true;
    }
    return false;
  };
  if (says({"tp"})) space.tensor = {s.tensor};
  if (says({"pp"})) space.pipeline = {s.pipeline};
  if (says({"vp", "vp_layers"})) space.chunks = {s.chunks};
  space.schedules = SearchedSchedules(settings, job.cluster.stack);
  if (says({"cp"})) space.context = {s.context};
  if (says({"cp_comm_type"})) space.context_exchanges = {s.context_exchange};
  if (says({"etp"})) space.has_expert_tensor = false;
  if (says({"optimizer_copies", "replicate_degree"})) space.has_copies = false;
  space.dual_pipe_overlaps = !says({"overlap_ep"});
  if (says({"ep"})) space.expert = {s.expert};
  if (says({"mbs", "local_batch"})) space.microbatch = {s.microbatch};
  if (says({"zero", "dist_opt", "sharding", "shard_degree"})) {
    space.zero = {s.zero};
  }
  if (says({"recompute", "granularity", "ac_mode"})) {
    space.recomputation = {s.recomputation};
    space.full_layers = s.full_layers;
  }
  return space;
}

// Returns the settings of a strategy that are unusual and have no column.
std::string FurtherSettings(const costmodel::TrainingStrategy& s) {
  using enum costmodel::PipelineSchedule;
  std::vector<std::string> parts;
  if (s.schedule == kZeroBubble) parts.emplace_back("zb-h1");
  if (s.schedule == kZeroBubbleV) parts.emplace_back("zb-v");
  if (s.schedule == kHalfV) parts.emplace_back("v-half");
  if (s.schedule == kMinV) parts.emplace_back("v-min");
  if (s.schedule == kDualPipe) parts.emplace_back("dualpipe");
  if (s.context > 1 &&
      s.context_exchange == costmodel::ContextExchange::kAllToAll) {
    parts.emplace_back("a2a");
  }
  if (s.context > 1 &&
      s.context_exchange == costmodel::ContextExchange::kAllGather) {
    parts.emplace_back("gather");
  }
  if (s.expert_tensor > 1) {
    parts.push_back(fmt::format("etp {}", s.expert_tensor));
  }
  if (s.optimizer_copies > 1) {
    parts.push_back(fmt::format("hsdp {}", s.optimizer_copies));
  }
  if (s.offloaded_layers > 0) {
    parts.push_back(fmt::format("offload {}", s.offloaded_layers));
  }
  if (s.offloads_states) parts.emplace_back("states on host");
  if (s.counts_embedding || s.counts_logits) {
    parts.push_back(fmt::format("{}{}", s.counts_embedding ? "e" : "",
                                s.counts_logits ? "l" : ""));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Returns "core_attn" for "selective:core_attn".
std::string ShortRecomputation(const costmodel::TrainingStrategy& strategy) {
  const std::string text = RecomputationText(strategy);
  constexpr std::string_view kSelective = "selective:";
  return text.starts_with(kSelective) ? text.substr(kSelective.size()) : text;
}

// Returns "? -0.9%", the most that a better plan may save, or "" if the plan is proven.
std::string GapText(const RankedStrategy& ranked) {
  if (ranked.bound >= ranked.seconds) return "";
  return "? -" + FormatPercentUp(1 - ranked.bound / ranked.seconds);
}

}  // namespace

StrategyQuestion AskOfStrategies(const costmodel::ModelShape& shape,
                                 const StrategySettings& settings,
                                 const costmodel::TrainingSystems& systems) {
  RefuseUnsearched(settings);
  // Without the settings whose value may be "any".
  StrategySettings plain = settings;
  plain.erase("pp_schedule");
  const auto is_any = [&](const std::string& key) {
    const auto setting = settings.find(key);
    const bool has_any =
        setting != settings.end() && setting->second.value == "any";
    if (has_any) plain.erase(key);
    return has_any;
  };
  const bool has_offload = is_any("offload_layers");
  const bool has_states_offload = is_any("offload_states");
  StrategyQuestion question{.job = StatedJob(shape, plain, systems),
                            .space = {}};
  CheckStatedJob(question.job);
  question.space = SpaceOf(question.job, settings);
  question.space.has_offload = has_offload;
  question.space.has_states_offload = has_states_offload;
  return question;
}

costmodel::TrainingReport ReportOfRanked(const TrainingJob& job,
                                         const RankedStrategy& ranked,
                                         const costmodel::MemoryLimit& limit) {
  TrainingJob best = job;
  best.strategy = ranked.strategy;
  const double budget = costmodel::PyTorchBytes(limit, best);
  if (ranked.choices.empty()) return ReportOfTraining(best, budget);
  return costmodel::ReportOfChoices(best, budget, ranked.choices);
}

StrategyRates RatesOf(const TrainingJob& job, const RankedStrategy& ranked) {
  TrainingJob plain = job;
  plain.strategy = ranked.strategy;
  plain.strategy.recomputation = costmodel::Recomputation::kNone;
  plain.strategy.full_layers = plain.strategy.every_layers = 0;
  const costmodel::TrainingReport report = ReportOfTraining(plain);
  const double share = report.time.Total() / ranked.seconds;
  return {.tokens = share * report.TokensPerGpuSecond(),
          .utilisation = share * report.ModelUtilisation()};
}

std::vector<Table::Align> StrategyColumns() {
  using enum Table::Align;
  return {kRight, kRight, kRight, kRight, kRight, kRight, kRight,
          kRight, kLeft,  kRight, kRight, kRight, kRight, kLeft};
}

std::vector<std::string> StrategyHeadings(const TrainQuestion& question) {
  return {"TP",
          "PP",
          "VP",
          "CP",
          "EP",
          "DP",
          "Z",
          "mbs",
          "recompute",
          question.price    ? "cost"
          : question.tokens ? "GPU-hours"
                            : "iteration",
          "tok/s",
          "MFU",
          "GiB",
          "also"};
}

std::vector<std::string> StrategyCells(const TrainingJob& job,
                                       const RankedStrategy& ranked,
                                       const TrainQuestion& question) {
  const StrategyRates rates = RatesOf(job, ranked);
  const costmodel::TrainingStrategy& s = ranked.strategy;
  const double hours = question.tokens.value_or(1e9) / rates.tokens / 3600;
  const std::string time = question.price
                               ? fmt::format("{:.4g}", hours * *question.price)
                           : question.tokens ? fmt::format("{:.0f}", hours)
                                             : HumanSeconds(ranked.seconds);
  return {fmt::to_string(s.tensor),
          fmt::to_string(s.pipeline),
          fmt::to_string(s.chunks),
          fmt::to_string(s.context),
          fmt::to_string(s.expert),
          fmt::to_string(s.Data()),
          fmt::to_string(s.zero),
          fmt::to_string(s.microbatch),
          ShortRecomputation(s) + GapText(ranked),
          time,
          fmt::format("{:.0f}", rates.tokens),
          fmt::format("{:.1f}%", 100 * rates.utilisation),
          fmt::format("{:.1f}", ranked.bytes / (1024.0 * 1024 * 1024)),
          FurtherSettings(s)};
}

std::string StrategyLegend(const TrainQuestion& question) {
  std::string text =
      "Z: ZeRO; tok/s: per GPU; MFU: model FLOP utilisation, as in train "
      "show;\nGiB: of the fullest stage; also: a2a (context parallelism by "
      "all-to-all), etp N,\nhsdp N (groups with a full copy each), e, l, el "
      "(embedding, logits count as\nlayers), offload N (layers), states on "
      "host (the "
      "optimizer's), or another\npipeline schedule; plan? -N%: not proven; a "
      "better plan saves at most N%";
  if (question.price || question.tokens) {
    text += fmt::format("; {}: for {:.4g} tokens",
                        question.price ? "cost" : "GPU-hours",
                        question.tokens.value_or(1e9));
  }
  return text + "\n";
}

std::string EndOfSearch() {
  return InterruptFlag().load() ? "interrupted" : "--time-limit";
}

std::string ProofText(const costmodel::StrategySearch& search, bool is_robust) {
  if (is_robust && search.is_complete) {
    return "proven for the predictions and their intervals: no other strategy "
           "has a lower worst case,\nexcept for plans, of which those that are "
           "predicted the fastest were made";
  }
  if (search.is_proven) {
    return "proven for the predictions: no other strategy is predicted faster";
  }
  if (!search.is_complete) {
    return fmt::format("not proven: not all strategies were tried ({})",
                       EndOfSearch());
  }
  const std::string open =
      search.unplanned > 0
          ? fmt::format(
                "{} strategies that might be faster with a plan were "
                "not planned ({})",
                FormatCount(search.unplanned), EndOfSearch())
      : search.improvable == 1
          ? "one strategy may have a better plan"
          : fmt::format("{} strategies may have better plans{}",
                        FormatCount(search.improvable),
                        InterruptFlag().load() ? " (interrupted)" : "");
  const auto proven =
      std::ranges::count_if(search.best, [&](const RankedStrategy& ranked) {
        return ranked.seconds <= search.open_bound;
      });
  const std::string bound = HumanSeconds(search.open_bound);
  if (proven == 0) {
    return fmt::format("not proven: {}\nno strategy takes less than {}", open,
                       bound);
  }
  return fmt::format(
      "proven: {}\nbehind {} the order may change: {}, none below {}",
      proven == 1 ? "no other strategy is predicted faster than the first"
                  : fmt::format("the first {} are the fastest", proven),
      proven == 1 ? "it" : "them", open, bound);
}

}  // namespace acplan::cli
