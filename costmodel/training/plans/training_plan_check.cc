// The check shares with the search the operations of a layer, their times, and the sums
// over stages of CombineStepTime; but not which operations read each other's results, which
// run again, and how memory follows from that.
//
// Values are named after the operation that makes them. ReadsOf returns the values that an
// operation needs to run, SavedBy the value that its backward pass reads. A value that is
// not kept is made by a recursion from values to operations to values. Activations of a
// stage are linear in the bytes that its layers keep: the model's own figures without and
// with full recomputation are two points of that line.
#include "costmodel/training/plans/training_plan_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

namespace acplan::costmodel {
namespace {

using Names = std::vector<std::string>;

bool IsNear(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b)) + 1e-15;
}

struct CheckedOperation {
  double own_bytes = 0;
  double read_bytes = 0;
  PassTime forward = {};
};

// A layer as the check sees it.
class CheckedLayer {
 public:
  CheckedLayer(const TrainingJob& job, bool is_moe);

  double input_bytes() const { return input_bytes_; }
  double whole_bytes() const { return whole_bytes_; }
  // Bytes, and the time of recomputation, if the named values are kept.
  struct Cost {
    double bytes = 0;
    PassTime recomputation = {};
    std::set<std::string> runs = {};
  };
  Cost CostOf(const std::set<std::string>& kept_values) const;

 private:
  void AddOperations(const TrainingJob& job, LayerForm form, double share);
  bool Has(const std::string& name) const { return operations_.contains(name); }
  // Returns the first of these operations that the layer has.
  std::string FirstOf(const Names& names) const;
  Names ReadsOf(const std::string& name) const;
  Names ReadsOfExperts(const std::string& name) const;
  std::string SavedBy(const std::string& name) const;
  void Make(const std::string& value, const std::set<std::string>& kept_values,
            std::set<std::string>& runs) const;

  std::map<std::string, CheckedOperation> operations_ = {};
  std::map<std::string, double> values_ = {};  // the bytes that are saved
  double input_bytes_ = 0;
  double whole_bytes_ = 0;
};

void CheckedLayer::AddOperations(const TrainingJob& job, LayerForm form,
                                 double share) {
  std::map<std::string, int> times;
  for (const LayerOperation& operation :
       LayerOperations(job.shape, job.strategy, form)) {
    const int count = ++times[std::string(operation.name)];
    CheckedOperation& checked =
        operations_[count == 1 ? std::string(operation.name)
                               : fmt::format("{} {}", operation.name, count)];
    checked.own_bytes = operation.made_bytes;
    checked.read_bytes = operation.saved_bytes - operation.made_bytes;
    checked.forward += ForwardTime(operation, job) * share;
  }
}

CheckedLayer::CheckedLayer(const TrainingJob& job, bool is_moe) {
  const ModelShape& shape = job.shape;
  double windowed = 0;
  if (shape.sliding_window > 0) {
    windowed = 1 - static_cast<double>(shape.full_layers) /
                       static_cast<double>(shape.layers);
  }
  AddOperations(job, {.is_moe = is_moe}, 1 - windowed);
  if (windowed > 0) {
    AddOperations(job, {.is_moe = is_moe, .is_windowed = true}, windowed);
  }
  for (const auto& [name, operation] : operations_) {
    if (operation.own_bytes > 0) {
      const bool is_mask = name.starts_with("residual");
      values_[is_mask ? name + " mask" : name] += operation.own_bytes;
    }
    if (operation.read_bytes == 0) continue;
    const std::string value = SavedBy(name);
    (value == "input" ? input_bytes_ : values_[value]) += operation.read_bytes;
  }
  whole_bytes_ = input_bytes_;
  for (const auto& [name, bytes] : values_) whole_bytes_ += bytes;
}

std::string CheckedLayer::FirstOf(const Names& names) const {
  for (const std::string& name : names) {
    if (Has(name)) return name;
  }
  return names.back();
}

