#pragma once

#include <string_view>

#include "costmodel/training/model/config_keys.h"
#include "costmodel/training/model/model_shape.h"

namespace acplan::costmodel {

// Returns whether a `model_type` is an encoder with a decoder that is modelled.
bool IsEncoderDecoderType(std::string_view type);

// Parses an encoder with a decoder: the shape is the decoder's, and its tower is the encoder.
ModelShape ParseEncoderDecoder(ConfigKeys& config, std::string_view type);

}  // namespace acplan::costmodel
