#include "graph/joint/joint_moves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::graph {
namespace {

// Adds `sign` times the bytes that moves take from each step.
void AddAway(const JointGraph& graph, int64_t sign, JointRun& run) {
  for (const JointMove& move : run.moves) {
    const int64_t bytes = sign * graph.buffers[move.buffer].bytes;
    for (int32_t s = move.release; s < move.fetch; ++s)
      run.live_bytes[s] += bytes;
  }
}

void FindPeak(const JointGraph& graph, JointRun& run) {
  const auto peak = std::ranges::max_element(run.live_bytes);
  const bool has_steps = peak != run.live_bytes.end();
  run.peak_bytes = has_steps ? *peak : graph.held_bytes;
  run.peak_step =
      has_steps ? static_cast<int32_t>(peak - run.live_bytes.begin()) : -1;
}

void RequireMove(const JointGraph& graph, const JointMove& move,
                 const KeptLife* life, int32_t backward) {
  const std::string name = OneLine(graph.buffers[move.buffer].name);
  if (life == nullptr)
    throw InputError(
        fmt::format("buffer '{}': expected one that may move", name));
  if (move.release <= life->last_forward || move.release > backward ||
      move.fetch < backward || move.fetch > life->first_backward) {
    throw InputError(fmt::format(
        "buffer '{}': expected it to leave after its last read in forward and "
        "to be back before its first one in backward",
        name));
  }
}

}  // namespace

int32_t FirstOfBackward(const JointRun& run) {
  const auto first =
      std::ranges::find_if(run.steps, &JointRun::Step::is_backward);
  return static_cast<int32_t>(first - run.steps.begin());
}

std::vector<KeptLife> MovableLives(const JointGraph& graph,
                                   const JointRun& run) {
  std::vector<KeptLife> lives(graph.buffers.size(),
                              {.maker_step = -1, .first_backward = -1});
  for (int32_t s = 0; s < std::ssize(run.steps); ++s) {
    const JointRun::Step& step = run.steps[s];
    for (const int32_t b : graph.nodes[step.node].reads) {
      KeptLife& life = lives[b];
      if (!step.is_backward) {
        life.last_forward = s;
      } else {
        if (life.first_backward < 0) life.first_backward = s;
        life.last_backward = s;
      }
    }
    if (step.is_backward) continue;
    for (const int32_t b : graph.nodes[step.node].makes)
      lives[b] = {.buffer = b,
                  .maker_step = s,
                  .last_forward = s,
                  .first_backward = -1};
  }
  std::vector<char> is_returned(graph.buffers.size(), 0);
  for (const int32_t b : graph.backward_outputs) is_returned[b] = 1;
  std::erase_if(lives, [&](const KeptLife& life) {
    const JointBuffer& buffer = graph.buffers[life.buffer];
    return life.maker_step < 0 || life.first_backward < 0 ||
           buffer.bytes == 0 || !run.is_kept[life.buffer] || !buffer.may_move ||
           is_returned[life.buffer];
  });
  std::ranges::stable_sort(lives, {}, &KeptLife::maker_step);
  return lives;
}

JointRun WithMoves(const JointGraph& graph, JointRun run,
                   std::vector<JointMove> moves) {
  const int32_t backward = FirstOfBackward(run);
  const std::vector<KeptLife> lives = MovableLives(graph, run);
  std::unordered_map<int32_t, const KeptLife*> life_of;
  for (const KeptLife& life : lives) life_of.emplace(life.buffer, &life);
  std::ranges::sort(moves, {}, &JointMove::buffer);
  for (size_t i = 0; i < moves.size(); ++i) {
    const auto life = life_of.find(moves[i].buffer);
    RequireMove(graph, moves[i], life == life_of.end() ? nullptr : life->second,
                backward);
    if (i > 0 && moves[i].buffer == moves[i - 1].buffer)
      throw InputError(
          fmt::format("buffer '{}': expected it to move once",
                      OneLine(graph.buffers[moves[i].buffer].name)));
  }
  AddAway(graph, 1, run);
  run.moves = std::move(moves);
  AddAway(graph, -1, run);
  FindPeak(graph, run);
  return run;
}

int64_t MovedBytes(const JointGraph& graph, const JointRun& run) {
  int64_t bytes = 0;
  for (const JointMove& move : run.moves)
    bytes += graph.buffers[move.buffer].bytes;
  return bytes;
}

}  // namespace acplan::graph
