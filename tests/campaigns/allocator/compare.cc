// Drives PyTorch's own allocator and ours with the same random requests, and
// compares them at every event:
//
//   compare FIRST COUNT EVENTS MINOR [SETTINGS DEVICE]
//
// runs COUNT sequences of EVENTS events each, from the seed FIRST on, as
// PyTorch 2.MINOR; the last two replace the settings and the device that a seed
// draws. With COMPARE_EVENTS in the environment it prints the events as well.
// Each sequence has a process of its own, as the real allocator starts
// once. Prints each difference, and in the end what was compared.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/caching_allocator.h"
#include "real_allocator.h"

namespace {

using acplan::graph::AllocatorConfig;
using acplan::graph::BlockId;
using acplan::graph::CachingAllocator;
using acplan::graph::kNoBlock;

constexpr int64_t kMiB = int64_t{1} << 20;

// Shared by all processes.
struct Totals {
  int64_t sequences, events, requests, failures, retries, collected, oversize,
      released, shared_blocks, expandable, pools, differences, stopped;
};

struct Live {
  void* real;
  BlockId ours;
};

struct Sequence {
  std::string settings;
  double memory_fraction = 1;
  int64_t device_bytes = 0;
  int64_t live_bytes = 0;  // aimed at
  int64_t max_split = 0;
  int streams = 1;
  double record_share = 0;
  double pool_share = 0;
  std::vector<int64_t> palette;
  int free_order = 0;
};

class Generator {
 public:
  Generator(uint64_t seed, int minor) : random_(seed), minor_(minor) {}

  int64_t Below(int64_t n) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  }
  bool Chance(double p) {
    return std::uniform_real_distribution<>(0, 1)(random_) < p;
  }
  int64_t LogSize(int64_t least, int64_t most) {
    return static_cast<int64_t>(std::exp(std::uniform_real_distribution<>(
        std::log(double(least)), std::log(double(most)))(random_)));
  }

  int64_t Size(const Sequence& s) {
    const int64_t kind = Below(100);
    if (kind < 35) return s.palette[Below(s.palette.size())];
    if (kind < 60) {
      static const int64_t edges[] = {
          512,       1024,      kMiB / 2,  kMiB,      2 * kMiB,  4 * kMiB,
          9 * kMiB,  10 * kMiB, 11 * kMiB, 12 * kMiB, 20 * kMiB, 21 * kMiB,
          22 * kMiB, 32 * kMiB, 40 * kMiB, 64 * kMiB};
      static const int64_t steps[] = {0,    1,     -1,         511,
                                      512,  513,   -512,       -511,
                                      kMiB, -kMiB, kMiB + 512, kMiB - 512};
      int64_t edge = edges[Below(16)];
      if (s.max_split > 0 && Chance(.4)) edge = s.max_split;
      return std::max<int64_t>(1, edge + steps[Below(12)]);
    }
    if (kind < 70) return 2 * kMiB * (1 + Below(40));
    if (kind < 80) return LogSize(1, kMiB);
    return std::min(LogSize(1, 256 * kMiB), std::max(s.live_bytes / 2, kMiB));
  }

