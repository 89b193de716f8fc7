#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace acplan::costmodel {

enum class Datatype : uint8_t { kFloat8, kFloat16, kFloat32, kBfloat16 };

inline constexpr int kDatatypes = 4;
inline constexpr std::array<std::string_view, kDatatypes> kDatatypeNames = {
    "float8", "float16", "float32", "bfloat16"};

inline double BytesPerElement(Datatype datatype) {
  constexpr std::array<double, kDatatypes> kBytes = {1, 2, 4, 2};
  return kBytes[static_cast<size_t>(datatype)];
}

}  // namespace acplan::costmodel
