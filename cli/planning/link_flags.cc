#include "cli/planning/link_flags.h"

#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"

namespace acplan::cli {

void LinkFlags::AddTo(CLI::App& app) {
  app.add_option(
         "--offload", offload,
         "allow saved results and arguments of units to wait in host memory, "
         "over a link of RATE each way, such as 25GB/s; on traces, if "
         "operators "
         "may be skipped")
      ->type_name("RATE");
  app.add_option("--host-memory", host_memory,
                 "with --offload: limit of the host memory in use")
      ->type_name("SIZE");
}

std::optional<problems::LinkLimits> LinkFlags::Parse(
    const problems::PlanOptions& options) const {
  if (offload.empty()) {
    if (host_memory.empty()) return std::nullopt;
    throw InputError("--host-memory: needs --offload");
  }
  if (options.memory.model != problems::MemoryModel::kTrace ||
      !options.may_skip) {
    throw InputError(
        "--offload: needs a plan on a trace, with --decisions "
        "save,recompute,skip");
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