std::string CheckedLayer::SavedBy(const std::string& name) const {
  static const std::map<std::string, Names> kSaved = {
      {"norm", {"input"}},
      {"query, key, value", {"norm"}},
      {"query down", {"norm"}},
      {"key, value down", {"norm"}},
      {"query up", {"latent norms"}},
      {"key, value up", {"latent norms"}},
      {"attention", {"rotation", "query, key, value"}},
      {"scores", {"rotation", "query, key, value"}},
      {"values", {"rotation", "query, key, value"}},
      {"gate", {"query, key, value"}},
      {"output", {"gate", "values"}},
      {"norm 2", {"residual"}},
      {"router", {"norm 2"}},
      {"up", {"norm 2"}},
      {"experts up", {"share experts", "dispatch"}},
      {"experts activation", {"experts up"}},
      {"experts down", {"experts activation"}},
      {"activation", {"up"}},
      {"down", {"activation"}},
  };
  if (name == "latent norms") {
    return Has("query down") ? "query down + key, value down"
                             : "key, value down";
  }
  const auto match = kSaved.find(name);
  return match == kSaved.end() ? "unknown" : FirstOf(match->second);
}

Names CheckedLayer::ReadsOfExperts(const std::string& name) const {
  if (name == "router") return {"norm 2"};
  if (name == "top experts") return {"router"};
  if (name == "dispatch") return {"norm 2", "top experts"};
  if (name == "share experts") return {"dispatch"};
  if (name == "experts up") return {FirstOf({"share experts", "dispatch"})};
  if (name == "experts activation") return {"experts up"};
  if (name == "experts down") return {"experts activation"};
  if (name == "share experts 2") return {"experts down"};
  return {FirstOf({"share experts 2", "experts down"}), "top experts"};
}

// Returns the values that an operation reads, except the layer's input.
Names CheckedLayer::ReadsOf(const std::string& name) const {
  const std::string rotated = FirstOf({"rotation", "query, key, value"});
  if (name == "norm") return {};
  if (name == "gather") return {"norm"};
  if (name == "gather 2") return {"norm 2"};
  if (name == "query, key, value" || name == "query down" ||
      name == "key, value down") {
    return {FirstOf({"gather", "norm"})};
  }
  if (name == "latent norms") {
    return Has("query down") ? Names{"query down", "key, value down"}
                             : Names{"key, value down"};
  }
  if (name == "query up" && !Has("query down")) {
    return {FirstOf({"gather", "norm"})};
  }
  if (name == "query up" || name == "key, value up") return {"latent norms"};
  if (name == "rotation") {
    return Has("query up")
               ? Names{"query up", "key, value up", "key, value down"}
               : Names{"query, key, value"};
  }
  if (name == "attention" || name == "scores") return {rotated};
  if (name == "softmax") return {"scores"};
  if (name == "dropout") return {"softmax"};
  if (name == "values") return {FirstOf({"dropout", "softmax"}), rotated};
  if (name == "gate") {
    return {FirstOf({"attention", "values"}), "query, key, value"};
  }
  if (name == "output") return {FirstOf({"gate", "attention", "values"})};
  if (name == "scatter") return {"output"};
  if (name == "residual") return {FirstOf({"scatter", "output"})};
  if (name == "norm 2") return {"residual"};
  if (name == "up") return {FirstOf({"gather 2", "norm 2"})};
  if (name == "activation") return {"up"};
  if (name == "down") return {"activation"};
  if (name == "scatter 2") return {"down"};
  if (name != "residual 2") return ReadsOfExperts(name);
  Names reads = {"residual"};
  if (Has("combine")) reads.push_back("combine");
  if (Has("down")) reads.push_back(FirstOf({"scatter 2", "down"}));
  return reads;
}

void CheckedLayer::Make(const std::string& value,
                        const std::set<std::string>& kept_values,
                        std::set<std::string>& runs) const {
  if (value == "query down + key, value down") {
    Make("query down", kept_values, runs);
    Make("key, value down", kept_values, runs);
    return;
  }
  constexpr std::string_view kMask = " mask";
  const std::string name = value.ends_with(kMask)
                               ? value.substr(0, value.size() - kMask.size())
                               : value;
  if (!runs.insert(name).second) return;
  for (const std::string& read : ReadsOf(name)) {
    const bool is_latent = read == "query down" || read == "key, value down";
    if (kept_values.contains(read)) continue;
    if (is_latent && kept_values.contains("query down + key, value down"))
      continue;
    Make(read, kept_values, runs);
  }
}

