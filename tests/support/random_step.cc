#include "tests/support/random_step.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/flag.h"

namespace acplan::test_support {

using graph::CallId;
using graph::IndexedVector;
using graph::kNever;
using graph::kNone;
using graph::ModuleId;
using graph::OperatorId;
using graph::SavedId;
using graph::SavedTensor;
using graph::StorageCategory;
using graph::StorageId;
using graph::TensorId;
using graph::Time;
using graph::Trace;
using graph::TraceCall;
using graph::TraceOperator;

namespace {

class Dice {
 public:
  explicit Dice(std::mt19937& random) : random_(random) {}

  int Below(int64_t n) {
    return static_cast<int>(random_() % static_cast<uint64_t>(n));
  }
  int Between(int least, int most) { return least + Below(most - least + 1); }
  bool OneIn(int n) { return Below(n) == 0; }
  template <typename T>
  T Any(const std::vector<T>& values) {
    return values[Below(std::ssize(values))];
  }

 private:
  std::mt19937& random_;
};

// An operator as a program has it.
struct Operation {
  std::string name = {};
  double runtime_ms = 1;
  std::vector<int64_t> bytes = {};  // of its results
  int64_t workspace_bytes = 0;      // while it runs
  int64_t inner_bytes = 0;          // made by a separate operator before it
  bool has_weight = false;          // of the module
  bool view = false;
  bool random = false;
  bool in_place = false;  // on its first argument
  bool has_gradient = true;
  bool saves_arguments = false, saves_weight = false;
  std::vector<int> saves_results = {};
  bool hands_on_gradients = false;  // its result's gradients
};

// A statement of a program. Variables are numbered; a module's arguments are
// the first.
struct Statement {
  enum class Kind { kOperation, kCall, kKeep };
  Kind kind = Kind::kOperation;
  Operation operation = {};
  int child = 0;
  bool is_of_root = false;  // a child of the root
  std::vector<int> arguments = {}, results = {};
  int by_position = 0;  // the number of arguments of a call by position
  bool no_grad = false;
};

struct Program {
  std::string fqn;
  std::vector<int64_t> parameters = {};
  std::vector<Program> children = {};
  std::vector<Statement> statements = {};
  std::vector<int> results = {};
  int arguments = 0;
  int variables = 0;
};

class Author {
 public:
  Author(Dice& dice, const StepOptions& options)
      : dice_(dice), options_(options), unit_(512 << dice.Below(3)) {}

  Program Model() {
    Program root{.fqn = "Net", .variables = 1};
    int x = 0;
    std::vector<int> extras;
    if (options_.shares_arguments) {
      for (int k = dice_.Between(1, 2); k > 0; --k) {
        extras.push_back(root.variables++);
        Add(root, Shared(), {0}, {extras.back()});
      }
    }
    std::vector<int> skip_sources;
    const int blocks =
        dice_.Between(options_.blocks_least, options_.blocks_most);
    for (int b = 0; b < blocks; ++b) {
      std::vector<int> arguments = {x};
      for (const int extra : extras) {
        if (!dice_.OneIn(4)) arguments.push_back(extra);
      }
      if (!skip_sources.empty() && dice_.OneIn(2)) {
        arguments.push_back(skip_sources.back());
        skip_sources.pop_back();
      }
      if (dice_.OneIn(4)) x = AddAny(root, {x}, x);
      const int child = AddBlock(root, static_cast<int>(arguments.size()),
                                 options_.nests && dice_.OneIn(2));
      if (options_.shares_modules && dice_.OneIn(2)) CallOther(root, child);
      int calls = options_.repeats && dice_.OneIn(2) ? dice_.Between(2, 3) : 1;
      for (; calls > 0; --calls) {
        arguments[0] = x;
        const int before = x;
        const std::vector<int> results = Call(root, child, arguments);
        x = results[0];
        skip_sources.insert(skip_sources.end(), results.begin() + 1,
                            results.end());
        // A residual of the root, or a skip.
        if (dice_.OneIn(5)) x = AddAny(root, {before, x}, x);
        if (options_.skips && !dice_.OneIn(3)) skip_sources.push_back(x);
      }
    }
    while (!skip_sources.empty() && dice_.OneIn(2)) {
      x = AddAny(root, {x, skip_sources.back()}, x);
      skip_sources.pop_back();
    }
    if (dice_.OneIn(2)) x = AddAny(root, {x}, x);
    root.results = {x};
    return root;
  }

 private:
  int64_t Bytes() {
    const int64_t bytes = unit_ * dice_.Between(1, 4);
    return dice_.OneIn(6) ? bytes - dice_.Between(1, 511) : bytes;
  }

