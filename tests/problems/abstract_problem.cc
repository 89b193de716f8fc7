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
    for (int remaining_nodes = size - 1; remaining_nodes > 0;) {
      const int child = Int(1, remaining_nodes);
      AddSubtree(child);
      remaining_nodes -= child;
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

class JointBuilder {
 public:
  JointBuilder(std::mt19937& random, const AbstractJointOptions& options)
      : random_(random), options_(options) {}

  JointProblem Build() {
    problem_.relaxed = Chance(options_.equal_blocks)
                           ? EqualBlocks()
                           : RandomModuleProblem(random_, options_.forest);
    for (int k = 0; k < 3; ++k) problem_.policies.push_back(RandomPolicies());
    std::vector<ModuleProblem::Node>& nodes = problem_.relaxed.nodes;
    problem_.policies_of.assign(nodes.size(), -1);
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].curve.empty()) continue;
      const bool is_copy = block_nodes_ > 0 && i >= block_nodes_;
      problem_.policies_of[i] =
          is_copy ? problem_.policies_of[i - block_nodes_] : SomePolicies();
      const int policies = problem_.policies_of[i];
      nodes[i].curve = policies < 0 ? std::vector<Knot>()
                                    : Hull(problem_.policies[policies]);
      if (nodes[i].curve.empty()) problem_.policies_of[i] = -1;
    }
    if (Chance(0.6)) problem_.relaxed.budget_bytes = MildBudget();
    Scale(static_cast<double>(options_.bytes_scale));
    return std::move(problem_);
  }

 private:
  int Int(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }
  double Uniform(double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random_);
  }
  bool Chance(double probability) { return Uniform(0, 1) < probability; }

  ModuleProblem EqualBlocks() {
    const int copies = Int(2, 3);
    AbstractProblemOptions options = options_.forest;
    options.most_nodes = std::max(1, (options.most_nodes - 1) / copies);
    const ModuleProblem block = RandomModuleProblem(random_, options);
    ModuleProblem all = block;
    all.nodes.clear();
    int times = 0;
    for (const ModuleProblem::Node& node : block.nodes) times += node.time >= 0;
    for (int copy = 0; copy < copies; ++copy) {
      for (ModuleProblem::Node node : block.nodes) {
        if (node.time >= 0) node.time += copy * times;
        all.nodes.push_back(std::move(node));
      }
    }
    all.nodes.push_back({.time = copies * times,
                         .base_bytes = std::round(Uniform(60, 300)),
                         .curve = {}});
    all.budget_bytes =
        std::round(all.nodes.back().base_bytes - Uniform(1, 150));
    all.fixed_bytes = 0;
    block_nodes_ = block.nodes.size();
    return all;
  }

  double MildBudget() {
    double most = 0;
    for (const ModuleProblem::Node& node : problem_.relaxed.nodes) {
      if (node.time >= 0) most = std::max(most, node.base_bytes);
    }
    problem_.relaxed.fixed_bytes = 0;
    return std::round(most - Uniform(0, 100));
  }

  int SomePolicies() {
    if (Chance(0.6)) return Int(0, 2);
    problem_.policies.push_back(RandomPolicies());
    return static_cast<int>(problem_.policies.size()) - 1;
  }

  JointProblem::Policies RandomPolicies() {
    JointProblem::Policies policies;
    policies.base_bytes = Chance(0.5) ? Int(-30, 0) : Int(0, 40);
    policies.base_ms = Chance(0.5) ? 0 : Uniform(0, 2);
    for (int k = Int(0, options_.most_kinds); k > 0; --k) {
      policies.kinds.push_back({.bytes = Int(1, 80),
                                .ms = Chance(0.15) ? 0 : Uniform(0.01, 4),
                                .count = Int(1, options_.most_equal)});
    }
    std::ranges::sort(policies.kinds, [](const auto& a, const auto& b) {
      return static_cast<double>(a.bytes) * b.ms >
             static_cast<double>(b.bytes) * a.ms;
    });
    const auto same = [](const GroupKind& a, const GroupKind& b) {
      return a.bytes == b.bytes && a.ms == b.ms;
    };
    policies.kinds.erase(
        std::unique(policies.kinds.begin(), policies.kinds.end(), same),
        policies.kinds.end());
    return policies;
  }

  static std::vector<Knot> Hull(const JointProblem::Policies& policies) {
    std::vector<Knot> curve = {
        {static_cast<double>(policies.base_bytes), policies.base_ms}};
    for (const GroupKind& kind : policies.kinds) {
      const Knot last = curve.back();
      const Knot next = {
          last.bytes + static_cast<double>(kind.bytes * kind.count),
          last.ms + kind.ms * kind.count};
      if (last.bytes < 0) curve.clear();
      if (last.bytes < 0 && next.bytes > 0) {
        const double share = -last.bytes / (next.bytes - last.bytes);
        curve.push_back({0, last.ms + share * (next.ms - last.ms)});
      }
      curve.push_back(next);
    }
    if (curve.back().bytes <= 0) curve.clear();
    return curve;
  }

  void Scale(double scale) {
    if (scale == 1) return;
    ModuleProblem& relaxed = problem_.relaxed;
    for (ModuleProblem::Node& node : relaxed.nodes) {
      node.base_bytes *= scale;
      node.held_bytes *= scale;
      for (Knot& knot : node.curve) knot.bytes *= scale;
    }
    relaxed.budget_bytes *= scale;
    relaxed.fixed_bytes *= scale;
    for (JointProblem::Policies& policies : problem_.policies) {
      policies.base_bytes *= options_.bytes_scale;
      for (GroupKind& kind : policies.kinds) kind.bytes *= options_.bytes_scale;
    }
  }

  std::mt19937& random_;
  const AbstractJointOptions& options_;
  JointProblem problem_;
  size_t block_nodes_ = 0;  // of the first of equal blocks; 0: there are none
};

}  // namespace

JointProblem RandomJointProblem(std::mt19937& random,
                                const AbstractJointOptions& options) {
  return JointBuilder(random, options).Build();
}

ModuleProblem RandomModuleProblem(std::mt19937& random,
                                  const AbstractProblemOptions& options) {
  return Builder(random, options).Build();
}

}  // namespace acplan::problems
