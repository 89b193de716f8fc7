#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/profile/model_info.h"
#include "graph/trace/link_time.h"
#include "graph/trace/simulation.h"
#include "problems/model/memory_model.h"
#include "problems/plan/times_off.h"

namespace acplan::problems {

// The answer to a planning problem and the plan file `acplan.plan`, version 1
// (docs/file_formats.md).

enum class PlanStatus {
  kOptimal,     // proven
  kFeasible,    // a plan within the budget, stopped before the proof
  kInfeasible,  // proven that no plan fits
  kNoPlan,      // a limit was hit before a plan was found
};
std::string_view ToString(PlanStatus status);  // "optimal" ... "no_plan"

// The value of a number that a plan file leaves out. Such numbers are never
// negative.
inline constexpr int kNotStated = -1;

struct PlannedOp {
  int index = 0;  // into the module's SAC statistics
  std::string name;
  graph::OperatorDecision decision = graph::OperatorDecision::kRecompute;
  // For an operator that is saved or offloaded: the indices of its kept
  // results, ascending. Nothing: all results are kept.
  std::optional<std::vector<int32_t>> results = std::nullopt;
  // It runs once, in a hook, and no policy sees it (graph/trace/trace.h).
  bool once = false;

  bool Saves() const { return decision == graph::OperatorDecision::kSave; }
  bool Offloads() const {
    return decision == graph::OperatorDecision::kOffload;
  }
  bool RunsAgain() const {
    return decision == graph::OperatorDecision::kRecompute;
  }

  bool operator==(const PlannedOp&) const = default;
};

// An AC unit.
struct PlannedModule {
  std::string fqn;
  double discard_ratio = 0;  // r: share of the SAC memory that is discarded
  double memory_budget = 0;  // 1 - r, as torch's per-module policies take it
  int64_t discarded_bytes = kNotStated;  // of IA, to the nearest byte
  double recompute_ms = kNotStated;
  std::vector<PlannedOp> ops;  // one for each operator, or none: ratio only
  // A call that runs again stops at the last save (graph::CheckpointedModule).
  bool stops_early = true;
  // The arguments that wait in the host's memory (graph::CheckpointedModule).
  std::vector<int32_t> offloaded_arguments = {};

  bool operator==(const PlannedModule&) const = default;
};

struct PlanBaseline {
  int64_t peak_bytes = kNotStated;
  std::string peak_module;
  double runtime_ms = kNotStated;

  bool operator==(const PlanBaseline&) const = default;
};

struct PlanSolver {
  std::string name;
  double seconds = 0;
  int64_t nodes = 0;
  int64_t rows = 0;
  int64_t columns = 0;

  bool operator==(const PlanSolver&) const = default;
};

// The least recomputation of any schedule of the step
// (trace/rerun_bound/rerun_bound.h).
struct AnySchedule {
  double bound_ms = 0;
  double distance = 0;  // (recompute - bound) / recompute of the plan
  bool is_loose =
      false;  // whether a limit stopped the bound before it was as high as it gets

  bool operator==(const AnySchedule&) const = default;
};

// The data that a plan moves to the host's memory and back
// (graph/trace/offload.h), and the link that carries them
// (graph/trace/link_time.h).
struct PlanOffload {
  graph::LinkRates rates = {};
  std::optional<int64_t> host_memory_bytes = {};  // the limit on bytes there
  int64_t host_bytes = 0;  // the most that is there at any time
  int64_t sent_bytes = 0;
  int64_t storages = 0;  // the storages that move
  double stall_ms = 0;   // the time that the step waits for them

  bool operator==(const PlanOffload&) const = default;
};

// The way in which a run of a plan's steps (graph/run) ends on a device, whose
// memory is the plan's budget without its reserve.
struct PlanGpu {
  std::string name;
  int64_t capacity_bytes = 0;
  int64_t context_bytes = 0;  // of CUDA; PyTorch has the rest

  bool operator==(const PlanGpu&) const = default;
};

struct PlanDevice {
  std::string allocator = "native";  // or the text of PYTORCH_ALLOC_CONF
  std::string torch_version;         // "2.15"
  // The program makes the optimizer's state before the first step, not in it.
  bool makes_state_first = false;
  // The arguments of DistributedDataParallel; "": the model is in none.
  std::string ddp = {};
  int64_t allocated_bytes = 0;     // at most
  int64_t reserved_bytes = 0;      // at most
  int64_t least_device_bytes = 0;  // the smallest on which the run ends
  int64_t retries = 0;  // of the iterations that repeat; in a table, of the run
  // Without either of the two, if the plan has one of them: the smallest device
  // for this plan, and the least recomputation of a known plan that fits.
  std::optional<int64_t> default_least_device_bytes = {};
  std::optional<double> default_recompute_ms = {};
  std::optional<PlanGpu> gpu = {};  // if the device was named

