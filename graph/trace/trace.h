#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/profile/model_info.h"

namespace acplan::graph {

// One training step without checkpointing, operator by operator: the trace file
// `acplan.trace`, version 1. docs/file_formats.md describes the file.
//
// Times count operators that have ended: what happens at time t does so after
// operator t-1 ended and before operator t ended; operator k runs from k to
// k+1. Modules, calls, operators and storages are known by their indices, -1
// where there is none. Bytes are int64, as requested; run-times milliseconds.

// Later than every time: what does not happen in the step.
inline constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

enum class StorageCategory : uint8_t {
  kParameter,
  kBuffer,
  kGradient,
  kOptimizer,
  kInput,
  kActivation,
  kTemporary
};
inline constexpr size_t kStorageCategories = 7;
std::string_view ToString(StorageCategory category);  // "parameter" ...

struct TraceStorage {
  int64_t bytes = 0;
  StorageCategory category = StorageCategory::kActivation;
  int32_t born = -1;       // the operator that creates it; -1: before the step
  int32_t freed = kNever;  // kNever: outlives the step
  // When all but autograd has let go of it, which frees it unless autograd
  // keeps it. kNever: not in the step, or not born in the forward pass.
  int32_t scope_end = kNever;

  bool operator==(const TraceStorage&) const = default;
};

// Lists are storages, those of its children not among them.
struct TraceModule {
  std::string fqn;
  std::string class_name;
  std::vector<int32_t> parameters, buffers;
  // Of a segment (segments.h), which no file has: after the last module of its
  // run, which begins with the next one. -1: a module.
  int32_t run_end = -1;

  bool IsSegment() const { return run_end >= 0; }

  bool operator==(const TraceModule&) const = default;
};

// A tensor of the forward pass: a view of its storage, all of it or a part.
struct TraceTensor {
  int32_t storage = 0;
  int32_t base =
      -1;           // the tensor, with the same storage, that it was made from
  int32_t op = -1;  // the operator whose result it is, if any
  int32_t scope_end = kNever;  // when all but autograd has let go of it

  bool operator==(const TraceTensor&) const = default;
};

// A call of a module in the forward pass. Runs the operators [start, end).
struct TraceCall {
  int32_t module = 0;
  int32_t parent = -1;  // the call directly around it
  int32_t start = 0;
  int32_t end = 0;
  std::vector<int32_t> inputs, outputs;  // storages of arguments and results
  std::vector<int32_t> arguments = {};   // tensors given by position, in order
  bool no_grad = false;                  // gradients were switched off
  // In the backward pass: when the first gradient of its results has arrived,
  // and the last one of its arguments, or the end of the pass where none of
  // those needs a gradient. kNever: both, where no gradient arrives or the file
  // does not say.
  int32_t backward_start = kNever;
  int32_t backward_end = kNever;

  bool operator==(const TraceCall&) const = default;
};

// A line of Python that runs operators.
struct SourceLine {
  std::string file;  // a path from a package or the working directory on
  int32_t line = 1;
  std::string function;

  bool operator==(const SourceLine&) const = default;
};

// Lists are storages unless it says otherwise; reads and outputs ascend.
struct TraceOperator {
  int32_t name = 0;   // in Trace::operator_names
  int32_t call = -1;  // the innermost around it
  double runtime_ms = 0;
  std::vector<int32_t> reads;    // of its tensor arguments
  std::vector<int32_t> creates;  // exactly those that it gives birth to
  std::vector<int32_t> outputs;  // of its results
  std::vector<int32_t> mutates;  // written in place
  std::vector<int32_t> results =
      {};               // tensors that it makes, in the forward pass
  bool view = false;    // results are views of arguments, nothing is computed
  bool random = false;  // draws random numbers
  // Makes a tensor that is neither kept nor stood in for, a sparse one: returns
  // none that the trace knows, and must run again.
  bool opaque = false;
  // Operators before it: casts that autocast kept, in the order in which it
  // would make them for this one otherwise.
  std::vector<int32_t> recasts = {};
  int32_t source = -1;  // in Trace::sources; -1: none, or the file does not say

