#include "graph/allocator/allocator_events.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string>
#include <unordered_map>

#include "graph/base/file_io.h"
#include "graph/base/file_lines.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::graph {
namespace {

// A word more than any event has, so that too many are seen.
constexpr size_t kMostWords = 5;

struct Words {
  std::array<std::string_view, kMostWords> words;
  size_t count = 0;
};

Words Split(std::string_view line) {
  Words split;
  size_t at = 0;
  while (split.count < kMostWords) {
    at = line.find_first_not_of(" \t\r", at);
    if (at == std::string_view::npos) break;
    const size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    split.words[split.count++] = line.substr(at, end - at);
    at = end;
  }
  return split;
}

// The state of a private pool after the events so far.
struct PoolUse {
  bool serves = false;
  bool is_released = false;
  int64_t users = 0;
};

class EventReader {
 public:
  explicit EventReader(std::string_view name) : name_(name) {}

  void Add(std::string_view line) {
    if (++line_ > kMostEventLines) {
      Fail(fmt::format("expected at most {} lines, found more",
                       kMostEventLines));
    }
    const Words words = Split(line);
    if (words.count == 0 || words.words[0].front() == '#') {
      AddComment(line);
      return;
    }
    const std::string_view kind = words.words[0];
    if (kind == "a") {
      AddAllocation(words);
    } else if (kind == "f") {
      RequireCount(words, 2, 2, "f ID");
      AllocatorEvent event = {.kind = AllocatorEvent::Kind::kFree,
                              .block = BlockOf(words)};
      block_of_id_.erase(result_.block_ids[static_cast<size_t>(event.block)]);
      Push(event);
    } else if (kind == "s") {
      RequireCount(words, 3, 3, "s ID STREAM");
      Push({.kind = AllocatorEvent::Kind::kRecordStream,
            .block = BlockOf(words),
            .stream = Whole(words.words[2], "the stream")});
    } else if (kind == "e") {
      RequireCount(words, 1, 1, "e");
      Push({.kind = AllocatorEvent::Kind::kEmptyCache});
    } else if (kind == "g" || kind == "p" || kind == "q" || kind == "d") {
      AddPoolEvent(words);
    } else {
      Fail(fmt::format("expected a, f, s, e, g, p, q or d, found {}",
                       Quoted(kind)));
    }
  }

  AllocatorEvents Take() { return std::move(result_); }

 private:
  [[noreturn]] void Fail(const std::string& message) const {
    throw InputError(
        fmt::format("{}, line {}: {}", OneLine(name_, 400), line_, message));
  }

  void RequireCount(const Words& words, size_t least, size_t most,
                    std::string_view form) const {
    if (words.count < least || words.count > most) {
      Fail(fmt::format("expected \"{}\"", form));
    }
  }

  int64_t Whole(std::string_view word, std::string_view what) const {
    int64_t value = 0;
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, value);
    if (error != std::errc() || stop != end || value < 0) {
      Fail(fmt::format("{}: expected a whole number, found {}", what,
                       Quoted(word)));
    }
    return value;
  }

  void AddAllocation(const Words& words) {
    RequireCount(words, 3, 4, "a ID BYTES [STREAM]");
    const int64_t id = Whole(words.words[1], "the ID");
    const int64_t bytes = Whole(words.words[2], "the bytes");
    if (bytes > kLargestRequest) {
      Fail(fmt::format("the bytes: expected at most {}, found {}",
                       kLargestRequest, bytes));
    }
    const auto block = static_cast<int32_t>(result_.block_ids.size());
    if (!block_of_id_.try_emplace(id, block).second) {
      Fail(fmt::format("block {} is allocated already", id));
    }
    result_.block_ids.push_back(id);
    Push(
        {.kind = AllocatorEvent::Kind::kAllocate,
         .block = block,
         .bytes = bytes,
         .stream = words.count == 4 ? Whole(words.words[3], "the stream") : 0});
  }

  void AddPoolEvent(const Words& words) {
    RequireCount(words, 2, 2, fmt::format("{} POOL", words.words[0]));
    const int64_t name = Whole(words.words[1], "the pool");
    PoolUse& use = pools_[name];
    AllocatorEvent event = {.pool = name};
    switch (words.words[0].front()) {
      case 'q':
        event.kind = AllocatorEvent::Kind::kEndPool;
        if (!use.serves) Fail(fmt::format("pool {} does not serve", name));
        use.serves = false;
        break;
      case 'd':
        event.kind = AllocatorEvent::Kind::kReleasePool;
        if (use.serves) Fail(fmt::format("pool {} still serves", name));
        if (use.users == 0) Fail(fmt::format("pool {} has no user", name));
        use.is_released = --use.users == 0;
        break;
      default:
        event.kind = words.words[0] == "g" ? AllocatorEvent::Kind::kBeginCapture
                                           : AllocatorEvent::Kind::kBeginPool;
        if (use.serves) Fail(fmt::format("pool {} serves already", name));
        if (use.is_released) Fail(fmt::format("pool {} is released", name));
        use.serves = true;
        ++use.users;
    }
    Push(event);
  }

  int32_t BlockOf(const Words& words) const {
    const int64_t id = Whole(words.words[1], "the ID");
    const auto block = block_of_id_.find(id);
    if (block == block_of_id_.end()) {
      Fail(fmt::format("no block {} is allocated", id));
    }
    return block->second;
  }

  // Comments of a pipe may have no end, though lines are few.
  void AddComment(std::string_view line) {
    comment_bytes_ += line.size();
    if (comment_bytes_ <= kMostListBytes) return;
    Fail(fmt::format("expected at most {} bytes of comments, found more",
                     kMostListBytes));
  }

  void Push(const AllocatorEvent& event) {
    result_.events.push_back(event);
    result_.lines.push_back(line_);
  }

  std::string name_;
  int64_t line_ = 0;
  size_t comment_bytes_ = 0;
  std::unordered_map<int64_t, int32_t> block_of_id_;
  std::unordered_map<int64_t, PoolUse> pools_;
  AllocatorEvents result_;
};

}  // namespace

AllocatorEvents ReadAllocatorEvents(const std::filesystem::path& path) {
  EventReader reader(path.string());
  ForEachLine(path, [&](std::string_view line) { reader.Add(line); });
  return reader.Take();
}

AllocatorEvents ParseAllocatorEvents(std::string_view text,
                                     std::string_view name) {
  EventReader reader(name);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    reader.Add(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return reader.Take();
}

}  // namespace acplan::graph
