#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "graph/schedule/schedule_graph.h"

namespace acplan::graph {

// The form in which NetworkX writes graphs as JSON (node_link_data), which Moccasin
// (Bartan et al., "Moccasin: Efficient Tensor Rematerialization for Neural Networks", ICML
// 2023) and, through it, Checkmate publish theirs: `nodes` with bytes (`cost_ram` or
// `out_cost`) and time (`cost_cpu` or `duration`), `links` from what is read to who reads
// it; docs/file_formats.md says the rest. Every node makes one value, and none is there at
// the end.

// Parses such a graph. The order of first runs is graph.order where it is given, and
// otherwise the one of NetworkX's topological_sort: first in, first out. Throws InputError,
// one line with file, JSON path, what was found and what was expected, where
// - the text is no JSON, or has no list of nodes, or no list of links (or edges);
// - it says that it is undirected or a multigraph;
// - a node has no bytes or no time, or two of either, or has another's id;
// - a link begins or ends at no node, ends where it begins, or is there twice;
// - links go round in a circle;
// - the order is not one of all nodes, or has a node before what it reads;
// - all nodes are more than 2^53 bytes, or more than 2^53 of time. Unknown keys are
//   ignored.
ScheduleGraph ParseNodeLink(std::string_view text, std::string_view name);

// Reads a graph of any schedule (.json or .json.gz): a joint graph or a node-link graph,
// whichever the file is. Throws InputError as ParseNodeLink, ParseJointGraph and
// ToScheduleGraph do.
ScheduleGraph ReadScheduleGraph(const std::filesystem::path& path);

// Returns whether a file's text is an object without `format` that has nodes and links:
// for what to say of it where another file is expected. False for what is no JSON.
bool IsNodeLink(std::string_view text);

}  // namespace acplan::graph
