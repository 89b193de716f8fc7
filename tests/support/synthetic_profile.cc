#include "tests/support/synthetic_profile.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/random_operators.h"

namespace acplan::test_support {

using graph::MemorySnapshot;
using graph::Module;
using graph::Profile;
using graph::TradeoffFit;

namespace {

int64_t Sum(const MemorySnapshot& s) {
  int64_t sum = 0;
  for (int c = 0; c < graph::kTotal; ++c) sum += s[c];
  return sum;
}

// The costs that one module adds to those of its children.
struct Costs {
  int64_t parameters = 0;
  int64_t saved = 0;      // activations besides the output
  int64_t output = 0;     // kept for the backward pass
  int64_t gradients = 0;  // activation gradients at its backward peak
  double ms = 0;
};

struct FitShape {
  double memory_factor;  // SAC memory by activation memory
  double slopes[2];
  double intercepts[2];
};
constexpr FitShape kBlockFit = {1.751, {0.2025, 3.1072}, {0.0016, -2.1043}};
constexpr FitShape kAttentionFit = {
    1.432, {-194.71, 1.7291}, {1.9614, -0.4708}};
constexpr FitShape kMlpFit = {1.827, {0.2442, 3.5818}, {0.0204, -2.5220}};
constexpr FitShape kModelFit = {1.772, {0.1885, 2.8610}, {-0.0063, -1.9725}};

enum class OperatorKind { kPlain, kView, kRandom, kInPlace };

class GptBuilder {
 public:
  GptBuilder(double jitter, unsigned seed)
      : jitter_(jitter), random_(seed), operator_random_(seed + 1000) {}

  Profile Build(int layers) {
    profile_.model = {.name = "synthetic_gpt",
                      .root_class = "GPT",
                      .batch = 8,
                      .seq = 1024,
                      .dtype = "fp32",
                      .optimizer = "AdamW"};
    profile_.device = {"synthetic", 1.95e13, 1.555e12};
    const size_t root = Begin("GPT");
    Operator("embedding", 25165824, 0.1155);
    Leaf("GPT.wte", {.parameters = 157535232,
                     .saved = 39714816,
                     .output = 25165824,
                     .gradients = 283613184,
                     .ms = 0.156});
    for (int i = 0; i < layers; ++i) Layer("GPT.h." + std::to_string(i));
    Operator("native_layer_norm", 25231360, 0.0324);
    Leaf("GPT.ln_f", {.parameters = 6144,
                      .saved = 65536,
                      .output = 25165824,
                      .gradients = 25171968,
                      .ms = 0.0324});
    Operator("mm", 1646821376, 32.43);
    Leaf("GPT.lm_head", {.saved = 0,
                         .output = 1646821888,
                         .gradients = 1646821888,
                         .ms = 32.45});
    End(root, 3293642752, kModelFit);
    FillTotals();
    return std::move(profile_);
  }

 private:
  struct Open {
    size_t module;
    int64_t activations_before, parameters_before;
    double ms_before;
    int operators_before;
  };

  double Factor(std::mt19937& random) {
    const double unit = std::uniform_real_distribution<double>(-1, 1)(random);
    return 1 + jitter_ * unit;
  }
  double Factor() { return Factor(random_); }
  int64_t Jittered(int64_t bytes) {
    return std::llround(static_cast<double>(bytes) * Factor());
  }

  size_t Begin(const std::string& fqn) {
    Module module;
    module.fqn = fqn;
    profile_.modules.push_back(std::move(module));
    profile_.order.fw_pre.push_back(fqn);
    open_.push_back({profile_.modules.size() - 1, activations_, parameters_,
                     ms_, static_cast<int>(operators_.func_names.size())});
    return profile_.modules.size() - 1;
  }

