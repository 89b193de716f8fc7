#include "costmodel/training/confidence/run_kind.h"

#include <algorithm>
#include <cmath>

namespace acplan::costmodel {
namespace {

// The change of a size, as a power of 2, that counts as a distance of 1.
constexpr std::array<double, kRunSizes> kUnits = {4, 3, 4, 2, 2, 2, 2, 4, 2};

constexpr double kOtherGpu = .5;  // of the same generation
constexpr double kOtherGeneration = 1;
constexpr double kOtherSoftware = 1;
constexpr double kOtherWidth = 1;
constexpr double kOtherExperts = 2;
constexpr double kOtherTraining = 2;
constexpr double kOtherRecomputation = .5;

// The sizes before this one do not depend on the strategy.
constexpr size_t kFirstDegree = static_cast<size_t>(RunSize::kTensor);

double Square(double value) { return value * value; }

double SquaredSizes(const RunKind& a, const RunKind& b, size_t begin,
                    size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) {
    sum += Square((a.sizes[i] - b.sizes[i]) / kUnits[i]);
  }
  return sum;
}

double Logarithm(double value) { return std::log2(std::max(1.0, value)); }
double Logarithm(int64_t value) {
  return Logarithm(static_cast<double>(value));
}

ProductWidth WidthOf(ProductPrecision precision) {
  if (precision == ProductPrecision::kBf16) return ProductWidth::kSixteenBits;
  return precision == ProductPrecision::kNvfp4 ? ProductWidth::kFourBits
                                               : ProductWidth::kEightBits;
}

RecomputedPart RecomputedPartOf(const TrainingStrategy& strategy) {
  switch (strategy.recomputation) {
    case Recomputation::kNone:
      return RecomputedPart::kNone;
    case Recomputation::kFull:
      return RecomputedPart::kAll;
    default:
      return RecomputedPart::kSome;
  }
}

}  // namespace

RunKind KindOfJob(const TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  const std::string& gpu = job.cluster.gpu.name;
  RunKind kind{.gpu = gpu.substr(0, gpu.find('-')),
               .software = job.cluster.stack.name,
               .width = WidthOf(s.precision),
               .has_experts = job.shape.IsMoe(),
               .recomputed = RecomputedPartOf(s),
               .trains_adapters = s.lora_rank > 0,
               .reads_images = s.images > 0 || s.source > 0,
               .offloads_states = s.offloads_states};
  kind.sizes = {Logarithm(CountActiveMatrixParameters(job.shape)),
                Logarithm(s.sequence),
                Logarithm(s.gpus),
                Logarithm(s.tensor),
                Logarithm(s.pipeline),
                Logarithm(s.context),
                Logarithm(s.expert),
                Logarithm(s.fsdp),
                Logarithm(s.microbatch)};
  kind.is_wide = s.tensor * s.context > job.cluster.domain;
  return kind;
}

RunKind KindOfRun(const TrainingJob& job, const StepTime& time) {
  RunKind kind = KindOfJob(job);
  const double total = time.Total();
  kind.host = time.host / total;
  kind.communication = (time.communication + time.data) / total;
  kind.bubble = time.bubble / total;
  return kind;
}

std::string_view GenerationOf(std::string_view gpu) {
  const size_t digit = gpu.find_first_of("0123456789");
  const std::string_view letters = gpu.substr(0, digit);
  // Grace's GPUs are those of the generation after the G.
  return letters.size() == 2 && letters[0] == 'G' ? letters.substr(1) : letters;
}

double SquaredJobDistance(const RunKind& a, const RunKind& b) {
  double sum = SquaredSizes(a, b, 0, kFirstDegree);
  if (a.gpu != b.gpu) {
    sum +=
        Square(GenerationOf(a.gpu) == GenerationOf(b.gpu) ? kOtherGpu
                                                          : kOtherGeneration);
  }
  if (a.software != b.software) sum += Square(kOtherSoftware);
  if (a.width != b.width) sum += Square(kOtherWidth);
  if (a.trains_adapters != b.trains_adapters) sum += Square(kOtherTraining);
  if (a.reads_images != b.reads_images) sum += Square(kOtherTraining);
  if (a.has_experts != b.has_experts) sum += Square(kOtherExperts);
  return sum;
}

double SquaredStrategyDistance(const RunKind& a, const RunKind& b) {
  const double recomputed =
      static_cast<double>(a.recomputed) - static_cast<double>(b.recomputed);
  const double states =
      a.offloads_states != b.offloads_states ? kOtherTraining : 0;
  return SquaredSizes(a, b, kFirstDegree, kRunSizes) +
         Square(kOtherRecomputation * recomputed) + Square(states);
}

double DistanceOfKinds(const RunKind& a, const RunKind& b) {
  return std::sqrt(SquaredJobDistance(a, b) + SquaredStrategyDistance(a, b));
}

}  // namespace acplan::costmodel
