#pragma once

#include <stdexcept>

namespace acplan {

// The one error type for bad input: a file, a flag or a value that a user can correct.
// what() is a single line that names the place (file and JSON path, or flag), the actual
// value and the expected one.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace acplan
