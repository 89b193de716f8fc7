#include "cli/report/run_data.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "cli/report/step_data.h"
#include "graph/allocator/device_memory.h"
#include "graph/run/peak_layout.h"
#include "graph/run/run_on_device.h"
#include "graph/run/training_run.h"

namespace acplan::cli {
namespace {

using graph::RunMoment;
using graph::Simulation;
using graph::Trace;
using nlohmann::ordered_json;

// The most points of the lines over time.
constexpr size_t kMostPoints = 800;

constexpr size_t kFreeKind = graph::kLiveKinds;
constexpr size_t kHoleKind = kFreeKind + 1;

// The bytes of a run after an event.
struct BytesAt {
  double ms = 0;
  int64_t allocated = 0;
  int64_t reserved = 0;
};

// A run with one setting.
struct DrawnRun {
  const RunToDraw* source = nullptr;
  const std::vector<double>* ms = nullptr;  // by event: TimesOf
  graph::RunOutcome outcome;
  graph::PeakLayout peak;
  std::vector<BytesAt> bytes;

  const RunMoment& MomentOf(int64_t event) const {
    return source->run.moments[static_cast<size_t>(event)];
  }
  const graph::RunShape& ShapeOf(int64_t event) const {
    return source->shapes[static_cast<size_t>(MomentOf(event).shape)];
  }
};

// The milliseconds at which the operators of a step begin, and its end behind them.
std::vector<double> BeginningsOf(const graph::RunShape& shape) {
  std::vector<double> beginnings{0};
  for (const Simulation::Step& ran : shape.step->steps) {
    beginnings.push_back(beginnings.back() +
                         shape.trace->operators[ran.op].runtime_ms);
  }
  return beginnings;
}

// Returns the milliseconds since the first iteration began, by event.
std::vector<double> TimesOf(const RunToDraw& drawing) {
  std::vector<std::vector<double>> beginnings;
  for (const graph::RunShape& shape : drawing.shapes) {
    beginnings.push_back(BeginningsOf(shape));
  }
  std::vector<double> times;
  RunMoment last;
  double before = 0;  // of the microbatches before
  for (const RunMoment& moment : drawing.run.moments) {
    const bool is_next = moment.iteration != last.iteration ||
                         moment.microbatch != last.microbatch;
    if (is_next && last.iteration >= 0) {
      before += beginnings[static_cast<size_t>(last.shape)].back();
    }
    last = moment;
    const std::vector<double>& own =
        beginnings[static_cast<size_t>(moment.shape)];
    const bool is_in_step =
        moment.iteration >= 0 && moment.step != graph::kNone;
    times.push_back(
        before +
        (is_in_step ? own[static_cast<size_t>(IndexOf(moment.step))] : 0));
  }
  return times;
}

// Returns the milliseconds of an iteration of a run that repeats one step; 0 for others.
double IterationMs(const RunToDraw& drawing) {
  if (!drawing.run.has_equal_iterations) return 0;
  const graph::RunShape& shape = drawing.shapes.front();
  const int64_t microbatches = std::min<int64_t>(
      shape.trace->microbatches, graph::RunOptions{}.microbatches);
  return BeginningsOf(shape).back() * static_cast<double>(microbatches);
}

double RoundedMs(double ms) { return std::round(ms * 1e3) / 1e3; }

// Returns consecutive parts of the run, each by when it begins and the most that is
// allocated and reserved in it.
ordered_json TimelineJson(const std::vector<BytesAt>& bytes) {
  ordered_json json = {{"ms", ordered_json::array()},
                       {"allocated", ordered_json::array()},
                       {"reserved", ordered_json::array()}};
  const size_t parts = std::min(kMostPoints, bytes.size());
  for (size_t part = 0; part < parts; ++part) {
    const size_t first = part * bytes.size() / parts;
    const size_t end = (part + 1) * bytes.size() / parts;
    BytesAt most{.ms = bytes[first].ms};
    for (size_t k = first; k < end; ++k) {
      most.allocated = std::max(most.allocated, bytes[k].allocated);
      most.reserved = std::max(most.reserved, bytes[k].reserved);
    }
    json["ms"].push_back(RoundedMs(most.ms));
    json["allocated"].push_back(most.allocated);
    json["reserved"].push_back(most.reserved);
  }
  return json;
}

// Some blocks one behind the other in a segment, described by the largest.
struct DrawnBlock {
  graph::BlockUse largest;
  int64_t bytes = 0;
  int64_t count = 1;
};

// Joins neighbours that are smaller than some size until few enough blocks remain.
std::vector<DrawnBlock> JoinedBlocks(
    const std::vector<graph::BlockUse>& blocks) {
  std::vector<DrawnBlock> drawing;
  drawing.reserve(blocks.size());
  for (const graph::BlockUse& block : blocks) {
    drawing.push_back({.largest = block, .bytes = block.bytes});
  }
  for (int64_t most = 1 << 12; drawing.size() > kMostBlocks; most *= 2) {
    std::vector<DrawnBlock> joined;
    for (const DrawnBlock& block : drawing) {
      const bool joins = !joined.empty() && joined.back().bytes < most &&
                         block.bytes < most &&
                         joined.back().largest.segment == block.largest.segment;
      if (!joins) {
        joined.push_back(block);
        continue;
      }
      DrawnBlock& last = joined.back();
      if (block.largest.bytes > last.largest.bytes)
        last.largest = block.largest;
      last.bytes += block.bytes;
      last.count += block.count;
    }
    const bool is_done = joined.size() == drawing.size() && most > (1LL << 50);
    drawing = std::move(joined);
    if (is_done) break;  // more segments than blocks may be drawn
  }
  return drawing;
}

// The columns of the blocks of a run.
class BlockColumns {
 public:
  explicit BlockColumns(const DrawnRun& drawing) : drawing_(drawing) {}