  Sequence Draw() {
    Sequence s;
    std::vector<std::string> options;
    const auto add = [&](const std::string& name, const std::string& value) {
      options.push_back(name + ":" + value);
    };
    if (Chance(.45)) add("expandable_segments", "True");
    int64_t large = 20;
    if (minor_ >= 11 && Chance(.2)) {
      large = Chance(.7) ? 2 * (6 + Below(30)) : 11 + Below(60);
      add("large_segment_size_mb", std::to_string(large));
    }
    if (Chance(.35)) {
      s.max_split =
          (large + (minor_ < 10 ? 1 : 0) + Below(Chance(.5) ? 20 : 200)) * kMiB;
      add("max_split_size_mb", std::to_string(s.max_split / kMiB));
      if (Chance(.4)) {
        add("max_non_split_rounding_mb", std::to_string(large + 1 + Below(60)));
      }
    }
    if (Chance(.2)) {
      if (Chance(.5)) {
        add("roundup_power2_divisions", std::to_string(1 << Below(6)));
      } else {
        add("roundup_power2_divisions", List());
      }
    }
    if (Chance(.3)) {
      s.memory_fraction = double(100 + Below(850)) / 1000;
      if (minor_ >= 10) {
        add("per_process_memory_fraction", std::to_string(s.memory_fraction));
      }
    }
    if (Chance(.3)) {
      add("garbage_collection_threshold",
          std::to_string(.05 + .9 * double(Below(100)) / 100));
    }
    if (minor_ >= 12 && Chance(.1)) add("throw_on_cudamalloc_oom", "True");
    if (minor_ >= 15 && Chance(.15)) {
      add("expandable_segments_reserve",
          Chance(.5) ? std::to_string(.05 + double(Below(150)) / 100)
                     : std::to_string(.02 + double(Below(100)) / 50) + "G");
    }
    for (const std::string& option : options) {
      s.settings += (s.settings.empty() ? "" : ",") + option;
    }
    s.live_bytes = LogSize(4 * kMiB, 3000 * kMiB);
    s.device_bytes = Chance(.2)
                         ? int64_t{80} << 30
                         : static_cast<int64_t>(double(s.live_bytes) *
                                                (.7 + double(Below(100)) / 80) /
                                                s.memory_fraction);
    if (Chance(.5)) s.device_bytes = s.device_bytes / (2 * kMiB) * 2 * kMiB;
    s.device_bytes = std::max(s.device_bytes, kMiB);
    if (Chance(.3)) s.streams = 1 + int(Below(4));
    if (Chance(.2)) s.record_share = .02 + .2 * double(Below(10)) / 10;
    if (Chance(.2)) s.pool_share = .002 + .01 * double(Below(10)) / 10;
    s.palette.resize(1 + Below(20), 1);
    const int64_t most = std::max(s.live_bytes / (1 + Below(20)), 2 * kMiB);
    for (int64_t& size : s.palette) size = LogSize(Chance(.3) ? 1 : kMiB, most);
    s.free_order = int(Below(4));
    return s;
  }

 private:
  std::string List() {
    std::string list = "[";
    int64_t at = Below(5);
    const int64_t entries = 1 + Below(4);
    for (int64_t k = 0; k < entries; ++k) {
      list += std::to_string(int64_t{1} << at) + ":" +
              std::to_string(Chance(.2) ? 0 : 1 << Below(5)) + ",";
      at += 1 + Below(4);
    }
    return list + ">:" + std::to_string(1 << Below(4)) + "]";
  }

  std::mt19937_64 random_;
  int minor_;
};

class Comparison {
 public:
  Comparison(const Sequence& sequence, Generator& generator, Totals& totals,
             int minor)
      : s_(sequence),
        random_(generator),
        totals_(totals),
        ours_(Config(sequence, minor), sequence.device_bytes) {
    RealStart(sequence.settings, sequence.device_bytes,
              minor < 10 ? sequence.memory_fraction : 1);
  }

  // Returns what differs at the event, "" for nothing.
  std::string Step() {
    const bool is_full = allocated_ > s_.live_bytes;
    if (random_.Chance(s_.pool_share)) return ChangePools();
    if (random_.Chance(.001)) {
      RealEmptyCache();
      ours_.EmptyCache();
      log_ = "e";
    } else if (!live_.empty() && random_.Chance(.0005)) {
      while (!live_.empty()) Free();
      log_ = "free all";
    } else if (!live_.empty() && random_.Chance(is_full ? .7 : .4)) {
      Free();
    } else {
      const std::string difference = Allocate();
      if (!difference.empty()) return difference;
    }
    return Counts();
  }

  const std::string& log() const { return log_; }

