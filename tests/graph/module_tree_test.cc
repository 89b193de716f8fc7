#include "graph/profile/module_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <random>
#include <string>
#include <vector>

#include "tests/graph/random_profile.h"
#include "tests/graph/test_files.h"
#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using test_support::Repetitions;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Names = std::vector<std::string>;
using Matrix = std::vector<std::vector<int>>;

const std::string& NameOf(const Profile& profile, const ModuleTree& tree,
                          int node) {
  return profile.modules[tree.node(node).module].fqn;
}

Names NodeNames(const Profile& profile, const ModuleTree& tree) {
  Names names;
  for (int i = 0; i < tree.size(); ++i)
    names.push_back(NameOf(profile, tree, i));
  return names;
}

Names NodeNames(const Profile& profile) {
  return NodeNames(profile, ModuleTree(profile));
}

bool NaiveIsBelow(const std::string& name, const std::string& ancestor) {
  return name.starts_with(ancestor + ".");
}

int PositionIn(const Names& order, const std::string& name, int absent) {
  const auto place = std::ranges::find(order, name);
  return place == order.end() ? absent
                              : static_cast<int>(place - order.begin());
}

struct NaiveNode {
  int module, parent, depth;
};

// Follows the definition in module_tree.h, word by word.
void NaiveVisit(const Profile& profile, const std::vector<int>& parents,
                int parent, int parent_node, int depth,
                std::vector<NaiveNode>& nodes) {
  const int n = static_cast<int>(profile.modules.size());
  std::vector<std::pair<int, int>> children;
  for (int i = 0; i < n; ++i) {
    if (parents[i] != parent) continue;
    int place =
        PositionIn(profile.order.fw_pre, profile.modules[i].fqn, INT_MAX);
    if (place == INT_MAX)
      for (int j = 0; j < n; ++j)
        if (NaiveIsBelow(profile.modules[j].fqn, profile.modules[i].fqn))
          place = std::min(place, PositionIn(profile.order.fw_pre,
                                             profile.modules[j].fqn, INT_MAX));
    children.emplace_back(place, i);
  }
  std::ranges::sort(children);
  for (auto [place, i] : children) {
    const int node = static_cast<int>(nodes.size());
    nodes.push_back({i, parent_node, depth});
    NaiveVisit(profile, parents, i, node, depth + 1, nodes);
  }
}

std::vector<NaiveNode> NaiveTree(const Profile& profile) {
  std::vector<int> parents;
  for (const Module& module : profile.modules) {
    int parent = -1;
    size_t longest = 0;
    for (size_t j = 0; j < profile.modules.size(); ++j) {
      const std::string& other = profile.modules[j].fqn;
      if (NaiveIsBelow(module.fqn, other) && other.size() > longest) {
        parent = static_cast<int>(j);
        longest = other.size();
      }
    }
    parents.push_back(parent);
  }
  std::vector<NaiveNode> nodes;
  NaiveVisit(profile, parents, -1, -1, 0, nodes);
  return nodes;
}

void NaivePostOrder(const Profile& profile, const ModuleTree& tree,
                    const std::vector<int>& nodes, Names& names) {
  for (int node : nodes) {
    NaivePostOrder(profile, tree, tree.Children(node), names);
    if (tree.node(node).fw_post >= 0)
      names.push_back(NameOf(profile, tree, node));
  }
}

