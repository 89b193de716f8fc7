#pragma once

#include <cstdint>
#include <string_view>

namespace acplan::graph {

// The arguments of torch.nn.parallel.DistributedDataParallel that decide what it allocates
// on the device.
struct DdpOptions {
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;
  bool gradient_as_bucket_view = false;
  bool find_unused_parameters = false;
  bool static_graph = false;
  bool broadcast_buffers = true;
  bool init_sync = true;

  bool operator==(const DdpOptions&) const = default;
};

// Parses "default", or arguments such as "bucket_cap_mb:10,gradient_as_bucket_view:True".
// As in PyTorch, a bucket_cap_mb holds for the first bucket as well. Throws InputError,
// which begins with `what`, the name of a flag, for any other text.
DdpOptions ParseDdpOptions(std::string_view text, std::string_view what);

}  // namespace acplan::graph
