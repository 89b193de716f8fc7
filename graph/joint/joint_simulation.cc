#include "graph/joint/joint_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

// Idea. The nodes that run follow from the end: the buffers that backward nodes read are
// needed; a needed buffer that is neither kept nor there makes its node run again, which
// needs what it reads. So one walk over the nodes from the last to the first finds the
// nodes that run again, and one walk over backward from the first to the last finds when
// they do: before the first node that needs them. Then every buffer has a first and a last
// step, and bytes are a sum of differences.

namespace acplan::graph {
namespace {

constexpr int32_t kNoStep = -1;

// The steps during which memory of a buffer is live.
struct BufferLife {
  int32_t begin = kNoStep;
  int32_t end = kNoStep;  // the last step
};

// The lives of a buffer: as forward made it, and as backward has it.
struct Lives {
  BufferLife first;
  BufferLife second;
};

// The nodes that run in the two passes, and the buffers that backward needs.
struct Duties {
  std::vector<char> runs_forward;  // indexed by node
  std::vector<char> runs_again;    // indexed by node
  std::vector<char> is_needed;     // indexed by buffer
};

class Schedule {
 public:
  Schedule(const JointGraph& graph, const JointSimulator& simulator,
           const Duties& duties, JointRun& run)
      : graph_(graph),
        simulator_(simulator),
        duties_(duties),
        run_(run),
        lives_(graph.buffers.size()),
        is_done_(graph.nodes.size(), 0) {}

  void Build() {
    for (int32_t n = 0; n < std::ssize(graph_.nodes); ++n)
      if (duties_.runs_forward[n]) AddForward(n);
    backward_ = Steps();
    for (int32_t n = 0; n < std::ssize(graph_.nodes); ++n) {
      if (graph_.nodes[n].stage != JointStage::kBackward) continue;
      MakeAgain(graph_.nodes[n].reads);
      AddBackward(n, false);
    }
    MakeAgain(graph_.backward_outputs);
    CountBytes();
  }

 private:
  int32_t Steps() const { return static_cast<int32_t>(run_.steps.size()); }

  void AddForward(int32_t n) {
    for (const int32_t b : graph_.nodes[n].reads) lives_[b].first.end = Steps();
    for (const int32_t b : graph_.nodes[n].makes)
      lives_[b].first = {.begin = Steps(), .end = Steps()};
    run_.steps.push_back({.node = n});
  }

  void AddBackward(int32_t n, bool is_again) {
    for (const int32_t b : graph_.nodes[n].reads)
      lives_[b].second.end = Steps();
    for (const int32_t b : graph_.nodes[n].makes) {
      // A second copy of an existing buffer is released at once.
      const bool is_copy = run_.is_kept[b] || simulator_.IsForwardOutput(b);
      if (is_copy) {
        copies_.push_back({.step = Steps(), .bytes = graph_.buffers[b].bytes});
      } else {
        lives_[b].second = {.begin = Steps(), .end = Steps()};
      }
    }
    is_done_[n] = 1;
    run_.steps.push_back(
        {.node = n, .is_backward = true, .is_again = is_again});
  }

  // Runs again the nodes that make these buffers, and the nodes whose results those need.
  void MakeAgain(const std::vector<int32_t>& buffers) {
    std::vector<int32_t> open(buffers);
    std::vector<int32_t> batch;
    while (!open.empty()) {
      const int32_t b = open.back();
      open.pop_back();
      const int32_t n = simulator_.MakerOf(b);
      if (n < 0 || is_done_[n] || !duties_.runs_again[n]) continue;
      if (run_.is_kept[b] || simulator_.IsForwardOutput(b)) continue;
      is_done_[n] = 1;
      batch.push_back(n);
      open.insert(open.end(), graph_.nodes[n].reads.begin(),
                  graph_.nodes[n].reads.end());
    }
    std::ranges::sort(batch);
    for (const int32_t n : batch) AddBackward(n, true);
  }

