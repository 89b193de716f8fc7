#include "costmodel/calculon/llm/batch_times.h"

#include <algorithm>
#include <cmath>

namespace acplan::costmodel {
namespace {

// The input of all parts of the computation.
struct Context {
  const System& system;
  const Execution& execution;
  const Schedule& schedule;
  const BlockCosts& block;

  // Returns the sum over the blocks of a chunk, of which one is an edge block and the
  // others are base blocks.
  double OverChunk(double base, double edge) const {
    return schedule.base_blocks * base + edge;
  }
  double OverBatch(double base, double edge) const {
    return schedule.microbatches * schedule.chunks * OverChunk(base, edge);
  }
  double NetworkTime(int tier, NetworkOperation operation, double bytes,
                     double participants) const {
    return system.networks[tier].Time(operation, bytes, participants);
  }
  double OffloadTime(double bytes) const {
    return bytes / system.mem2.bandwidth.Throughput(bytes);
  }
};

double StoredActivations(const Context& c) {
  if (!c.execution.activations_offload) return 0;
  return c.execution.activation_recompute == Recompute::kFull
             ? c.block.checkpoint_size
             : c.block.act_storage_space;
}

double ForwardOffloadSize(const Context& c) {
  const double weights = c.execution.weight_offload ? c.block.weight_space : 0;
  return std::max(weights, StoredActivations(c));
}

double BackwardOffloadSize(const Context& c) {
  if (!c.execution.training) return 0;
  double size = c.execution.weight_offload ? c.block.weight_space : 0;
  size += StoredActivations(c);
  if (c.execution.optimizer_offload) {
    size += c.block.optimizer_space;
  }
  return size;
}

void AddOffload(PassTimes& pass, double offload_time, double mem_time) {
  for (BlockTime* time : {&pass.base, &pass.edge}) {
    time->offload_overhead =
        std::max(0.0, offload_time + mem_time - time->without_offload);
  }
}

double SendSize(const Context& c) {
  if (c.execution.pipeline_par == 1) return 0;
  return c.block.forward_send_size;
}

PassTimes ForwardPass(const Context& c) {
  const BlockCosts& block = c.block;
  PassTimes pass;
  pass.send = c.NetworkTime(c.execution.pipeline_par_net,
                            NetworkOperation::kPointToPoint, SendSize(c), 2);
  pass.base.without_offload =
      block.forward.time + block.forward_comm.base_exposed;
  pass.edge.without_offload =
      block.forward.time + block.forward_comm.edge_exposed + pass.send;
  pass.offload_size = ForwardOffloadSize(c);
  AddOffload(pass, c.OffloadTime(pass.offload_size), block.forward.mem_time);
  return pass;
}

PassTimes BackwardPass(const Context& c) {
  const BlockCosts& block = c.block;
  PassTimes pass;
  pass.send = c.NetworkTime(c.execution.pipeline_par_net,
                            NetworkOperation::kPointToPoint,
                            c.execution.training ? SendSize(c) : 0, 2);
  pass.base.without_offload =
      block.recompute.time + block.repeated_comm.base_exposed +
      block.activation_grad.time + block.weight_grad.time +
      block.backward_comm.base_exposed;
  pass.edge.without_offload =
      block.recompute.time + block.repeated_comm.edge_exposed +
      block.activation_grad.time + block.weight_grad.time +
      block.backward_comm.edge_exposed + pass.send;
  pass.offload_size = BackwardOffloadSize(c);
  const double offload_time =
      c.execution.training ? c.OffloadTime(pass.offload_size) : 0;
  const double move_time = offload_time + block.activation_grad.mem_time;
  AddOffload(pass, move_time, block.weight_grad.mem_time);
  return pass;
}

// Returns the seconds that a stage saves if it lacks a block: those of the edge block if a
// chunk has no other, otherwise those of a mean block.
double LackedTime(const Schedule& schedule, const PassTimes& forward,
                  const PassTimes& backward) {
  if (schedule.base_blocks > 0) {
    return (forward.base.Total() + forward.edge.Total() +
            backward.base.Total() + backward.edge.Total()) /
           2;
  }
  return forward.edge.Total() + backward.edge.Total();
}

// Returns the time of the bubble. The last stages lack a block if blocks divide unevenly.
// All stages wait if microbatches are missing in the last round of interleaved chunks.
double BubbleTime(const Context& c, const PassTimes& forward,
                  const PassTimes& backward, double chunk_time) {
  const Schedule& schedule = c.schedule;
  const double saved =
      schedule.missing_blocks * LackedTime(schedule, forward, backward);
  const double waiting = schedule.last_round == 0
                             ? 0
                             : (schedule.chunks - 1) * (schedule.pipeline_par -
                                                        schedule.last_round);
  return (schedule.pipeline_par - 1) * chunk_time +
         (waiting * chunk_time - saved);
}

// The seconds that hide the communication of gradients: those of computing, without memory
// traffic and without communication in the same network.
struct OverlapTimes {
  double chunk = 0;  // the seconds of a chunk
  // Their part that computes, which communication slows down.
  double chunk_compute = 0;
  double block_compute = 0;
};

OverlapTimes ComputeOverlap(const Context& c, const PassTimes& backward) {
  const BlockCosts& block = c.block;
  const double mem_time = block.activation_grad.mem_time +
                          block.weight_grad.mem_time + block.recompute.mem_time;
  double base = backward.base.Total() - mem_time;
  double edge = backward.edge.Total() - mem_time;
  OverlapTimes times;
  times.block_compute = block.activation_grad.flops_time +
                        block.weight_grad.flops_time +
                        block.recompute.flops_time;
  if (!c.execution.optimizer_sharding) {
    const double step = block.optimizer.time - block.optimizer.mem_time;
    base += step;
    edge += step;
    times.block_compute += block.optimizer.flops_time;
  }
  if (c.execution.data_par_net == c.execution.tensor_par_net) {
    base -= block.repeated_comm.base_time + block.backward_comm.base_time;
    edge -= block.repeated_comm.edge_time + block.backward_comm.edge_time;
  }
  times.chunk = c.OverChunk(base, edge);
  times.chunk_compute = c.schedule.blocks_per_chunk * times.block_compute;
  return times;
}

// Divides as Python's floor division of floats, which is not the floor of the quotient.
double FloorDivide(double dividend, double divisor) {
  const double remainder = std::fmod(dividend, divisor);
  const double quotient = (dividend - remainder) / divisor;
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

double BlockDataParallelTime(const Context& c) {
  const double peers = static_cast<double>(c.execution.data_par);
  const auto time = [&](NetworkOperation operation) {
    return c.NetworkTime(c.execution.data_par_net, operation,
                         c.block.weight_space, peers);
  };
  return c.execution.optimizer_sharding
             ? time(NetworkOperation::kReduceScatter) +
                   time(NetworkOperation::kAllGather)
             : time(NetworkOperation::kAllReduce);
}

// Adds the times of all chunks but the last: their gradients are sent while as many
// microbatches as there are stages go back through a chunk.
void ExposeChunks(const Context& c, const PassTimes& backward,
                  const OverlapTimes& overlap, double chunk_backward,
                  DataParallelTimes& times) {
  const Schedule& schedule = c.schedule;
  const double usage =
      c.system.networks[c.execution.data_par_net].processor_usage;
  const bool collides =
      c.execution.data_par_net == c.execution.pipeline_par_net;
  const double window = schedule.pipeline_par * overlap.chunk;
  const double slowed = schedule.pipeline_par * overlap.chunk_compute;
  const double chunk_time = schedule.blocks_per_chunk * times.block_time;
  double collisions = 0;
  if (collides) {
    collisions = std::min(
        FloorDivide(chunk_time, chunk_backward),
        schedule.last_round != 0 ? schedule.last_round : schedule.pipeline_par);
  }
  const double excess =
      chunk_time - (window - collisions * backward.send) + slowed * usage;
  const double chunks = schedule.chunks - 1;
  times.chunk_balance = chunks * (excess - collisions * backward.send);
  times.chunk_collisions = chunks * collisions * backward.send;
  times.exposed += excess > 0 ? chunks * excess : chunks * chunk_time * usage;
  times.chunk_excess =
      std::max(0.0, chunk_time + collisions * backward.send - window);
  times.chunk_window = window + slowed * usage;
  if (collides) times.chunk_window -= backward.send;
  times.chunk_window *= chunks;
}

// Adds the times of the last chunk: its gradients are sent while its other blocks are
// computed.
void ExposeTail(const Context& c, const PassTimes& backward,
                const OverlapTimes& overlap, DataParallelTimes& times) {
  const double usage =
      c.system.networks[c.execution.data_par_net].processor_usage;
  double window = 0;
  if (c.schedule.base_blocks > 0) {
    window = overlap.chunk - backward.send -
             (backward.base.Total() + backward.edge.Total()) / 2;
    if (!c.execution.optimizer_sharding) {
      window += c.block.optimizer.time - c.block.optimizer.mem_time;
    }
  }
  const double others = c.schedule.blocks_per_chunk - 1;
  const double excess =
      others * times.block_time + (overlap.block_compute * usage - window);
  times.tail_balance = excess;
  times.tail_exposed = excess > 0 ? excess : others * times.block_time * usage;
  times.exposed += times.tail_exposed;
  times.tail_window = window + others * times.block_time * usage;
}

DataParallelTimes DataParallel(const Context& c, const PassTimes& backward,
                               double chunk_backward) {
  DataParallelTimes times;
  const OverlapTimes overlap = ComputeOverlap(c, backward);
  times.chunk_overlap = overlap.chunk;
  if (c.execution.data_par == 1 || !c.execution.training) return times;
  times.block_size = c.block.weight_space;
  times.block_time = BlockDataParallelTime(c);
  times.link = c.schedule.blocks * times.block_time;
  if (!c.execution.data_par_overlap) {
    times.exposed = times.link;
    return times;
  }
  ExposeChunks(c, backward, overlap, chunk_backward, times);
  ExposeTail(c, backward, overlap, times);
  times.exposed = times.block_time + times.exposed;
  return times;
}

double Total(const BatchTimes& times) {
  double total = times.forward;
  total += times.backward;
  total += times.optimizer;
  total += times.forward_offload_exposed;
  total += times.backward_offload_exposed;
  total += times.recompute;
  total += times.repeated_comm_exposed;
  total += times.bubble;
  total += times.tensor_comm_exposed;
  total += times.pipeline_comm;
  total += times.data_parallel.exposed;
  return total;
}

BatchTimes BatchOf(const Context& c, const PassTimes& forward_pass,
                   const PassTimes& backward_pass) {
  const Execution& execution = c.execution;
  const Schedule& schedule = c.schedule;
  const BlockCosts& block = c.block;
  const double runs = schedule.blocks * schedule.microbatches;
  BatchTimes times;
  times.forward_pass = forward_pass;
  times.backward_pass = backward_pass;
  const PassTimes& forward = times.forward_pass;
  const PassTimes& backward = times.backward_pass;

  times.forward = runs * block.forward.time;
  times.backward =
      runs * block.activation_grad.time + runs * block.weight_grad.time;
  times.optimizer = schedule.blocks * block.optimizer.time;
  times.recompute = runs * block.recompute.time;
  times.forward_offload_exposed =
      c.OverBatch(forward.base.offload_overhead, forward.edge.offload_overhead);
  if (execution.training) {
    times.backward_offload_exposed = c.OverBatch(
        backward.base.offload_overhead, backward.edge.offload_overhead);
  }
  times.repeated_comm_link =
      c.OverBatch(block.repeated_comm.base_time, block.repeated_comm.edge_time);
  times.repeated_comm_exposed = c.OverBatch(block.repeated_comm.base_exposed,
                                            block.repeated_comm.edge_exposed);
  times.tensor_comm_link =
      c.OverBatch(block.forward_comm.base_time, block.forward_comm.edge_time) +
      c.OverBatch(block.backward_comm.base_time, block.backward_comm.edge_time);
  times.tensor_comm_exposed = c.OverBatch(block.forward_comm.base_exposed,
                                          block.forward_comm.edge_exposed) +
                              c.OverBatch(block.backward_comm.base_exposed,
                                          block.backward_comm.edge_exposed);
  if (execution.pipeline_par > 1) {
    const double sends = schedule.microbatches * schedule.chunks;
    times.pipeline_comm =
        sends * forward.send + (execution.training ? sends * backward.send : 0);
  }
  const double chunk_forward =
      c.OverChunk(forward.base.Total(), forward.edge.Total());
  const double chunk_backward =
      c.OverChunk(backward.base.Total(), backward.edge.Total());
  times.bubble =
      BubbleTime(c, forward, backward, chunk_forward + chunk_backward);
  times.data_parallel = DataParallel(c, backward, chunk_backward);
  times.total = Total(times);
  return times;
}

}  // namespace

BatchTimes ComputeBatchTimes(const System& system, const Execution& execution,
                             const Schedule& schedule,
                             const BlockCosts& block) {
  const Context c{system, execution, schedule, block};
  return BatchOf(c, ForwardPass(c), BackwardPass(c));
}

}  // namespace acplan::costmodel
