#pragma once

#include <string_view>

namespace acplan::costmodel {

// Returns whether a key of a configuration, at its top level, changes neither a model's
// parameters nor its operations.
bool IsHarmlessKey(std::string_view key);

// Returns whether a key names a part that is not a text model, such as a vision tower, or
// describes how a checkpoint is stored.
bool IsOtherPart(std::string_view key);

// Returns whether a key names a part that other data than text goes through.
bool IsTower(std::string_view key);

// Returns whether a key names a part of a layer that decoders of attention and feed-forward
// lack: what a message about an unknown type is about.
bool IsForeignKey(std::string_view key);

}  // namespace acplan::costmodel
