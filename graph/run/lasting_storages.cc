#include "graph/run/lasting_storages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "graph/base/message_text.h"

namespace acplan::graph {
namespace {

std::optional<std::string> ModuleDifference(const Trace& a, const Trace& b) {
  const size_t modules = std::min(a.modules.size(), b.modules.size());
  for (const ModuleId m : IdRange(ModuleId{0}, IdAt<ModuleId>(modules))) {
    const TraceModule& of_a = a.modules[m];
    const TraceModule& of_b = b.modules[m];
    if (of_a.fqn != of_b.fqn) {
      return fmt::format("one has the module {} where the other has {}",
                         OneLine(of_a.fqn, 100), OneLine(of_b.fqn, 100));
    }
    if (of_a.parameters.size() != of_b.parameters.size() ||
        of_a.buffers.size() != of_b.buffers.size()) {
      return fmt::format("{} has other parameters or buffers",
                         OneLine(of_a.fqn, 100));
    }
  }
  if (a.modules.size() != b.modules.size()) {
    return fmt::format("one has {} modules, the other {}", a.modules.size(),
                       b.modules.size());
  }
  return std::nullopt;
}

}  // namespace

LastingStorages FindLasting(const Trace& trace, const StoragePlaces& places) {
  LastingStorages lasting;
  for (const auto* part : {&places.model, &places.state, &places.scaler}) {
    lasting.states.insert(lasting.states.end(), part->begin(), part->end());
  }
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    if (storage.born != kNone) continue;
    if (storage.category == StorageCategory::kGradient) {
      lasting.states.push_back(s);
    } else if (storage.category != StorageCategory::kInput &&
               storage.freed != kNever) {
      lasting.remnants.push_back(s);
    }
  }
  return lasting;
}

std::optional<std::string> ModelDifference(const Trace& a, const Trace& b) {
  if (auto difference = ModuleDifference(a, b)) return difference;
  if (a.microbatches != b.microbatches) {
    return fmt::format("one has {} microbatches, the other {}", a.microbatches,
                       b.microbatches);
  }
  const LastingStorages of_a = FindLasting(a, FindPlaces(a));
  const LastingStorages of_b = FindLasting(b, FindPlaces(b));
  if (of_a.states.size() != of_b.states.size()) {
    return fmt::format(
        "one has {} parameters, buffers and states of the optimizer, the other "
        "{}",
        of_a.states.size(), of_b.states.size());
  }
  for (size_t k = 0; k < of_a.states.size(); ++k) {
    const TraceStorage& in_a = a.storages[of_a.states[k]];
    const TraceStorage& in_b = b.storages[of_b.states[k]];
    if (in_a.bytes != in_b.bytes || in_a.category != in_b.category) {
      return fmt::format("a {} of {} bytes is a {} of {} bytes in the other",
                         ToString(in_a.category), in_a.bytes,
                         ToString(in_b.category), in_b.bytes);
    }
  }
  return std::nullopt;
}

}  // namespace acplan::graph
