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

#include "graph/base/indexed_vector.h"
#include "graph/profile/model_info.h"
#include "graph/trace/host_times.h"

namespace acplan::graph {

// One training step without checkpointing, operator by operator: the trace file
// `acplan.trace`, version 1. docs/file_formats.md describes the file.
//
// Times count operators that have ended: what happens at time t does so after
// operator t-1 ended and before operator t ended; operator k runs from k to
// k+1. Modules, calls, operators and storages are known by their ids, kNone if
// there is none. Bytes are int64, as requested; run-times milliseconds.

enum class ModuleId : int32_t {};        // in Trace::modules
enum class CallId : int32_t {};          // in Trace::calls
enum class OperatorId : int32_t {};      // in Trace::operators
enum class OperatorNameId : int32_t {};  // in Trace::operator_names
enum class StorageId : int32_t {};       // in Trace::storages
enum class TensorId : int32_t {};        // in Trace::tensors
enum class SavedId : int32_t {};         // in Trace::saved
enum class SourceId : int32_t {};        // in Trace::sources
enum class StepId : int32_t {};          // in Simulation::steps
enum class MovedId : int32_t {};         // in OffloadUse::storages

// A plain number, unlike ids: code subtracts times.
using Time = int32_t;

// Later than every time: the time of an event that is not in the step.
inline constexpr Time kNever = std::numeric_limits<Time>::max();

// Returns the time at which an operator starts; -1 for kNone.
constexpr Time StartOf(OperatorId op) { return IndexOf(op); }

// Returns the time at which an operator ends; 0 for kNone.
constexpr Time EndOf(OperatorId op) { return IndexOf(op) + 1; }

// Returns the operator that starts at a time.
constexpr OperatorId OperatorAt(Time time) { return OperatorId{time}; }

// Later than every operator.
inline constexpr OperatorId kNoOperator = OperatorAt(kNever);

// Returns the operators that start in [begin, end).
constexpr IdRange<OperatorId> OperatorsIn(Time begin, Time end) {
  return {OperatorAt(begin), OperatorAt(end)};
}

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
  // The operator that creates it; kNone: before the step.
  OperatorId born = kNone;
  Time freed = kNever;  // kNever: outlives the step
  // When all but autograd has let go of it, which frees it unless autograd
  // keeps it. kNever: not in the step, or not born in the forward pass.
  Time scope_end = kNever;
  int32_t stream = 0;  // that allocates it; 0: the default stream
  // Its bytes if it is in the host's memory, where a model keeps its parameters; then it
  // has none on the device.
  int64_t host_bytes = 0;

  // Returns whether it was there when the operator that starts at a time started.
  bool IsOlderThan(Time time) const { return StartOf(born) < time; }

  bool operator==(const TraceStorage&) const = default;
};

// A module, with its own parameters and buffers, without those of its children.
struct TraceModule {
  std::string fqn;
  std::string class_name;
  std::vector<StorageId> parameters, buffers;
  // In a segment (segments.h), which no file has: the id after the last module of
  // its run, which begins with the next one. kNone: a module.
  ModuleId run_end = kNone;

  bool IsSegment() const { return run_end != kNone; }

  bool operator==(const TraceModule&) const = default;
};

// A tensor of the forward pass: a view of its storage, all of it or a part.
struct TraceTensor {
  StorageId storage = {};
  // The tensor, with the same storage, that it was made from.
  TensorId base = kNone;
  OperatorId op = kNone;    // the operator whose result it is, if any
  Time scope_end = kNever;  // when all but autograd has let go of it

  bool operator==(const TraceTensor&) const = default;
};

// A call of a module in the forward pass. Runs the operators [start, end).
struct TraceCall {
  IdRange<OperatorId> Operators() const { return OperatorsIn(start, end); }

  // Returns the number of its operators.
  int32_t OperatorCount() const { return end - start; }

  // Returns an operator's place in the call.
  int32_t PlaceOf(OperatorId op) const { return StartOf(op) - start; }