void ExpectEqualsNaive(const Profile& profile) {
  const ModuleTree tree(profile);
  const std::vector<NaiveNode> naive = NaiveTree(profile);
  ASSERT_EQ(tree.size(), static_cast<int>(naive.size()));
  for (int i = 0; i < tree.size(); ++i) {
    const ModuleTree::Node& node = tree.node(i);
    const std::string& name = NameOf(profile, tree, i);
    EXPECT_EQ(node.module, naive[i].module) << name;
    EXPECT_EQ(node.parent, naive[i].parent) << name;
    EXPECT_EQ(node.depth, naive[i].depth) << name;
    EXPECT_EQ(node.fw_post, PositionIn(profile.order.fw_post, name, -1))
        << name;
    EXPECT_EQ(tree.Find(name), i);
    int below = 0;
    for (int j = 0; j < tree.size(); ++j) {
      const std::string& other = NameOf(profile, tree, j);
      const bool is_below = NaiveIsBelow(other, name);
      below += is_below ? 1 : 0;
      ASSERT_EQ(IsSubmodule(other, name), is_below) << other << " " << name;
      ASSERT_EQ(IsSelfOrSubmodule(other, name), is_below || i == j);
      ASSERT_EQ(tree.IsSelfOrAncestor(i, j), is_below || i == j);
      ASSERT_EQ(tree.AdMatrix(i, j), is_below || i == j ? 1 : 0);
    }
    EXPECT_EQ(node.subtree_size, below + 1) << name;
    for (int child : tree.Children(i)) EXPECT_EQ(tree.node(child).parent, i);
  }
  for (int root : tree.Roots()) EXPECT_EQ(tree.node(root).parent, -1);
  Names post_order;
  NaivePostOrder(profile, tree, tree.Roots(), post_order);
  EXPECT_EQ(tree.PostOrderMatchesTree(), post_order == profile.order.fw_post);
}

// Returns the matrix of parse_module_info in
// torch.distributed._tools.ilp_utils.
Matrix TorchAdMatrix(const Names& names) {
  Matrix matrix(names.size(), std::vector<int>(names.size(), 0));
  for (size_t i = 0; i < names.size(); ++i) {
    for (size_t j = i; j < names.size(); ++j) {
      if (names[j] != names[i] &&
          names[j].find(names[i] + ".") == std::string::npos)
        break;
      matrix[i][j] = 1;
    }
  }
  return matrix;
}

Matrix AdMatrix(const ModuleTree& tree) {
  Matrix matrix(tree.size(), std::vector<int>(tree.size(), 0));
  for (int i = 0; i < tree.size(); ++i)
    for (int j = 0; j < tree.size(); ++j) matrix[i][j] = tree.AdMatrix(i, j);
  return matrix;
}

class RealProfileTree : public ::testing::TestWithParam<std::filesystem::path> {
};

TEST_P(RealProfileTree, EqualsTheDefinition) {
  ExpectEqualsNaive(ReadProfile(GetParam()));
}

TEST_P(RealProfileTree, EqualsTorchOnModulesInPreOrder) {
  const Profile profile = ReadProfile(GetParam());
  const ModuleTree tree(profile);
  EXPECT_EQ(NodeNames(profile, tree), profile.order.fw_pre);
  EXPECT_EQ(AdMatrix(tree), TorchAdMatrix(profile.order.fw_pre));
  EXPECT_TRUE(tree.PostOrderMatchesTree());
  EXPECT_THAT(tree.Roots(), ElementsAre(0));
}

INSTANTIATE_TEST_SUITE_P(All, RealProfileTree,
                         ::testing::ValuesIn(RealProfiles()),
                         [](const auto& row) {
                           const std::string name =
                               row.param.filename().string();
                           return name.substr(0, name.find('.'));
                         });

TEST(ModuleTree, EqualsTheDefinitionOnRandomProfiles) {
  std::mt19937 random(11);
  for (int round = 0; round < Repetitions(200); ++round) {
    Profile profile =
        RandomProfile(random, 1 + static_cast<int>(random() % 25), 3);
    ExpectEqualsNaive(profile);
    std::ranges::shuffle(profile.order.fw_pre, random);
    std::ranges::shuffle(profile.order.fw_post, random);
    ExpectEqualsNaive(profile);
  }
}

