#include "tests/problems/abstract_problem.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace acplan::problems {

namespace {

class Builder {
 public:
  Builder(std::mt19937& random, const AbstractProblemOptions& options)
      : random_(random), options_(options) {}

  ModuleProblem Build() {
    whole_ = Chance(0.5);
    holds_ = Chance(options_.held_bytes);
    for (int kind = 0; kind < 3; ++kind) kinds_.push_back(RandomCurve());
    const int nodes = Int(1, options_.most_nodes);
    while (Count() < nodes) AddSubtree(Int(1, nodes - Count()));
    if (!options_.prefix_structure) Shuffle();
    problem_.prefix_structure = options_.prefix_structure;
    if (Chance(options_.limited_units)) problem_.max_units = Int(0, 4);
    double most = 0;
    for (const ModuleProblem::Node& node : problem_.nodes) {
      if (node.time >= 0) most = std::max(most, node.base_bytes);
    }
    problem_.budget_bytes = Round(most * Uniform(0.2, 1.02));
    if (Chance(0.2)) problem_.fixed_bytes = most * Uniform(0, 0.6);
    return std::move(problem_);
  }

 private:
  int Int(int least, int most) {
    return std::uniform_int_distribution<int>(least,
                                              std::max(least, most))(random_);
  }
  double Uniform(double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random_);
  }
  bool Chance(double probability) { return Uniform(0, 1) < probability; }
  double Round(double bytes) const {
    return whole_ ? std::round(bytes) : bytes;
  }
  int Count() const { return static_cast<int>(problem_.nodes.size()); }

  std::vector<Knot> RandomCurve() {
    std::vector<Knot> curve = {{Chance(0.5) ? 0 : Round(Uniform(0, 20)),
                                Chance(0.5) ? 0 : Uniform(0, 2)}};
    double slope = Uniform(0.001, 0.05);
    for (int k = Int(curve[0].bytes > 0 ? 0 : 1, 4); k > 0; --k) {
      const Knot& last = curve.back();
      const double length = std::max(1.0, Round(Uniform(1, 60)));
      curve.push_back({last.bytes + length, last.ms + slope * length});
      slope += Uniform(0.001, 0.1);
    }
    return curve;
  }

  void AddSubtree(int size) {
    const int index = Count();
    problem_.nodes.emplace_back();
    problem_.nodes[index].subtree_size = size;
    for (int left = size - 1; left > 0;) {
      const int child = Int(1, left);
      AddSubtree(child);
      left -= child;
    }
    ModuleProblem::Node& node = problem_.nodes[index];
    if (Chance(0.1)) return;
    node.time = time_++;
    node.base_bytes = Round(Uniform(0, 60) + 12 * time_);
    if (!Chance(size > 1 ? 0.85 : 0.4)) return;
    node.curve = Chance(0.5) ? kinds_[Int(0, 2)] : RandomCurve();
    if (holds_ && Chance(0.5)) node.held_bytes = Round(Uniform(0, 15));
  }

  void Shuffle() {
    std::vector<int> times;
    for (const auto& node : problem_.nodes) {
      if (node.time >= 0) times.push_back(node.time);
    }
    std::ranges::shuffle(times, random_);
    for (auto& node : problem_.nodes) {
      if (node.time < 0) continue;
      node.time = times.back();
      times.pop_back();
    }
  }

  std::mt19937& random_;
  const AbstractProblemOptions& options_;
  ModuleProblem problem_;
  std::vector<std::vector<Knot>> kinds_;
  int time_ = 0;
  bool whole_ = false;
  bool holds_ = false;
};

}  // namespace

ModuleProblem RandomModuleProblem(std::mt19937& random,
                                  const AbstractProblemOptions& options) {
  return Builder(random, options).Build();
}

}  // namespace acplan::problems
