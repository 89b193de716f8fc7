#include "graph/base/nearest_names.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace acplan::graph {
namespace {

// Longer names are compared by their last bytes only, which bounds the time.
constexpr size_t kComparedLength = 128;

std::string_view End(std::string_view name) {
  return name.size() <= kComparedLength
             ? name
             : name.substr(name.size() - kComparedLength);
}

// Returns the last components of `name`, as many as `like` has.
std::string_view LastComponents(std::string_view name, std::string_view like) {
  size_t begin = name.size();
  for (auto dots = std::ranges::count(like, '.') + 1; dots > 0; --dots) {
    if (begin == 0) return name;
    begin = name.rfind('.', begin - 1);
    if (begin == std::string_view::npos) return name;
  }
  return name.substr(begin + 1);
}

bool EndsAtComponent(std::string_view name, std::string_view end) {
  return name.size() > end.size() && name.ends_with(end) &&
         name[name.size() - end.size() - 1] == '.';
}

// Returns the edit distance if it is at most `limit`, else limit + 1.
int Distance(std::string_view a, std::string_view b, int limit) {
  while (!a.empty() && !b.empty() && a.front() == b.front()) {
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  while (!a.empty() && !b.empty() && a.back() == b.back()) {
    a.remove_suffix(1);
    b.remove_suffix(1);
  }
  const int rows = static_cast<int>(a.size());
  const int columns = static_cast<int>(b.size());
  if (std::abs(rows - columns) > limit) return limit + 1;
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (int i = 1; i <= rows; ++i) {
    const int first = std::max(1, i - limit);
    const int last = std::min(columns, i + limit);
    int diagonal = row[first - 1];
    row[first - 1] = first == 1 ? i : limit + 1;
    int least = row[first - 1];
    for (int j = first; j <= last; ++j) {
      const int above = j == i + limit ? limit + 1 : row[j];
      const int changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, above + 1, row[j - 1] + 1});
      least = std::min(least, row[j]);
    }
    if (least > limit) return limit + 1;
  }
  return std::min(row[columns], limit + 1);
}

struct Candidate {
  int distance = 0;
  size_t other_letters = 0;  // after those that both begin with
  size_t index = 0;

  auto operator<=>(const Candidate&) const = default;
};

size_t CommonLetters(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

std::vector<std::string> NearestNames(std::string_view name,
                                      std::span<const std::string> known_names,
                                      int count) {
  std::vector<std::string> result;
  if (count <= 0 || name.empty()) return result;
  const size_t wanted_count = static_cast<size_t>(count);
  for (size_t i = 0; i < known_names.size() && result.size() < wanted_count;
       ++i)
    if (EndsAtComponent(known_names[i], name)) result.push_back(known_names[i]);

  const size_t open = wanted_count - result.size();
  if (open == 0) return result;
  std::vector<Candidate> best;
  for (size_t i = 0; i < known_names.size(); ++i) {
    if (EndsAtComponent(known_names[i], name)) continue;
    const std::string_view a = End(name);
    const std::string_view b = End(LastComponents(known_names[i], name));
    int limit = static_cast<int>(std::max(a.size(), b.size()) / 2);
    if (best.size() == open) limit = std::min(limit, best.back().distance);
    const int distance = Distance(a, b, limit);
    if (distance > limit) continue;
    const Candidate candidate{distance, a.size() - CommonLetters(a, b), i};
    best.insert(std::ranges::upper_bound(best, candidate), candidate);
    if (best.size() > open) best.pop_back();
  }
  for (const Candidate& candidate : best)
    result.push_back(known_names[candidate.index]);
  return result;
}

}  // namespace acplan::graph
