#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "costmodel/training/strategy/training_job.h"
#include "costmodel/training/time/step_time.h"

namespace acplan::costmodel {

// The width of the numbers that products multiply.
enum class ProductWidth { kSixteenBits, kEightBits, kFourBits };

// The quantities of a run whose ratios say how similar two runs are.
enum class RunSize {
  kParameters,  // those that a token passes
  kSequence,
  kGpus,
  kTensor,
  kPipeline,
  kContext,
  kExpert,
  kSharded,  // the ranks that share parameters; 1 for none
  kMicrobatch,
  kCount,
};
constexpr size_t kRunSizes = static_cast<size_t>(RunSize::kCount);

// The parts of a layer that run again, coarsely.
enum class RecomputedPart { kNone, kSome, kAll };

// The kind of a training run: that on which the error of its prediction depends.
struct RunKind {
  std::string gpu = {};       // without its variant: "H100"
  std::string software = {};  // the name of the generation
  ProductWidth width = ProductWidth::kSixteenBits;
  bool has_experts = false;
  RecomputedPart recomputed = RecomputedPart::kNone;
  std::array<double, kRunSizes> sizes = {};  // logarithms to the base of 2
  // The shares of the predicted time.
  double host = 0;
  double communication = 0;  // exposed, with that of gradients and parameters
  double bubble = 0;
  // LoRA, or images for a tower; no measured run has either.
  bool trains_adapters = false;
  bool reads_images = false;
  bool offloads_states = false;
  // True if the ranks of tensor and context parallelism are on several NVLink domains.
  bool is_wide = false;

  double Size(RunSize size) const { return sizes[static_cast<size_t>(size)]; }
};

// Returns the kind of a job that is predicted to take `time`. The microbatch must be set.
RunKind KindOfRun(const TrainingJob& job, const StepTime& time);

// Returns the same without the shares of time.
RunKind KindOfJob(const TrainingJob& job);

// Returns the letters that GPUs of one generation have in common: "H" of H100, H200 and
// H20, "B" of B200 and GB200, "MI" of MI300X.
std::string_view GenerationOf(std::string_view gpu);

// Returns the part of the square of a distance that does not depend on the strategy: GPU,
// software, precision, experts, parameters, sequence, number of GPUs.
double SquaredJobDistance(const RunKind& a, const RunKind& b);
// Returns the other part: the degrees, the microbatch, recomputation.
double SquaredStrategyDistance(const RunKind& a, const RunKind& b);

// Returns how different two kinds are: 0 for the same settings. A factor of four in a degree,
// of eight in the sequence, of 16 in GPUs or parameters, another generation of GPUs or of
// software, and another precision count 1 each; distances add like sides of a rectangle.
double DistanceOfKinds(const RunKind& a, const RunKind& b);

}  // namespace acplan::costmodel
