#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/hardware/product_precision.h"

namespace acplan::costmodel {

// A GPU: what its vendor says of it, and few numbers that were fitted to measured
// runs (data/training/systems.json says of each where it is from). Rates
// are bytes or FLOPs a second, shares are of the vendor's peak.
struct Accelerator {
  std::string name = {};
  double memory = 0;  // bytes
  double multiprocessors = 0;
  double bf16_rate = 0;
  double fp8_rate = 0;  // 0: has none
  double fp4_rate = 0;
  double memory_rate = 0;
  double nvlink_rate = 0;  // one direction
  double host_rate = 0;    // to the host's memory, one direction
  // Of the vendor's own systems; a job may say otherwise.
  int64_t nvlink_domain = 8;  // GPUs that NVLink joins
  double network_rate = 0;    // nominal, of a GPU, one direction
  // Fitted.
  double product_share = 0;      // of a large bf16 product
  double fp8_product_share = 0;  // of one in 8 or 4 bits
  double flash_share = 0;        // of FlashAttention 2, forward
  double flash_new_share = 0;    // of cuDNN's and FlashAttention 3
  double memory_share = 0;       // of kernels bound by memory
  double nvlink_share = 0;       // of collectives of large messages
  double host_factor = 1;        // of the host's time for an operator

  // Of the peak for these products; 0 where the GPU has none.
  double Rate(ProductPrecision precision) const;
};

// A generation of software: how well it uses what it runs on.
struct SoftwareStack {
  std::string name = {};
  std::vector<std::string> matches = {};  // beginnings of names of software
  double host_seconds = 0;                // of an operator that is launched
  double elementwise = 1;        // traffic of elementwise work, fused being 1
  double network_share = 0;      // of a network's nominal rate
  double network_latency = 0;    // seconds a step between nodes
  double iteration_seconds = 0;  // of an iteration beside all else
  double product_factor = 1;     // of the GPU's share of products
  double attention_factor = 1;   // of the GPU's share of attention
  bool fuses_experts = false;    // see TrainingStrategy
  double hidden_share = 0;  // of computation that communication can run beside
};

struct TrainingSystems {
  std::vector<Accelerator> accelerators = {};
  std::vector<SoftwareStack> stacks = {};
};

// Each number is {"value": 3.35, "from": "where it is from"}. Throws InputError
// where one is missing, has no `from`, or is out of range.
TrainingSystems ParseTrainingSystems(std::string_view text,
                                     std::string_view file);
TrainingSystems ReadTrainingSystems(const std::filesystem::path& path);

// The GPUs of a file that `python -m acplan measure-system` wrote
// (docs/file_formats.md), one at least; throws InputError as above.
std::vector<Accelerator> ReadOwnAccelerators(const std::filesystem::path& path);

// The one whose name begins as `name` does up to its variant of memory and so
// on: the longest name that begins `name`. Throws InputError that lists the known
// ones where there is none.
const Accelerator& FindAccelerator(const TrainingSystems& systems,
                                   std::string_view name);
// The same of a name as people write it, in small letters or capitals: where none
// begins it, the first whose name it begins ("h100" is H100-SXM5).
const Accelerator& FindAcceleratorLike(const TrainingSystems& systems,
                                       std::string_view name);
// The one with the longest of `matches` that begins `software`; else the last.
const SoftwareStack& FindStack(const TrainingSystems& systems,
                               std::string_view software);

}  // namespace acplan::costmodel
