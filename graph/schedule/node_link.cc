#include "graph/schedule/node_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/base/number_limits.h"

namespace acplan::graph {
namespace {

struct Link {
  size_t from = 0;
  size_t to = 0;
};

// Returns the member of the one of two keys that exists; fails if both or none do.
JsonField OneOf(const JsonField& field, std::string_view first,
                std::string_view second) {
  if (field.Has(first) == field.Has(second))
    field.Complain(fmt::format("expected one of {} and {}, found {}", first,
                               second, field.Has(first) ? "both" : "none"));
  return field.Get(field.Has(first) ? first : second);
}

class NodeLinkReader {
 public:
  explicit NodeLinkReader(const JsonField& root) : root_(root) {}

  ScheduleGraph Read() {
    RefuseFlag("directed", false, "true: links have a direction");
    RefuseFlag("multigraph", true, "false: each link occurs once");
    ReadNodes();
    ReadLinks();
    const std::vector<size_t> order = Order();
    return InOrder(order);
  }

 private:
  void RefuseFlag(std::string_view key, bool refused,
                  std::string_view expected) const {
    if (root_.Has(key) && root_.Get(key).Bool() == refused)
      root_.Get(key).Fail(expected);
  }

  // Returns the text by which links name a node: a number or a string.
  static std::string IdOf(const JsonField& field) {
    const nlohmann::json& id = field.json();
    if (!id.is_string() && !id.is_number_integer())
      field.Fail("the id of a node: a string or a whole number");
    return CompactText(id);
  }

  void ReadNodes() {
    const JsonField list = root_.Get("nodes");
    const std::vector<JsonField> elements = list.Elements();
    if (elements.empty()) list.Fail("at least one node");
    int64_t bytes = 0;
    double time = 0;
    for (const JsonField& element : elements) {
      const size_t index = nodes_.size();
      const std::string id =
          element.Has("id") ? IdOf(element.Get("id")) : std::to_string(index);
      if (!index_.emplace(id, index).second)
        (element.Has("id") ? element.Get("id") : element)
            .Fail("an id that no other node has");
      nodes_.push_back(
          {.name = Name(element, id),
           .ms = OneOf(element, "cost_cpu", "duration").NonNegativeNumber()});
      bytes_.push_back(OneOf(element, "cost_ram", "out_cost").Bytes());
      bytes += bytes_.back();
      time += nodes_.back().ms;
      if (bytes > kMostExactInteger || time > kMostExactInteger)
        list.Complain(
            "expected at most 2^53 bytes and 2^53 of time in all, found more");
    }
  }

  // Falls back to the node's id if it has no name.
  static std::string Name(const JsonField& node, const std::string& id) {
    for (const std::string_view key : {"name", "id"})
      if (node.Has(key) && node.Get(key).json().is_string())
        return node.Get(key).String();
    return id;
  }

  size_t NodeOf(const JsonField& field) const {
    const auto node = index_.find(IdOf(field));
    if (node == index_.end()) field.Fail("the id of a node");
    return node->second;
  }

  void ReadLinks() {
    std::set<std::pair<size_t, size_t>> seen_links;
    for (const JsonField& element : OneOf(root_, "links", "edges").Elements()) {
      const Link link{.from = NodeOf(OneOf(element, "source", "0")),
                      .to = NodeOf(OneOf(element, "target", "1"))};
      if (link.from == link.to) element.Fail("a link to another node");
      if (!seen_links.emplace(link.from, link.to).second)
        element.Fail("a link that occurs once");
      links_.push_back(link);
    }
    readers_.resize(nodes_.size());
    inputs_.resize(nodes_.size());
    for (const Link& link : links_) {
      readers_[link.from].push_back(link.to);
      inputs_[link.to].push_back(link.from);
    }
  }

  std::vector<size_t> Order() const {
    const std::vector<size_t> sorted = Sorted();
    if (!root_.Has("graph") || !root_.Get("graph").Has("order")) return sorted;
    return GivenOrder(root_.Get("graph").Get("order"));
  }