  void Close(size_t index, int64_t gradients) {
    const Open open = open_.back();
    open_.pop_back();
    Module& module = profile_.modules[index];
    module.output_per_module = last_output_;
    module.act_total = activations_;
    module.act_fw_per_module =
        activations_ - open.activations_before - last_output_;
    module.act_bw_per_module = activations_ - last_output_;
    module.act_grad_per_module = gradients;
    module.param_per_module = parameters_ - open.parameters_before;
    module.grad_per_module = module.param_per_module;
    module.grad_total = parameters_;  // for now: those before and its own
    module.fw_runtime_per_module = ms_ - open.ms_before;
    module.bw_runtime_per_module = 2 * module.fw_runtime_per_module;
    profile_.order.fw_post.push_back(module.fqn);
  }

  void Leaf(const std::string& fqn, const Costs& costs) {
    const size_t index = Begin(fqn);
    profile_.modules[index].is_leaf = true;
    profile_.modules[index].input_per_module = last_output_;
    const bool in_layer = open_.size() > 2;
    const auto jittered = [&](int64_t bytes) {
      return in_layer ? Jittered(bytes) : bytes;
    };
    last_output_ = jittered(costs.output);
    activations_ += jittered(costs.saved) + last_output_;
    parameters_ += jittered(costs.parameters);
    ms_ += in_layer ? costs.ms * Factor() : costs.ms;
    Close(index, jittered(costs.gradients));
  }

  // Adds an operator to all modules that are open.
  void Operator(const std::string& name, int64_t bytes, double ms,
                OperatorKind kind = OperatorKind::kPlain) {
    const bool in_layer = open_.size() > 1;
    const double more_bytes = in_layer ? Factor(operator_random_) : 1;
    const double more_ms = in_layer ? Factor(operator_random_) : 1;
    const int k = static_cast<int>(operators_.func_names.size());
    operators_.func_names.push_back(name);
    operators_.memory.push_back(
        std::llround(static_cast<double>(bytes) * more_bytes));
    operators_.runtimes.push_back(ms * more_ms);
    switch (kind) {
      case OperatorKind::kView:
        operators_.view_like_ops.push_back(k);
        break;
      case OperatorKind::kRandom:
        operators_.rand_ops.push_back(k);
        break;
      case OperatorKind::kInPlace:
        operators_.inplace_ops.emplace_back(k, k - 1);
        break;
      case OperatorKind::kPlain:
        break;
    }
  }
  void View(const std::string& name) {
    Operator(name, 0, 0, OperatorKind::kView);
  }

  graph::SacStatistics OperatorsFrom(int first) const {
    graph::SacStatistics sac;
    const auto& all = operators_;
    sac.func_names.assign(all.func_names.begin() + first, all.func_names.end());
    sac.memory.assign(all.memory.begin() + first, all.memory.end());
    sac.runtimes.assign(all.runtimes.begin() + first, all.runtimes.end());
    const auto append_from = [&](const std::vector<int>& ops,
                                 std::vector<int>& to) {
      for (auto k = std::ranges::lower_bound(ops, first); k != ops.end(); ++k) {
        to.push_back(*k - first);
      }
    };
    append_from(all.view_like_ops, sac.view_like_ops);
    append_from(all.rand_ops, sac.rand_ops);
    for (auto pair =
             std::ranges::lower_bound(all.inplace_ops, std::pair(first, first));
         pair != all.inplace_ops.end(); ++pair) {
      sac.inplace_ops.emplace_back(pair->first - first, pair->second - first);
    }
    return sac;
  }

  void End(size_t index, int64_t gradients, const FitShape& shape) {
    const bool in_layer = open_.size() > 1;
    profile_.modules[index].sac = OperatorsFrom(open_.back().operators_before);
    Close(index, in_layer ? Jittered(gradients) : gradients);
    Module& module = profile_.modules[index];
    TradeoffFit fit;
    fit.sac_runtime = module.fw_runtime_per_module;
    fit.sac_memory = std::llround(
        static_cast<double>(module.act_fw_per_module) * shape.memory_factor);
    fit.n_segments = 2;
    for (int s = 0; s < 2; ++s) {
      const double factor = in_layer ? Factor() : 1;
      fit.slopes.emplace_back(shape.slopes[s] * factor);
      fit.intercepts.emplace_back(shape.intercepts[s] * factor);
    }
    const double meet = (*fit.intercepts[0] - *fit.intercepts[1]) /
                        (*fit.slopes[1] - *fit.slopes[0]);
    fit.breakpoints = {0.01, meet, 1.0};
    module.torch_fit = std::move(fit);
  }