TEST(ModuleTree, OfNoModulesIsEmpty) {
  const ModuleTree tree((Profile()));
  EXPECT_EQ(tree.size(), 0);
  EXPECT_THAT(tree.Roots(), IsEmpty());
  EXPECT_TRUE(tree.PostOrderMatchesTree());
}

TEST(ModuleTree, FindKnowsItsModulesOnly) {
  const ModuleTree tree(PlainProfile({"m", "m.a"}));
  EXPECT_EQ(tree.Find("m.a"), 1);
  EXPECT_EQ(tree.Find("a"), std::nullopt);
  EXPECT_EQ(tree.Find(""), std::nullopt);
}

TEST(ModuleTree, SkipsNamesThatAreNoModules) {
  const Profile profile = PlainProfile({"m", "m.list.0", "m.list.0.x.y"});
  const ModuleTree tree(profile);
  EXPECT_EQ(tree.node(1).parent, 0);
  EXPECT_EQ(tree.node(2).parent, 1);
  EXPECT_EQ(tree.node(2).depth, 2);
}

TEST(ModuleTree, HasSeveralRoots) {
  const Profile profile =
      PlainProfile({"enc", "enc.a", "dec", "dec.a", "head"});
  const ModuleTree tree(profile);
  EXPECT_THAT(tree.Roots(), ElementsAre(0, 2, 4));
  EXPECT_THAT(tree.Children(2), ElementsAre(3));
  EXPECT_TRUE(tree.PostOrderMatchesTree());
}

TEST(ModuleTree, SortsComponentsNotCharacters) {
  // '-' and ' ' sort before '.', so plain text order would split m from m.a.
  const Profile profile = PlainProfile({"m-x", "m", "m.a", "m x", "m.a.b"});
  const ModuleTree tree(profile);
  EXPECT_EQ(tree.node(*tree.Find("m.a")).parent, *tree.Find("m"));
  EXPECT_EQ(tree.node(*tree.Find("m.a.b")).parent, *tree.Find("m.a"));
  EXPECT_EQ(tree.node(*tree.Find("m x")).parent, -1);
}

// The reference sorts the modules into one variable and continues with another.
TEST(ReferenceDefect, ModulesNotListedInPreOrder) {
  Profile profile = PlainProfile({"m", "m.a", "m.a.x", "m.b", "m.b.x"});
  const Names pre_order = profile.order.fw_pre;
  const Matrix expected = AdMatrix(ModuleTree(profile));
  std::ranges::reverse(profile.modules);
  EXPECT_EQ(NodeNames(profile), pre_order);
  EXPECT_EQ(AdMatrix(ModuleTree(profile)), expected);
  Names listed;
  for (const Module& module : profile.modules) listed.push_back(module.fqn);
  EXPECT_NE(TorchAdMatrix(listed), expected);
}

TEST(ReferenceDefect, SubstringIsNoAncestor) {
  EXPECT_FALSE(IsSubmodule("encoder.layers.1.x", "layers.1"));
  EXPECT_FALSE(IsSubmodule("layers.10", "layers.1"));
  EXPECT_FALSE(IsSubmodule("layers.10.x", "layers.1"));
  EXPECT_TRUE(IsSubmodule("layers.1.x", "layers.1"));
  EXPECT_FALSE(IsSubmodule("layers.1", "layers.1"));
  EXPECT_TRUE(IsSelfOrSubmodule("layers.1", "layers.1"));
  const Profile profile =
      PlainProfile({"layers.1", "encoder", "encoder.layers.1",
                    "encoder.layers.1.x", "layers.10"});
  ExpectEqualsNaive(profile);
  const ModuleTree tree(profile);
  EXPECT_THAT(tree.Roots(), ElementsAre(0, 1, 4));
  EXPECT_EQ(tree.AdMatrix(0, 3), 0);
}