  double Milliseconds() {
    if (dice_.OneIn(8)) return 0;
    return dice_.OneIn(3) ? dice_.Between(1, 1000) / 64.0
                          : dice_.Between(1, 4) * 0.5;
  }

  // Returns the operation of a mask or a position bias.
  Operation Shared() {
    Operation operation = {.name = "aten.gt.Scalar",
                           .runtime_ms = 0.25,
                           .bytes = {Bytes()},
                           .has_gradient = false};
    if (dice_.OneIn(2)) {
      operation.name = "aten.embedding.default";
      operation.has_weight = operation.has_gradient = true;
    }
    return operation;
  }

  Operation Unary() {
    Operation operation = {.runtime_ms = Milliseconds(), .bytes = {Bytes()}};
    if (dice_.OneIn(6)) operation.workspace_bytes = Bytes();
    const int more = (options_.draws ? 2 : 0) + (options_.writes ? 2 : 0);
    switch (const int kind = dice_.Below(10 + more)) {
      case 0:
      case 1:
      case 2:
        operation.name = "aten.mm.default";
        operation.has_weight = operation.saves_arguments =
            operation.saves_weight = true;
        return operation;
      case 3:
        operation.name = "aten.gelu.default";
        operation.saves_arguments = true;
        return operation;
      case 4:
      case 5:
        operation.name = "aten.tanh.default";
        operation.saves_results = {0};
        return operation;
      case 6:
        operation.name = "aten.native_layer_norm.default";
        operation.bytes = {Bytes(), 512, 512};
        operation.has_weight = operation.saves_arguments =
            operation.saves_weight = true;
        operation.saves_results = {1, 2};
        return operation;
      case 7:
        return {.name = "aten.view.default", .runtime_ms = 0, .view = true};
      case 8:
        operation.name = "aten.clone.default";
        if (options_.has_odd_ends && dice_.OneIn(3))
          operation.inner_bytes = Bytes();
        operation.saves_arguments = operation.inner_bytes > 0;
        return operation;
      case 9:
        operation.name = "aten.square.default";
        operation.saves_arguments = true;
        operation.saves_results = {0};
        return operation;
      default:
        if (kind < 12 && options_.draws) {
          operation.name = "aten.native_dropout.default";
          operation.bytes.push_back(Bytes());
          operation.saves_results = {1};
          operation.random = true;
          return operation;
        }
        operation.name = "aten.relu_.default";
        operation.bytes.clear();
        operation.in_place = true;
        operation.saves_results = {0};
        return operation;
    }
  }

  Operation Binary() {
    Operation operation = {.runtime_ms = Milliseconds(), .bytes = {Bytes()}};
    switch (dice_.Below(options_.writes ? 5 : 4)) {
      case 0:
      case 1:
        operation.name = "aten.add.Tensor";
        operation.hands_on_gradients = dice_.OneIn(2);
        return operation;
      case 2:
        operation.name = "aten.mul.Tensor";
        operation.saves_arguments = true;
        return operation;
      case 3:
        operation.name = "aten.bmm.default";
        operation.saves_arguments = true;
        if (dice_.OneIn(3)) operation.saves_results = {0};
        return operation;
      default:
        operation.name = "aten.add_.Tensor";
        operation.bytes.clear();
        operation.in_place = operation.hands_on_gradients = true;
        return operation;
    }
  }

  void Add(Program& program, Operation operation, std::vector<int> arguments,
           std::vector<int> results) {
    if (operation.has_weight && program.parameters.empty()) {
      program.parameters.push_back(Bytes());
    }
    if (operation.in_place) results = {arguments[0]};
    program.statements.push_back({.operation = std::move(operation),
                                  .arguments = std::move(arguments),
                                  .results = std::move(results)});
  }

