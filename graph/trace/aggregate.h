#pragma once

#include "graph/profile/profile.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Returns the profile of a traced step: what PyTorch's torch.distributed._tools
// (aggregate_stats of MemTracker, RuntimeEstimator and SACEstimator) would say
// of each module that is called. docs/statistics.md compares both.
//
// Memory. Bytes are those of live storages, each rounded up to 512. A storage that is
// born in the forward pass or in the first operator of the backward pass, which makes
// the loss's gradient, is an activation, in the backward pass temporary, in the
// optimizer step optimizer state; a parameter's gradient is one from the last operator
// of the backward pass on that returns it; what was there before the step and is
// neither parameter, buffer, gradient nor optimizer state is other. Snapshots are those
// of one call: forward of the call with the largest forward peak, backward of the one
// with the largest backward peak (of equals the last). With them
//   act_fw_per_module = max(0, post_fw.act - pre_fw.act - output), over all calls
//   act_total = post_fw.act, grad_total = pre_bw.grad
//   act_bw_per_module = peak_bw.act
//   act_grad_per_module = peak_bw.temp - pre_bw.temp
// What happens between two operators has no order in a trace: at the end of a
// call storages that are freed then are alive if they are older than the call
// or among its results, at its start if they are among its arguments.
//
// Run-times are sums over the operators of all calls, and over those that run
// from the start to the end of any call's backward.
//
// Operator statistics (`sac`), of modules with children, are those of one call,
// run-times and memory summed over all calls with gradients; without them where
// there is no such call, they do not run the same operators, or one cannot run
// again under a policy: FindUnitRefusal says why (unit_refusal.h).
// - runtimes: 0 for operators after the last one that autograd saves something
//   of in the module: checkpoints stop there when they run again.
// - memory: what the operator creates and returns, without results of the
//   module that outlive the forward pass (of operators that never run again:
//   that live until backward asks for what is saved in the module).
// - view_like_ops: whose results are views and that compute nothing, and those
//   that cannot be saved, because the caller writes to their results in place.
// - inplace_ops: whose result is an argument that they write to, with the
//   operator of the call that created it, or else themselves; and what reads a
//   result before it is written to, with the operator that created it.
// - force_store_random: a call has no argument that is a tensor given by
//   position. PyTorch's checkpoints do not restore the CUDA random state there.
//
// held_per_module: arguments that are freed before anything that is saved in
// the module is first asked for.
//
// Throws InputError where no call has a backward, and where a module or all of
// them need more bytes or time than a profile may have.
Profile Aggregate(const Trace& trace);

}  // namespace acplan::graph