  bool operator==(const TraceOperator&) const = default;
};

// A tensor that autograd saved for backward.
struct SavedTensor {
  int32_t storage = 0;
  int32_t tensor = -1;  // the tensor, or one like it
  bool requires_grad = false;
  int32_t packed = 0;           // when it was saved, in the forward pass
  int32_t call = -1;            // the innermost call then
  int32_t unpacked = kNever;    // when backward first asked for it
  int32_t local_end = kNever;   // when who asked let go of it
  int32_t released = kNever;    // when autograd let go of it
  bool unpacked_again = false;  // backward asks for it more than once

  bool operator==(const SavedTensor&) const = default;
};

// Returns until when autograd holds the tensor: the backward node that asked
// for it may hand it on.
inline int32_t HeldByAutogradUntil(const SavedTensor& saved) {
  return saved.unpacked == kNever ? saved.released
                                  : std::max(saved.released, saved.local_end);
}

struct Trace {
  ModelInfo model;
  DeviceInfo device;
  // Operators [0, forward_end) are the forward pass with the loss,
  // [forward_end, backward_end) the backward pass, the others the optimizer
  // step.
  int32_t forward_end = 0;
  int32_t backward_end = 0;
  std::vector<TraceModule> modules;  // the root first, in pre-order
  // By start and in pre-order: a call, the calls inside it, the next one.
  std::vector<TraceCall> calls;
  std::vector<std::string> operator_names;  // distinct, by first operator
  std::vector<TraceOperator> operators;
  std::vector<TraceStorage> storages;
  std::vector<TraceTensor> tensors;  // by time of creation
  std::vector<SavedTensor> saved;    // by time of saving
  std::vector<SourceLine> sources;   // distinct; none where the file has none
  // Measured: the largest sum of live storages, each rounded up to 512 bytes.
  std::optional<int64_t> peak_bytes;
  // In an iteration, of which the step is the last one.
  int64_t microbatches = 1;

  bool operator==(const Trace&) const = default;
};

// Reads and validates a trace (.json or .json.gz). Throws InputError, one line
// with file, JSON path, what was found and what was expected, where
// - the text is no JSON, `format` is not "acplan.trace" or `version` not 1;
// - a field is missing, ill-typed, not finite or out of range, an index or a
//   time among them;
// - there is no module, two modules have the same FQN, an FQN is none that a
//   profile may have, or the modules are not the pre-order of one tree;
// - the calls are not ordered by start and in pre-order, one is not within its
//   parent, or two with one parent overlap;
// - the backward of a call is not within the backward pass, ends before it
//   starts, or has a start or an end alone;
// - the call of an operator or of a saved tensor is not the innermost one;
// - reads or outputs do not ascend, or an operator reads, returns or mutates,
//   or autograd saves, a storage that is not alive;
// - creates is not exactly what is born in the operator;
// - a tensor's base does not come before it or has another storage, results do
//   not ascend from operator to operator, are not among its outputs, or are
//   made in the backward pass;
// - an argument's storage is not among the inputs;
// - a gradient is born in the forward pass, a storage freed before it is born,
//   or scope_end not within its life in the forward pass, or given for a
//   storage that is not born there;
// - a source's file is empty or longer than 4,096 bytes, a source stands twice, or
//   an operator's is not among them;
// - saved tensors are not in the order of saving, or not packed <= unpacked <=
//   local_end and packed, unpacked <= released;
// - all storages together are more than 2^62 bytes.
// Unknown keys are ignored, as is the list `kept` of earlier versions: what modules
// keep as attributes lives on as its storages say. model, device and measured, and
// the keys inside them, may be missing, but not ill-typed.
Trace ReadTrace(const std::filesystem::path& path);

// As ReadTrace, from text; `name` stands for the file in errors.
Trace ParseTrace(std::string_view text, std::string_view name);

// "nets/gpt2.py:123"; "" of an operator without a source, and of -1. Printable,
// whatever the file says.
std::string SourceOf(const Trace& trace, int32_t op);

// The text of the trace file; ParseTrace(ToJson(t)) == t for every valid t.
std::string ToJson(const Trace& trace);

}  // namespace acplan::graph