  // Returns the variable of the result: a new one, or `replaced`.
  int AddAny(Program& program, const std::vector<int>& arguments,
             int replaced) {
    Operation operation = arguments.size() > 1 ? Binary() : Unary();
    if (operation.in_place) {
      Add(program, std::move(operation), arguments, {});
      return arguments[0];
    }
    const int result = dice_.OneIn(2) ? replaced : program.variables++;
    std::vector<int> results = {result};
    if (options_.shares_storages && operation.bytes.size() == 2) {
      results.push_back(program.variables++);
    }
    if (dice_.OneIn(4)) {
      // In a leaf.
      Program leaf{.fqn = program.fqn + ".leaf" +
                          std::to_string(program.children.size()),
                   .results = {0},
                   .variables = static_cast<int>(arguments.size())};
      std::vector<int> inner_arguments(arguments.size());
      for (size_t k = 0; k < inner_arguments.size(); ++k)
        inner_arguments[k] = static_cast<int>(k);
      Add(leaf, std::move(operation), inner_arguments, {0});
      program.children.push_back(std::move(leaf));
      program.statements.push_back(
          {.kind = Statement::Kind::kCall,
           .child = static_cast<int>(program.children.size()) - 1,
           .arguments = arguments,
           .results = {result},
           .by_position =
               dice_.Between(0, static_cast<int>(arguments.size()))});
    } else {
      Add(program, std::move(operation), arguments, results);
    }
    return result;
  }

  // Returns the variables of the results.
  std::vector<int> Call(Program& program, int child,
                        const std::vector<int>& arguments) {
    Statement call = {
        .kind = Statement::Kind::kCall,
        .child = child,
        .arguments = arguments,
        .results = {dice_.OneIn(2) ? arguments[0] : program.variables++},
        .by_position =
            dice_.OneIn(8)
                ? 0
                : dice_.Between(1, static_cast<int>(arguments.size())),
        .no_grad = options_.has_odd_ends && dice_.OneIn(12)};
    for (size_t k = 1; k < program.children[child].results.size(); ++k) {
      call.results.push_back(program.variables++);
    }
    program.statements.push_back(call);
    return call.results;
  }

  // Calls, at the end of a block of the root, another block that takes one
  // argument.
  void CallOther(Program& root, int block) {
    for (int other = 0; other < block; ++other) {
      const Program& candidate = root.children[other];
      const bool calls_none =
          std::ranges::none_of(candidate.statements, &Statement::is_of_root);
      if (candidate.arguments != 1 || candidate.children.empty() ||
          !calls_none || dice_.OneIn(3)) {
        continue;
      }
      Program& caller = root.children[block];
      caller.results[0] = CallShared(caller, root, other, caller.results[0]);
      return;
    }
  }

  // Calls another block of the root, as a block inside this one.
  int CallShared(Program& program, const Program& root, int child, int x) {
    const int result = program.variables++;
    Statement call = {.kind = Statement::Kind::kCall,
                      .child = child,
                      .is_of_root = true,
                      .arguments = {x},
                      .results = {result},
                      .by_position = 1};
    for (size_t k = 1; k < root.children[child].results.size(); ++k) {
      call.results.push_back(program.variables++);
    }
    program.statements.push_back(std::move(call));
    return result;
  }

  // Adds a block with a call's arguments to `around`.
  int AddBlock(Program& outer, int arguments, bool is_nested) {
    const int index = static_cast<int>(outer.children.size());
    Program block{.fqn = outer.fqn + "." + std::to_string(index),
                  .arguments = arguments,
                  .variables = arguments};
    std::vector<int> others;
    for (int k = 1; k < arguments; ++k) others.push_back(k);
    int x = 0;
    const int parts = is_nested ? dice_.Between(1, 2)
                                : dice_.Between(options_.operators_least,
                                                options_.operators_most);
    for (int k = 0; k < parts; ++k) {
      if (is_nested && dice_.OneIn(3)) x = AddAny(block, {x}, x);
      std::vector<int> inputs = {x};
      if (!others.empty() && dice_.OneIn(2)) {
        inputs.push_back(dice_.Any(others));
      }
      if (inputs[0] == inputs.back()) inputs.resize(1);
      const int before = x;
      if (is_nested) {
        const int child =
            AddBlock(block, static_cast<int>(inputs.size()), false);
        const std::vector<int> results = Call(block, child, inputs);
        x = results[0];
        others.insert(others.end(), results.begin() + 1, results.end());
      } else {
        x = AddAny(block, inputs, x);
        if (options_.has_odd_ends && dice_.OneIn(8)) {
          AddAny(block, {x}, block.variables++);
        }
      }
      if (before != x) others.push_back(before);
    }
    if (dice_.OneIn(3) && x != 0) x = AddAny(block, {0, x}, x);
    if (options_.keeps && dice_.OneIn(3)) {
      block.statements.push_back(
          {.kind = Statement::Kind::kKeep, .arguments = {x}});
    }
    // Only modules with modules inside may be units.
    if (block.children.empty()) {
      block.children.push_back(
          {.fqn = block.fqn + ".leaf0", .results = {0}, .variables = 1});
      if (dice_.OneIn(4)) {
        block.statements.push_back({.kind = Statement::Kind::kCall,
                                    .arguments = {x},
                                    .results = {x},
                                    .by_position = 1});
      }
    }
    block.results = {x};
    if (options_.shares_storages && !others.empty() && dice_.OneIn(3)) {
      block.results.push_back(dice_.Any(others));
    }
    outer.children.push_back(std::move(block));
    return index;
  }

