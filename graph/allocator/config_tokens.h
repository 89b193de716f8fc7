#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

// The text of PYTORCH_ALLOC_CONF in tokens, read from front to back. It is cut
// as PyTorch's ConfigTokenizer does: at ',', ':', '[' and ']', which are tokens
// themselves; spaces do not count.
class ConfigTokens {
 public:
  // Cuts the text. Errors begin with `what`, the name of a flag or variable.
  ConfigTokens(std::string_view text, std::string_view what);

  // Throws InputError, one line that names the flag.
  [[noreturn]] void Fail(const std::string& message) const;
  // Throws the same, naming the option as well.
  [[noreturn]] void FailOption(const std::string& message) const;

  // Goes back to the front.
  void Restart() { at_ = 0; }
  bool IsDone() const { return at_ == tokens_.size(); }
  bool IsNext(std::string_view token) const {
    return !IsDone() && tokens_[at_] == token;
  }

  // Reads the name of an option. Errors name it from then on.
  const std::string& Option();

  // Reads this token, or fails.
  void Expect(std::string_view token);

  // Reads a value: any token, a whole number, any number, or True or False.
  const std::string& Value();
  int64_t Whole();
  double Number();
  bool Flag();

  // Parses a number from what is left of a token.
  double NumberIn(std::string_view token) const;

  // Reads a value or a list in brackets.
  void Skip();

 private:
  std::vector<std::string> tokens_;
  std::string what_;
  std::string option_;
  size_t at_ = 0;
};

}  // namespace acplan::graph