 private:
  static AllocatorConfig Config(const Sequence& sequence, int minor) {
    AllocatorConfig config = acplan::graph::ParseAllocatorConfig(
        sequence.settings, "settings", {2, minor});
    config.memory_fraction = sequence.memory_fraction;
    return config;
  }

  // Begins, ends or releases a private pool.
  std::string ChangePools() {
    const int64_t name = 1 + random_.Below(3);
    log_ = "pool " + std::to_string(name);
    ++totals_.pools;
    if (!active_.empty() && random_.Chance(.7)) {
      const auto [ended, is_capture] = active_.back();
      active_.pop_back();
      RealEndPool(ended, is_capture);
      ours_.EndPool(ended);
      log_ += " end " + std::to_string(ended);
    } else if (random_.Chance(.5)) {
      const bool is_capture = random_.Chance(.5);
      log_ += is_capture ? " capture" : " begin";
      if (!ours_.BeginPool(name, is_capture)) return "";
      RealBeginPool(name, is_capture);
      active_.emplace_back(name, is_capture);
    } else if (!is_expandable_ && ours_.ReleasePool(name)) {
      // PyTorch counts each unmapped range of a pool against what it mapped at
      // once, and so may delete a pool that has blocks.
      RealReleasePool(name);
      log_ += " release";
    }
    return Counts();
  }

  std::string Allocate() {
    const int64_t bytes = random_.Size(s_);
    const int64_t stream = random_.Below(s_.streams);
    log_ = "a " + std::to_string(bytes) + " " + std::to_string(stream);
    std::string error;
    void* real = RealAllocate(bytes, stream, error);
    if (!error.empty()) return "stop: " + error.substr(0, 300);
    const BlockId ours = ours_.Allocate(bytes, stream);
    ++totals_.requests;
    if (ours_.reclaim()) {
      totals_.collected += ours_.reclaim()->collected_bytes > 0;
      totals_.oversize += ours_.reclaim()->oversize_bytes > 0;
      totals_.released += ours_.reclaim()->released_bytes > 0;
    }
    if ((real == nullptr) != (ours == kNoBlock)) {
      return real == nullptr ? "real fails, ours does not"
                             : "ours fails, real does not";
    }
    if (real == nullptr) return "";
    int64_t number = -1;
    int64_t offset = -1;
    StandInFind(real, &number, &offset);
    const auto placement = ours_.PlacementOf(ours);
    if (number != placement.segment || offset != placement.offset) {
      return "real at " + std::to_string(number) + "+" +
             std::to_string(offset) + ", ours at " +
             std::to_string(placement.segment) + "+" +
             std::to_string(placement.offset);
    }
    live_.push_back({real, ours});
    if (random_.Chance(s_.record_share)) {
      const int64_t other = random_.Below(s_.streams + 1);
      RealRecordStream(real, other);
      ours_.RecordStream(ours, other);
      ++totals_.shared_blocks;
    }
    return "";
  }

  void Free() {
    size_t at = live_.size() - 1;
    if (s_.free_order == 1) at = 0;
    if (s_.free_order == 2 || (s_.free_order == 3 && random_.Chance(.5))) {
      at = static_cast<size_t>(random_.Below(live_.size()));
    }
    log_ = "f " + std::to_string(at);
    RealFree(live_[at].real);
    ours_.Free(live_[at].ours);
    if (s_.free_order == 2) std::swap(live_[at], live_.back());
    live_.erase(live_.begin() + (s_.free_order == 2 ? live_.size() - 1 : at));
  }