  Dice& dice_;
  const StepOptions& options_;
  const int64_t unit_;
};

// Runs programs, as Python and autograd would.
class Runner {
 public:
  Runner(Dice& dice, const StepOptions& options)
      : dice_(dice), options_(options) {}

  // Returns nothing if PyTorch would refuse.
  std::optional<Trace> Run(const Program& model) {
    trace_.model = {"random", "Net", 1, 1, "fp32", "SGD"};
    root_ = &model;
    AddModules(model);
    TensorId x = AddEarlier(512 * dice_.Between(1, 8), StorageCategory::kInput);
    Hold(x);
    if (dice_.OneIn(2)) {
      // Made for the model alone.
      const TensorId cast =
          RunOperation({.name = "aten._to_copy.default", .bytes = {BytesOf(x)}},
                       {x}, kNone)[0];
      LetGo(x);
      x = cast;
    }
    Statement call = {.arguments = {0}, .by_position = 1};
    const std::vector<TensorId> results = RunProgram(model, call, {x});
    if (dice_.OneIn(2)) LetGo(x);
    const Operation loss = {.name = "aten.mean.default",
                            .bytes = {4},
                            .saves_arguments = dice_.OneIn(2)};
    const TensorId of_loss = RunOperation(loss, {results[0]}, kNone)[0];
    if (dice_.OneIn(2)) LetGo(results[0]);
    if (is_refused_ || node_of_[of_loss] == kNone) return std::nullopt;
    trace_.forward_end = Now();
    RunBackward(node_of_[of_loss]);
    trace_.backward_end = Now();
    RunOptimizer();
    LetGoOfUnused();
    EndStorages();
    if (options_.makes_sparse) MakeSparse();
    return std::move(trace_);
  }

 private:
  enum class NodeId : int32_t {};  // in nodes_

  // Autograd's node of an operator. Edges lead to the nodes of the operators
  // that made its arguments.
  struct Node {
    OperatorId op = {};
    const Operation* operation = nullptr;
    std::vector<std::pair<NodeId, int64_t>> edges = {};  // with bytes
    std::vector<SavedId> saved = {};
    std::vector<TensorId> results = {};
    std::vector<StorageId> gradients = {};  // those that have arrived
    // The weight whose gradient it accumulates.
    TensorId weight = kNone;
    bool has_run = false;
  };

  // The operator that runs next, and the time when it starts.
  OperatorId NextOperator() const { return trace_.operators.end_id(); }
  Time Now() const { return StartOf(NextOperator()); }
  int64_t BytesOf(TensorId tensor) const {
    return trace_.storages[trace_.tensors[tensor].storage].bytes;
  }

  graph::OperatorNameId NameOf(const std::string& name) {
    for (const auto n : trace_.operator_names.ids()) {
      if (trace_.operator_names[n] == name) return n;
    }
    return trace_.operator_names.Add(name);
  }

  // Adds a tensor of its own, of a storage that was there before the step.
  TensorId AddEarlier(int64_t bytes, StorageCategory category) {
    return AddTensor({.storage = trace_.storages.Add(
                          {.bytes = bytes, .category = category})});
  }

  TensorId AddTensor(const graph::TraceTensor& tensor) {
    holders_.push_back(0);
    node_of_.push_back(kNone);
    return trace_.tensors.Add(tensor);
  }

  void AddModules(const Program& program) {
    const ModuleId module = trace_.modules.Add({.fqn = program.fqn,
                                                .class_name = "Block",
                                                .parameters = {},
                                                .buffers = {}});
    module_of_[&program] = module;
    for (const int64_t bytes : program.parameters) {
      const TensorId weight = AddEarlier(bytes, StorageCategory::kParameter);
      Hold(weight);
      node_of_[weight] = nodes_.Add({.op = kNone, .weight = weight});
      trace_.modules[module].parameters.push_back(
          trace_.tensors[weight].storage);
    }
    for (const Program& child : program.children) AddModules(child);
  }

  void Hold(TensorId tensor) { ++holders_[tensor]; }
  void LetGo(TensorId tensor) {
    if (--holders_[tensor] == 0) trace_.tensors[tensor].scope_end = Now();
  }