  void CountBytes() {
    std::vector<int64_t> change(run_.steps.size() + 1, 0);
    const auto add = [&change](int32_t begin, int32_t end, int64_t bytes) {
      if (begin < 0 || begin > end) return;
      change[begin] += bytes;
      change[end + 1] -= bytes;
    };
    if (run_.steps.empty()) {
      run_.peak_bytes = graph_.held_bytes;
      return;
    }
    const int32_t last = Steps() - 1;
    std::vector<char> is_output(graph_.buffers.size(), 0);
    for (const int32_t b : graph_.backward_outputs) is_output[b] = 1;
    for (int32_t b = 0; b < std::ssize(graph_.buffers); ++b) {
      const JointBuffer& buffer = graph_.buffers[b];
      const auto [begin, end] = lives_[b].first;
      const auto [second_begin, second_end] = lives_[b].second;
      const int32_t to_end = is_output[b] ? last : second_end;
      if (simulator_.MakerOf(b) < 0) {
        const bool is_late = buffer.is_from_backward;
        add(is_late ? backward_ : 0, is_late ? to_end : last, buffer.bytes);
      } else if (simulator_.IsForwardOutput(b)) {
        add(begin, last, buffer.bytes);
      } else if (run_.is_kept[b]) {
        add(begin, std::max(end, to_end), buffer.bytes);
      } else {
        add(begin, end, buffer.bytes);
        add(second_begin, to_end, buffer.bytes);
      }
    }
    for (const auto& [step, bytes] : copies_) add(step, step, bytes);
    int64_t live = graph_.held_bytes;
    for (int32_t s = 0; s < Steps(); ++s) {
      live += change[s];
      const int64_t now = live + graph_.nodes[run_.steps[s].node].scratch_bytes;
      run_.live_bytes.push_back(now);
      if (run_.peak_step >= 0 && now <= run_.peak_bytes) continue;
      run_.peak_bytes = now;
      run_.peak_step = s;
    }
  }

  struct Copy {
    int32_t step = 0;
    int64_t bytes = 0;
  };

