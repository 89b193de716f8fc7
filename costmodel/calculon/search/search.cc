#include "costmodel/calculon/search/search.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/parallel_pipeline.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>

#include "costmodel/calculon/llm/records.h"
#include "costmodel/calculon/llm/statistics.h"
#include "costmodel/calculon/search/fixed_walk.h"

namespace acplan::costmodel {
namespace {

// The variants of a unit from `begin` up to, but not including, `end`.
struct WorkItem {
  size_t unit = 0;
  size_t begin = 0;
  size_t end = 0;
};

// The pieces of a space that belong to a shard, in order.
struct WorkList {
  std::vector<SearchUnit> units;
  std::vector<WorkItem> items;
  int64_t executions = 0;
};

// Lists the work of a shard. A variant belongs to the shard in whose share of all
// executions it begins.
WorkList ListWork(const SearchProblem& problem, const SearchShard& shard) {
  WorkList work;
  work.units = SearchUnits(problem);
  std::vector<int64_t> sizes;
  std::vector<size_t> variants;
  double all = 0;
  for (const SearchUnit& unit : work.units) {
    sizes.push_back(CountVariant(problem, unit));
    variants.push_back(SearchVariants(problem, unit).size());
    all += static_cast<double>(sizes.back()) *
           static_cast<double>(variants.back());
  }
  double before = 0;
  for (size_t u = 0; u < work.units.size(); ++u) {
    WorkItem item{u, variants[u], 0};
    for (size_t v = 0; v < variants[u]; ++v) {
      const int owner =
          all == 0 ? 1
                   : 1 + static_cast<int>(before / all *
                                          static_cast<double>(shard.count));
      before += static_cast<double>(sizes[u]);
      if (std::min(owner, shard.count) != shard.index) continue;
      item.begin = std::min(item.begin, v);
      item.end = v + 1;
      work.executions += sizes[u];
    }
    if (item.begin < item.end) work.items.push_back(item);
  }
  return work;
}

// Orders candidates by descending rate, then in the order of the space.
bool IsBetter(const Candidate& a, const Candidate& b) {
  if (a.sample_rate != b.sample_rate) return a.sample_rate > b.sample_rate;
  if (a.unit != b.unit) return a.unit < b.unit;
  if (a.variant != b.variant) return a.variant < b.variant;
  return a.index < b.index;
}

// The best few candidates that were offered.
class BestList {
 public:
  explicit BestList(int64_t most) : most_(static_cast<size_t>(most)) {}

  bool Wants(double sample_rate) const {
    return heap_.size() < most_ || sample_rate >= heap_.front().sample_rate;
  }

  void Offer(const Candidate& candidate) {
    if (heap_.size() == most_) {
      if (most_ == 0 || !IsBetter(candidate, heap_.front())) return;
      std::ranges::pop_heap(heap_, IsBetter);
      heap_.pop_back();
    }
    heap_.push_back(candidate);
    std::ranges::push_heap(heap_, IsBetter);
  }

  void Merge(const BestList& other) {
    for (const Candidate& candidate : other.heap_) Offer(candidate);
  }

  std::vector<Candidate> Sorted() const {
    std::vector<Candidate> sorted = heap_;
    std::ranges::sort(sorted, IsBetter);
    return sorted;
  }

 private:
  size_t most_;
  std::vector<Candidate> heap_;  // the worst at the front
};

// The findings in a part of a space.
struct Findings {
  SearchCounts counts;
  BestList best;

  void Add(const Findings& other) {
    counts.total += other.counts.total;
    counts.good += other.counts.good;
    counts.bad += other.counts.bad;
    best.Merge(other.best);
  }
};

// The state that the threads of a search share.
class SharedState {
 public:
  SharedState(const SearchOptions& options, int64_t total, int64_t most)
      : options_(options),
        total_(total),
        findings_{.counts = {}, .best = BestList(most)} {}

  bool IsInterrupted() {
    if (!options_.interrupt || !options_.interrupt->load()) return false;
    was_interrupted_ = true;
    return true;
  }

  void Add(const Findings& findings) {
    const std::lock_guard lock(mutex_);
    findings_.Add(findings);
    if (const std::vector<Candidate> first = findings.best.Sorted();
        !first.empty()) {
      best_rate_ = std::max(best_rate_, first.front().sample_rate);
    }
    Report();
  }

  SearchOutcome Outcome() const {
    return {findings_.counts, findings_.best.Sorted(), was_interrupted_};
  }

 private:
  void Report() {
    if (!options_.on_progress) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_report_ < std::chrono::milliseconds(100)) return;
    last_report_ = now;
    options_.on_progress({findings_.counts.total, total_, best_rate_});
  }

