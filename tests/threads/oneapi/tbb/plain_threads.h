#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

// The part of oneTBB that the searches use, made of threads, mutexes and
// nothing else, for ThreadSanitizer, which does not see how Debian's libtbb
// synchronises and takes every hand-over of work for a race. Compiled in place
// of oneTBB with -I tests/threads.
//
// Threads take their work by a counter without an order (relaxed), so that a
// task sees another one's writes only through the synchronisation of the
// searches themselves.

namespace oneapi::tbb {

inline constexpr int kPlainThreads = 4;

// Runs `loop` on all threads.
template <typename Loop>
void OnPlainThreads(const Loop& loop) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < kPlainThreads; ++t) threads.emplace_back(loop);
}

class global_control {
 public:
  enum parameter { max_allowed_parallelism };
  global_control(parameter, size_t) {}
};

class task_arena {
 public:
  explicit task_arena(int) {}
  template <typename Task>
  void execute(Task& task) {
    task();
  }
};

namespace this_task_arena {
inline int max_concurrency() { return kPlainThreads; }
}  // namespace this_task_arena

template <typename Body>
void parallel_for(size_t first, size_t last, const Body& body) {
  std::atomic<size_t> next = first;
  OnPlainThreads([&] {
    while (true) {
      const size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= last) return;
      body(i);
    }
  });
}

enum class filter_mode { serial_in_order, parallel };

class flow_control {
 public:
  void stop() { is_stopped = true; }
  bool is_stopped = false;
};

template <typename In, typename Out, typename Body>
struct Filter {
  filter_mode mode;
  Body body;
};
template <typename In, typename Out, typename Body>
Filter<In, Out, Body> make_filter(filter_mode mode, Body body) {
  return {mode, std::move(body)};
}
// The three filters of a pipeline: serial, parallel, serial.
template <typename First, typename Second>
struct Filters {
  First first;
  Second second;
};
template <typename A, typename B, typename C, typename F, typename G>
Filters<Filter<A, B, F>, Filter<B, C, G>> operator&(Filter<A, B, F> first,
                                                    Filter<B, C, G> second) {
  return {std::move(first), std::move(second)};
}
template <typename F, typename G, typename A, typename B, typename H>
Filters<Filters<F, G>, Filter<A, B, H>> operator&(Filters<F, G> first,
                                                  Filter<A, B, H> second) {
  return {std::move(first), std::move(second)};
}

template <typename Pipeline>
void parallel_pipeline(size_t, Pipeline pipeline) {
  std::mutex input;
  std::mutex output;
  std::condition_variable turn;
  flow_control flow;
  size_t next_item = 0;
  size_t finished = 0;
  OnPlainThreads([&] {
    while (true) {
      std::unique_lock reading(input);
      if (flow.is_stopped) return;
      auto item = pipeline.first.first.body(flow);
      if (flow.is_stopped) return;
      const size_t number = next_item++;
      reading.unlock();
      auto result = pipeline.first.second.body(item);
      std::unique_lock writing(output);
      turn.wait(writing, [&] { return finished == number; });
      pipeline.second.body(result);
      ++finished;
      turn.notify_all();
    }
  });
}

}  // namespace oneapi::tbb
