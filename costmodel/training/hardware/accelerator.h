#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/hardware/model_constants.h"
#include "costmodel/training/hardware/product_precision.h"
#include "graph/device/device_table.h"

namespace acplan::costmodel {

// A GPU: the numbers of its vendor, and a few that were fitted to measured runs
// (data/training/systems.json gives the source of each). Rates are bytes or FLOPs per
// second, shares are relative to the vendor's peak.
struct Accelerator {
  std::string name = {};
  double memory = 0;  // bytes
  // Set by WithOffers: the memory that it offers PyTorch.
  std::optional<graph::DeviceOffer> offer = {};
  double multiprocessors = 0;
  double bf16_rate = 0;
  double fp8_rate = 0;  // 0 if it has none
  double fp4_rate = 0;
  double memory_rate = 0;
  double nvlink_rate = 0;  // one direction
  double host_rate = 0;    // to the host's memory, one direction
  // Values of the vendor's own systems, which a job may override.
  int64_t nvlink_domain = 8;  // the GPUs that NVLink joins
  double network_rate = 0;    // nominal, for each GPU, one direction
  // Fitted.
  double product_share = 0;      // of a large bf16 product
  double fp8_product_share = 0;  // of a large product in 8 or 4 bits
  double flash_share = 0;        // of FlashAttention 2, forward
  double flash_new_share = 0;    // of cuDNN's attention and FlashAttention 3
  double memory_share = 0;       // of kernels bound by memory
  double nvlink_share = 0;       // of collectives of large messages
  double host_factor = 1;        // multiplies the host's time for an operator

  // Returns the peak for products of this precision; 0 if the GPU has none.
  double Rate(ProductPrecision precision) const;
};

// A generation of software: how well it uses the hardware.
struct SoftwareStack {
  std::string name = {};
  std::vector<std::string> matches = {};  // prefixes of the names of software
  double host_seconds = 0;                // for each operator that it launches
  // Traffic of elementwise work, relative to fused kernels.
  double elementwise = 1;
  double network_share = 0;      // of a network's nominal rate
  double network_latency = 0;    // seconds for each step between nodes
  double iteration_seconds = 0;  // of an iteration in addition to all else
  double product_factor = 1;     // multiplies the GPU's share of products
  double attention_factor = 1;   // multiplies the GPU's share of attention
  bool fuses_experts = false;    // see TrainingStrategy
  // The share of computation that communication can overlap.
  double hidden_share = 0;
};

struct TrainingSystems {
  KernelConstants kernels = {};
  std::vector<Accelerator> accelerators = {};
  std::vector<SoftwareStack> stacks = {};
};

// Parses the systems. Each number is {"value": 3.35, "from": "where it is from"}. Throws
// InputError if one is missing, has no `from`, or is out of range.
TrainingSystems ParseTrainingSystems(std::string_view text,
                                     std::string_view file);
TrainingSystems ReadTrainingSystems(const std::filesystem::path& path);

// Reads the GPUs, at least one, of a file that `python -m acplan measure-system` wrote
// (docs/file_formats.md). Throws InputError as above.
std::vector<Accelerator> ReadOwnAccelerators(const std::filesystem::path& path);

// Looks up what each GPU offers PyTorch. A GPU in no table, for example the user's own,
// has the capacity that `memory` states, which is the limit for all others, too.
TrainingSystems WithOffers(TrainingSystems systems,
                           const graph::DeviceTable& devices);

// Finds a GPU by a name as people write it, in small or capital letters: the one of this
// name, or the first one whose name begins with these words ("h100" is H100-SXM5), or the
// one with the longest name that `name` follows with its memory, power or form
// ("GB300-NVL72-279GB"). Throws InputError that lists the known names if there is none.
const Accelerator& FindAccelerator(const TrainingSystems& systems,
                                   std::string_view name);
// Returns the stack of this name, or that with the longest of `matches` that begins
// `software`; null if there is none.
const SoftwareStack* MatchingStack(const TrainingSystems& systems,
                                   std::string_view software);
// Returns what is expected in place of a name that no stack matches, and the nearest name.
std::string ExpectedSoftware(const TrainingSystems& systems,
                             std::string_view software);
// Finds the stack as MatchingStack does. Throws InputError if there is none.
const SoftwareStack& FindStack(const TrainingSystems& systems,
                               std::string_view software);

}  // namespace acplan::costmodel