  void Layer(const std::string& name) {
    constexpr int64_t kHidden = 25165824;
    const auto norm = [&](const std::string& fqn) {
      Leaf(fqn, {.parameters = 6144,
                 .saved = 65536,
                 .output = kHidden,
                 .gradients = 25171968,
                 .ms = 0.0324});
    };
    const auto dropout = [&](const std::string& fqn) {
      Leaf(fqn, {.saved = 6291456, .gradients = kHidden, .ms = 0.0364});
    };
    const auto norm_operator = [&] {
      Operator("native_layer_norm", kHidden + 65536, 0.0324);
    };
    const size_t block = Begin(name);
    norm_operator();
    norm(name + ".ln_1");
    const size_t attention = Begin(name + ".attn");
    View("view");
    Operator("addmm", 3 * kHidden, 1.4867);
    View("split");
    View("transpose");
    Operator("zeros_like", 33554432, 0);
    Operator("masked_fill_", 33554432, 0.0486, OperatorKind::kInPlace);
    Operator("logical_not", 8388608, 0.0108);
    Operator("_scaled_dot_product_efficient_attention", 25560064, 1.3215);
    View("transpose");
    Operator("clone", kHidden, 0.0324);
    Operator("addmm", kHidden, 0.4956);
    View("view");
    Leaf(name + ".attn.c_attn", {.parameters = 7087104,
                                 .output = 3 * kHidden,
                                 .gradients = 32252928,
                                 .ms = 1.4867});
    Leaf(name + ".attn.attn_dropout",
         {.saved = 59114496, .gradients = 3 * kHidden, .ms = 1.381});
    Leaf(name + ".attn.c_proj", {.parameters = 2362368,
                                 .output = kHidden,
                                 .gradients = 27528192,
                                 .ms = 0.4956});
    dropout(name + ".attn.resid_dropout");
    End(attention, 100663296, kAttentionFit);
    Operator("add", kHidden, 0.0486);
    norm_operator();
    norm(name + ".ln_2");
    const size_t mlp = Begin(name + ".mlp");
    View("view");
    Operator("addmm", 4 * kHidden, 1.9823);
    View("view");
    for (const char* pointwise : {"mul", "pow", "mul", "tanh", "add", "mul"}) {
      Operator(pointwise, 4 * kHidden, 0.1295);
    }
    for (const char* pointwise : {"add", "mul"}) {
      Operator(pointwise, 4 * kHidden, 0.1942);
    }
    Operator("addmm", kHidden, 1.9823);
    View("view");
    Operator("native_dropout", 31457280, 0.0364, OperatorKind::kRandom);
    Leaf(name + ".mlp.c_fc", {.parameters = 9449472,
                              .output = 4 * kHidden,
                              .gradients = 34615296,
                              .ms = 1.9823});
    Leaf(name + ".mlp.act", {.saved = 301989888,
                             .output = 4 * kHidden,
                             .gradients = 201326592,
                             .ms = 1.1652});
    Leaf(name + ".mlp.c_proj", {.parameters = 9440256,
                                .output = kHidden,
                                .gradients = 110103552,
                                .ms = 1.9823});
    dropout(name + ".mlp.dropout");
    End(mlp, 301989888, kMlpFit);
    Operator("add", 0, 0.0486);
    last_output_ = kHidden;
    End(block, 301989888, kBlockFit);
  }

