// All bytes are an accepted profile that has a tree and groups and is the same
// after it is written and read again, or an InputError of one line. Built with
// -fsanitize=fuzzer, or with replay_main.cc.

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"
#include "tests/support/synthetic_profile.h"

namespace {

using namespace acplan::graph;

void CheckTree(const Profile& profile) {
  const ModuleTree tree(profile);
  Require(tree.size() == static_cast<int>(profile.modules.size()),
          "a node for each module");
  int covered = 0;
  for (int root : tree.Roots()) covered += tree.node(root).subtree_size;
  Require(covered == tree.size(), "roots that cover the tree");
  for (const auto& group : IdenticalBlocks(profile, tree))
    Require(group.size() > 1, "groups of two or more");
  for (const Module& module : profile.modules)
    if (module.sac) Require(ForcedSavedBytes(*module.sac) >= 0, "forced bytes");
}

}  // namespace

std::string ValidInput(unsigned seed) {
  return ProfileToJson(acplan::test_support::RandomProfile(
      seed, {.most_modules = 6, .most_operators = 4}));
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Profile profile = ParseProfile(text, "fuzz.json");
    CheckTree(profile);
    Require(ParseProfile(ProfileToJson(profile), "fuzz.json") == profile,
            "the same profile after writing and reading");
  } catch (const acplan::InputError& error) {
    CheckMessage(error);
  }
  return 0;
}
