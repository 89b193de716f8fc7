#pragma once

#include <array>

namespace acplan::costmodel {

// A size of tiles, and the share of the peak that it reaches, relative to the largest size.
struct Tile {
  double rows = 0;
  double columns = 0;
  double share = 0;
};

// How near kernels come to the rates of any GPU: "kernels" of data/training/systems.json,
// which the run-times of traces take from there, too.
struct KernelConstants {
  std::array<Tile, 4> tiles = {};
  // The work of a tile in addition to its inner loop (loads before it, stores after it), in
  // steps of that loop.
  double tile_overhead = 0;
  // The share of the last wave's idle time that counts: other multiprocessors then run at
  // higher clocks, and split products are used.
  double idle_share = 0;
  // The speed of attention with heads of fewer than 128 dimensions, in which exponentials
  // weigh more.
  double small_head_share = 1;
  double nvlink_latency = 0;  // seconds, for each doubling of the ranks
};

// Numbers of the model that belong to no GPU and to no software. They were chosen from the
// way kernels and libraries work, with the public runs in sight, and are the same for all.
// They are a value of the job so that a feature can be switched off (ablation.h).
struct ModelConstants {
  // The speed of the kernels for products with a scale for each row, relative to those with
  // a scale for each tensor (torch 2.6; torchtitan's page calls it a known regression).
  double rowwise_share = .65;
  // The speed of FlashAttention's backward pass, which does 2.5 times the products.
  double backward_attention_share = .8;
  // The share of the network that DeepEP's kernels reach (its page: 43 to 58 of 50 GB/s
  // nominal, the tokens of a node counted).
  double dedupe_network_share = .85;
  // The exposed shares of communication that runs beside products, which start before all
  // of the first tile has arrived.
  double exposed_tensor = .35;
  double exposed_expert = .3;
  // The share of the link to the host that copies from and to pinned memory reach (the rest
  // of PCIe packets is headers and flow control).
  double host_link_share = .8;
  // The share by which communication slows down the kernels that run beside it.
  double interference = .06;
  // The share of the host's launches that remains with CUDA graphs of parts of a layer.
  double partial_graph_launches = .6;
};

}  // namespace acplan::costmodel
