#include "tests/graph/random_profile.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace acplan::graph {
namespace {

class Source {
 public:
  explicit Source(std::mt19937& random) : random_(random) {}
  int Below(int n) {
    return static_cast<int>(random_() % static_cast<unsigned>(n));
  }
  bool OneIn(int n) { return Below(n) == 0; }
  int64_t Bytes() {
    const uint64_t bits = (uint64_t{random_()} << 32 | random_()) >> 11;
    return static_cast<int64_t>(bits >> (11 + Below(30)));
  }
  double Number() {
    switch (Below(6)) {
      case 0:
        return 0;
      case 1:
        return std::numeric_limits<double>::denorm_min();
      case 2:
        return 1e18;
      default:
        return static_cast<double>(Bytes()) / 3e7;
    }
  }
  double SignedNumber() { return OneIn(2) ? Number() : -Number(); }
  std::string Text() {
    const std::vector<std::string> parts = {"a",  "Ω", "\"", "\\",
                                            "\n", "/", "😀"};
    std::string text;
    for (int i = Below(4); i > 0; --i)
      text += parts[Below(static_cast<int>(parts.size()))];
    return text;
  }
  MemorySnapshot Snapshot() {
    MemorySnapshot snapshot;
    std::ranges::generate(snapshot, [&] { return Bytes(); });
    return snapshot;
  }
  template <typename Make>
  auto Maybe(Make make) -> std::optional<decltype(make())> {
    if (OneIn(3)) return std::nullopt;
    return make();
  }
  std::mt19937& engine() { return random_; }

 private:
  std::mt19937& random_;
};

std::vector<int> RandomSubset(Source& source, int n) {
  std::vector<int> subset;
  for (int i = 0; i < n; ++i)
    if (source.OneIn(4)) subset.push_back(i);
  std::ranges::shuffle(subset, source.engine());
  return subset;
}

SacStatistics RandomSac(Source& source) {
  SacStatistics sac;
  const int n = source.Below(6);
  for (int i = 0; i < n; ++i) {
    sac.func_names.push_back(source.Text());
    sac.runtimes.push_back(source.Number());
    sac.memory.push_back(source.Bytes());
    if (source.OneIn(3)) sac.inplace_ops.emplace_back(i, source.Below(i + 1));
  }
  sac.view_like_ops = RandomSubset(source, n);
  sac.rand_ops = RandomSubset(source, n);
  sac.saved_autograd_ops = RandomSubset(source, n);
  sac.force_store_random = source.OneIn(2);
  return sac;
}

TradeoffFit RandomFit(Source& source) {
  TradeoffFit fit;
  fit.sac_runtime = source.Number();
  fit.sac_memory = source.Bytes();
  fit.n_segments = source.Below(3);
  auto number = [&] {
    return source.Maybe([&] { return source.SignedNumber(); });
  };
  for (int i = 0; i < fit.n_segments; ++i) {
    fit.slopes.push_back(number());
    fit.intercepts.push_back(number());
    fit.breakpoints.push_back(number());
  }
  if (fit.n_segments > 0) fit.breakpoints.push_back(number());
  for (int i = source.Below(4); i > 0; --i)
    fit.tradeoff_curve.emplace_back(source.SignedNumber(),
                                    source.SignedNumber());
  return fit;
}

ModuleSnapshots RandomSnapshots(Source& source) {
  auto snapshot = [&] {
    return source.Maybe([&] { return source.Snapshot(); });
  };
  return {snapshot(), snapshot(), snapshot(),
          snapshot(), snapshot(), snapshot()};
}

Module RandomModule(Source& source) {
  Module m;
  m.is_leaf = source.OneIn(2);
  m.param_per_module = source.Bytes();
  m.grad_per_module = source.Bytes();
  m.grad_total = source.Bytes();
  m.act_fw_per_module = source.Bytes();
  m.act_bw_per_module = source.Bytes();
  m.act_grad_per_module = source.Bytes() - source.Bytes();
  m.act_total = source.Bytes();
  m.input_per_module = source.Bytes();
  m.output_per_module = source.Bytes();
  m.fw_runtime_per_module = source.Number();
  m.bw_runtime_per_module = source.Number();
  m.buffer_per_module = source.OneIn(2) ? 0 : source.Bytes();
  m.held_per_module = source.OneIn(2) ? 0 : source.Bytes();
  m.calls = 1 + source.Below(2);
  m.no_backward = source.OneIn(5);
  m.snap = source.Maybe([&] { return RandomSnapshots(source); });
  m.sac = source.Maybe([&] { return RandomSac(source); });
  m.torch_fit = source.Maybe([&] { return RandomFit(source); });
  return m;
}

struct TreeShape {
  std::vector<std::string> fqns;
  std::vector<std::vector<int>> children;
  std::vector<int> roots;
};

TreeShape RandomTree(Source& source, int n) {
  TreeShape shape;
  shape.children.resize(n);
  for (int i = 0; i < n; ++i) {
    const std::string name =
        (source.OneIn(4) ? "list." : "") + std::to_string(i);
    if (i == 0 || source.OneIn(n)) {
      shape.roots.push_back(i);
      shape.fqns.push_back(name);
    } else {
      const int parent = std::max(source.Below(i), source.Below(i));
      shape.children[parent].push_back(i);
      shape.fqns.push_back(shape.fqns[parent] + "." + name);
    }
  }
  std::ranges::shuffle(shape.roots, source.engine());
  for (std::vector<int>& children : shape.children)
    std::ranges::shuffle(children, source.engine());
  return shape;
}

void Walk(const TreeShape& shape, const std::vector<bool>& is_called, int node,
          ModuleOrders& order) {
  if (is_called[node]) order.fw_pre.push_back(shape.fqns[node]);
  for (int child : shape.children[node]) Walk(shape, is_called, child, order);
  if (is_called[node]) order.fw_post.push_back(shape.fqns[node]);
}

}  // namespace

