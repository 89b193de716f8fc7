#include "cli/pictures/surface_picture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <optional>
#include <vector>

#include "cli/pictures/picture.h"
#include "cli/pictures/rate_lines.h"
#include "graph/base/json_text.h"

// A scene is a list of items in the space of a box with the corners (-1, -1,
// -h) and (1, 1, h): the surface over the indices of both parallelisms, and
// around it the floor, walls, lines, ticks and titles. Items that stand on a
// side of the box have a copy on each side. An item knows the planes through
// the middle on whose positive side the eye must be to see it. So of each pair
// of walls the picture shows the one behind the surface, and of the ticks those
// in front of it.
//
// A view is a direction, without perspective: three unit vectors to the right,
// up and to the eye, onto which points are projected. Items are drawn from the
// back to the front by the distance of their middle (the painter's algorithm).
// This order is right for faces of one height field over a grid, since no face
// cuts another; floor, lines, surface and texts are layers, one above the
// other.
//
// The page has the elements of all items, including hidden ones. Its script
// moves, hides and reorders them by the same three steps as the view is turned;
// their appearance is determined here alone.
namespace acplan::cli {

namespace {

using costmodel::RateMap;
using nlohmann::ordered_json;

constexpr int kWidth = 860;
constexpr int kHeight = 720;
constexpr double kScale = 210;
constexpr double kAzimuth = 205;
constexpr double kElevation = 20;
constexpr double kHalfHeight = 0.7;  // of the box; its base is from -1 to 1

using Point = std::array<double, 3>;

double Dot(const Point& a, const Point& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// A part of the picture in the space of the box: a face of several points, a
// line of two, or a dot or a text at one.
struct Item {
  enum class Kind { kFace, kLine, kDot, kText };
  Kind kind = Kind::kFace;
  std::vector<Point> points;
  std::string color;
  std::string text = {};
  // Seen only while the eye is on this side of every one of these planes
  // through the middle.
  std::vector<Point> facing = {};
  // Items of a higher layer cover lower ones; within a layer the nearer cover
  // the farther.
  int layer = 0;
  // How much nearer to the eye the item counts than its middle is.
  double lift = 0;
};

struct View {
  View(double azimuth_degrees, double elevation_degrees) {
    const double a = azimuth_degrees * std::numbers::pi / 180;
    const double e = elevation_degrees * std::numbers::pi / 180;
    right = {-std::sin(a), std::cos(a), 0};
    up = {-std::cos(a) * std::sin(e), -std::sin(a) * std::sin(e), std::cos(e)};
    eye = {std::cos(a) * std::cos(e), std::sin(a) * std::cos(e), std::sin(e)};
  }
  Point right, up, eye;
};

// The picture of a map: a box with the floor, four walls of which a view shows
// two, ticks and titles on all sides of which it shows one, and the surface.
class Scene {
 public:
  explicit Scene(const RateMap& map)
      : map_(map),
        tensor_pars_(map.TensorPars()),
        pipeline_pars_(map.PipelinePars()),
        least_(map.Least()),
        most_(map.Most()) {
    AddPanes();
    AddTicks();
    AddSurface();
  }

  const std::vector<Item>& items() const { return items_; }

 private:
  static double Across(size_t index, size_t count) {
    return -1 + 2 * static_cast<double>(index) / static_cast<double>(count - 1);
  }
  double Share(double rate) const {
    return most_ > least_ ? (rate - least_) / (most_ - least_) : 0.5;
  }
  static double Up(double share) { return kHalfHeight * (2 * share - 1); }
  Point PointOf(size_t tensor, size_t pipeline, double rate) const {
    return {Across(tensor, tensor_pars_.size()),
            Across(pipeline, pipeline_pars_.size()), Up(Share(rate))};
  }

  void AddLine(const Point& from, const Point& to, const Point& facing) {
    items_.push_back({.kind = Item::Kind::kLine,
                      .points = {from, to},
                      .color = "#c4c4c4",
                      .facing = {facing},
                      .layer = 1});
  }
  void AddText(const Point& point, std::string text,
               std::vector<Point> facing) {
    items_.push_back({.kind = Item::Kind::kText,
                      .points = {point},
                      .color = "#222222",
                      .text = std::move(text),
                      .facing = std::move(facing),
                      .layer = 3});
  }

  // Adds the floor and all walls; of each pair, the one behind the surface
  // shows.
  void AddPanes() {
    constexpr double kH = kHalfHeight;
    const auto pane = [&](std::vector<Point> corners, const Point& facing) {
      items_.push_back({.points = std::move(corners),
                        .color = "#f3f3f3",
                        .facing = {facing}});
    };
    pane({{-1, -1, -kH}, {1, -1, -kH}, {1, 1, -kH}, {-1, 1, -kH}}, {0, 0, 1});
    for (const double side : {-1.0, 1.0}) {
      pane({{side, -1, -kH}, {side, 1, -kH}, {side, 1, kH}, {side, -1, kH}},
           {-side, 0, 0});
      pane({{-1, side, -kH}, {1, side, -kH}, {1, side, kH}, {-1, side, kH}},
           {0, -side, 0});
    }
  }

  void AddTicks() {
    constexpr double kH = kHalfHeight;
    constexpr double kLabel = 1.13;
    constexpr double kTitle = 1.55;
    for (size_t i = 0; i < tensor_pars_.size(); ++i) {
      const double x = Across(i, tensor_pars_.size());
      AddLine({x, -1, -kH}, {x, 1, -kH}, {0, 0, 1});
      for (const double side : {-1.0, 1.0}) {
        AddLine({x, side, -kH}, {x, side, kH}, {0, -side, 0});
        AddText({x, side * kLabel, -kH}, fmt::to_string(tensor_pars_[i]),
                {{0, side, 0}});
      }
    }
    for (size_t i = 0; i < pipeline_pars_.size(); ++i) {
      const double y = Across(i, pipeline_pars_.size());
      AddLine({-1, y, -kH}, {1, y, -kH}, {0, 0, 1});
      for (const double side : {-1.0, 1.0}) {
        AddLine({side, y, -kH}, {side, y, kH}, {-side, 0, 0});
        AddText({side * kLabel, y, -kH}, fmt::to_string(pipeline_pars_[i]),
                {{side, 0, 0}});
      }
    }
    for (const double side : {-1.0, 1.0}) {
      AddText({0, side * kTitle, -kH - 0.1}, "Tensor Parallelism",
              {{0, side, 0}});
      AddText({side * kTitle, 0, -kH - 0.1}, "Pipeline Parallelism",
              {{side, 0, 0}});
    }
    AddRateTicks();
  }

  // Adds ticks beside each upright edge; the leftmost edge on the screen shows
  // them.
  void AddRateTicks() {
    constexpr int kTicks = 5;
    for (int tick = 0; tick < kTicks; ++tick) {
      const double share = static_cast<double>(tick) / (kTicks - 1);
      const double z = Up(share);
      for (const double side : {-1.0, 1.0}) {
        AddLine({side, -1, z}, {side, 1, z}, {-side, 0, 0});
        AddLine({-1, side, z}, {1, side, z}, {0, -side, 0});
        for (const double other : {-1.0, 1.0}) {
          AddText({1.18 * side, 1.18 * other, z},
                  fmt::format("{:.4g}", least_ + share * (most_ - least_)),
                  {{0, side, 0}, {-other, 0, 0}});
        }
      }
    }
    for (const double side : {-1.0, 1.0}) {
      for (const double other : {-1.0, 1.0}) {
        AddText({1.1 * side, 1.1 * other, kHalfHeight + 0.18}, "samples/s",
                {{0, side, 0}, {-other, 0, 0}});
      }
    }
  }

  void AddSurface() {
    for (size_t tensor = 0; tensor < tensor_pars_.size(); ++tensor) {
      for (size_t pipeline = 0; pipeline < pipeline_pars_.size(); ++pipeline) {
        AddDot(tensor, pipeline);
        if (tensor + 1 < tensor_pars_.size() &&
            pipeline + 1 < pipeline_pars_.size())
          AddFace(tensor, pipeline);
      }
    }
  }

  const RateMap::Cell* CellAt(size_t tensor, size_t pipeline) const {
    return map_.Find(tensor_pars_[tensor], pipeline_pars_[pipeline]);
  }

  void AddDot(size_t tensor, size_t pipeline) {
    const RateMap::Cell* cell = CellAt(tensor, pipeline);
    if (cell == nullptr) return;
    items_.push_back(
        {.kind = Item::Kind::kDot,
         .points = {PointOf(tensor, pipeline, *cell->rate)},
         .color = "#222222",
         .text = fmt::format("TP {}, PP {}: {} samples/s", cell->tensor_par,
                             cell->pipeline_par, cell->text),
         .layer = 2,
         // It lies on the faces that it touches.
         .lift = 0.5});
  }

  void AddFace(size_t tensor, size_t pipeline) {
    constexpr std::array<std::pair<size_t, size_t>, 4> kCorners{
        {{0, 0}, {1, 0}, {1, 1}, {0, 1}}};
    Item face{.points = {}, .color = "", .layer = 2};
    double sum = 0;
    for (const auto& [right, far] : kCorners) {
      const RateMap::Cell* cell = CellAt(tensor + right, pipeline + far);
      if (cell == nullptr) return;
      face.points.push_back(
          PointOf(tensor + right, pipeline + far, *cell->rate));
      sum += *cell->rate;
    }
    face.color = RainbowColor(Share(sum / kCorners.size()));
    items_.push_back(std::move(face));
  }

  const RateMap& map_;
  std::vector<int64_t> tensor_pars_;
  std::vector<int64_t> pipeline_pars_;
  double least_;
  double most_;
  std::vector<Item> items_;
};

// An item as a view shows it.
struct Placed {
  const Item* item = nullptr;
  bool is_seen = false;
  double depth = 0;
};

// Returns the items in the order in which they are drawn.
std::vector<Placed> Place(const std::vector<Item>& items, const View& view) {
  std::vector<Placed> placed;
  for (const Item& item : items) {
    const bool is_seen = std::ranges::all_of(
        item.facing,
        [&](const Point& plane) { return Dot(plane, view.eye) > 0; });
    double sum = 0;
    for (const Point& point : item.points) sum += Dot(point, view.eye);
    placed.push_back(
        {&item, is_seen,
         sum / static_cast<double>(item.points.size()) + item.lift});
  }
  std::ranges::stable_sort(placed, {}, [](const Placed& one) {
    return std::pair(one.item->layer, one.depth);
  });
  return placed;
}

// Returns the element of an item. Its place is either in `points` or in
// `transform`; the page's script changes nothing else of it.
std::string Element(const Item& item, const View& view, bool is_seen) {
  std::string points;
  for (const Point& point : item.points) {
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ",
                          kWidth / 2.0 + kScale * Dot(point, view.right),
                          kHeight / 2.0 + 20 - kScale * Dot(point, view.up));
  }
  const std::string_view hidden = is_seen ? "" : " display=\"none\"";
  switch (item.kind) {
    case Item::Kind::kFace:
      return fmt::format(
          "<polygon points=\"{}\" fill=\"{}\" stroke=\"#222222\" "
          "stroke-width=\"0.4\"{}/>\n",
          points, item.color, hidden);
    case Item::Kind::kLine:
      return fmt::format(
          "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\"{}/>\n", points,
          item.color, hidden);
    case Item::Kind::kDot:
      return fmt::format(
          "<circle transform=\"translate({})\" r=\"3\" fill=\"{}\"{}>"
          "<title>{}</title></circle>\n",
          points, item.color, hidden, Escaped(item.text));
    case Item::Kind::kText:
      break;
  }
  return fmt::format(
      "<text transform=\"translate({})\" text-anchor=\"middle\" "
      "dominant-baseline=\"middle\" fill=\"{}\"{}>{}</text>\n",
      points, item.color, hidden, Escaped(item.text));
}

std::string Svg(const std::string& elements, const RateMap& map,
                std::string_view title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"13\" "
      "role=\"img\">\n<title>{2}</title>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"{3}\" y=\"30\" text-anchor=\"middle\" "
      "font-size=\"16\">{2}</text>\n<g id=\"scene\">\n{4}</g>\n{5}</svg>\n",
      kWidth, kHeight, Escaped(title.empty() ? kRateTitle : title), kWidth / 2,
      elements,
      ColorBar({map.Least(), map.Most(), RainbowColor}, kWidth - 90, 90, 180));
}

// Returns the places of the items, in the order in which they are drawn.
ordered_json ToJson(const std::vector<Placed>& placed) {
  ordered_json json = ordered_json::array();
  for (const Placed& one : placed) {
    json.push_back({{"points", one.item->points},
                    {"facing", one.item->facing},
                    {"layer", one.item->layer},
                    {"lift", one.item->lift}});
  }
  return json;
}

// The script that moves the elements when the picture is turned: `items` has
// the place of each element of the scene.
constexpr std::string_view kScript = R"JS(
const scene = document.getElementById("scene");
const svg = scene.ownerSVGElement;
const start = [AZIMUTH, ELEVATION];
let view = start.slice();
[...scene.children].forEach((node, i) => { items[i].node = node; });
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
function show() {
  const [a, e] = view.map(degrees => degrees * Math.PI / 180);
  const right = [-Math.sin(a), Math.cos(a), 0];
  const up = [-Math.cos(a) * Math.sin(e), -Math.sin(a) * Math.sin(e),
      Math.cos(e)];
  const eye = [Math.cos(a) * Math.cos(e), Math.sin(a) * Math.cos(e),
      Math.sin(e)];
  const place = p => [WIDTH / 2 + SCALE * dot(p, right),
      HEIGHT / 2 + 20 - SCALE * dot(p, up)];
  for (const item of items) {
    const at = item.points.map(place).join(" ");
    if (item.points.length > 1) item.node.setAttribute("points", at);
    else item.node.setAttribute("transform", `translate(${at})`);
    const isSeen = item.facing.every(plane => dot(plane, eye) > 0);
    item.node.setAttribute("display", isSeen ? "inline" : "none");
    item.depth = item.points.reduce((sum, p) => sum + dot(p, eye), 0) /
        item.points.length + item.lift;
  }
  scene.replaceChildren(...items.slice()
      .sort((p, q) => p.layer - q.layer || p.depth - q.depth)
      .map(item => item.node));
}
function turn(azimuth, elevation) {
  view = [view[0] + azimuth,
      Math.min(90, Math.max(1, view[1] + elevation))];
  show();
}
svg.style.cursor = "grab";
svg.style.touchAction = "none";
svg.addEventListener("pointerdown", e => svg.setPointerCapture(e.pointerId));
svg.addEventListener("pointermove", e => {
  if (e.buttons === 1) turn(-e.movementX / 2, e.movementY / 2);
});
svg.addEventListener("dblclick", () => { view = start.slice(); show(); });
document.addEventListener("keydown", e => {
  const step = {ArrowLeft: [5, 0], ArrowRight: [-5, 0], ArrowUp: [0, 5],
      ArrowDown: [0, -5]}[e.key];
  if (step) { turn(...step); e.preventDefault(); }
});
)JS";

