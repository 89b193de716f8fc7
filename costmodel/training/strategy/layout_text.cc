// A layout of a model is one sequence, E t..t m..m L, cut into chunks. So the lengths of
// the chunks define it, once the sequence is known to be that of the model.
#include "costmodel/training/strategy/layout_text.h"

#include <charconv>

namespace acplan::costmodel {
namespace {

// The most pieces of a text with repetitions.
constexpr size_t kMostPieces = 100'000;
constexpr int kMostNesting = 20;

std::string SequenceOf(const ModelShape& shape) {
  return "E" + std::string(static_cast<size_t>(shape.layers), 't') +
         std::string(static_cast<size_t>(shape.mtp_layers), 'm') + "L";
}

class LayoutParser {
 public:
  explicit LayoutParser(std::string_view text) : text_(text) {}

  // Returns all pieces and bars, with repetitions expanded.
  std::optional<std::string> Run() {
    std::optional<std::string> all = Sequence(0);
    return text_.empty() ? all : std::nullopt;
  }

 private:
  std::optional<std::string> Sequence(int depth) {
    std::string all;
    while (!text_.empty() && text_.front() != ')') {
      std::optional<std::string> item = Item(depth);
      if (!item || all.size() + item->size() > kMostPieces) return {};
      all += *item;
    }
    return all;
  }

  std::optional<std::string> Item(int depth) {
    const char first = text_.front();
    text_.remove_prefix(1);
    if (first == ',' || first == ' ') return std::string();
    std::string item(1, first);
    if (first == '(') {
      if (depth == kMostNesting) return {};
      const std::optional<std::string> inner = Sequence(depth + 1);
      if (!inner || text_.empty()) return {};
      text_.remove_prefix(1);
      item = *inner;
    } else if (std::string_view("EtmL|").find(first) ==
               std::string_view::npos) {
      return {};
    }
    return Repeated(item);
  }

  std::optional<std::string> Repeated(const std::string& item) {
    if (text_.empty() || text_.front() != '*') return item;
    text_.remove_prefix(1);
    int64_t count = 0;
    const char* begin = text_.data();
    const auto [end, error] =
        std::from_chars(begin, begin + text_.size(), count);
    if (error != std::errc() || count < 1 ||
        static_cast<size_t>(count) > kMostPieces ||
        static_cast<size_t>(count) * item.size() > kMostPieces) {
      return {};
    }
    text_.remove_prefix(static_cast<size_t>(end - begin));
    std::string all;
    for (int64_t i = 0; i < count; ++i) all += item;
    return all;
  }

  std::string_view text_;
};

}  // namespace

std::optional<std::vector<int64_t>> ParseLayout(std::string_view text,
                                                const ModelShape& shape) {
  const std::optional<std::string> all = LayoutParser(text).Run();
  if (!all) return {};
  std::string sequence;
  std::vector<int64_t> counts = {0};
  for (const char piece : *all) {
    if (piece == '|') {
      counts.push_back(0);
    } else {
      sequence += piece;
      ++counts.back();
    }
  }
  if (sequence != SequenceOf(shape)) return {};
  return counts;
}

std::string LayoutText(const std::vector<int64_t>& counts,
                       const ModelShape& shape) {
  const std::string sequence = SequenceOf(shape);
  std::string text;
  size_t next = 0;
  for (const int64_t count : counts) {
    if (next > 0 || !text.empty()) text += '|';
    text += sequence.substr(next, static_cast<size_t>(count));
    next += static_cast<size_t>(count);
  }
  return text;
}

}  // namespace acplan::costmodel