  void FillTotals() {
    const int64_t states = 2 * parameters_;
    constexpr int64_t kInputs = 131072;
    const auto snapshot = [&](int64_t gradients, int64_t activations,
                              int64_t temporary) {
      MemorySnapshot s = {parameters_, 0,      gradients, activations,
                          temporary,   states, kInputs,   0};
      s[graph::kTotal] = Sum(s);
      return s;
    };
    int64_t peak = 0;
    for (Module& module : profile_.modules) {
      module.grad_total = parameters_ - module.grad_total;
      graph::ModuleSnapshots snap;
      snap.pre_fw =
          snapshot(0, module.act_bw_per_module - module.act_fw_per_module, 0);
      snap.post_fw = snap.peak_fw = snapshot(0, module.act_total, 0);
      snap.pre_bw = snapshot(module.grad_total, module.act_total,
                             module.input_per_module);
      snap.peak_bw = snapshot(module.grad_total, module.act_bw_per_module,
                              module.act_grad_per_module);
      snap.post_bw =
          snapshot(module.grad_total + module.grad_per_module,
                   module.act_bw_per_module - module.act_fw_per_module, 0);
      peak = std::max({peak, (*snap.peak_fw)[graph::kTotal],
                       (*snap.peak_bw)[graph::kTotal]});
      module.snap = std::move(snap);
    }
    auto& order = profile_.order;
    order.bw_pre.assign(order.fw_post.rbegin(), order.fw_post.rend());
    order.bw_post.assign(order.fw_pre.rbegin(), order.fw_pre.rend());
    const MemorySnapshot step = snapshot(parameters_, 512, 0);
    profile_.measured = {.peak_bytes = peak,
                         .opt_step_peak_bytes = step[graph::kTotal],
                         .opt_step_peak_categories = step,
                         .param_bytes = parameters_,
                         .grad_bytes = parameters_,
                         .optimizer_bytes = states,
                         .buffer_bytes = 0,
                         .input_bytes = kInputs};
  }

  double jitter_;
  std::mt19937 random_;
  std::mt19937 operator_random_;
  Profile profile_;
  graph::SacStatistics operators_;
  std::vector<Open> open_;
  int64_t activations_ = 0;
  int64_t parameters_ = 0;
  int64_t last_output_ = 65536;
  double ms_ = 0;
};

class RandomBuilder {
 public:
  RandomBuilder(unsigned seed, const RandomProfileOptions& options)
      : random_(seed), options_(options) {}

