#include "graph/run/ddp_options.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "graph/allocator/config_tokens.h"
#include "graph/base/message_text.h"

namespace acplan::graph {
namespace {

constexpr double kMostMebibytes = 1 << 24;

constexpr std::array<std::pair<std::string_view, bool DdpOptions::*>, 5>
    kFlags = {
        {{"gradient_as_bucket_view", &DdpOptions::gradient_as_bucket_view},
         {"find_unused_parameters", &DdpOptions::find_unused_parameters},
         {"static_graph", &DdpOptions::static_graph},
         {"broadcast_buffers", &DdpOptions::broadcast_buffers},
         {"init_sync", &DdpOptions::init_sync}}};

void ParseBucketCap(ConfigTokens& tokens, DdpOptions& options) {
  const double mebibytes = tokens.Number();
  if (mebibytes <= 0 || mebibytes > kMostMebibytes) {
    tokens.FailOption(
        fmt::format("expected a number above 0, at most {}", kMostMebibytes));
  }
  options.bucket_bytes = static_cast<int64_t>(mebibytes * (1 << 20));
  options.first_bucket_bytes = options.bucket_bytes;
}

void ParseOption(ConfigTokens& tokens, DdpOptions& options) {
  const std::string& name = tokens.Option();
  if (name == "bucket_cap_mb") {
    tokens.Expect(":");
    return ParseBucketCap(tokens, options);
  }
  for (const auto& [flag, member] : kFlags) {
    if (name != flag) continue;
    tokens.Expect(":");
    options.*member = tokens.Flag();
    return;
  }
  tokens.Fail(fmt::format(
      "expected default, or some of bucket_cap_mb, gradient_as_bucket_view, "
      "find_unused_parameters, static_graph, broadcast_buffers, init_sync, "
      "each with a value (bucket_cap_mb:10), found {}",
      Quoted(name, 100)));
}

}  // namespace

DdpOptions ParseDdpOptions(std::string_view text, std::string_view what) {
  DdpOptions options;
  if (text == "default") return options;
  ConfigTokens tokens(text, what);
  while (true) {
    if (tokens.IsDone()) tokens.Fail("expected an argument at the end");
    ParseOption(tokens, options);
    if (tokens.IsDone()) return options;
    tokens.Expect(",");
  }
}

}  // namespace acplan::graph
