#include "graph/allocator/allocator_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <string>
#include <vector>

#include "graph/allocator/config_tokens.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"

// Entries apply in order, but large_segment_size_mb before all others, since it
// bounds two of them.

namespace acplan::graph {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;
// Larger sizes, and more divisions, are taken as these: no device has as much, and
// no block is divided so finely.
constexpr int64_t kMostMebibytes = int64_t{1} << 24;
constexpr int64_t kMostDivisions = int64_t{1} << 40;

// How the value of an option is read.
enum class OptionKind {
  kLargeSegment,
  kMaxSplit,
  kMaxRounding,
  kCollection,
  kRoundup,
  kExpandable,
  kBackend,
  kFraction,
  kRefusesEarly,
  kReserve,
  kReserveByClass,
  kFlag,    // True or False, without effect on blocks
  kNumber,  // a whole number, without effect on blocks
};

struct Option {
  std::string_view name;
  OptionKind kind;
  int since;  // the minor version of PyTorch 2
};

constexpr int kLaterThanOldest = 10;

constexpr Option kOptions[] = {
    {"expandable_segments", OptionKind::kExpandable, 0},
    {"max_split_size_mb", OptionKind::kMaxSplit, 0},
    {"max_non_split_rounding_mb", OptionKind::kMaxRounding, 0},
    {"roundup_power2_divisions", OptionKind::kRoundup, 0},
    {"garbage_collection_threshold", OptionKind::kCollection, 0},
    {"large_segment_size_mb", OptionKind::kLargeSegment, 11},
    {"per_process_memory_fraction", OptionKind::kFraction, kLaterThanOldest},
    {"throw_on_cudamalloc_oom", OptionKind::kRefusesEarly, 12},
    {"expandable_segments_reserve", OptionKind::kReserve, 15},
    {"expandable_segments_reserve_by_class", OptionKind::kReserveByClass, 15},
    {"backend", OptionKind::kBackend, 0},
    {"release_lock_on_cudamalloc", OptionKind::kFlag, 0},
    {"release_lock_on_hipmalloc", OptionKind::kFlag, 0},
    {"graph_capture_record_stream_reuse", OptionKind::kFlag, 9},
    {"pinned_use_cuda_host_register", OptionKind::kFlag, 0},
    {"pinned_use_hip_host_register", OptionKind::kFlag, 0},
    {"pinned_use_background_threads", OptionKind::kFlag, 0},
    {"pinned_num_register_threads", OptionKind::kNumber, 0},
    {"pinned_reserve_segment_size_mb", OptionKind::kNumber, kLaterThanOldest},
    {"pinned_free_catch_all", OptionKind::kFlag, 12},
    {"pinned_max_round_threshold_mb", OptionKind::kNumber, 13},
    {"pinned_max_cached_size_mb", OptionKind::kNumber, 13},
};

void CheckBackend(ConfigTokens& tokens) {
  const std::string& name = tokens.Value();
  if (name == "native") return;
  if (name == "cudaMallocAsync") {
    tokens.FailOption(
        "cudaMallocAsync is CUDA's own allocator, which is not simulated");
  }
  tokens.FailOption(fmt::format("expected native, found {}", Quoted(name)));
}

class ConfigParser {
 public:
  ConfigParser(std::string_view text, std::string_view what,
               PyTorchVersion version)
      : tokens_(text, what) {
    config_.version = version;
  }

  AllocatorConfig Parse() {
    Pass(true);
    config_.max_non_split_rounding_bytes = config_.large_segment_bytes;
    Pass(false);
    return config_;
  }

 private:
  // Goes over all entries, and applies either the sizes of segments or all
  // others.
  void Pass(bool is_first) {
    tokens_.Restart();
    while (!tokens_.IsDone()) {
      const Option& option = OptionNamed(tokens_.Option());
      tokens_.Expect(":");
      if (is_first == (option.kind == OptionKind::kLargeSegment)) {
        Apply(option.kind);
      } else {
        tokens_.Skip();
      }
      if (!tokens_.IsDone()) tokens_.Expect(",");
    }
  }

  const Option& OptionNamed(const std::string& name) const {
    const auto* option = std::ranges::find(kOptions, name, &Option::name);
    const int minor = config_.version.minor;
    if (option != std::end(kOptions)) {
      if (option->since <= minor) return *option;
      tokens_.Fail(fmt::format("{} needs PyTorch 2.{}, this is 2.{}", name,
                               option->since, minor));
    }
    std::vector<std::string> names;
    for (const Option& other : kOptions) {
      if (other.since <= minor) names.emplace_back(other.name);
    }
    const std::vector<std::string> nearest = NearestNames(name, names, 1);
    tokens_.Fail(fmt::format(
        "no option {}; {}", Quoted(name),
        nearest.empty() ? fmt::format("options are {}", fmt::join(names, ", "))
                        : fmt::format("the nearest is {}", nearest.front())));
  }