  // Returns the operator at a place in the call.
  OperatorId AtPlace(int32_t place) const { return OperatorAt(start + place); }

  ModuleId module = {};
  CallId parent = kNone;  // the call directly around it
  Time start = 0;
  Time end = 0;
  std::vector<StorageId> inputs, outputs;  // storages of arguments and results
  std::vector<TensorId> arguments = {};  // tensors given by position, in order
  bool no_grad = false;                  // gradients were switched off
  // In the backward pass: when the first gradient of its results has arrived,
  // and the last one of its arguments, or the end of the pass where none of
  // those needs a gradient. kNever: both, where no gradient arrives or the file
  // does not say.
  Time backward_start = kNever;
  Time backward_end = kNever;
  // In the backward pass: the operators [gather_begin, gather_end) gather the
  // parameters of its module, as fully_shard does. If the call runs again before,
  // they run then, right before its first operator. kNever: both, if there are none.
  Time gather_begin = kNever;
  Time gather_end = kNever;
  // The storages among the inputs of tensors given by keyword or inside of lists and
  // other objects, in order, each once and none that an argument has.
  std::vector<StorageId> further_inputs = {};

  bool operator==(const TraceCall&) const = default;
};

// A line of Python that runs operators.
struct SourceLine {
  std::string file;  // a path from a package or the working directory on
  int32_t line = 1;
  std::string function;

  bool operator==(const SourceLine&) const = default;
};

// An operator. Its reads and its outputs ascend.
struct TraceOperator {
  OperatorNameId name = {};
  CallId call = kNone;  // the innermost around it
  double runtime_ms = 0;
  std::vector<StorageId> reads;    // of its tensor arguments
  std::vector<StorageId> creates;  // exactly those that it gives birth to
  std::vector<StorageId> outputs;  // of its results
  std::vector<StorageId> mutates;  // written in place
  // The tensors that it makes, in the forward pass.
  std::vector<TensorId> results = {};
  bool view = false;    // results are views of arguments, nothing is computed
  bool random = false;  // draws random numbers
  // Makes a tensor that is neither kept nor stood in for, a sparse one: returns
  // none that the trace knows, and must run again.
  bool opaque = false;
  // Runs once within a call, in a hook: it is no part of what runs again, and no
  // policy sees it.
  bool once = false;
  // Operators before it: casts that autocast kept, in the order in which it
  // would make them for this one otherwise.
  std::vector<OperatorId> recasts = {};
  SourceId source = kNone;  // kNone: none, or the file does not say
  // The stream that runs it, 0 for the default one, and operators before it that have ended
  // when it starts, ascending (stream_times.h).
  int32_t stream = 0;
  std::vector<OperatorId> waits = {};

  bool operator==(const TraceOperator&) const = default;
};

// A tensor that autograd saved for backward.
struct SavedTensor {
  StorageId storage = {};
  TensorId tensor = kNone;  // the tensor, or one like it
  bool requires_grad = false;
  Time packed = 0;              // when it was saved, in the forward pass
  CallId call = kNone;          // the innermost call then
  Time unpacked = kNever;       // when backward first asked for it
  Time local_end = kNever;      // when who asked let go of it
  Time released = kNever;       // when autograd let go of it
  bool unpacked_again = false;  // backward asks for it more than once

  bool operator==(const SavedTensor&) const = default;
};

// Returns until when autograd holds the tensor: the backward node that asked
// for it may hand it on.
inline Time HeldByAutogradUntil(const SavedTensor& saved) {
  return saved.unpacked == kNever ? saved.released
                                  : std::max(saved.released, saved.local_end);
}

// A parameter or a buffer of the model.
struct ModelTensor {
  StorageId storage = {};
  int64_t bytes = 0;     // of the tensor, which may be a part of its storage
  std::string dtype;     // such as "float32"
  bool trained = false;  // requires a gradient

