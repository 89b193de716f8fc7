#include "costmodel/calculon/results/rate_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "graph/base/file_lines.h"
#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/base/text_value.h"

namespace acplan::costmodel {

namespace {

using graph::ParseTextValue;
using graph::TextMember;
using graph::TextValue;

using Cell = RateMap::Cell;
using Kind = TextValue::Kind;

constexpr int64_t kMostParallel = 1'000'000'000;

// The place of a value, for errors.
struct Place {
  std::string file;
  std::string path;

  Place Member(std::string_view key) const {
    return {file, path + (path.empty() ? "" : ".") + graph::OneLine(key)};
  }
  [[noreturn]] void Refuse(std::string_view expected,
                           std::string_view actual) const {
    throw InputError(fmt::format("{}: {}{}expected {}, found {}",
                                 graph::OneLine(file, 400), path,
                                 path.empty() ? "" : ": ", expected, actual));
  }
};

std::string Described(const TextValue& value) {
  switch (value.kind) {
    case Kind::kObject:
      return "an object";
    case Kind::kArray:
      return "an array";
    case Kind::kString:
      return graph::Quoted(value.text);
    default:
      return value.text;
  }
}

template <typename Number>
std::optional<Number> Parsed(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

int64_t Parallelism(std::string_view text, const Place& place) {
  const auto number = Parsed<int64_t>(text);
  if (!number || *number < 1 || *number > kMostParallel) {
    place.Refuse(fmt::format("a whole number from 1 to {}", kMostParallel),
                 graph::Quoted(text));
  }
  return *number;
}

double Rate(std::string_view text, const Place& place) {
  const auto number = Parsed<double>(text);
  if (!number || !std::isfinite(*number) || *number < 0)
    place.Refuse("a rate of at least 0", graph::Quoted(text));
  return *number;
}

const TextValue& Get(const TextValue& object, std::string_view key, Kind kind,
                     const Place& place) {
  if (object.kind != Kind::kObject)
    place.Refuse("an object", Described(object));
  const TextValue* value = object.Find(key);
  if (value == nullptr)
    place.Refuse(fmt::format("the key {}", graph::Quoted(key)), "none");
  if (value->kind != kind) {
    place.Member(key).Refuse(kind == Kind::kObject ? "an object" : "a number",
                             Described(*value));
  }
  return *value;
}

Cell RateOf(const TextValue& stats, const Place& place) {
  const TextValue& rate = Get(stats, "sample_rate", Kind::kNumber, place);
  return {.rate = Rate(rate.text, place.Member("sample_rate")),
          .text = rate.text};
}

// The best rate of each pair, the first one among equal rates.
class BestRates {
 public:
  void Add(Cell cell) {
    const auto [best, is_new] =
        cells_.try_emplace({cell.tensor_par, cell.pipeline_par}, cell);
    if (!is_new && *cell.rate > *best->second.rate)
      best->second = std::move(cell);
  }
  std::vector<Cell> Cells() const {
    std::vector<Cell> cells;
    for (const auto& [unused, cell] : cells_) cells.push_back(cell);
    return cells;
  }

 private:
  std::map<std::pair<int64_t, int64_t>, Cell> cells_;
};

std::vector<Cell> FromResults(const TextValue& document, const Place& root) {
  BestRates best;
  for (const auto& [rank, entry] : document.members) {
    const Place place = root.Member(rank);
    const TextValue& execution = Get(entry, "execution", Kind::kObject, place);
    Cell cell = RateOf(Get(entry, "stats", Kind::kObject, place),
                       place.Member("stats"));
    const auto parallelism = [&](std::string_view key) {
      const Place at = place.Member("execution");
      return Parallelism(Get(execution, key, Kind::kNumber, at).text,
                         at.Member(key));
    };
    cell.tensor_par = parallelism("tensor_par");
    cell.pipeline_par = parallelism("pipeline_par");
    best.Add(std::move(cell));
  }
  return best.Cells();
}

std::vector<Cell> FromNestedMap(const TextValue& document, const Place& root) {
  std::vector<Cell> cells;
  for (const auto& [tensor_key, row] : document.members) {
    const Place row_place = root.Member(tensor_key);
    const int64_t tensor_par = Parallelism(tensor_key, row_place);
    if (row.kind != Kind::kObject)
      row_place.Refuse("an object", Described(row));
    for (const auto& [pipeline_key, entry] : row.members) {
      const Place place = row_place.Member(pipeline_key);
      const int64_t pipeline_par = Parallelism(pipeline_key, place);
      if (entry.kind != Kind::kObject)
        place.Refuse("an object", Described(entry));
      Cell cell;
      if (entry.Find("stats") != nullptr) {
        cell = RateOf(Get(entry, "stats", Kind::kObject, place),
                      place.Member("stats"));
      }
      cell.tensor_par = tensor_par;
      cell.pipeline_par = pipeline_par;
      cells.push_back(std::move(cell));
    }
  }
  return cells;
}

std::vector<Cell> FromJson(const std::filesystem::path& path) {
  const Place root{path.string(), ""};
  const TextValue document =
      ParseTextValue(graph::ReadJsonText(path), root.file);
  if (document.kind != Kind::kObject)
    root.Refuse("an object", Described(document));
  const bool is_results =
      std::ranges::any_of(document.members, [](const TextMember& member) {
        return member.value.Find("execution") != nullptr;
      });
  if (is_results) return FromResults(document, root);
  const std::vector<Cell> cells = FromNestedMap(document, root);
  RequireGrid({cells}, root.file);
  return cells;
}

std::string_view CsvField(std::string_view line, size_t column) {
  for (; column > 0; --column) {
    const size_t comma = line.find(',');
    if (comma == std::string_view::npos) return "";
    line.remove_prefix(comma + 1);
  }
  return line.substr(0, line.find(','));
}

size_t Column(std::string_view heading, std::string_view name,
              const Place& place) {
  const size_t fields = std::ranges::count(heading, ',') + 1;
  for (size_t column = 0; column < fields; ++column) {
    if (CsvField(heading, column) == name) return column;
  }
  place.Refuse(fmt::format("a column {}", graph::Quoted(name)), "none");
}

// The positions of the relevant columns in the heading.
struct Columns {
  size_t tensor_par = 0;
  size_t pipeline_par = 0;
  size_t rate = 0;
};

Cell CellOf(std::string_view line, const Columns& columns, const Place& place) {
  const std::string_view rate = CsvField(line, columns.rate);
  return {.tensor_par = Parallelism(CsvField(line, columns.tensor_par),
                                    place.Member("tensor_par")),
          .pipeline_par = Parallelism(CsvField(line, columns.pipeline_par),
                                      place.Member("pipeline_par")),
          .rate = Rate(rate, place.Member("sample_rate")),
          .text = std::string(rate)};
}

std::vector<Cell> FromCsv(const std::filesystem::path& path) {
  Place place{path.string(), ""};
  Columns columns;
  BestRates best;
  int64_t number = 0;
  graph::ForEachLine(path, [&](std::string_view line) {
    place.path = fmt::format("line {}", ++number);
    if (number == 1) {
      columns = {.tensor_par = Column(line, "tensor_par", place),
                 .pipeline_par = Column(line, "pipeline_par", place),
                 .rate = Column(line, "sample_rate", place)};
    } else if (!line.empty() && !line.starts_with('#')) {
      best.Add(CellOf(line, columns, place));
    }
  });
  return best.Cells();
}

std::vector<int64_t> Distinct(const std::vector<Cell>& cells,
                              int64_t Cell::*member) {
  std::set<int64_t> values;
  for (const Cell& cell : cells) values.insert(cell.*member);
  return {values.begin(), values.end()};
}

}  // namespace

std::vector<int64_t> RateMap::TensorPars() const {
  return Distinct(cells, &Cell::tensor_par);
}

std::vector<int64_t> RateMap::PipelinePars() const {
  return Distinct(cells, &Cell::pipeline_par);
}

const Cell* RateMap::Find(int64_t tensor_par, int64_t pipeline_par) const {
  const auto cell = std::ranges::find_if(cells, [&](const Cell& other) {
    return other.tensor_par == tensor_par && other.pipeline_par == pipeline_par;
  });
  return cell == cells.end() || !cell->rate ? nullptr : &*cell;
}

double RateMap::Least() const {
  double least = INFINITY;
  for (const Cell& cell : cells)
    least = std::min(least, cell.rate.value_or(INFINITY));
  return least;
}

double RateMap::Most() const {
  double most = 0;
  for (const Cell& cell : cells) most = std::max(most, cell.rate.value_or(0));
  return most;
}

void RequireGrid(const RateMap& map, const std::string& file) {
  const size_t tensor_pars = map.TensorPars().size();
  const size_t pipeline_pars = map.PipelinePars().size();
  if (tensor_pars >= 2 && pipeline_pars >= 2) return;
  Place{file, ""}.Refuse("at least 2 tensor and 2 pipeline parallelisms",
                         fmt::format("{} and {}", tensor_pars, pipeline_pars));
}

RateMap ReadRateMap(const std::filesystem::path& path) {
  const Place root{path.string(), ""};
  const auto ends_in = [&](std::string_view extension) {
    return root.file.ends_with(extension) ||
           root.file.ends_with(std::string(extension) + ".gz");
  };
  if (!ends_in(".json") && !ends_in(".csv")) {
    throw InputError(
        fmt::format("{}: expected a name in .json, .json.gz, .csv or .csv.gz",
                    graph::OneLine(root.file, 400)));
  }
  const RateMap map{ends_in(".csv") ? FromCsv(path) : FromJson(path)};
  if (std::ranges::none_of(
          map.cells, [](const Cell& cell) { return cell.rate.has_value(); }))
    root.Refuse("a sample rate", "none");
  return map;
}

}  // namespace acplan::costmodel
