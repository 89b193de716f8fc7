#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace acplan::graph {

// Kinds of operators whose run-times are likely to be wrong by the same factor: kernels
// of one kind reach the same share of what a device can do.
enum class OperatorKind : uint8_t {
  kProduct,        // of matrices
  kConvolution,    // forward and backward
  kAttention,      // fused kernels, forward and backward
  kNormalisation,  // norms, softmax and sums: a row is read before it is written
  kOther,          // pointwise operators, copies, gathers, optimizers
};
inline constexpr size_t kOperatorKinds = 5;

// A value for each kind.
template <typename Value>
using ByKind = std::array<Value, kOperatorKinds>;

std::string_view ToString(OperatorKind kind);  // "products" ...

// Returns the kind of an operator by its name, such as "aten.addmm.default". A name that
// is not known is one of kOther.
OperatorKind KindOf(std::string_view name);

}  // namespace acplan::graph