  Profile Build() {
    magnitude_ =
        std::pow(10.0, Uniform(options_.for_literal_form ? 9 : 1.5, 10));
    has_held_bytes_ = Chance(options_.held_bytes);
    has_statistics_ = Chance(options_.statistics);
    const int modules = Int(1, options_.most_modules);
    const bool several_roots =
        !options_.for_literal_form && Chance(options_.several_roots);
    for (int root = 0; Count() < modules; ++root) {
      AddSubtree("m" + std::to_string(root),
                 several_roots ? Int(1, modules - Count()) : modules);
    }
    FillTotals(Chance(options_.snapshots));
    if (!options_.for_literal_form && Chance(options_.unmatched_post_order)) {
      std::vector<std::string>& order = profile_.order.fw_post;
      if (!order.empty()) {
        std::swap(order[Int(0, static_cast<int>(order.size()) - 1)],
                  order[Int(0, static_cast<int>(order.size()) - 1)]);
      }
    }
    return std::move(profile_);
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
  int64_t Bytes() {
    return options_.for_literal_form || Chance(0.9)
               ? std::llround(Uniform(0, magnitude_))
               : std::llround(std::pow(10.0, Uniform(1, 10)));
  }
  int Count() const { return static_cast<int>(profile_.modules.size()); }

  void AddSubtree(const std::string& fqn, int modules) {
    const int index = AddModule(fqn, modules == 1);
    int remaining_modules = modules - 1;
    for (int child = 0; remaining_modules > 0; ++child) {
      const int size = Chance(0.4) ? 1 : Int(1, remaining_modules);
      const int begin = Count();
      const std::string name = fqn + "." + std::to_string(child);
      AddSubtree(name, size);
      remaining_modules -= size;
      while (remaining_modules >= size && Chance(options_.identical_blocks)) {
        ++child;
        Repeat(begin, size, name.size(), fqn + "." + std::to_string(child));
        remaining_modules -= size;
      }
    }
    if (profile_.modules[index].calls > 0) {
      profile_.order.fw_post.push_back(fqn);
    }
  }

  // Adds a copy of the subtree of `size` modules that begins at `begin`.
  void Repeat(int begin, int size, size_t prefix, const std::string& name) {
    const auto renamed = [&](const std::string& fqn) {
      return name + fqn.substr(prefix);
    };
    auto& order = profile_.order;
    std::vector<std::string> post;
    for (int i = begin; i < begin + size; ++i) {
      Module copy = profile_.modules[i];
      copy.fqn = renamed(copy.fqn);
      if (copy.calls > 0) order.fw_pre.push_back(copy.fqn);
      profile_.modules.push_back(std::move(copy));
    }
    const std::string original = profile_.modules[begin].fqn;
    for (const std::string& fqn : order.fw_post) {
      if (fqn.starts_with(original) &&
          (fqn.size() == prefix || fqn[prefix] == '.')) {
        post.push_back(renamed(fqn));
      }
    }
    order.fw_post.insert(order.fw_post.end(), post.begin(), post.end());
  }

  int AddModule(const std::string& fqn, bool is_leaf) {
    Module module;
    module.fqn = fqn;
    module.is_leaf = is_leaf;
    module.param_per_module = Bytes() / 10;
    module.grad_per_module = module.param_per_module;
    module.act_fw_per_module = Chance(0.1) ? 0 : Bytes();
    module.fw_runtime_per_module = Uniform(0, 5);
    module.bw_runtime_per_module = Uniform(0, 10);
    module.act_grad_per_module = Bytes() / 3;
    if (!options_.for_literal_form) {
      if (Chance(0.1)) module.act_grad_per_module *= -1;
      if (Chance(options_.never_called)) module.calls = 0;
    }
    if (!is_leaf) {
      if (Chance(options_.for_literal_form ? 1 : 0.95)) {
        module.torch_fit = RandomFit(module.act_fw_per_module);
      }
      if (has_held_bytes_ && Chance(0.5)) {
        module.held_per_module = std::llround(
            Uniform(0, 0.4) * static_cast<double>(module.act_fw_per_module));
        if (Chance(0.1)) module.held_per_module = 2 * module.act_fw_per_module;
      }
      if (options_.most_operators > 0) {
        if (Chance(0.9)) module.sac = Operators(module.act_fw_per_module);
      } else if (has_statistics_) {
        module.sac = Statistics(module.act_fw_per_module);
      }
    }
    if (module.calls > 0) profile_.order.fw_pre.push_back(fqn);
    profile_.modules.push_back(std::move(module));
    return Count() - 1;
  }

  TradeoffFit RandomFit(int64_t internal) {
    const auto internal_bytes = static_cast<double>(internal);
    TradeoffFit fit;
    fit.sac_runtime =
        Chance(0.05) ? 0 : Uniform(0.1, options_.for_literal_form ? 5 : 20);
    double factor = Uniform(1, 3);
    if (Chance(0.2)) factor = 1;
    if (!options_.for_literal_form && Chance(options_.below_internal)) {
      factor = Uniform(0, 1);
    }
    fit.sac_memory = std::llround(factor * internal_bytes);
    if (!options_.for_literal_form && Chance(options_.unusable_fit)) {
      fit.n_segments = Int(0, 1);
      if (fit.n_segments == 1) {
        fit.slopes = {std::nullopt};
        fit.intercepts = {Uniform(0, 1)};
        fit.breakpoints = {0.0, std::nullopt};
      }
      return fit;
    }
    fit.n_segments = Int(1, 4);
    const bool convex = options_.for_literal_form || Chance(0.7);
    double slope = convex ? Uniform(0, 0.5) : Uniform(-2, 2);
    if (!options_.for_literal_form && Chance(0.1)) slope = Uniform(-200, 0);
    double at = Uniform(-0.2, 0.2);  // of the segment, where it begins
    double begin = 0;
    for (int s = 0; s < fit.n_segments; ++s) {
      fit.slopes.emplace_back(slope);
      fit.intercepts.emplace_back(at - slope * begin);
      fit.breakpoints.emplace_back(begin);
      const double end = Uniform(begin, 1);
      at += slope * (end - begin);
      begin = end;
      slope = convex ? slope + Uniform(0, 2) : Uniform(-2, 3);
    }
    fit.breakpoints.emplace_back(1.0);
    return fit;
  }

  graph::SacStatistics Statistics(int64_t internal) {
    graph::SacStatistics sac;
    const int n = Int(1, 6);
    for (int k = 0; k < n; ++k) {
      sac.func_names.push_back("op" + std::to_string(k));
      sac.runtimes.push_back(Uniform(0, 2));
      sac.memory.push_back(
          std::llround(Uniform(0, 1.5) * static_cast<double>(internal) / n));
      if (Chance(0.15)) sac.view_like_ops.push_back(k);
      if (Chance(0.2)) sac.rand_ops.push_back(k);
      if (Chance(0.15)) sac.inplace_ops.emplace_back(k, Int(0, k));
    }
    sac.force_store_random = Chance(0.3);
    return sac;
  }

  // Returns operators with up to twice as many bytes as autograd keeps, and at
  // least half of them.
  graph::SacStatistics Operators(int64_t internal) {
    graph::SacStatistics sac =
        RandomOperators(random_, {.most_ops = options_.most_operators,
                                  .view_like = 0.08,
                                  .random = 0.1,
                                  .in_place = 0.1,
                                  .in_place_on_itself = 0.1});
    const double sum =
        std::accumulate(sac.memory.begin(), sac.memory.end(), 1.0);
    const double scale = Uniform(0.5, 2) * static_cast<double>(internal) / sum;
    for (int64_t& bytes : sac.memory) {
      bytes = std::llround(scale * static_cast<double>(bytes));
    }
    return sac;
  }

  void FillTotals(bool with_snapshots) {
    const bool consistent = options_.for_literal_form || Chance(0.6);
    std::vector<Module*> by_time;
    for (const std::string& fqn : profile_.order.fw_post) {
      for (Module& module : profile_.modules) {
        if (module.fqn == fqn) by_time.push_back(&module);
      }
    }
    int64_t activations = 0;
    int64_t parameters = 0;
    for (Module* module : by_time) {
      activations += module->act_fw_per_module + Bytes() / 4;
      parameters += module->param_per_module;
      module->act_total = consistent ? activations : Bytes();
      module->grad_total = parameters;
    }
    for (Module* module : by_time) {
      module->grad_total = parameters - module->grad_total;
    }
    profile_.order.bw_pre.assign(profile_.order.fw_post.rbegin(),
                                 profile_.order.fw_post.rend());
    profile_.order.bw_post.assign(profile_.order.fw_pre.rbegin(),
                                  profile_.order.fw_pre.rend());
    profile_.model.name = "random";
    if (!with_snapshots) return;
    const int64_t states = 2 * parameters;
    const auto snapshot = [&](int64_t gradients, int64_t act, int64_t temp) {
      MemorySnapshot s = {parameters, Bytes() / 50, gradients,    act,
                          temp,       states,       Bytes() / 50, 0};
      s[graph::kTotal] = Sum(s);
      return s;
    };
    for (Module* module : by_time) {
      const int64_t temporary =
          std::max<int64_t>(module->act_grad_per_module, 0);
      graph::ModuleSnapshots snap;
      snap.peak_fw = snapshot(0, module->act_total, 0);
      if (Chance(0.9)) {
        snap.peak_bw = snapshot(
            module->grad_total,
            std::max<int64_t>(module->act_total - Bytes() / 8, 0), temporary);
      }
      module->snap = std::move(snap);
    }
    if (Chance(0.5)) {
      const MemorySnapshot step = snapshot(parameters, 0, 0);
      profile_.measured.opt_step_peak_categories = step;
      profile_.measured.opt_step_peak_bytes = step[graph::kTotal];
    }
  }

  std::mt19937 random_;
  const RandomProfileOptions& options_;
  Profile profile_;
  double magnitude_ = 1;
  bool has_held_bytes_ = false;
  bool has_statistics_ = false;
};

}  // namespace

Profile SyntheticGpt(int layers, double jitter, unsigned seed) {
  return GptBuilder(jitter, seed).Build(layers);
}

Profile RandomProfile(unsigned seed, const RandomProfileOptions& options) {
  return RandomBuilder(seed, options).Build();
}

}  // namespace acplan::test_support
