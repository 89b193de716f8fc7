#pragma once

namespace acplan::costmodel {

// Numbers of the model that belong to no GPU and to no software: chosen from how
// kernels and libraries work, with the public runs in sight, the same for all.
// They are a value of the job so that a feature can be switched off (ablation.h).
struct ModelConstants {
  // What a tile does beside its inner loop (loads before it, stores after it), in
  // steps of that loop.
  double tile_overhead = 192;
  // Of what the last wave leaves idle: other multiprocessors then run at higher
  // clocks, and split products are used.
  double idle_share = .5;
  // Products with a scale a row ran on kernels of this speed beside those with a
  // scale a tensor (torch 2.6; torchtitan's page calls it a known regression).
  double rowwise_share = .65;
  // Of attention with heads of fewer than 128 dimensions: exponentials weigh more.
  double small_head_share = .8;
  // FlashAttention's backward does 2.5 times the products, at this speed.
  double backward_attention_share = .8;
  double nvlink_latency = 6e-6;  // seconds, for each doubling of the ranks
  // DeepEP's kernels reach this of the network (its page: 43 to 58 of 50 GB/s
  // nominal, the tokens of a node counted).
  double dedupe_network_share = .85;
  // What remains exposed of communication that runs beside products, as those
  // start before all of the first tile has come.
  double exposed_tensor = .35;
  double exposed_expert = .3;
  // Copies from and to pinned memory reach this of the link to the host (of PCIe
  // packets, the rest is headers and flow control).
  double host_link_share = .8;
  // How much slower communication makes what runs beside it.
  double interference = .06;
  // Of the host's launches, what CUDA graphs of parts of a layer leave.
  double partial_graph_launches = .6;
};

}  // namespace acplan::costmodel