  const JointGraph& graph_;
  const JointSimulator& simulator_;
  const Duties& duties_;
  JointRun& run_;
  std::vector<Lives> lives_;  // indexed by buffer
  std::vector<char> is_done_;
  std::vector<Copy> copies_;
  int32_t backward_ = 0;  // the first step of backward
};

}  // namespace

JointSimulator::JointSimulator(const JointGraph& graph)
    : graph_(graph),
      maker_(graph.buffers.size(), kNoStep),
      is_returned_(graph.buffers.size(), 0) {
  for (int32_t n = 0; n < std::ssize(graph.nodes); ++n)
    for (const int32_t b : graph.nodes[n].makes) maker_[b] = n;
  for (const int32_t b : graph.forward_outputs) is_returned_[b] = 1;
}

bool JointSimulator::IsThere(int32_t buffer) const {
  return is_returned_[buffer] || maker_[buffer] < 0 ||
         graph_.nodes[maker_[buffer]].stage == JointStage::kBackward;
}

std::vector<char> JointSimulator::AllKept() const {
  std::vector<char> is_kept(graph_.buffers.size(), 0);
  const auto keep = [&](const std::vector<int32_t>& buffers) {
    for (const int32_t b : buffers)
      is_kept[b] = !IsThere(b) && graph_.buffers[b].may_keep;
  };
  for (const JointNode& node : graph_.nodes)
    if (node.stage == JointStage::kBackward) keep(node.reads);
  keep(graph_.backward_outputs);
  // A node that must run again because its result may not be kept needs its inputs kept.
  std::vector<char> is_needed(graph_.buffers.size(), 0);
  const auto need = [&](const std::vector<int32_t>& buffers) {
    for (const int32_t b : buffers) is_needed[b] = 1;
  };
  for (const JointNode& node : graph_.nodes)
    if (node.stage == JointStage::kBackward) need(node.reads);
  need(graph_.backward_outputs);
  for (int32_t n = static_cast<int32_t>(graph_.nodes.size()) - 1; n >= 0; --n) {
    const JointNode& node = graph_.nodes[n];
    if (node.stage == JointStage::kBackward) continue;
    const bool is_again = std::ranges::any_of(node.makes, [&](int32_t b) {
      return is_needed[b] && !IsThere(b) && !graph_.buffers[b].may_keep;
    });
    if (!is_again) continue;
    need(node.reads);
    keep(node.reads);
  }
  KeepAlike(is_kept);
  return is_kept;
}

void JointSimulator::KeepAlike(std::vector<char>& is_kept) const {
  // Indexed by node that others are tied to. Bit i says that the i-th buffer is kept of one
  // of them.
  std::vector<uint64_t> united(graph_.nodes.size(), 0);
  for (const JointNode& node : graph_.nodes) {
    if (!node.tied_to) continue;
    for (const JointNode* one : {&node, &graph_.nodes[*node.tied_to]})
      for (size_t i = 0; i < one->makes.size(); ++i)
        if (is_kept[one->makes[i]]) united[*node.tied_to] |= uint64_t{1} << i;
  }
  for (const JointNode& node : graph_.nodes) {
    if (!node.tied_to) continue;
    for (const JointNode* one : {&node, &graph_.nodes[*node.tied_to]})
      for (size_t i = 0; i < one->makes.size(); ++i)
        if (united[*node.tied_to] >> i & 1U && !is_returned_[one->makes[i]])
          is_kept[one->makes[i]] = 1;
  }
}

void JointSimulator::RequireAlike(const JointRun& run,
                                  const std::vector<char>& is_needed) const {
  // Indexed by node that others are tied to: whether the i-th buffer is kept; -1 if not yet
  // known.
  std::vector<std::vector<int8_t>> choice(graph_.nodes.size());
  const auto require = [&](const JointNode& node, int32_t tied_to) {
    choice[tied_to].resize(node.makes.size(), -1);
    for (size_t i = 0; i < node.makes.size(); ++i) {
      const int32_t b = node.makes[i];
      if (!is_needed[b] || is_returned_[b]) continue;
      if (choice[tied_to][i] >= 0 && choice[tied_to][i] != run.is_kept[b]) {
        throw InputError(
            fmt::format("buffer '{}': expected it to be kept as those of the "
                        "nodes that its own is tied to",
                        OneLine(graph_.buffers[b].name)));
      }
      choice[tied_to][i] = static_cast<int8_t>(run.is_kept[b] ? 1 : 0);
    }
  };
  for (int32_t n = 0; n < std::ssize(graph_.nodes); ++n) {
    const JointNode& node = graph_.nodes[n];
    if (!node.tied_to) continue;
    if (choice[*node.tied_to].empty())
      require(graph_.nodes[*node.tied_to], *node.tied_to);
    require(node, *node.tied_to);
  }
}

JointRun JointSimulator::Run(const std::vector<char>& is_kept) const {
  JointRun run{.is_kept = std::vector<char>(graph_.buffers.size(), 0)};
  Duties duties{.runs_forward = std::vector<char>(graph_.nodes.size(), 0),
                .runs_again = std::vector<char>(graph_.nodes.size(), 0),
                .is_needed = std::vector<char>(graph_.buffers.size(), 0)};
  for (int32_t b = 0; b < std::ssize(graph_.buffers); ++b) {
    if (!is_kept[b] || is_returned_[b]) continue;
    const bool is_made = maker_[b] >= 0 &&
                         graph_.nodes[maker_[b]].stage != JointStage::kBackward;
    if (!is_made || !graph_.buffers[b].may_keep)
      throw InputError(fmt::format("buffer '{}': expected one that may be kept",
                                   OneLine(graph_.buffers[b].name)));
  }
  const auto need = [&duties](const std::vector<int32_t>& buffers) {
    for (const int32_t b : buffers) duties.is_needed[b] = 1;
  };
  for (const JointNode& node : graph_.nodes)
    if (node.stage == JointStage::kBackward) need(node.reads);
  need(graph_.backward_outputs);
  for (int32_t n = static_cast<int32_t>(graph_.nodes.size()) - 1; n >= 0; --n) {
    const JointNode& node = graph_.nodes[n];
    if (node.stage == JointStage::kBackward) continue;
    bool is_again = false;
    for (const int32_t b : node.makes) {
      if (!duties.is_needed[b] || is_returned_[b]) continue;
      run.is_kept[b] = is_kept[b];
      if (is_kept[b]) {
        run.kept_bytes += graph_.buffers[b].bytes;
      } else {
        is_again = true;
      }
    }
    if (!is_again) continue;
    if (!node.may_run_again)
      throw InputError(
          fmt::format("node '{}': it may not run again, and what it "
                      "makes is needed and not kept",
                      OneLine(node.name)));
    duties.runs_again[n] = 1;
    need(node.reads);
  }
  RequireAlike(run, duties.is_needed);
  std::vector<char> is_wanted(run.is_kept);  // the buffers that forward needs
  for (int32_t n = static_cast<int32_t>(graph_.nodes.size()) - 1; n >= 0; --n) {
    const JointNode& node = graph_.nodes[n];
    if (node.stage == JointStage::kBackward) continue;
    duties.runs_forward[n] = node.stage == JointStage::kForward ||
                             std::ranges::any_of(node.makes, [&](int32_t b) {
                               return is_wanted[b] != 0;
                             });
    if (!duties.runs_forward[n]) continue;
    for (const int32_t b : node.reads) is_wanted[b] = 1;
    if (duties.runs_again[n]) run.recompute_ms += node.ms;
  }
  Schedule(graph_, *this, duties, run).Build();
  return run;
}

}  // namespace acplan::graph