// The reference stops at the first module that is no descendant, so it loses a
// child that is called after a module from elsewhere.
TEST(ReferenceDefect, EarlyBreakLosesLateChildren) {
  const Names order = {"m", "m.a", "m.b", "m.a.late"};
  EXPECT_EQ(TorchAdMatrix(order)[1][3], 0);
  const Profile profile = PlainProfile(order);
  const ModuleTree tree(profile);
  EXPECT_EQ(tree.AdMatrix(*tree.Find("m.a"), *tree.Find("m.a.late")), 1);
  ExpectEqualsNaive(profile);
}

TEST(ReferenceDefect, ModuleCalledTwiceStandsAtItsFirstCall) {
  Profile profile = PlainProfile({"m", "m.drop", "m.fc"});
  profile.modules[1].calls = 2;
  EXPECT_THAT(NodeNames(profile), ElementsAre("m", "m.drop", "m.fc"));
  ExpectEqualsNaive(profile);
}

TEST(ReferenceDefect, FrozenModulesAndModulesWithoutBackward) {
  Profile profile = PlainProfile({"m", "m.frozen", "m.fc"});
  profile.modules[1].no_backward = true;
  profile.modules[1].grad_per_module = 0;
  profile.order.bw_pre = {"m", "m.fc"};
  profile.order.bw_post = {"m.fc", "m"};
  EXPECT_EQ(ParseProfile(ProfileToJson(profile), "f"), profile);
  EXPECT_EQ(ModuleTree(profile).size(), 3);
}

// A module under two names appears under the first one only, possibly inside a
// module that did not call it first.
TEST(ReferenceDefect, SharedModuleCalledOutsideItsParent) {
  Profile profile = PlainProfile({"m", "m.head.emb", "m.body", "m.head"});
  profile.order.fw_post = {"m.head.emb", "m.body", "m.head", "m"};
  const ModuleTree tree(profile);
  EXPECT_THAT(NodeNames(profile, tree),
              ElementsAre("m", "m.body", "m.head", "m.head.emb"));
  EXPECT_FALSE(tree.PostOrderMatchesTree());
  ExpectEqualsNaive(profile);
}

TEST(ReferenceDefect, NeverCalledModules) {
  Profile profile = PlainProfile({"m", "m.z", "m.list.1", "m.list.0", "m.b"});
  for (const char* name : {"m.list", "m.unused", "m.unused.x", "m.aux"}) {
    Module module = PlainModule(name);
    module.calls = 0;
    profile.modules.insert(profile.modules.begin(), module);
  }
  const ModuleTree tree(profile);
  EXPECT_THAT(NodeNames(profile, tree),
              ElementsAre("m", "m.z", "m.list", "m.list.1", "m.list.0", "m.b",
                          "m.aux", "m.unused", "m.unused.x"));
  EXPECT_EQ(tree.node(2).fw_post, -1);
  EXPECT_TRUE(tree.PostOrderMatchesTree());
  EXPECT_EQ(ParseProfile(ProfileToJson(profile), "f"), profile);
}

TEST(ReferenceDefect, ZeroMemoryAndNullFitsAreData) {
  Profile profile = PlainProfile({"m", "m.view", "m.fc"});
  SacStatistics sac;
  sac.func_names = {"t"};
  sac.runtimes = {0};
  sac.memory = {0};
  profile.modules[1].sac = sac;
  profile.modules[1].torch_fit =
      TradeoffFit{.n_segments = 1,
                  .slopes = {std::nullopt},
                  .intercepts = {std::nullopt},
                  .breakpoints = {0.01, std::nullopt},
                  .tradeoff_curve = {{0.01, 0.0}}};
  profile.modules[2].sac = SacStatistics();
  profile.modules[2].torch_fit = TradeoffFit();
  EXPECT_EQ(ParseProfile(ProfileToJson(profile), "f"), profile);
  EXPECT_THAT(IdenticalBlocks(profile, ModuleTree(profile)), IsEmpty());
}