  bool operator==(const ModelTensor&) const = default;
};

// A gradient that the backward pass has completed.
struct ReadyGradient {
  int32_t parameter = 0;  // its place in ModelTensors::parameters
  StorageId storage = {};
  Time ready = 0;

  bool operator==(const ReadyGradient&) const = default;
};

struct ModelTensors {
  // Each once, in the order of Module.parameters() and buffers().
  std::vector<ModelTensor> parameters, buffers;
  std::vector<ReadyGradient> gradients;  // in the order in which they are ready

  bool operator==(const ModelTensors&) const = default;
};

struct Trace {
  ModelInfo model;
  DeviceInfo device;
  // Operators [0, forward_end) are the forward pass with the loss,
  // [forward_end, backward_end) the backward pass, the others the optimizer
  // step.
  Time forward_end = 0;
  Time backward_end = 0;
  IndexedVector<ModuleId, TraceModule> modules;  // the root first, in pre-order
  // Ordered by start and in pre-order: a call, the calls inside it, the next one.
  IndexedVector<CallId, TraceCall> calls;
  // Distinct, in the order of the first operators that have them.
  IndexedVector<OperatorNameId, std::string> operator_names;
  IndexedVector<OperatorId, TraceOperator> operators;
  IndexedVector<StorageId, TraceStorage> storages;
  IndexedVector<TensorId, TraceTensor> tensors;  // by time of creation
  IndexedVector<SavedId, SavedTensor> saved;     // by time of saving
  // Distinct; empty if the file has none.
  IndexedVector<SourceId, SourceLine> sources;
  // Measured: the largest sum of live storages, each rounded up to 512 bytes.
  std::optional<int64_t> peak_bytes;
  // In an iteration, of which the step is the last one.
  int64_t microbatches = 1;
  std::optional<ModelTensors> model_tensors;  // if the file has them
  std::optional<HostTimes> host;              // likewise

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
// - the operators that gather a call's parameters are not within the backward pass, or
//   have a begin or an end alone;
// - the call of an operator or of a saved tensor is not the innermost one;
// - reads, outputs or waits do not ascend, an operator waits for one that is not before it, or an operator reads, returns or mutates,
//   or autograd saves, a storage that is not alive;
// - creates is not exactly what is born in the operator;
// - a tensor's base does not come before it or has another storage, results do
//   not ascend from operator to operator, are not among its outputs, or are
//   made in the backward pass;
// - an argument's storage is not among the inputs, or one of further_inputs is not, is
//   an argument's or stands twice;
// - a gradient is born in the forward pass, a storage freed before it is born,
//   or scope_end not within its life in the forward pass, or given for a
//   storage that is not born there;
// - gradients are not in the order in which they are ready, one is ready outside the
//   backward pass or not alive then, or a parameter has two;
// - a source's file is empty or longer than 4,096 bytes, a source stands twice, or
//   an operator's is not among them;
// - saved tensors are not in the order of saving, or not packed <= unpacked <=
//   local_end and packed, unpacked <= released;
// - all storages together are more than 2^62 bytes, or a time of the host is longer than a
//   second.
// Unknown keys are ignored, as is the list `kept` of earlier versions: what modules
// keep as attributes lives on as its storages say. model, device and measured, and
// the keys inside them, may be missing, but not ill-typed.
Trace ReadTrace(const std::filesystem::path& path);

// Parses a trace from text. Errors name `name` in place of a file.
Trace ParseTrace(std::string_view text, std::string_view name);

// Returns the module with a name; kNone if there is none.
ModuleId FindModule(const Trace& trace, std::string_view fqn);

// Returns "nets/gpt2.py:123"; "" for kNone and for an operator without a source.
// The text is printable, whatever the file has.
std::string SourceOf(const Trace& trace, OperatorId op);

// Returns the text of the trace file; ParseTrace(ToJson(t)) == t for every valid t.
std::string ToJson(const Trace& trace);

}  // namespace acplan::graph