  std::string Counts() {
    const RealCounts real = RealCount();
    const auto& ours = ours_.counts();
    allocated_ = real.allocated_bytes;
    std::string text;
    const auto compare = [&](const char* name, int64_t a, int64_t b) {
      if (a != b) {
        text += std::string(name) + " real " + std::to_string(a) + " ours " +
                std::to_string(b) + "; ";
      }
    };
    compare("allocated", real.allocated_bytes, ours.allocated_bytes);
    compare("reserved", real.reserved_bytes, ours.reserved_bytes);
    compare("peak allocated", real.peak_allocated_bytes,
            ours.peak_allocated_bytes);
    compare("peak reserved", real.peak_reserved_bytes,
            ours.peak_reserved_bytes);
    compare("retries", real.retries, ours.retries);
    compare("failures", real.failures, ours.failures);
    compare("device", static_cast<int64_t>(StandInUsed()),
            ours_.device_bytes());
    retries_ = real.retries;
    failures_ = real.failures;
    return text;
  }

 public:
  int64_t retries_ = 0;
  int64_t failures_ = 0;

 private:
  const Sequence& s_;
  Generator& random_;
  Totals& totals_;
  CachingAllocator ours_;
  std::vector<Live> live_;
  std::vector<std::pair<int64_t, bool>> active_;
  bool is_expandable_ = s_.settings.find("segments:True") != std::string::npos;
  int64_t allocated_ = 0;
  std::string log_;
};

void RunSequence(uint64_t seed, int64_t events, int minor, Totals& totals,
                 const std::string* settings, int64_t device) {
  Generator generator(seed, minor);
  Sequence sequence = generator.Draw();
  if (settings != nullptr) {
    sequence.settings = *settings;
    sequence.memory_fraction = 1;
    sequence.device_bytes = device;
  }
  Comparison comparison(sequence, generator, totals, minor);
  const bool prints_events = std::getenv("COMPARE_EVENTS") != nullptr;
  ++totals.sequences;
  totals.expandable +=
      sequence.settings.find("segments:True") != std::string::npos;
  for (int64_t k = 0; k < events; ++k) {
    const std::string difference = comparison.Step();
    ++totals.events;
    if (prints_events) {
      std::printf("%s\n", comparison.log().c_str());
    }
    if (difference.empty()) continue;
    ++(difference.starts_with("stop") ? totals.stopped : totals.differences);
    std::printf(
        "seed %llu, \"%s\", device %lld, fraction %g, event %lld (%s): %s\n",
        static_cast<unsigned long long>(seed), sequence.settings.c_str(),
        static_cast<long long>(sequence.device_bytes), sequence.memory_fraction,
        static_cast<long long>(k), comparison.log().c_str(),
        difference.c_str());
    break;
  }
  totals.retries += comparison.retries_;
  totals.failures += comparison.failures_;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const uint64_t first = std::strtoull(argv[1], nullptr, 10);
  const int64_t count = std::atoll(argv[2]);
  const int64_t events = std::atoll(argv[3]);
  const int minor = std::atoi(argv[4]);
  const std::string settings = argc > 6 ? argv[5] : "";
  auto* totals =
      static_cast<Totals*>(mmap(nullptr, sizeof(Totals), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(count);
       ++seed) {
    const pid_t child = fork();
    if (child == 0) {
      // The allocator writes a line for every failure.
      std::freopen("/dev/null", "w", stderr);
      RunSequence(seed, events, minor, *totals, argc > 6 ? &settings : nullptr,
                  argc > 6 ? std::atoll(argv[6]) : 0);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
      ++totals->differences;
      std::printf("seed %llu ends with status %d\n",
                  static_cast<unsigned long long>(seed), status);
    }
  }
  std::printf(
      "%lld sequences, %lld events, %lld requests, %lld failures, %lld "
      "retries, "
      "%lld collections, %lld oversize, %lld releases, %lld shared blocks, "
      "%lld expandable, %lld changes of pools, %lld stopped, %lld "
      "differences\n",
      (long long)totals->sequences, (long long)totals->events,
      (long long)totals->requests, (long long)totals->failures,
      (long long)totals->retries, (long long)totals->collected,
      (long long)totals->oversize, (long long)totals->released,
      (long long)totals->shared_blocks, (long long)totals->expandable,
      (long long)totals->pools, (long long)totals->stopped,
      (long long)totals->differences);
  return totals->differences == 0 ? 0 : 1;
}
