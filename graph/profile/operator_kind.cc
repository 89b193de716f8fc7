#include "graph/profile/operator_kind.h"

#include <algorithm>
#include <string>

namespace acplan::graph {
namespace {

// A name has a kind if it contains one of these texts; the first that fits counts.
struct NamePart {
  std::string_view text;
  OperatorKind kind;
};
constexpr std::array kParts = {
    NamePart{"attention", OperatorKind::kAttention},
    NamePart{"flash_attn", OperatorKind::kAttention},
    NamePart{"conv", OperatorKind::kConvolution},
    NamePart{"norm", OperatorKind::kNormalisation},
    NamePart{"softmax", OperatorKind::kNormalisation},
    NamePart{"nll_loss", OperatorKind::kNormalisation},
    NamePart{"cross_entropy", OperatorKind::kNormalisation},
};

// Operators without namespace and overload.
constexpr std::array<std::string_view, 17> kProducts = {"mm",
                                                        "addmm",
                                                        "bmm",
                                                        "baddbmm",
                                                        "addbmm",
                                                        "mv",
                                                        "addmv",
                                                        "dot",
                                                        "linear",
                                                        "matmul",
                                                        "_scaled_mm",
                                                        "_grouped_mm",
                                                        "_int_mm",
                                                        "einsum",
                                                        "_addmm_activation",
                                                        "linear_backward",
                                                        "_scaled_grouped_mm"};
constexpr std::array<std::string_view, 8> kReductions = {
    "sum", "mean", "var", "std", "var_mean", "amax", "logsumexp", "cumsum"};

// Returns "addmm" for "aten.addmm.default".
std::string_view BareName(std::string_view name) {
  const size_t begin = name.find('.');
  const size_t end = name.rfind('.');
  if (begin == std::string_view::npos) return name;
  return begin < end ? name.substr(begin + 1, end - begin - 1)
                     : name.substr(begin + 1);
}

}  // namespace

std::string_view ToString(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::kProduct:
      return "products";
    case OperatorKind::kConvolution:
      return "convolutions";
    case OperatorKind::kAttention:
      return "attention";
    case OperatorKind::kNormalisation:
      return "normalisations";
    case OperatorKind::kOther:
      break;
  }
  return "others";
}

OperatorKind KindOf(std::string_view name) {
  const std::string_view bare = BareName(name);
  if (std::ranges::find(kProducts, bare) != kProducts.end()) {
    return OperatorKind::kProduct;
  }
  if (std::ranges::find(kReductions, bare) != kReductions.end()) {
    return OperatorKind::kNormalisation;
  }
  for (const NamePart& part : kParts) {
    if (bare.find(part.text) != std::string_view::npos) return part.kind;
  }
  return OperatorKind::kOther;
}

}  // namespace acplan::graph
