#include "graph/device/link_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "graph/base/csv_table.h"
#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"

namespace acplan::graph {
namespace {

std::string InSmallLetters(std::string_view name) {
  std::string letters;
  for (const char c : name)
    letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

// Returns whether a name, without spaces, has all parts of a GPU's.
bool HasParts(const std::string& name, const std::string& gpu) {
  std::istringstream parts(gpu);
  for (std::string part; std::getline(parts, part, '-');)
    if (name.find(part) == std::string::npos) return false;
  return true;
}

}  // namespace

LinkTable ParseLinkTable(std::string_view text, std::string_view file) {
  constexpr double kGb = 1e9;
  const CsvTable csv = ParseCsv(text, file);
  LinkTable table;
  std::set<std::string> names;
  for (size_t i = 0; i < csv.rows.size(); ++i) {
    const CsvRow row(csv, i);
    HostLink link{.name = row.Stated("link"),
                  .gpus = {},
                  .to_host = row.Positive("to_host_gbs") * kGb,
                  .to_device = row.Positive("to_device_gbs") * kGb,
                  .source = row.Stated("source")};
    if (!names.insert(link.name).second)
      row.Fail("link", "a name that no other row has");
    std::istringstream gpus(row.Text("gpus"));
    for (std::string gpu; gpus >> gpu;) {
      if (!names.insert(gpu).second)
        row.Fail("gpus", "GPUs that no other row has");
      link.gpus.push_back(gpu);
    }
    table.links.push_back(std::move(link));
  }
  return table;
}

LinkTable ReadLinkTable(const std::filesystem::path& path) {
  return ParseLinkTable(ReadJsonText(path), path.string());
}

const HostLink& LinkNamed(const LinkTable& table, const DeviceTable& devices,
                          std::string_view name, std::string_view what) {
  const std::string letters = InSmallLetters(name);
  const std::optional<DeviceOffer> offer = FindOffer(devices, name);
  std::vector<std::string> links;
  std::vector<std::string> gpus;
  for (const HostLink& link : table.links) {
    if (link.name == letters || std::ranges::count(link.gpus, letters) > 0)
      return link;
    if (offer && std::ranges::count(link.gpus, offer->gpu) > 0) return link;
    links.push_back(link.name);
    gpus.insert(gpus.end(), link.gpus.begin(), link.gpus.end());
  }
  std::vector<std::string> names = links;
  names.insert(names.end(), gpus.begin(), gpus.end());
  const std::vector<std::string> near = NearestNames(letters, names, 1);
  throw InputError(fmt::format(
      "{}: expected a rate (25GB/s), a link ({}) or a GPU ({}), found {}{}",
      what, fmt::join(links, ", "), fmt::join(gpus, ", "), Quoted(name, 100),
      near.empty() ? "" : fmt::format("; did you mean {}?", near[0])));
}

const HostLink& LinkOfDevice(const LinkTable& table, std::string_view device,
                             std::string_view what) {
  std::string name = InSmallLetters(device);
  std::erase(name, ' ');
  const HostLink* best = nullptr;
  size_t longest = 0;
  for (const HostLink& link : table.links) {
    for (const std::string& gpu : link.gpus) {
      if (gpu.size() <= longest || !HasParts(name, gpu)) continue;
      best = &link;
      longest = gpu.size();
    }
  }
  if (best != nullptr) return *best;
  throw InputError(
      fmt::format("{}: the trace is of the device {}, whose link is not known; "
                  "expected a rate (25GB/s) or a link (pcie4)",
                  what, Quoted(device, 100)));
}

}  // namespace acplan::graph