Profile RandomProfile(std::mt19937& random, int modules, int kinds) {
  Source source(random);
  const TreeShape shape = RandomTree(source, modules);
  std::vector<Module> kind;
  for (int i = 0; i < kinds; ++i) kind.push_back(RandomModule(source));

  Profile profile;
  std::vector<bool> is_called(modules);
  for (int i = 0; i < modules; ++i) {
    Module module = kind[source.Below(kinds)];
    module.fqn = shape.fqns[i];
    module.grad_total = source.Bytes();
    is_called[i] = !source.OneIn(6);
    if (!is_called[i]) module.calls = 0;
    profile.modules.push_back(std::move(module));
  }
  for (int root : shape.roots) Walk(shape, is_called, root, profile.order);
  for (const std::string& fqn : profile.order.fw_post)
    if (!source.OneIn(5)) profile.order.bw_pre.push_back(fqn);
  profile.order.bw_post = profile.order.bw_pre;
  std::ranges::reverse(profile.order.bw_pre);
  std::ranges::shuffle(profile.modules, random);

  profile.model = {source.Text(),  source.Text(), source.Bytes(),
                   source.Bytes(), source.Text(), source.Text()};
  profile.device = {source.Text(), source.Number(), source.Number()};
  auto bytes = [&] { return source.Maybe([&] { return source.Bytes(); }); };
  profile.measured = {
      bytes(), bytes(), source.Maybe([&] { return source.Snapshot(); }),
      bytes(), bytes(), bytes(),
      bytes(), bytes()};
  return profile;
}

Module PlainModule(std::string fqn) {
  Module module;
  module.fqn = std::move(fqn);
  module.param_per_module = 100;
  module.act_fw_per_module = 1000;
  module.fw_runtime_per_module = 1;
  return module;
}

Profile PlainProfile(const std::vector<std::string>& fqns) {
  Profile profile;
  std::vector<std::string> open;
  for (const std::string& fqn : fqns) {
    profile.modules.push_back(PlainModule(fqn));
    profile.order.fw_pre.push_back(fqn);
    while (!open.empty() && !fqn.starts_with(open.back() + ".")) {
      profile.order.fw_post.push_back(open.back());
      open.pop_back();
    }
    open.push_back(fqn);
  }
  profile.order.fw_post.insert(profile.order.fw_post.end(), open.rbegin(),
                               open.rend());
  return profile;
}

}  // namespace acplan::graph
