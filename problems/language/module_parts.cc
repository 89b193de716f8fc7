#include "problems/language/module_parts.h"

#include <algorithm>

#include "problems/language/trainer_policy.h"

namespace acplan::problems {

using graph::ModuleId;
using graph::Trace;

namespace {

std::string_view LastName(std::string_view fqn) {
  return fqn.substr(fqn.rfind('.') + 1);
}

bool IsOneOf(std::string_view name,
             std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Returns whether a module has one of this name directly inside.
bool HasChild(const Trace& trace, ModuleId module, std::string_view name) {
  const std::string& fqn = trace.modules[module].fqn;
  for (ModuleId other = Next(module); other < trace.modules.end_id() &&
                                      IsInside(trace.modules[other].fqn, fqn);
       other = Next(other)) {
    if (trace.modules[other].fqn.substr(fqn.size() + 1) == name) return true;
  }
  return false;
}

// Returns whether the modules of a part may be leaves, which are units only in a changed step
// (changed_step.h).
bool MayBeLeaf(std::string_view name) {
  const auto part = std::ranges::find(ModuleParts(), name, &ModulePart::name);
  return part != ModuleParts().end() && part->discards_output;
}

// Returns the name of the norm before a block's feed-forward part.
std::string_view NormOfFeedforward(const Trace& trace, ModuleId block) {
  for (const std::string_view name :
       {"pre_mlp_layernorm", "pre_feedforward_layernorm"}) {
    if (HasChild(trace, block, name)) return name;
  }
  return "post_attention_layernorm";
}

bool StandsFor(const Trace& trace, ModuleId block, ModuleId module,
               std::string_view part) {
  const std::string_view name = LastName(trace.modules[module].fqn);
  if (part == "core_attn") return name == "core_attention";
  if (part == "shared_experts") {
    return IsOneOf(name, {"shared_expert", "shared_experts"});
  }
  if (part == "layernorm") {
    return name == "input_layernorm" || name == NormOfFeedforward(trace, block);
  }
  const bool is_feedforward =
      IsOneOf(name, {"block_sparse_moe", "feed_forward", "mlp", "moe"});
  if (part == "mlp")
    return is_feedforward && !HasChild(trace, module, "experts");
  return part == "moe" && is_feedforward && HasChild(trace, module, "experts");
}

}  // namespace

const std::vector<ModulePart>& ModuleParts() {
  static const std::vector<ModulePart> kParts = {
      {"core_attn"},
      {"moe_act", true, false},
      {"layernorm", true},
      {"mla_up_proj", true, false},
      {"mlp"},
      {"moe"},
      {"shared_experts"},
      {"gdn_norm_out", true, false},
      {"gdp_in_proj", true, false},
      {"gdp_qkv", true, false},
      {"mhc", true, false},
  };
  return kParts;
}

std::vector<ModuleId> ModulesOfParts(const Trace& trace,
                                     const std::vector<ModuleId>& blocks,
                                     const std::vector<std::string>& names) {
  std::vector<ModuleId> modules;
  for (const ModuleId block : blocks) {
    for (ModuleId module = Next(block);
         module < trace.modules.end_id() &&
         IsInside(trace.modules[module].fqn, trace.modules[block].fqn);
         module = Next(module)) {
      const bool is_part =
          std::ranges::any_of(names, [&](const std::string& name) {
            return StandsFor(trace, block, module, name) &&
                   (HasChildren(trace, module) || MayBeLeaf(name));
          });
      if (is_part && FirstCallWithGradients(trace, module) != graph::kNone) {
        modules.push_back(module);
      }
    }
  }
  return modules;
}

std::vector<std::string> PartsOf(const Trace& trace,
                                 const std::vector<ModuleId>& blocks) {
  std::vector<std::string> names;
  for (const ModulePart& part : ModuleParts()) {
    std::string name(part.name);
    if (!ModulesOfParts(trace, blocks, {name}).empty()) {
      names.push_back(std::move(name));
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace acplan::problems