  // Adds a storage that a call is given by keyword.
  void AddFurtherInput(TraceCall& call, StorageId storage) const {
    const bool is_argument = std::ranges::any_of(
        call.arguments,
        [&](TensorId t) { return trace_.tensors[t].storage == storage; });
    std::vector<StorageId>& further = call.further_inputs;
    const bool is_new = std::ranges::find(further, storage) == further.end();
    if (!is_argument && is_new) further.push_back(storage);
  }

  // Runs a program. The caller holds the results.
  std::vector<TensorId> RunProgram(const Program& program,
                                   const Statement& statement,
                                   const std::vector<TensorId>& arguments) {
    TraceCall call = {.module = module_of_.at(&program),
                      .parent = call_,
                      .start = Now(),
                      .inputs = {},
                      .outputs = {},
                      .no_grad = is_without_gradients_ || statement.no_grad};
    std::vector<TensorId> variables(program.variables, kNone);
    for (size_t k = 0; k < arguments.size(); ++k) {
      Hold(arguments[k]);  // by the call itself
      Hold(variables[k] = arguments[k]);
      call.inputs.push_back(trace_.tensors[arguments[k]].storage);
      if (static_cast<int>(k) < statement.by_position) {
        call.arguments.push_back(arguments[k]);
      } else {
        AddFurtherInput(call, trace_.tensors[arguments[k]].storage);
      }
    }
    const CallId id = trace_.calls.Add(call);
    const CallId outer_call = std::exchange(call_, id);
    const bool was_without = std::exchange(is_without_gradients_, call.no_grad);
    for (const Statement& next : program.statements) {
      RunStatement(program, next, variables);
    }
    is_without_gradients_ = was_without;
    call_ = outer_call;
    std::vector<TensorId> results;
    for (const int variable : program.results) {
      results.push_back(variables[variable]);
      Hold(results.back());
      trace_.calls[id].outputs.push_back(
          trace_.tensors[results.back()].storage);
    }
    for (const TensorId tensor : variables) {
      if (tensor != kNone) LetGo(tensor);
    }
    for (const TensorId tensor : arguments) LetGo(tensor);
    trace_.calls[id].end = Now();
    return results;
  }

  void RunStatement(const Program& program, const Statement& statement,
                    std::vector<TensorId>& variables) {
    std::vector<TensorId> arguments;
    for (const int variable : statement.arguments) {
      arguments.push_back(variables[variable]);
    }
    if (statement.kind == Statement::Kind::kKeep) {
      Keep(program, arguments[0]);
      return;
    }
    const TensorId weight = statement.kind == Statement::Kind::kOperation &&
                                    statement.operation.has_weight
                                ? WeightOf(program)
                                : kNone;
    const std::vector<TensorId> results =
        statement.kind == Statement::Kind::kCall
            ? RunProgram((statement.is_of_root ? *root_ : program)
                             .children[statement.child],
                         statement, arguments)
            : RunOperation(statement.operation, arguments, weight);
    for (size_t k = 0; k < results.size(); ++k) {
      if (k >= statement.results.size()) {
        LetGo(results[k]);
        continue;
      }
      TensorId& variable = variables[statement.results[k]];
      if (variable != kNone) LetGo(variable);
      variable = results[k];
    }
  }

  // Keeps a tensor in place of the one that an earlier call has kept.
  void Keep(const Program& program, TensorId tensor) {
    if (trace_.storages[trace_.tensors[tensor].storage].born == kNone) return;
    Hold(tensor);
    const auto [place, is_first] = kept_tensors_.try_emplace(&program, tensor);
    if (is_first) return;
    LetGo(place->second);
    place->second = tensor;
  }

  TensorId WeightOf(const Program& program) const {
    const StorageId storage =
        trace_.modules[module_of_.at(&program)].parameters[0];
    const auto tensor = std::ranges::find(trace_.tensors, storage,
                                          &graph::TraceTensor::storage);
    return graph::IdAt<TensorId>(tensor - trace_.tensors.begin());
  }

  StorageId Create(int64_t bytes, StorageCategory category) {
    return trace_.storages.Add(
        {.bytes = bytes, .category = category, .born = NextOperator()});
  }

  // Begins an operator, whose results are still to come.
  TraceOperator Begin(const std::string& name, double runtime_ms,
                      std::vector<StorageId> reads) {
    std::ranges::sort(reads);
    const auto twice = std::ranges::unique(reads);
    reads.erase(twice.begin(), twice.end());
    return {.name = NameOf(name),
            .call = call_,
            .runtime_ms = runtime_ms,
            .reads = std::move(reads),
            .creates = {},
            .outputs = {},
            .mutates = {}};
  }

