#include "graph/base/json_scan.h"

#include <array>

#include "graph/base/file_io.h"

namespace acplan::graph {
namespace {

enum class JsonCharacter : uint8_t {
  kOther,
  kBlank,
  kWord,
  kStructure,
  kQuote
};

constexpr std::array<JsonCharacter, 256> JsonCharacters() {
  std::array<JsonCharacter, 256> kinds = {};
  const auto set = [&](std::string_view characters, JsonCharacter kind) {
    for (const char c : characters) kinds[static_cast<unsigned char>(c)] = kind;
  };
  set(" \t\r\n", JsonCharacter::kBlank);
  // Numbers, true, false, null, and a byte order mark.
  set("0123456789+-.eEtrufalsn\xEF\xBB\xBF", JsonCharacter::kWord);
  set(",:[]{}", JsonCharacter::kStructure);
  set("\"", JsonCharacter::kQuote);
  return kinds;
}

constexpr std::array<JsonCharacter, 256> kJsonCharacters = JsonCharacters();

}  // namespace

JsonScan::Stop JsonScan::Add(std::string_view piece) {
  if (stop_ != Stop::kGoesOn) return stop_;
  bool is_in_string = is_in_string_;
  bool is_escaped = is_escaped_;
  size_t i = 0;
  for (; i < piece.size(); ++i) {
    const char c = piece[i];
    const auto code = static_cast<unsigned char>(c);
    if (is_in_string) {
      if (code < 0x20) break;
      is_in_string = c != '"' || is_escaped;
      is_escaped = c == '\\' && !is_escaped;
    } else if (const JsonCharacter kind = kJsonCharacters[code];
               kind != JsonCharacter::kBlank) {
      if (kind == JsonCharacter::kOther || has_ended_) break;
      is_in_string = kind == JsonCharacter::kQuote;
      if (kind != JsonCharacter::kStructure) continue;
      stop_ = AddStructure(c, byte_ + i);
      if (stop_ != Stop::kGoesOn) break;
    }
  }
  byte_ += i;
  is_in_string_ = is_in_string;
  is_escaped_ = is_escaped;
  if (stop_ != Stop::kGoesOn) return stop_;
  if (i < piece.size()) {
    stop_ = piece[i] == 0 ? Stop::kZero : Stop::kSyntax;
  } else if (byte_ - token_start_ > kMostJsonToken) {
    stop_ = Stop::kToken;
  }
  return stop_;
}

JsonScan::Stop JsonScan::AddStructure(char c, size_t byte) {
  const size_t token_bytes = byte - token_start_;
  token_start_ = byte + 1;
  if (token_bytes > kMostJsonToken) return Stop::kToken;
  if (c == ',' || c == '[' || c == '{') {
    if (++values_ > kMostJsonValues) return Stop::kValues;
  }
  if (c == '[' || c == '{') {
    if (++depth_ > kMostJsonDepth) return Stop::kDepth;
  }
  if (c == ']' || c == '}') has_ended_ = --depth_ <= 0;
  return Stop::kGoesOn;
}

std::string ReadJsonText(const std::filesystem::path& path) {
  JsonScan scan;
  return ReadFile(path, kMostFileBytes, [&](std::string_view piece) {
    return scan.Add(piece) == JsonScan::Stop::kGoesOn;
  });
}

}  // namespace acplan::graph