std::string Replaced(std::string text, std::string_view name,
                     const std::string& value) {
  for (size_t place = text.find(name); place != std::string::npos;
       place = text.find(name, place + value.size()))
    text.replace(place, name.size(), value);
  return text;
}

std::string Script(const std::vector<Placed>& placed) {
  std::string script(kScript);
  script = Replaced(script, "AZIMUTH", fmt::to_string(kAzimuth));
  script = Replaced(script, "ELEVATION", fmt::to_string(kElevation));
  script = Replaced(script, "WIDTH", fmt::to_string(kWidth));
  script = Replaced(script, "HEIGHT", fmt::to_string(kHeight));
  script = Replaced(script, "SCALE", fmt::to_string(kScale));
  return "const items = " + graph::CompactText(ToJson(placed)) + ";" + script;
}

}  // namespace

std::string SurfaceSvg(const RateMap& map, std::string_view title) {
  const Scene scene(map);
  const View view(kAzimuth, kElevation);
  std::string elements;
  for (const Placed& one : Place(scene.items(), view)) {
    if (one.is_seen) elements += Element(*one.item, view, true);
  }
  return Svg(elements, map, title);
}

std::string SurfaceHtml(const RateMap& map, std::string_view title) {
  const Scene scene(map);
  const View view(kAzimuth, kElevation);
  const std::vector<Placed> placed = Place(scene.items(), view);
  std::string elements;
  for (const Placed& one : placed) {
    elements += Element(*one.item, view, one.is_seen);
  }
  return HtmlPage(
      title.empty() ? kRateTitle : title,
      Svg(elements, map, title) +
          "<p>Drag the picture or press the arrow keys to turn it; a double "
          "click turns it back. The table has the rates that a surface "
          "hides.</p>\n" +
          RateTable(map),
      Script(placed));
}

}  // namespace acplan::cli