  void End(TraceOperator op) {
    std::ranges::sort(op.outputs);
    trace_.operators.push_back(std::move(op));
  }

  // Runs an operation. The caller holds the results and has to release them.
  std::vector<TensorId> RunOperation(const Operation& operation,
                                     std::vector<TensorId> arguments,
                                     TensorId weight) {
    Node node = {.operation = &operation};
    std::vector<StorageId> reads;
    const auto add_edge = [&](TensorId tensor) {
      if (node_of_[tensor] == kNone) return;
      node.edges.emplace_back(node_of_[tensor], BytesOf(tensor));
    };
    std::ranges::for_each(arguments, add_edge);
    if (weight != kNone) add_edge(weight);
    const bool is_recorded =
        operation.has_gradient && !node.edges.empty() && !is_without_gradients_;
    if (weight != kNone) arguments.push_back(weight);
    for (const TensorId tensor : arguments) {
      reads.push_back(trace_.tensors[tensor].storage);
    }
    TensorId inner = kNone;
    if (operation.inner_bytes > 0) {
      TraceOperator before = Begin("aten.exp.default", 0.5, reads);
      const StorageId storage =
          Create(operation.inner_bytes, StorageCategory::kActivation);
      before.creates = before.outputs = {storage};
      inner = AddTensor({.storage = storage, .op = NextOperator()});
      Hold(inner);
      before.results = {inner};
      reads.push_back(storage);
      End(std::move(before));
    }
    const auto save_arguments = [&] {
      for (const TensorId tensor : arguments) {
        const bool is_saved = tensor == weight ? operation.saves_weight
                                               : operation.saves_arguments;
        if (is_recorded && is_saved) Save(tensor, node);
      }
    };
    if (inner == kNone) save_arguments();
    node.op = NextOperator();
    TraceOperator op = Begin(operation.name, operation.runtime_ms, reads);
    op.view = operation.view;
    op.random = operation.random;
    std::vector<TensorId> results;
    if (operation.in_place) {
      const StorageId storage = trace_.tensors[arguments[0]].storage;
      const bool is_leaf = trace_.storages[storage].born == kNone;
      is_refused_ |= is_leaf || std::ranges::find(trace_.saved, storage,
                                                  &SavedTensor::storage) !=
                                    trace_.saved.end();
      op.mutates = {storage};
      results = {arguments[0]};
    } else if (operation.view) {
      const TensorId base = arguments[0];
      results = {AddTensor({.storage = trace_.tensors[base].storage,
                            .base = base,
                            .op = NextOperator()})};
      op.results = results;
    }
    for (const int64_t bytes : operation.bytes) {
      op.creates.push_back(Create(bytes, StorageCategory::kActivation));
      results.push_back(
          AddTensor({.storage = op.creates.back(), .op = NextOperator()}));
      op.results.push_back(results.back());
    }
    for (const TensorId tensor : results) {
      op.outputs.push_back(trace_.tensors[tensor].storage);
      Hold(tensor);
    }
    if (operation.workspace_bytes > 0) {
      op.creates.push_back(
          Create(operation.workspace_bytes, StorageCategory::kTemporary));
      trace_.storages.back().scope_end = Now() + 1;
    }
    End(std::move(op));
    if (inner != kNone) {
      save_arguments();
      if (is_recorded && dice_.OneIn(2)) Save(inner, node);
      LetGo(inner);
    }
    if (!is_recorded) return results;
    node.results = results;
    for (const int k : operation.saves_results) Save(results[k], node);
    const NodeId id = nodes_.Add(std::move(node));
    for (const TensorId tensor : results) node_of_[tensor] = id;
    return results;
  }

  void Save(TensorId tensor, Node& node) {
    node.saved.push_back(
        trace_.saved.Add({.storage = trace_.tensors[tensor].storage,
                          .tensor = tensor,
                          .requires_grad = node_of_[tensor] != kNone,
                          .packed = Now(),
                          .call = call_}));
  }

  // Runs backward. The last node that was made runs first.
  void RunBackward(NodeId of_loss) {
    TraceOperator start = Begin("aten.ones_like.default", 0, {});
    const StorageId gradient = Create(4, StorageCategory::kTemporary);
    start.creates = start.outputs = {gradient};
    End(std::move(start));
    Give(of_loss, gradient);
    for (NodeId n = of_loss; n != kNone; n = graph::Previous(n)) {
      if (nodes_[n].weight == kNone && !nodes_[n].gradients.empty()) RunNode(n);
    }
  }