TEST(ModuleTree, PostOrderOfAnotherTreeIsNoticed) {
  Profile profile = PlainProfile({"m", "m.a", "m.b"});
  EXPECT_TRUE(ModuleTree(profile).PostOrderMatchesTree());
  profile.order.fw_post = {"m.b", "m.a", "m"};
  EXPECT_FALSE(ModuleTree(profile).PostOrderMatchesTree());
  profile.order.fw_post = {"m.a", "m", "m.b"};
  EXPECT_FALSE(ModuleTree(profile).PostOrderMatchesTree());
}

TEST(ModuleTree, SurvivesDeepNames) {
  Names names = {"m"};
  for (int i = 1; i < 5000; ++i) names.push_back(names.back() + ".x");
  const Profile profile = PlainProfile(names);
  const ModuleTree tree(profile);
  EXPECT_EQ(tree.node(4999).depth, 4999);
  EXPECT_EQ(tree.node(0).subtree_size, 5000);
  EXPECT_TRUE(tree.PostOrderMatchesTree());
  EXPECT_THAT(IdenticalBlocks(profile, tree), IsEmpty());
}

TEST(ModuleTree, CopesWithManyModules) {
  Names names = {"m"};
  for (int i = 0; i < 20'000; ++i) {
    const std::string block = "m.list." + std::to_string(i);
    for (const char* part : {"", ".norm", ".attn", ".attn.proj", ".mlp"})
      names.push_back(block + part);
  }
  const Profile profile = PlainProfile(names);
  const ModuleTree tree(profile);
  EXPECT_THAT(IdenticalBlocks(profile, tree), ElementsAre(SizeIs(20'000)));
}

std::vector<Names> BlockNames(const Profile& profile) {
  const ModuleTree tree(profile);
  std::vector<Names> groups;
  for (const std::vector<int>& group : IdenticalBlocks(profile, tree)) {
    groups.emplace_back();
    for (int node : group) groups.back().push_back(NameOf(profile, tree, node));
  }
  return groups;
}

TEST(IdenticalBlocks, FindsTheLayersOfRealModels) {
  auto groups = [](const std::string& name) {
    return BlockNames(
        ReadProfile(ACPLAN_DATA_DIR "/profiles/" + name + ".json.gz"));
  };
  EXPECT_THAT(groups("gpt2_small"), ElementsAre(SizeIs(12)));
  EXPECT_THAT(groups("bert_large"), ElementsAre(SizeIs(24)));
  EXPECT_THAT(groups("vit_large"), ElementsAre(SizeIs(24)));
  EXPECT_THAT(groups("transformer4"), ElementsAre(SizeIs(4)));
  // In layer 3 of the 32 the profile ties the in-place operator to another one.
  const std::vector<Names> llama = groups("llama8b");
  ASSERT_THAT(llama, ElementsAre(SizeIs(31)));
  EXPECT_THAT(
      llama[0],
      testing::Not(testing::Contains("LlamaForCausalLM.model.layers.3")));
}

TEST(IdenticalBlocks, ListsGroupsInsideTheFirstBlockOnly) {
  const Profile profile =
      PlainProfile({"m", "m.0", "m.0.a", "m.0.a.x", "m.0.b", "m.0.b.x", "m.1",
                    "m.1.a", "m.1.a.x", "m.1.b", "m.1.b.x", "m.2", "m.2.a",
                    "m.2.a.x", "m.2.c", "m.2.c.x", "m.2.c.y"});
  EXPECT_THAT(BlockNames(profile), ElementsAre(ElementsAre("m.0", "m.1"),
                                               ElementsAre("m.0.a", "m.0.b")));
}

TEST(IdenticalBlocks, ComparesWhatDecides) {
  const Profile same = PlainProfile({"m", "m.0", "m.0.x", "m.1", "m.1.x"});
  EXPECT_THAT(BlockNames(same), SizeIs(1));
  auto changed = [&](auto change) {
    Profile profile = same;
    change(profile.modules[4]);
    return BlockNames(profile).empty();
  };
  EXPECT_TRUE(changed([](Module& m) { m.param_per_module = 1; }));
  EXPECT_TRUE(changed([](Module& m) { m.act_fw_per_module = 1; }));
  EXPECT_TRUE(changed([](Module& m) { m.fw_runtime_per_module = 2; }));
  EXPECT_TRUE(changed([](Module& m) { m.held_per_module = 2; }));
  EXPECT_TRUE(changed([](Module& m) { m.no_backward = true; }));
  EXPECT_TRUE(changed([](Module& m) { m.sac = SacStatistics(); }));
  EXPECT_TRUE(changed([](Module& m) { m.torch_fit = TradeoffFit(); }));
  EXPECT_FALSE(changed([](Module& m) { m.grad_total = 1; }));
  EXPECT_FALSE(changed([](Module& m) { m.act_total = 1; }));
  EXPECT_FALSE(changed([](Module& m) { m.act_bw_per_module = 1; }));
  EXPECT_FALSE(changed([](Module& m) { m.act_grad_per_module = 1; }));
  EXPECT_FALSE(changed([](Module& m) { m.bw_runtime_per_module = 1; }));
  EXPECT_FALSE(changed([](Module& m) { m.snap = ModuleSnapshots(); }));
}

TEST(IdenticalBlocks, RootsAreSiblings) {
  EXPECT_THAT(BlockNames(PlainProfile({"a", "a.x", "b", "b.x"})),
              ElementsAre(ElementsAre("a", "b")));
}

bool NaiveSame(const Profile& profile, const ModuleTree& tree, int a, int b) {
  auto decisive = [&](int node) {
    Module module = profile.modules[tree.node(node).module];
    module.fqn.clear();
    module.grad_total = module.act_total = module.act_bw_per_module = 0;
    module.act_grad_per_module = 0;
    module.bw_runtime_per_module = 0;
    module.snap.reset();
    if (module.sac) module.sac->saved_autograd_ops.clear();
    return module;
  };
  const std::vector<int> of_a = tree.Children(a);
  const std::vector<int> of_b = tree.Children(b);
  return decisive(a) == decisive(b) &&
         std::ranges::equal(of_a, of_b, [&](int x, int y) {
           return NaiveSame(profile, tree, x, y);
         });
}

void NaiveBlocks(const Profile& profile, const ModuleTree& tree,
                 const std::vector<int>& siblings,
                 std::vector<std::vector<int>>& groups) {
  std::vector<bool> is_taken(siblings.size(), false);
  for (size_t i = 0; i < siblings.size(); ++i) {
    if (is_taken[i] || tree.node(siblings[i]).subtree_size == 1) continue;
    std::vector<int> group = {siblings[i]};
    for (size_t j = i + 1; j < siblings.size(); ++j) {
      if (is_taken[j] || !NaiveSame(profile, tree, siblings[i], siblings[j]))
        continue;
      is_taken[j] = true;
      group.push_back(siblings[j]);
    }
    if (group.size() > 1) groups.push_back(group);
    NaiveBlocks(profile, tree, tree.Children(siblings[i]), groups);
  }
}

TEST(IdenticalBlocks, EqualsBruteForceOnRandomProfiles) {
  std::mt19937 random(5);
  size_t block_count = 0;
  for (int round = 0; round < Repetitions(400); ++round) {
    const Profile profile =
        RandomProfile(random, 5 + static_cast<int>(random() % 60),
                      1 + static_cast<int>(random() % 2));
    const ModuleTree tree(profile);
    std::vector<std::vector<int>> expected;
    NaiveBlocks(profile, tree, tree.Roots(), expected);
    std::ranges::sort(expected);
    EXPECT_EQ(IdenticalBlocks(profile, tree), expected);
    block_count += expected.size();
  }
  EXPECT_GT(block_count, size_t{test_support::Enough(50)});
}

}  // namespace
}  // namespace acplan::graph
