#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/profile/model_info.h"

namespace acplan::graph {

// A profile has the costs of a model, module by module: the file `acplan.profile`, version
// 1. docs/file_formats.md describes the file; the names are those of
// torch.distributed._tools. Bytes are int64, times are milliseconds.

// Statistics of the operators of one non-leaf module, one entry for each operator in
// execution order (PyTorch's SACStats).
struct SacStatistics {
  std::vector<std::string> func_names;
  std::vector<double> runtimes;  // ms
  std::vector<int64_t> memory;   // bytes
  std::vector<int> view_like_ops;
  std::vector<int> rand_ops;
  std::vector<int> saved_autograd_ops;
  std::vector<std::pair<int, int>> inplace_ops;  // operator and its parent
  bool force_store_random = false;

  bool operator==(const SacStatistics&) const = default;
};

// The trade-off that PyTorch computed from the operator statistics of one module
// (SACTradeOffStats): a piecewise-linear function between the discarded fraction of the SAC
// memory and the recomputed fraction of the SAC runtime.
struct TradeoffFit {
  double sac_runtime = 0;  // ms
  int64_t sac_memory = 0;  // bytes
  int n_segments = 0;
  // n_segments entries each; null in the file (torch's fit was NaN) is nullopt.
  std::vector<std::optional<double>> slopes;
  std::vector<std::optional<double>> intercepts;
  std::vector<std::optional<double>> breakpoints;
  std::vector<std::pair<double, double>> tradeoff_curve;

  bool operator==(const TradeoffFit&) const = default;
};

enum MemoryCategory {
  kParam,
  kBuffer,
  kGrad,
  kAct,
  kTemp,
  kOpt,
  kOther,
  kTotal,
  kMemoryCategories
};
// Bytes indexed by MemoryCategory, all at one moment.
using MemorySnapshot = std::array<int64_t, kMemoryCategories>;

// PyTorch's MemTracker at the moments of one module; a module without backward
// may lack the last three.
struct ModuleSnapshots {
  std::optional<MemorySnapshot> pre_fw, post_fw, peak_fw;
  std::optional<MemorySnapshot> pre_bw, post_bw, peak_bw;

  bool operator==(const ModuleSnapshots&) const = default;
};

struct Module {
  std::string fqn;
  bool is_leaf = false;
  int64_t param_per_module = 0;
  int64_t grad_per_module = 0;
  int64_t grad_total = 0;         // TG
  int64_t act_fw_per_module = 0;  // IA
  int64_t act_bw_per_module = 0;
  int64_t act_grad_per_module = 0;  // AG, may be negative
  int64_t act_total = 0;            // TA
  int64_t input_per_module = 0;
  int64_t output_per_module = 0;
  double fw_runtime_per_module = 0;
  double bw_runtime_per_module = 0;
  // Optional in the file.
  int64_t buffer_per_module = 0;
  // The bytes of arguments that a checkpoint frame holds beyond what autograd keeps.
  int64_t held_per_module = 0;
  int calls = 1;  // 0: never called
  bool no_backward = false;
  // Not in the file: whether it is a segment (graph/trace/segments.h), and the name of the
  // segment directly around it, if any.
  bool is_segment = false;
  std::string segment;
  std::optional<ModuleSnapshots> snap;
  std::optional<SacStatistics> sac;
  std::optional<TradeoffFit> torch_fit;

  bool operator==(const Module&) const = default;
};

// Bytes measured over one training step; a field that the file does not give is empty.
struct Measured {
  std::optional<int64_t> peak_bytes;
  std::optional<int64_t> opt_step_peak_bytes;
  std::optional<MemorySnapshot> opt_step_peak_categories;
  std::optional<int64_t> param_bytes, grad_bytes, optimizer_bytes, buffer_bytes,
      input_bytes;

  bool operator==(const Measured&) const = default;
};

// FQNs in the order in which modules begin (pre) and end (post) their forward (fw) and
// backward (bw). A module that is called more than once is at the place of its first call.
struct ModuleOrders {
  std::vector<std::string> fw_pre, bw_pre, fw_post, bw_post;

  bool operator==(const ModuleOrders&) const = default;
};

struct Profile {
  ModelInfo model;
  DeviceInfo device;
  Measured measured;
  ModuleOrders order;
  std::vector<Module> modules;

  bool operator==(const Profile&) const = default;
};

// Reads and validates a profile (.json or .json.gz), or a ModuleInfo of
// torch.distributed._tools.ilp_utils as JSON: an object with `mod_order` and `mod_stats`
// and without `format`. The modules of the latter get a torch_fit, no sac and no snap, and
// its model is named after its root. Throws InputError, one line with file, JSON path,
// actual and expected value, if
// - the text is no JSON, `format` is not "acplan.profile" or `version` not 1;
// - a field is missing, ill-typed, not finite or out of range;
// - there is no module, two modules have the same FQN, or an FQN has an empty component, a
//   control character or more than 1000 components;
// - an order names an unknown module or one module twice, or a forward order lacks a module
//   that is called;
// - the lengths of parallel arrays differ, an operator index is out of range, or
//   view_like_ops or rand_ops names an operator twice;
// - the SAC memory of a module is more than 2^53 bytes, or the parameters, gradients,
//   activations (act_fw), buffers and held bytes of all modules together are more than
//   2^62.
//
// Unknown keys are ignored. model, device and measured, and the keys inside them, may be
// missing, but not ill-typed.
Profile ReadProfile(const std::filesystem::path& path);

// Parses a profile from text as ReadProfile does. Errors name `name` in place of a file.
Profile ParseProfile(std::string_view text, std::string_view name);

// Returns the text of the profile file; ParseProfile(ProfileToJson(p)) == p for every valid
// p.
std::string ProfileToJson(const Profile& profile);

}  // namespace acplan::graph