  // Gives a gradient to a node, which holds it from now on.
  void Give(NodeId n, StorageId gradient) {
    Node& node = nodes_[n];
    ++gradient_holders_[gradient];
    if (node.gradients.empty() ||
        (node.weight == kNone && node.results.size() > 1 && dice_.OneIn(2))) {
      if (node.weight != kNone) {
        trace_.storages[gradient].category = StorageCategory::kGradient;
      }
      node.gradients.push_back(gradient);
      return;
    }
    const StorageId sum = node.gradients.back();
    TraceOperator add = Begin("aten.add.Tensor", 0.5, {sum, gradient});
    if (gradient_holders_[sum] == 1) {
      add.mutates = add.outputs = {sum};
      End(std::move(add));
    } else {
      const StorageId new_sum =
          Create(trace_.storages[sum].bytes, StorageCategory::kTemporary);
      add.creates = add.outputs = {new_sum};
      End(std::move(add));
      ++gradient_holders_[new_sum];
      node.gradients.back() = new_sum;
      LetGoOfGradient(sum);
    }
    LetGoOfGradient(gradient);
  }

  void LetGoOfGradient(StorageId storage) {
    if (--gradient_holders_[storage] == 0) {
      trace_.storages[storage].freed = Now();
    }
  }

  void RunNode(NodeId n) {
    Node& node = nodes_[n];
    node.has_run = true;
    const Time begin = Now();
    std::vector<SavedId> requested;
    std::vector<StorageId> reads = node.gradients;
    for (const SavedId k : node.saved) {
      if (options_.has_odd_ends && dice_.OneIn(10)) continue;
      requested.push_back(k);
      reads.push_back(trace_.saved[k].storage);
      trace_.saved[k].unpacked = Now();
    }
    bool is_handed_on = false;
    if (node.operation->hands_on_gradients || node.operation->view) {
      for (const auto& [to, bytes] : node.edges) {
        if (nodes_[to].weight == kNone) Give(to, node.gradients[0]);
      }
    } else if (dice_.OneIn(2) || node.edges.empty()) {
      GiveNew(reads, node.edges);
    } else {
      for (const auto& edge : node.edges) GiveNew(reads, {edge});
    }
    for (const SavedId k : requested) {
      SavedTensor& saved = trace_.saved[k];
      saved.local_end = dice_.OneIn(4) ? dice_.Between(begin, Now()) : Now();
      is_handed_on = options_.has_odd_ends && dice_.OneIn(20);
      if (is_handed_on) handed_on_.push_back(k);
    }
    for (const StorageId gradient : node.gradients) LetGoOfGradient(gradient);
    for (const SavedId k : node.saved) trace_.saved[k].released = Now();
    for (TraceCall& call : trace_.calls) {
      const Time start = StartOf(node.op);
      if (start < call.start || start >= call.end) continue;
      if (call.backward_start == kNever) call.backward_start = begin;
      call.backward_end = Now();
    }
  }

  // Runs an operator that makes gradients of all of these.
  void GiveNew(const std::vector<StorageId>& reads,
               const std::vector<std::pair<NodeId, int64_t>>& edges) {
    TraceOperator op = Begin("aten.backward.default", 1, reads);
    std::vector<StorageId> gradients;
    for (const auto& [to, bytes] : edges) {
      gradients.push_back(Create(bytes, StorageCategory::kTemporary));
    }
    op.creates = op.outputs = gradients;
    if (dice_.OneIn(6)) {
      op.creates.push_back(
          Create(512 * dice_.Between(1, 8), StorageCategory::kTemporary));
      trace_.storages.back().freed = Now() + 1;
    }
    End(std::move(op));
    for (size_t k = 0; k < edges.size(); ++k)
      Give(edges[k].first, gradients[k]);
  }

  void RunOptimizer() {
    for (const Node& node : nodes_) {
      if (node.weight == kNone || node.gradients.empty()) continue;
      const StorageId weight = trace_.tensors[node.weight].storage;
      TraceOperator op =
          Begin("aten.add_.Tensor", 0.25, {weight, node.gradients[0]});
      op.mutates = op.outputs = {weight};
      if (dice_.OneIn(3)) {
        op.creates = {
            Create(trace_.storages[weight].bytes, StorageCategory::kTemporary)};
        trace_.storages.back().freed = Now() + 1;
      }
      End(std::move(op));
    }
  }

