#include "cli/module/module_statistics.h"

#include <fmt/format.h>

#include "cli/input/flags.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/profile/module_tree.h"

namespace acplan::cli {

ModuleStatistics FindStatistics(const graph::Profile& profile,
                                const std::string& name,
                                const graph::OperatorPatterns& patterns) {
  const graph::ModuleTree tree(profile);
  const int node = FindModules(profile, tree, {name}, "MODULE").front();
  ModuleStatistics found;
  found.module = &profile.modules[tree.node(node).module];
  if (!found.module->sac) {
    throw InputError(fmt::format(
        "MODULE: expected a module with operator statistics, found {}, which "
        "{}",
        graph::Quoted(found.module->fqn, 200),
        found.module->is_leaf ? "is a leaf" : "has none"));
  }
  RefuseUnmatched(patterns, found.sac().func_names);
  found.groups = GroupOperators(found.sac(), patterns);
  if (!found.groups.contradiction.empty()) {
    throw InputError(fmt::format("{}: no policy keeps every rule: {}",
                                 graph::OneLine(found.module->fqn, 200),
                                 found.groups.contradiction));
  }
  return found;
}

}  // namespace acplan::cli
