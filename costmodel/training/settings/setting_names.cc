#include "costmodel/training/settings/setting_names.h"

#include <fmt/format.h>

#include <vector>

namespace acplan::costmodel {

std::string_view NameOf(ProductPrecision precision) {
  switch (precision) {
    case ProductPrecision::kBf16:
      return "bf16";
    case ProductPrecision::kFp8Delayed:
      return "fp8_delayed";
    case ProductPrecision::kFp8Current:
      return "fp8_current";
    case ProductPrecision::kFp8Rowwise:
      return "fp8_rowwise";
    case ProductPrecision::kFp8Blockwise:
      return "fp8_blockwise";
    case ProductPrecision::kMxfp8:
      return "mxfp8";
    case ProductPrecision::kNvfp4:
      return "nvfp4";
  }
  return "";
}

std::string NamesOf(const std::set<LayerPart>& parts) {
  using enum LayerPart;
  std::vector<std::string_view> names;
  const auto add = [&](LayerPart part, std::string_view name) {
    if (parts.contains(part)) names.push_back(name);
  };
  add(kCoreAttention, "core_attn");
  add(kNorm, "layernorm");
  add(kMlaUp, "mla_up_proj");
  add(kFeedforward, "mlp");
  add(kMoe, "moe");
  if (!parts.contains(kMoe)) add(kMoeActivation, "moe_act");
  return fmt::format("{}", fmt::join(names, "+"));
}

}  // namespace acplan::costmodel