  // Returns the nodes in topological order: first in, first out among the nodes whose
  // inputs are available.
  std::vector<size_t> Sorted() const {
    std::vector<size_t> waits(nodes_.size());
    std::deque<size_t> ready;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      waits[n] = inputs_[n].size();
      if (waits[n] == 0) ready.push_back(n);
    }
    std::vector<size_t> order;
    while (!ready.empty()) {
      const size_t n = ready.front();
      ready.pop_front();
      order.push_back(n);
      for (const size_t reader : readers_[n])
        if (--waits[reader] == 0) ready.push_back(reader);
    }
    if (order.size() < nodes_.size()) {
      const auto stuck =
          std::ranges::find_if(waits, [](size_t w) { return w > 0; });
      root_.Get("nodes").Complain(fmt::format(
          "expected links without a cycle, found one before node {}",
          OneLine(nodes_[static_cast<size_t>(stuck - waits.begin())].name)));
    }
    return order;
  }

  std::vector<size_t> GivenOrder(const JsonField& field) const {
    const std::vector<JsonField> elements = field.Elements();
    std::vector<char> is_before(nodes_.size(), 0);
    std::vector<size_t> order;
    for (const JsonField& element : elements) {
      const size_t n = NodeOf(element);
      if (is_before[n]) element.Fail("each node once");
      for (const size_t input : inputs_[n])
        if (!is_before[input]) element.Fail("a node after those that it reads");
      is_before[n] = 1;
      order.push_back(n);
    }
    if (order.size() < nodes_.size())
      field.Complain(fmt::format("expected all {} nodes, found {}",
                                 nodes_.size(), order.size()));
    return order;
  }

  ScheduleGraph InOrder(const std::vector<size_t>& order) {
    ScheduleGraph graph;
    if (root_.Has("graph") && root_.Get("graph").Has("name"))
      graph.name = root_.Get("graph").Get("name").String();
    std::vector<int32_t> position(nodes_.size());
    for (size_t i = 0; i < order.size(); ++i)
      position[order[i]] = static_cast<int32_t>(i);
    for (const size_t n : order) {
      ScheduleNode node = std::move(nodes_[n]);
      const auto value = static_cast<int32_t>(graph.values.size());
      for (const size_t input : inputs_[n])
        node.reads.push_back(position[input]);
      node.makes = {value};
      graph.values.push_back(
          {.name = node.name, .bytes = bytes_[n], .maker = value});
      graph.nodes.push_back(std::move(node));
    }
    return graph;
  }

  const JsonField& root_;
  std::vector<ScheduleNode> nodes_;  // in the order of the file
  std::vector<int64_t> bytes_;
  std::unordered_map<std::string, size_t> index_;  // node id to node
  std::vector<Link> links_;
  // Indexed by node: the nodes that read its value.
  std::vector<std::vector<size_t>> readers_;
  // Indexed by node: the nodes that it reads.
  std::vector<std::vector<size_t>> inputs_;
};

}  // namespace

ScheduleGraph ParseNodeLink(std::string_view text, std::string_view name) {
  const nlohmann::json document = ParseJson(text, std::string(name));
  const JsonField root(document, std::string(name));
  return NodeLinkReader(root).Read();
}

bool IsNodeLink(std::string_view text) {
  try {
    const nlohmann::json document = ParseJson(text, "");
    return document.is_object() && !document.contains("format") &&
           document.contains("nodes") &&
           (document.contains("links") || document.contains("edges"));
  } catch (const InputError&) {
    return false;
  }
}

ScheduleGraph ReadScheduleGraph(const std::filesystem::path& path) {
  const std::string text = ReadJsonText(path);
  const std::string name = path.string();
  const nlohmann::json document = ParseJson(text, name);
  if (!document.is_object() || !document.contains("format"))
    return NodeLinkReader(JsonField(document, name)).Read();
  const JointGraph joint = ParseJointGraph(text, name);
  try {
    return ToScheduleGraph(joint);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", OneLine(name), error.what()));
  }
}

}  // namespace acplan::graph
