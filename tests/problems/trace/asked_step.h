#pragma once

#include <utility>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/trace.h"
#include "problems/ask.h"

namespace acplan::problems {

// A step with a question about it. Every second seed may skip operators, every fifth may have
// runs of modules as units. It cannot be copied: the question refers to it.
struct AskedStep {
  AskedStep(graph::Trace step, unsigned seed)
      : trace(std::move(step)),
        profile(graph::Aggregate(trace)),
        tree(profile) {
    PlanOptions options;
    options.memory.model = MemoryModel::kTrace;
    options.may_skip = seed % 2 == 0;
    question = {.profile = &profile,
                .tree = &tree,
                .options = options,
                .trace = &trace,
                .segments = {.kind = seed % 5 == 0 ? SegmentKind::kAuto
                                                   : SegmentKind::kNone}};
  }
  AskedStep(const AskedStep&) = delete;
  AskedStep& operator=(const AskedStep&) = delete;

  graph::Trace trace;
  graph::Profile profile;
  graph::ModuleTree tree;
  Question question = {};
};

}  // namespace acplan::problems