CheckedLayer::Cost CheckedLayer::CostOf(
    const std::set<std::string>& kept_values) const {
  Cost cost{.bytes = input_bytes_};
  for (const auto& [value, bytes] : values_) {
    if (kept_values.contains(value)) {
      cost.bytes += bytes;
    } else {
      Make(value, kept_values, cost.runs);
    }
  }
  for (const std::string& name : cost.runs) {
    cost.recomputation += operations_.at(name).forward;
  }
  return cost;
}

std::set<std::string> KeptNames(const LayerGraph& graph,
                                TensorSet kept_tensors) {
  std::set<std::string> names;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    if ((kept_tensors >> i & 1) != 0) {
      names.insert(NameOfTensor(graph, graph.tensors[i]));
    }
  }
  return names;
}

std::set<std::string> RunNames(const LayerGraph& graph, OperationSet runs) {
  std::set<std::string> names;
  for (size_t i = 0; i < graph.operations.size(); ++i) {
    if ((runs >> i & 1) != 0) names.insert(graph.operations[i].name);
  }
  return names;
}

TrainingJob RecomputingAs(TrainingJob job, Recomputation recomputation) {
  job.strategy.recomputation = recomputation;
  job.strategy.full_layers = job.strategy.every_layers = 0;
  return job;
}

// Returns the job without the images of towers, which a plan does not recompute.
TrainingJob WithoutImages(TrainingJob job) {
  job.strategy.images = 0;
  return job;
}

class PlanChecker {
 public:
  PlanChecker(const TrainingJob& job, double budget, const TrainingPlan& plan)
      : job_(job),
        budget_(budget),
        plan_(plan),
        none_(PredictStepMemory(RecomputingAs(job, Recomputation::kNone))),
        text_none_(PredictStepMemory(
            WithoutImages(RecomputingAs(job, Recomputation::kNone)))),
        text_full_(PredictStepMemory(
            WithoutImages(RecomputingAs(job, Recomputation::kFull)))) {
    if (!job.shape.IsMoe() || job.shape.dense_layers > 0) {
      layers_.emplace(false, CheckedLayer(job, false));
    }
    if (job.shape.IsMoe()) layers_.emplace(true, CheckedLayer(job, true));
  }

  std::optional<std::string> FindError() const;

 private:
  std::optional<std::string> ErrorOfShare(const LayerShare& share) const;
  std::optional<std::string> ErrorOfStage(size_t index) const;
  std::optional<std::string> ErrorOfMemory(size_t index, double kept_bytes,
                                           double recomputed_bytes) const;

  const TrainingJob& job_;
  double budget_;
  const TrainingPlan& plan_;
  StepMemory none_;
  StepMemory text_none_;
  StepMemory text_full_;
  std::map<bool, CheckedLayer> layers_ = {};
};

std::optional<std::string> PlanChecker::ErrorOfShare(
    const LayerShare& share) const {
  const LayerGraph& graph = plan_.graphs[share.is_moe ? 1 : 0];
  const CheckedLayer::Cost cost =
      layers_.at(share.is_moe)
          .CostOf(KeptNames(graph, share.policy.sets.kept_tensors));
  if (cost.runs != RunNames(graph, share.policy.sets.runs)) {
    return "other operations run again";
  }
  if (!IsNear(cost.bytes, share.policy.bytes)) {
    return fmt::format("a layer keeps {} bytes, not {}", cost.bytes,
                       share.policy.bytes);
  }
  if (!IsNear(
          cost.recomputation.compute + cost.recomputation.communication.Total(),
          share.policy.gpu) ||
      !IsNear(cost.recomputation.host, share.policy.host)) {
    return "the recomputation takes another time";
  }
  return std::nullopt;
}

