#include "cli/planning/link_flags.h"

#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"

namespace acplan::cli {

void LinkFlags::AddTo(CLI::App& app, const std::string& what,
                      const std::string& when) {
  app.add_option("--offload", offload,
                 "allow " + what +
                     " to wait in host memory, over a link of RATE each way, "
                     "such as 25GB/s" +
                     when)
      ->type_name("RATE");
  app.add_option("--host-memory", host_memory,
                 "with --offload: limit of the host memory in use")
      ->type_name("SIZE");
}

std::optional<problems::LinkLimits> LinkFlags::Parse(
    const problems::PlanOptions& options) const {
  const bool may_offload =
      options.memory.model == problems::MemoryModel::kTrace && options.may_skip;
  if (!offload.empty() && !may_offload) {
    throw InputError(
        "--offload: needs a plan on a trace, with --decisions "
        "save,recompute,skip");
  }
  return Parse();
}

std::optional<problems::LinkLimits> LinkFlags::Parse() const {
  if (offload.empty()) {
    if (host_memory.empty()) return std::nullopt;
    throw InputError("--host-memory: needs --offload");
  }
  problems::LinkLimits link;
  link.bytes_per_second =
      static_cast<double>(graph::ParseByteRate(offload, "--offload"));
  if (!host_memory.empty()) {
    link.host_memory_bytes = graph::ParseByteSize(host_memory, "--host-memory");
  }
  return link;
}

}  // namespace acplan::cli