  bool operator==(const PlanDevice&) const = default;
};

// The host's time for a step (graph/trace/host_times.h).
struct PlanHost {
  double baseline_ms = 0;  // without the plan
  double ms = 0;           // with it
  double device_ms =
      0;               // of all operators of the step, with what the plan costs
  double step_ms = 0;  // the longer of both
  // Proven: no plan's step takes less. Nothing if it was not asked for.
  std::optional<double> least_step_ms = {};

  bool operator==(const PlanHost&) const = default;
};

// The step on the device's streams (graph/trace/stream_times.h).
struct PlanStreams {
  double baseline_ms = 0;  // the step without the plan
  double baseline_exposed_ms = 0;
  double communication_ms = 0;  // with the plan, as the others
  double exposed_ms = 0;
  double step_ms = 0;
  // Proven: no plan's step takes less. Nothing if it was not asked for.
  std::optional<double> least_step_ms = {};

  bool operator==(const PlanStreams&) const = default;
};

struct Plan {
  std::string model;
  int64_t budget_bytes = 0;
  int64_t reserve_bytes = 0;  // part of the budget, kept free
  MemoryOptions memory;
  std::string granularity = "module";
  std::string tradeoff = "profile";
  PlanStatus status = PlanStatus::kNoPlan;
  // time | gap | nodes | memory | unproven | interrupted
  std::optional<std::string> limit;
  // Meaningful if there is a plan (optimal, feasible):
  double recompute_ms = kNotStated;
  // The cost is the recomputation, with offload plus the time that the step
  // waits.
  double bound_ms = kNotStated;  // proven: no plan costs less
  double gap = kNotStated;       // (cost - bound) / cost; 0 where optimal
  // Cost / baseline runtime; with streams what they do not hide / the step.
  double overhead = kNotStated;
  std::optional<PlanOffload> offload = {};  // if offload was requested
  std::optional<PlanDevice> device = {};    // if it is for a device
  std::optional<PlanHost> host = {};        // if the trace has these times
  std::optional<PlanStreams> streams = {};  // if the trace has several
  std::optional<AnySchedule> any_schedule =
      {};                                  // if there is a plan on a trace
  std::optional<TimesOff> times_off = {};  // likewise, without offload
  // How far the times that it was made with are off, if they are predictions.
  std::optional<graph::TimeErrors> time_errors = {};
  int64_t peak_bytes = kNotStated;
  std::string peak_module;
  std::vector<PlannedModule> modules;  // in forward pre-order
  // If the budget is infeasible:
  std::optional<int64_t> minimum_budget_bytes;
  // If that is not proven: a budget that a plan fits.
  std::optional<int64_t> fitting_budget_bytes;
  PlanBaseline baseline;
  PlanSolver solver;

  double CostMs() const {
    return recompute_ms + (offload ? offload->stall_ms : 0);
  }
  // Returns whether the step waits for the host.
  bool WaitsForHost() const { return host && host->ms > host->device_ms; }
  bool HasPlan() const {
    return status == PlanStatus::kOptimal || status == PlanStatus::kFeasible;
  }
};

// Returns what the plan's figures of memory do not count, as a sentence.
std::string_view CaveatOf(const Plan& plan);

// Reads a plan file (.json or .json.gz). Requires only `model`, `modules` and
// what identifies the problem; the rest of the answer may be missing. Throws
// InputError as ReadProfile does: for text that is not JSON, a wrong format or
// version, missing or ill-typed fields, ratios outside [0, 1], a module named
// twice, an unknown granularity, trade-off or decision, for results that do
// not ascend or belong to an operator that is neither saved nor offloaded, and for
// offloaded arguments that do not ascend.
Plan ReadPlan(const std::filesystem::path& path);
Plan ParsePlan(std::string_view text, std::string_view name);

// Returns the text of the plan file, numbers in full precision.
std::string PlanToJson(const Plan& plan);

}  // namespace acplan::problems