  void Apply(OptionKind kind) {
    // Before 2.10 the segment's own size was too small.
    const int64_t least = config_.large_segment_bytes / kMebibyte +
                          (config_.version.minor < kLaterThanOldest ? 1 : 0);
    switch (kind) {
      case OptionKind::kLargeSegment:
        config_.large_segment_bytes = Mebibytes(11);
        break;
      case OptionKind::kMaxSplit:
        config_.max_split_bytes = Mebibytes(least);
        break;
      case OptionKind::kMaxRounding:
        config_.max_non_split_rounding_bytes = Mebibytes(least);
        break;
      case OptionKind::kCollection:
        config_.garbage_collection_threshold = Share(false);
        break;
      case OptionKind::kFraction:
        config_.memory_fraction = Share(true);
        break;
      case OptionKind::kExpandable:
        config_.expandable_segments = tokens_.Flag();
        break;
      case OptionKind::kRefusesEarly:
        config_.refuses_early = tokens_.Flag();
        break;
      case OptionKind::kRoundup:
        Divisions();
        break;
      case OptionKind::kReserve:
        config_.segment_reserve = Reserve();
        break;
      case OptionKind::kReserveByClass:
        tokens_.Skip();  // no stream has a class
        break;
      case OptionKind::kBackend:
        CheckBackend(tokens_);
        break;
      case OptionKind::kFlag:
        tokens_.Flag();
        break;
      case OptionKind::kNumber:
        tokens_.Whole();
        break;
    }
  }

  int64_t Mebibytes(int64_t least) {
    const int64_t value = tokens_.Whole();
    if (value < least) {
      tokens_.FailOption(
          fmt::format("expected at least {}, found {}", least, value));
    }
    return std::min(value, kMostMebibytes) * kMebibyte;
  }

  double Share(bool has_ends) {
    const double value = tokens_.Number();
    if (value < 0 || value > 1 || (!has_ends && (value == 0 || value == 1))) {
      tokens_.FailOption(fmt::format("expected a number {} 0 {} 1, found {}",
                                     has_ends ? "from" : "between",
                                     has_ends ? "to" : "and", value));
    }
    return value;
  }

  SegmentReserve Reserve() {
    std::string_view token = tokens_.Value();
    SegmentReserve reserve;
    if (token.ends_with('G') || token.ends_with('g')) {
      token.remove_suffix(1);
      reserve.is_share = false;
    }
    reserve.value = tokens_.NumberIn(token);
    if (reserve.value <= 0) {
      tokens_.FailOption(
          fmt::format("expected more than 0, found {}", reserve.value));
    }
    if (!reserve.is_share) {
      reserve.value *= static_cast<double>(int64_t{1} << 30);
    }
    return reserve;
  }

  int64_t PowerOfTwo(bool may_be_zero) {
    const int64_t value = tokens_.Whole();
    if ((value == 0 && may_be_zero) ||
        std::has_single_bit(static_cast<uint64_t>(value))) {
      return std::min(value, kMostDivisions);
    }
    tokens_.FailOption(fmt::format("expected a power of two, found {}", value));
  }

  // Reads one number of divisions, or a list "[256:1,512:2,>:8]": for sizes
  // from so many MiB on, the first also for smaller ones.
  void Divisions() {
    auto& divisions = config_.roundup_divisions;
    if (!tokens_.IsNext("[")) {
      divisions.fill(PowerOfTwo(false));
      return;
    }
    tokens_.Expect("[");
    bool is_first = true;
    size_t last = 0;
    while (!tokens_.IsDone() && !tokens_.IsNext("]")) {
      const bool is_rest = tokens_.IsNext(">");
      size_t index = 0;
      if (is_rest) {
        tokens_.Value();
      } else {
        const auto boundary = static_cast<uint64_t>(PowerOfTwo(false));
        index = std::min<size_t>(std::bit_width(boundary) - 1, 15);
      }
      tokens_.Expect(":");
      const int64_t value = PowerOfTwo(true);
      if (is_rest) {
        FillRest(last, value);
      } else {
        if (is_first) std::fill_n(divisions.begin(), index, value);
        is_first = false;
        divisions[index] = value;
        last = index;
      }
      if (!tokens_.IsDone() && !tokens_.IsNext("]")) tokens_.Expect(",");
    }
    tokens_.Expect("]");
  }

  // Sets the divisions behind the last boundary, before 2.10 from the boundary
  // itself on.
  void FillRest(size_t last, int64_t value) {
    auto& divisions = config_.roundup_divisions;
    const size_t first =
        config_.version.minor < kLaterThanOldest ? last : last + 1;
    std::fill(divisions.begin() + static_cast<std::ptrdiff_t>(first),
              divisions.end(), value);
  }

  ConfigTokens tokens_;
  AllocatorConfig config_;
};

}  // namespace

PyTorchVersion ParsePyTorchVersion(std::string_view text,
                                   std::string_view what) {
  PyTorchVersion version;
  const char* const end = text.data() + text.size();
  const auto [dot, error] = std::from_chars(text.data(), end, version.major);
  bool is_version = error == std::errc() && dot != end && *dot == '.';
  if (is_version) {
    const auto [stop, minor_error] =
        std::from_chars(dot + 1, end, version.minor);
    is_version = minor_error == std::errc() && (stop == end || *stop == '.');
  }
  if (!is_version || version < kOldestAllocator || kNewestAllocator < version) {
    throw InputError(fmt::format(
        "{}: expected a version of PyTorch from {}.{} to {}.{}, found {}", what,
        kOldestAllocator.major, kOldestAllocator.minor, kNewestAllocator.major,
        kNewestAllocator.minor, Quoted(text)));
  }
  return version;
}

AllocatorConfig ParseAllocatorConfig(std::string_view text,
                                     std::string_view what,
                                     PyTorchVersion version) {
  if (text == "native") text = "";
  return ConfigParser(text, what, version).Parse();
}

}  // namespace acplan::graph