std::optional<std::string> PlanChecker::ErrorOfMemory(
    size_t index, double kept_bytes, double recomputed_bytes) const {
  const StageContent& stage = plan_.stages[index].content;
  double whole = 0;
  double inputs = 0;
  for (const auto& [is_moe, layer] : layers_) {
    const double count =
        static_cast<double>(is_moe ? stage.moe_layers : stage.dense_layers);
    whole += count * layer.whole_bytes();
    inputs += count * layer.input_bytes();
  }
  RankMemory memory = none_.stages[index];
  if (whole > inputs) {
    const double slope = (text_none_.stages[index].activations -
                          text_full_.stages[index].activations) /
                         (whole - inputs);
    memory.activations -= slope * (whole - kept_bytes);
  }
  if (recomputed_bytes > memory.logits) {
    memory.logits = 0;
    memory.working += recomputed_bytes;
  }
  const RankMemory& planned_memory = plan_.stages[index].memory;
  if (!IsNear(memory.Total(), planned_memory.Total()) ||
      std::abs(memory.activations - planned_memory.activations) > 1 ||
      std::abs(memory.logits - planned_memory.logits) > 1) {
    return fmt::format("it holds {} bytes, not {}", memory.Total(),
                       planned_memory.Total());
  }
  if (plan_.stages[index].fits && memory.Total() > budget_ + 1) {
    return fmt::format("it holds {} bytes of {}", memory.Total(), budget_);
  }
  return std::nullopt;
}

std::optional<std::string> PlanChecker::ErrorOfStage(size_t index) const {
  const PlannedStage& stage = plan_.stages[index];
  std::map<bool, int64_t> counts;
  std::map<bool, double> most;
  double kept_bytes = 0;
  PassTime recomputation;
  for (const LayerShare& share : stage.shares) {
    if (const auto error = ErrorOfShare(share)) return error;
    counts[share.is_moe] += share.layers;
    most[share.is_moe] = std::max(most[share.is_moe], share.policy.bytes);
    kept_bytes += static_cast<double>(share.layers) * share.policy.bytes;
    recomputation += layers_.at(share.is_moe)
                         .CostOf(KeptNames(plan_.graphs[share.is_moe ? 1 : 0],
                                           share.policy.sets.kept_tensors))
                         .recomputation *
                     static_cast<double>(share.layers);
  }
  if (counts[false] != stage.content.dense_layers ||
      counts[true] != stage.content.moe_layers) {
    return "policies are not of as many layers as it has";
  }
  if (!IsNear(recomputation.Total(), stage.recomputation.Total())) {
    return fmt::format("it runs again for {} s, not {}", recomputation.Total(),
                       stage.recomputation.Total());
  }
  double recomputed_bytes = 0;
  for (const auto& [is_moe, bytes] : most) {
    if (bytes > 0)
      recomputed_bytes =
          std::max(recomputed_bytes, layers_.at(is_moe).whole_bytes() - bytes);
  }
  return ErrorOfMemory(index, kept_bytes, recomputed_bytes);
}

std::optional<std::string> PlanChecker::FindError() const {
  const std::vector<StageContent> stages = DivideLayers(job_);
  if (stages.size() != plan_.stages.size()) return "it has other stages";
  std::vector<PassTime> recomputation;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i] != plan_.stages[i].content) {
      return fmt::format("stage {} has other layers", i);
    }
    if (const auto error = ErrorOfStage(i)) {
      return fmt::format("stage {}: {}", i, *error);
    }
    recomputation.push_back(plan_.stages[i].recomputation);
  }
  std::vector<StageKind> each;
  for (size_t i = 0; i < stages.size(); ++i) each.push_back({stages[i], i, 1});
  const TrainingJob none = RecomputingAs(job_, Recomputation::kNone);
  const double seconds =
      CombineStepTime(none, TimesOfUnits(none), each, recomputation).Total();
  if (!IsNear(seconds, plan_.time.Total())) {
    return fmt::format("an iteration takes {} s, not {}", seconds,
                       plan_.time.Total());
  }
  if (plan_.bound > seconds * (1 + 1e-9) && plan_.Fits()) {
    return "its bound is above its time";
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> FindTrainingPlanError(const TrainingJob& job,
                                                 double budget,
                                                 const TrainingPlan& plan) {
  return PlanChecker(job, budget, plan).FindError();
}

}  // namespace acplan::costmodel