  void Add(const DrawnBlock& block) {
    const graph::BlockUse& use = block.largest;
    columns_["segment"].push_back(use.segment);
    columns_["bytes"].push_back(block.bytes);
    columns_["count"].push_back(block.count);
    const Simulation::Step* step = StepOf(use.event);
    columns_["kind"].push_back(KindOf(use, step));
    std::string name, module, line;
    if (step != nullptr && use.storage != graph::kNone) {
      const Trace& trace = *drawing_.ShapeOf(use.event).trace;
      const graph::TraceOperator& op = trace.operators[step->op];
      name = trace.operator_names[op.name];
      if (op.call != graph::kNone) {
        module = trace.modules[trace.calls[op.call].module].fqn;
      }
      line = graph::SourceOf(trace, step->op);
    }
    columns_["operator"].push_back(names_.Place(name));
    columns_["module"].push_back(names_.Place(module));
    columns_["line"].push_back(names_.Place(line));
  }

  ordered_json ToJson() && {
    columns_["names"] = names_.list();
    return std::move(columns_);
  }

 private:
  const Simulation::Step* StepOf(int64_t event) const {
    if (event < 0) return nullptr;
    const RunMoment& moment = drawing_.MomentOf(event);
    const auto& steps = drawing_.ShapeOf(event).step->steps;
    const bool is_one =
        moment.step != graph::kNone && moment.step < steps.end_id();
    return is_one ? &steps[moment.step] : nullptr;
  }

  size_t KindOf(const graph::BlockUse& use,
                const Simulation::Step* step) const {
    // Most of DistributedDataParallel's memory is that of gradients.
    if (use.storage == graph::kOfDdp) {
      return KindPlace(static_cast<size_t>(graph::StorageCategory::kGradient));
    }
    if (use.storage == graph::kNone) {
      return use.hole_bytes * 2 > use.bytes ? kHoleKind : kFreeKind;
    }
    if (step != nullptr && step->redone != graph::kNone) {
      return KindPlace(graph::kRecomputedKind);
    }
    return KindPlace(static_cast<size_t>(
        drawing_.ShapeOf(use.event).trace->storages[use.storage].category));
  }