  // Releases nodes that no gradient reaches, with their results and with the
  // nodes that lead to them.
  void LetGoOfUnused() {
    IndexedVector<NodeId, Time> end(nodes_.size(), 0);
    for (const NodeId n : std::views::reverse(nodes_.ids())) {
      const Node& node = nodes_[n];
      for (const TensorId tensor : node.results) {
        end[n] = std::max(end[n], trace_.tensors[tensor].scope_end);
      }
      for (const auto& [to, bytes] : node.edges) {
        end[to] = std::max(end[to], end[n]);
      }
      if (node.has_run) continue;
      for (const SavedId k : node.saved) trace_.saved[k].released = end[n];
    }
    // A node that has handed on the storage that it asked for.
    for (const SavedId k : handed_on_) {
      SavedTensor& saved = trace_.saved[k];
      saved.local_end = dice_.Between(
          saved.local_end, std::min(saved.released + 4, trace_.backward_end));
    }
  }

  // Frees storages that are born in the forward pass when nothing holds them
  // any more.
  void EndStorages() {
    for (const graph::TraceTensor& tensor : trace_.tensors) {
      graph::TraceStorage& storage = trace_.storages[tensor.storage];
      if (storage.born == kNone) continue;
      storage.scope_end = storage.freed = 0;
    }
    for (const graph::TraceTensor& tensor : trace_.tensors) {
      graph::TraceStorage& storage = trace_.storages[tensor.storage];
      if (storage.born == kNone) continue;
      storage.scope_end = std::max(storage.scope_end, tensor.scope_end);
    }
    for (graph::TraceStorage& storage : trace_.storages) {
      if (storage.born == kNone || !storage.IsOlderThan(trace_.forward_end)) {
        continue;
      }
      storage.freed = storage.scope_end;
    }
    for (const SavedTensor& saved : trace_.saved) {
      graph::TraceStorage& storage = trace_.storages[saved.storage];
      storage.freed = std::max(storage.freed, saved.released);
      if (saved.unpacked != kNever) {
        storage.freed = std::max(storage.freed, saved.local_end);
      }
    }
  }

  // Makes some random operators make sparse tensors: the trace has the storages
  // of their indices and elements, and neither outputs nor results of the
  // operators. All calls of a module do as one call does.
  void MakeSparse() {
    IndexedVector<StorageId, graph::Flag> is_written(trace_.storages.size(),
                                                     false);
    for (const TraceOperator& op : trace_.operators) {
      for (const StorageId s : op.mutates) is_written[s] = true;
    }
    std::map<std::pair<ModuleId, int32_t>, bool> is_sparse;  // module, place
    const auto place_of = [&](OperatorId k) {
      const graph::TraceCall& call = trace_.calls[trace_.operators[k].call];
      return std::pair(call.module, call.PlaceOf(k));
    };
    for (const OperatorId k : graph::OperatorsIn(0, trace_.forward_end)) {
      const TraceOperator& op = trace_.operators[k];
      if (op.call == kNone) continue;
      const bool may_be =
          !op.view && !op.random && op.mutates.empty() && !op.creates.empty() &&
          std::ranges::none_of(op.creates,
                               [&](StorageId s) { return is_written[s]; });
      const auto [place, is_first] = is_sparse.try_emplace(place_of(k), may_be);
      place->second = place->second && may_be && (!is_first || dice_.OneIn(4));
    }
    for (const OperatorId k : graph::OperatorsIn(0, trace_.forward_end)) {
      TraceOperator& op = trace_.operators[k];
      if (op.call == kNone || !is_sparse.at(place_of(k))) continue;
      op.opaque = true;
      for (const TensorId t : op.results) trace_.tensors[t].op = kNone;
      op.outputs.clear();
      op.results.clear();
    }
  }

  Dice& dice_;
  const StepOptions& options_;
  const Program* root_ = nullptr;
  Trace trace_;
  std::map<const Program*, ModuleId> module_of_;
  CallId call_ = kNone;
  bool is_without_gradients_ = false;
  bool is_refused_ = false;
  std::map<const Program*, TensorId> kept_tensors_;
  IndexedVector<TensorId, int> holders_;  // in Python
  // The node that made a tensor, with respect to gradients, if any.
  IndexedVector<TensorId, NodeId> node_of_;
  IndexedVector<NodeId, Node> nodes_;
  std::map<StorageId, int> gradient_holders_;
  std::vector<SavedId> handed_on_;
};

}  // namespace

Trace RandomStep(std::mt19937& random, const StepOptions& options) {
  Dice dice(random);
  for (;;) {
    const Program model = Author(dice, options).Model();
    if (std::optional<Trace> trace = Runner(dice, options).Run(model)) {
      return *std::move(trace);
    }
  }
}

}  // namespace acplan::test_support
