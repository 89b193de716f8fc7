#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/show/views.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/dataflow/dataflow_analysis.h"
#include "graph/dataflow/trace_dataflow.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/model/memory_model.h"

namespace acplan::cli {

namespace {

// Returns the record of each node that has one; NaN for others.
std::vector<double> RecordBytes(const graph::Profile& profile,
                                const graph::ModuleTree& tree,
                                const problems::MemoryOptions& memory) {
  std::vector<double> bytes(tree.size(),
                            std::numeric_limits<double>::quiet_NaN());
  for (const problems::MemoryRecord& record :
       MemoryRecords(profile, tree, memory)) {
    if (record.node >= 0) bytes[record.node] = record.base_bytes;
  }
  return bytes;
}

// The dataflow of the first call of each module of a trace, by name.
using DataflowByName = std::map<std::string, graph::GraphInfo>;

DataflowByName AnalyseModules(const ProfileInput& input) {
  DataflowByName infos;
  if (!input.trace) return infos;
  const graph::Trace& trace = *input.trace;
  for (const graph::CallId c : trace.calls.ids()) {
    const std::string& fqn = trace.modules[trace.calls[c].module].fqn;
    if (infos.contains(fqn)) continue;
    infos[fqn] = Analyse(DataflowOf(trace, c));
  }
  return infos;
}

// The figures that the tree of a profile or trace shows.
struct TreeAnswer {
  const graph::Profile& profile;
  const graph::ModuleTree& tree;
  std::vector<double> records;
  DataflowByName dataflow;
};

std::string ToJson(const TreeAnswer& answer, int depth) {
  const auto& [profile, tree, records, dataflow] = answer;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (int i = 0; i < tree.size(); ++i) {
    const graph::ModuleTree::Node& node = tree.node(i);
    if (node.depth > depth) continue;
    const graph::Module& m = profile.modules[node.module];
    nlohmann::ordered_json entry;
    entry["fqn"] = m.fqn;
    entry["depth"] = node.depth;
    entry["parent"] =
        node.parent < 0
            ? nlohmann::ordered_json(nullptr)
            : nlohmann::ordered_json(
                  profile.modules[tree.node(node.parent).module].fqn);
    entry["modules"] = node.subtree_size;
    entry["is_leaf"] = m.is_leaf;
    entry["calls"] = m.calls;
    entry["fw_post"] = node.fw_post;
    entry["param_per_module"] = m.param_per_module;
    entry["act_fw_per_module"] = m.act_fw_per_module;
    entry["sac_memory"] = m.torch_fit ? m.torch_fit->sac_memory : 0;
    entry["sac_runtime"] = m.torch_fit ? m.torch_fit->sac_runtime : 0;
    entry["fw_runtime_per_module"] = m.fw_runtime_per_module;
    if (std::isfinite(records[i])) entry["record_bytes"] = records[i];
    if (const auto info = dataflow.find(m.fqn); info != dataflow.end()) {
      entry["dataflow"] = {{"fwd_mem_in", info->second.fwd_mem_in},
                           {"fwd_mem_tmp", info->second.fwd_mem_tmp},
                           {"bwd_mem_tmp", info->second.bwd_mem_tmp},
                           {"bwd_mem_out", info->second.bwd_mem_out}};
    }
    json.push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

std::string Indented(const graph::Profile& profile,
                     const graph::ModuleTree& tree, int i) {
  const graph::ModuleTree::Node& node = tree.node(i);
  std::string name = profile.modules[node.module].fqn;
  if (node.parent >= 0) {
    name = name.substr(
        profile.modules[tree.node(node.parent).module].fqn.size() + 1);
  }
  return std::string(2 * static_cast<size_t>(node.depth), ' ') + name;
}

// Returns, by node, the number of copies of a block that the node's row
// represents; 0 if another node's row represents this one.
std::vector<int> CountCopies(const TreeAnswer& answer, bool shows_all) {
  std::vector<int> copies(answer.tree.size(), 1);
  if (shows_all) return copies;
  for (const std::vector<int>& group :
       IdenticalBlocks(answer.profile, answer.tree)) {
    for (const int node : group) copies[node] = 0;
    copies[group.front()] = static_cast<int>(group.size());
  }
  return copies;
}

std::vector<std::string> Heading(const TreeAnswer& answer) {
  std::vector<std::string> heading = {"module",      "modules",    "parameters",
                                      "activations", "SAC memory", "forward",
                                      "recompute",   "in use"};
  if (!answer.dataflow.empty()) {
    heading.insert(heading.end(),
                   {"saved in", "saved inside", "backward", "gradients"});
  }
  return heading;
}

std::vector<std::string> Cells(const TreeAnswer& answer, int i, int copies) {
  const graph::ModuleTree::Node& node = answer.tree.node(i);
  const graph::Module& m = answer.profile.modules[node.module];
  std::string name = Indented(answer.profile, answer.tree, i);
  if (copies > 1) name += fmt::format(" × {}", copies);
  if (m.calls == 0) name += " (never called)";
  if (m.calls > 1) name += fmt::format(" ({} calls)", m.calls);
  std::vector<std::string> cells = {
      name,
      node.subtree_size > 1 ? fmt::format("{}", node.subtree_size) : "",
      graph::FormatBytes(m.param_per_module),
      graph::FormatBytes(m.act_fw_per_module),
      m.torch_fit ? graph::FormatBytes(m.torch_fit->sac_memory) : "",
      FormatMs(m.fw_runtime_per_module),
      m.torch_fit ? FormatMs(m.torch_fit->sac_runtime) : "",
      std::isfinite(answer.records[i])
          ? graph::FormatBytes(std::llround(answer.records[i]))
          : ""};
  if (answer.dataflow.empty()) return cells;
  const auto info = answer.dataflow.find(m.fqn);
  if (info == answer.dataflow.end()) {
    cells.resize(cells.size() + 4);
    return cells;
  }
  for (const int64_t bytes :
       {info->second.fwd_mem_in, info->second.fwd_mem_tmp,
        info->second.bwd_mem_tmp, info->second.bwd_mem_out}) {
    cells.push_back(graph::FormatBytes(bytes));
  }
  return cells;
}

std::string ToText(const TreeAnswer& answer, int depth, bool shows_all,
                   const Terminal& terminal) {
  const std::vector<int> copies = CountCopies(answer, shows_all);
  const std::vector<std::string> heading = Heading(answer);
  using enum Table::Align;
  std::vector<Table::Align> align(heading.size(), kRight);
  align[0] = kLeft;
  Table table(align);
  table.AddRow(heading);
  for (int i = 0; i < answer.tree.size();) {
    const graph::ModuleTree::Node& node = answer.tree.node(i);
    if (copies[i] > 0) table.AddRow(Cells(answer, i, copies[i]));
    const bool is_folded = copies[i] == 0 || node.depth >= depth;
    i += is_folded ? node.subtree_size : 1;
  }
  std::string text = table.ToString(terminal);
  text += terminal.Dim(
              "× n: so many identical blocks, the first one shown (--all shows "
              "each); in use: bytes at the module's record, without "
              "checkpointing") +
          "\n";
  if (answer.dataflow.empty()) return text;
  return text +
         terminal.Dim(
             "of a module's first call, by dataflow: saved in: arguments "
             "and parameters that autograd saves; saved inside: what it "
             "saves of results; backward: values in use at once; gradients: "
             "what backward returns") +
         "\n";
}

}  // namespace

void ShowModules(const ShowFlags& flags, const ProfileInput& input,
                 const Terminal& terminal) {
  const graph::Profile& profile = input.profile;
  const graph::ModuleTree tree(profile);
  const problems::MemoryOptions memory = flags.memory.Resolve(input);
  const int depth =
      flags.depth.empty()
          ? std::numeric_limits<int>::max()
          : static_cast<int>(ParseWhole(flags.depth, "--depth", 0, 1'000'000));
  const TreeAnswer answer{profile, tree, RecordBytes(profile, tree, memory),
                          AnalyseModules(input)};
  terminal.Print(
      flags.json
          ? ToJson(answer, depth)
          : BrokenLines(ToText(answer, depth, flags.all, terminal), terminal));
}

}  // namespace acplan::cli