  const SearchOptions& options_;
  int64_t total_;
  std::mutex mutex_;
  Findings findings_;
  double best_rate_ = 0;  // the best rate of all findings
  std::atomic<bool> was_interrupted_ = false;
  std::chrono::steady_clock::time_point last_report_;
};

// A place in the order of the space.
struct SearchPlace {
  size_t unit = 0;
  size_t variant = 0;
  int64_t index = 0;
};

Candidate ToCandidate(const Execution& execution, const BatchTimes& times,
                      const MemoryNeeds& memory, const SearchPlace& place) {
  return {.sample_rate = SampleRate(execution, times),
          .memory = memory.tier1,
          .unit = static_cast<int64_t>(place.unit),
          .variant = static_cast<int64_t>(place.variant),
          .index = place.index,
          .execution = execution};
}

template <typename Task>
void RunInArena(int threads, Task task) {
  namespace tbb = oneapi::tbb;
  if (threads <= 0) {
    task();
    return;
  }
  // Allows more threads than cores.
  const tbb::global_control most(tbb::global_control::max_allowed_parallelism,
                                 static_cast<size_t>(threads));
  tbb::task_arena(threads).execute(task);
}

// The rows of a variant, and their number.
struct Rows {
  std::string text;
  SearchCounts counts;
  std::optional<Candidate> best;
};

Rows ListVariant(const SearchProblem& problem, const SearchOptions& options,
                 const SearchUnit& unit, size_t unit_index,
                 size_t variant_index) {
  const std::vector<SearchVariant> variants = SearchVariants(problem, unit);
  Rows rows;
  FixedWalk walk(problem, unit);
  Evaluation evaluation;
  rows.counts = walk.Run(
      variants[variant_index], options,
      [&](const Execution& execution, int64_t index, const MemoryNeeds& memory,
          const BatchTimes& times, const BlockCosts& block) {
        const Candidate candidate = ToCandidate(
            execution, times, memory, {unit_index, variant_index, index});
        if (!rows.best || candidate.sample_rate > rows.best->sample_rate) {
          rows.best = candidate;
        }
        evaluation.block = block;
        evaluation.memory = memory;
        evaluation.times = times;
        rows.text +=
            CsvRow(execution, ComputeStatistics(problem.model, problem.system,
                                                execution, evaluation));
        rows.text += '\n';
      });
  return rows;
}

// Evaluates variants of a unit, each execution with its own recomputation.
void EvaluateItem(const SearchProblem& problem, const SearchOptions& options,
                  const WorkItem& item, const SearchUnit& unit,
                  SharedState& state) {
  const std::vector<SearchVariant> variants = SearchVariants(problem, unit);
  FixedWalk walk(problem, unit);
  for (size_t v = item.begin; v < item.end; ++v) {
    if (state.IsInterrupted()) return;
    Findings findings{.counts = {}, .best = BestList(options.top_n)};
    findings.counts =
        walk.Run(variants[v], options,
                 [&](const Execution& execution, int64_t index,
                     const MemoryNeeds& memory, const BatchTimes& times,
                     const BlockCosts&) {
                   if (!findings.best.Wants(SampleRate(execution, times)))
                     return;
                   findings.best.Offer(ToCandidate(execution, times, memory,
                                                   {item.unit, v, index}));
                 });
    state.Add(findings);
  }
}

}  // namespace

int64_t CountSpace(const SearchProblem& problem, const SearchShard& shard) {
  return ListWork(problem, shard).executions;
}

SearchOutcome FindBest(const SearchProblem& problem,
                       const SearchOptions& options) {
  const WorkList work = ListWork(problem, options.shard);
  SharedState state(options, work.executions, options.top_n);
  const auto run_item = [&](size_t i) {
    const WorkItem& item = work.items[i];
    EvaluateItem(problem, options, item, work.units[item.unit], state);
  };
  RunInArena(options.threads, [&] {
    oneapi::tbb::parallel_for(size_t{0}, work.items.size(), run_item);
  });
  return state.Outcome();
}

SearchOutcome ListAll(const SearchProblem& problem,
                      const SearchOptions& options,
                      const std::function<void(const std::string&)>& write) {
  namespace tbb = oneapi::tbb;
  const WorkList work = ListWork(problem, options.shard);
  SearchOptions all = options;
  all.breaks_microbatches = false;
  all.counts_only = false;
  SharedState state(all, work.executions, 1);
  size_t item = 0;
  size_t variant = work.items.empty() ? 0 : work.items.front().begin;
  const auto next = [&](tbb::flow_control& flow) -> WorkItem {
    if (item < work.items.size() && variant == work.items[item].end) {
      if (++item < work.items.size()) variant = work.items[item].begin;
    }
    if (item == work.items.size() || state.IsInterrupted()) {
      flow.stop();
      return {};
    }
    const size_t v = variant++;
    return {work.items[item].unit, v, v + 1};
  };
  const auto list = [&](const WorkItem& one) {
    return ListVariant(problem, all, work.units[one.unit], one.unit, one.begin);
  };
  const auto finish = [&](const Rows& rows) {
    Findings findings{.counts = rows.counts, .best = BestList(1)};
    if (rows.best) findings.best.Offer(*rows.best);
    write(rows.text);
    state.Add(findings);
  };
  RunInArena(options.threads, [&] {
    const auto tokens =
        static_cast<size_t>(4 * tbb::this_task_arena::max_concurrency());
    tbb::parallel_pipeline(
        tokens,
        tbb::make_filter<void, WorkItem>(tbb::filter_mode::serial_in_order,
                                         next) &
            tbb::make_filter<WorkItem, Rows>(tbb::filter_mode::parallel, list) &
            tbb::make_filter<Rows, void>(tbb::filter_mode::serial_in_order,
                                         finish));
  });
  return state.Outcome();
}

}  // namespace acplan::costmodel
