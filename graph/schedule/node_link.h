#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "graph/schedule/schedule_graph.h"

namespace acplan::graph {

// The form in which NetworkX writes graphs as JSON (node_link_data), and in which Moccasin
// (Bartan et al., "Moccasin: Efficient Tensor Rematerialization for Neural Networks", ICML
// 2023) and, through it, Checkmate publish theirs: `nodes` with bytes (`cost_ram` or
// `out_cost`) and time (`cost_cpu` or `duration`), and `links` from a node to the nodes
// that read it. docs/file_formats.md describes the rest. Every node makes one value, and no
// value has to be there at the end.

// Parses such a graph. The order of first runs is graph.order if it is given, and otherwise
// the one of NetworkX's topological_sort: first in, first out. Throws InputError, one line
// with file, JSON path, actual and expected value, if
// - the text is no JSON, or has no list of nodes, or no list of links (or edges);
// - the graph is declared undirected or a multigraph;
// - a node has no bytes or no time, or two of either, or has the id of another node;
// - a link begins or ends at no node, ends where it begins, or appears twice;
// - links form a cycle;
// - the order does not have all nodes, or has a node before one that it reads;
// - all nodes together have more than 2^53 bytes, or more than 2^53 of time.
//
// Unknown keys are ignored.
ScheduleGraph ParseNodeLink(std::string_view text, std::string_view name);

// Reads a graph of any schedule (.json or .json.gz): a joint graph or a node-link graph,
// according to the file. Throws InputError as ParseNodeLink, ParseJointGraph and
// ToScheduleGraph do.
ScheduleGraph ReadScheduleGraph(const std::filesystem::path& path);

// Returns whether a file's text is an object without `format` that has nodes and links, for
// error messages if another file is expected. Returns false if the text is no JSON.
bool IsNodeLink(std::string_view text);

}  // namespace acplan::graph
