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
  ModuleStatistics statistics;
  statistics.module = &profile.modules[tree.node(node).module];
  if (!statistics.module->sac) {
    throw InputError(fmt::format(
        "MODULE: expected a module with operator statistics, found {}, which "
        "{}",
        graph::Quoted(statistics.module->fqn, 200),
        statistics.module->is_leaf ? "is a leaf" : "has none"));
  }
  RefuseUnmatched(patterns, statistics.sac().func_names);
  statistics.groups = GroupOperators(statistics.sac(), patterns);
  if (!statistics.groups.contradiction.empty()) {
    throw InputError(fmt::format("{}: no policy satisfies every rule: {}",
                                 graph::OneLine(statistics.module->fqn, 200),
                                 statistics.groups.contradiction));
  }
  return statistics;
}

}  // namespace acplan::cli