  const DrawnRun& drawing_;
  Names names_;
  ordered_json columns_ = {
      {"segment", ordered_json::array()},  {"bytes", ordered_json::array()},
      {"count", ordered_json::array()},    {"kind", ordered_json::array()},
      {"operator", ordered_json::array()}, {"module", ordered_json::array()},
      {"line", ordered_json::array()}};
};

ordered_json DrawnRunJson(const DrawnRun& drawing) {
  const graph::AllocatorCounts& counts = drawing.outcome.replay.counts;
  const graph::PeakLayout& peak = drawing.peak;
  ordered_json json = {
      {"fits", drawing.outcome.Fits()},
      {"allocated_bytes", counts.peak_allocated_bytes},
      {"reserved_bytes", counts.peak_reserved_bytes},
      {"iterations", drawing.outcome.iterations},
      {"period", drawing.outcome.period},
      {"retries", counts.retries},
      {"iteration_ms", RoundedMs(IterationMs(*drawing.source))},
      {"timeline", TimelineJson(drawing.bytes)}};
  if (peak.event < 0) return json;
  json["peak"] = {
      {"ms", RoundedMs((*drawing.ms)[static_cast<size_t>(peak.event)])},
      {"allocated_bytes", peak.allocated_bytes},
      {"reserved_bytes", peak.reserved_bytes},
      {"hole_bytes", peak.HoleBytes()},
      {"small_segments", ordered_json::array()}};
  if (drawing.source->place_text) {
    json["peak"]["place"] = drawing.source->place_text(peak.event);
  }
  for (const graph::SegmentUse& segment : peak.segments) {
    ordered_json& small = json["peak"]["small_segments"];
    if (!segment.is_small) continue;
    if (small.empty() || small.back() != segment.number) {
      small.push_back(segment.number);
    }
  }
  BlockColumns columns(drawing);
  for (const DrawnBlock& block : JoinedBlocks(peak.blocks)) columns.Add(block);
  json["peak"]["blocks"] = std::move(columns).ToJson();
  return json;
}

}  // namespace

ordered_json FreeKindNames() {
  return {"free, can be released", "free, lost to holes"};
}

std::vector<problems::DeviceSetting> SettingsToDraw(
    const std::optional<problems::PlanDevice>& device) {
  const graph::PyTorchVersion version =
      device ? graph::ParsePyTorchVersion(device->torch_version,
                                          "device: torch_version")
             : graph::kNewestAllocator;
  std::vector<problems::DeviceSetting> settings =
      problems::CommonSettings(version);
  settings.resize(2);
  if (!device) return settings;
  const graph::AllocatorConfig config = graph::ParseAllocatorConfig(
      device->allocator, "device: allocator", version);
  problems::DeviceSetting& own = settings[config.expandable_segments ? 1 : 0];
  own.allocator = device->allocator;
  own.config = config;
  for (problems::DeviceSetting& setting : settings) {
    setting.makes_state_first = device->makes_state_first;
    setting.ddp = device->ddp;
  }
  return settings;
}

ordered_json DrawnRunsJson(const RunToDraw& drawing) {
  const std::vector<double> times = TimesOf(drawing);
  const int64_t device_bytes =
      drawing.device_bytes.value_or(graph::kLargestDevice);
  ordered_json json = {
      {"device_bytes", drawing.device_bytes
                           ? ordered_json(*drawing.device_bytes)
                           : ordered_json(nullptr)},
      {"state_first", drawing.settings.front().makes_state_first},
      {"runs", ordered_json::array()}};
  for (const problems::DeviceSetting& setting : drawing.settings) {
    DrawnRun run{.source = &drawing,
                 .ms = &times,
                 .outcome = {},
                 .peak = {},
                 .bytes = {}};
    run.outcome = graph::RunOnDevice(
        drawing.run, setting.config, device_bytes,
        [&](size_t event, const graph::CachingAllocator& allocator,
            graph::BlockId) {
          run.bytes.push_back({.ms = times[event],
                               .allocated = allocator.counts().allocated_bytes,
                               .reserved = allocator.counts().reserved_bytes});
        });
    run.peak = graph::LayoutAtPeak(drawing.run, setting.config, device_bytes,
                                   run.outcome);
    ordered_json entry = {{"allocator", setting.allocator}};
    entry.update(DrawnRunJson(run));
    json["runs"].push_back(std::move(entry));
  }
  return json;
}

ordered_json RunsOnDeviceJson(const Trace& trace, const problems::Plan& plan) {
  const problems::StepOfPlan step = problems::LiveStep(trace, plan.modules);
  RunToDraw drawing{
      .shapes = {{.trace = step.with_segments ? &*step.with_segments : &trace,
                  .step = &step.step}},
      .run = {},
      .settings = SettingsToDraw(plan.device),
      .device_bytes = {}};
  drawing.run = problems::RunOf(trace, step, drawing.settings.front());
  if (plan.device)
    drawing.device_bytes = plan.budget_bytes - plan.reserve_bytes;
  return DrawnRunsJson(drawing);
}

}  // namespace acplan::cli
