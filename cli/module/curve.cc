#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/profile_input.h"
#include "cli/module/module_statistics.h"
#include "cli/terminal/plot.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/profile/pareto_list.h"
#include "graph/profile/piecewise_linear_fit.h"
#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "graph/profile/tradeoff_curve.h"

namespace acplan::cli {

namespace {

struct CurveFlags {
  std::string profile;
  std::string module;
  std::string segments;
  PatternFlags patterns;
  bool csv = false;
  bool json = false;
  std::string output;
};

struct MeasuredFit {
  graph::PiecewiseLinear f;
  double squared_error = 0;
};

// A policy or a prefix of the greedy order, with all its figures.
struct Choice {
  int64_t saved_bytes = 0;
  int64_t discarded_bytes = 0;  // of the module's activations
  double recompute_ms = 0;
  double memory_budget = 0;
  double recomputed_share = 0;
  bool is_on_hull = false;
};

struct Curve {
  std::string model, module;
  size_t operators = 0;
  int64_t act_bytes = 0;
  int64_t sac_memory = 0;
  double sac_runtime = 0;
  std::vector<Choice> greedy;
  MeasuredFit fit;
  std::optional<MeasuredFit> torch_fit;  // from the profile
  graph::OperatorPatterns patterns;
  std::vector<Choice> pareto;
  bool pareto_is_complete = true;

  double BudgetOf(int64_t saved_bytes) const {
    return sac_memory > 0 ? static_cast<double>(saved_bytes) /
                                static_cast<double>(sac_memory)
                          : 0;
  }
  Choice ToChoice(int64_t saved_bytes, double recompute_ms) const {
    return {
        .saved_bytes = saved_bytes,
        .discarded_bytes =
            std::max(std::min(act_bytes, sac_memory) - saved_bytes, int64_t{0}),
        .recompute_ms = recompute_ms,
        .memory_budget = BudgetOf(saved_bytes),
        .recomputed_share = sac_runtime > 0 ? recompute_ms / sac_runtime : 0};
  }
};

// Returns nothing if torch's fit was NaN or there was nothing to fit.
std::optional<graph::PiecewiseLinear> ToFunction(
    const graph::TradeoffFit& fit) {
  graph::PiecewiseLinear f;
  const auto copy = [](const std::vector<std::optional<double>>& from) {
    std::vector<double> to;
    for (const std::optional<double>& value : from) {
      if (value) to.push_back(*value);
    }
    return to;
  };
  f = {copy(fit.slopes), copy(fit.intercepts), copy(fit.breakpoints)};
  const size_t n = static_cast<size_t>(fit.n_segments);
  if (n == 0 || f.slopes.size() != n || f.intercepts.size() != n ||
      f.breakpoints.size() != n + 1) {
    return std::nullopt;
  }
  return f;
}

std::vector<Choice> GreedyChoices(const Curve& curve,
                                  const graph::TradeoffFit& fit) {
  std::vector<Choice> choices;
  for (const auto& [x, y] : fit.tradeoff_curve) {
    const int64_t discarded = std::llround(
        (x - graph::kCurveShift) * static_cast<double>(curve.sac_memory));
    choices.push_back(
        curve.ToChoice(std::max(curve.sac_memory - discarded, int64_t{0}),
                       y * curve.sac_runtime));
  }
  return choices;
}

Curve ComputeCurve(const graph::Profile& profile,
                   const ModuleStatistics& statistics, int segments,
                   const graph::OperatorPatterns& patterns) {
  const graph::Module& module = *statistics.module;
  const graph::SacStatistics& sac = statistics.sac();
  const graph::OperatorGroups& groups = statistics.groups;
  const graph::TradeoffFit fit = FitTradeoff(sac, segments);
  const graph::PiecewiseLinear f = ToFunction(fit).value();
  Curve curve;
  curve.model = profile.model.name;
  curve.module = module.fqn;
  curve.operators = sac.memory.size();
  curve.act_bytes = module.act_fw_per_module;
  curve.sac_memory = fit.sac_memory;
  curve.sac_runtime = fit.sac_runtime;
  curve.patterns = patterns;
  curve.fit = {f, SquaredError(f, graph::FittedPoints(fit.tradeoff_curve))};
  curve.greedy = GreedyChoices(curve, fit);
  if (module.torch_fit) {
    if (const auto theirs = ToFunction(*module.torch_fit)) {
      // The profile's curve may have ties in another order.
      curve.torch_fit = {
          *theirs,
          SquaredError(*theirs,
                       graph::FittedPoints(module.torch_fit->tradeoff_curve))};
    }
  }
  const graph::ParetoList list = ComputeParetoList(groups);
  curve.pareto_is_complete = list.is_complete;
  const std::vector<graph::PolicyCost> hull = ParetoHull(groups);
  auto corner = hull.begin();
  for (const graph::PolicyCost& point : list.points) {
    Choice choice = curve.ToChoice(point.saved_bytes, point.recompute_ms);
    choice.is_on_hull = corner != hull.end() && *corner == point;
    if (choice.is_on_hull) ++corner;
    curve.pareto.push_back(choice);
  }
  return curve;
}

std::string CsvRow(std::string_view kind, const Choice& choice,
                   std::string_view is_on_hull) {
  return fmt::format("{},{},{},{},{},{},{},,,,\n", kind, choice.saved_bytes,
                     choice.discarded_bytes, choice.recompute_ms,
                     choice.memory_budget, choice.recomputed_share, is_on_hull);
}

std::string CsvRows(std::string_view kind, const MeasuredFit& fit) {
  std::string text;
  for (size_t k = 0; k < fit.f.slopes.size(); ++k) {
    text += fmt::format("{},,,,,,,{},{},{},{}\n", kind, fit.f.breakpoints[k],
                        fit.f.breakpoints[k + 1], fit.f.slopes[k],
                        fit.f.intercepts[k]);
  }
  return text;
}

std::string ToCsv(const Curve& curve) {
  std::string text =
      "kind,saved_bytes,discarded_bytes,recompute_ms,memory_budget,"
      "recomputed_share,on_hull,from,to,slope,intercept\n";
  for (const Choice& choice : curve.greedy) {
    text += CsvRow("greedy", choice, "");
  }
  text += CsvRows("fit", curve.fit);
  if (curve.torch_fit) text += CsvRows("torch_fit", *curve.torch_fit);
  for (const Choice& choice : curve.pareto) {
    text += CsvRow("pareto", choice, choice.is_on_hull ? "1" : "0");
  }
  return text;
}

nlohmann::ordered_json ToJson(const Choice& choice) {
  return {{"saved_bytes", choice.saved_bytes},
          {"discarded_bytes", choice.discarded_bytes},
          {"recompute_ms", choice.recompute_ms},
          {"memory_budget", choice.memory_budget},
          {"recomputed_share", choice.recomputed_share}};
}

nlohmann::ordered_json ToJson(const MeasuredFit& fit) {
  nlohmann::ordered_json json;
  json["squared_error"] = fit.squared_error;
  json["segments"] = nlohmann::ordered_json::array();
  for (size_t k = 0; k < fit.f.slopes.size(); ++k) {
    json["segments"].push_back({{"from", fit.f.breakpoints[k]},
                                {"to", fit.f.breakpoints[k + 1]},
                                {"slope", fit.f.slopes[k]},
                                {"intercept", fit.f.intercepts[k]}});
  }
  return json;
}

std::string ToJson(const Curve& curve) {
  nlohmann::ordered_json json;
  json["model"] = curve.model;
  json["module"] = curve.module;
  json["operators"] = curve.operators;
  json["act_fw_per_module"] = curve.act_bytes;
  json["sac_memory"] = curve.sac_memory;
  json["sac_runtime"] = curve.sac_runtime;
  json["save"] = curve.patterns.save;
  json["recompute"] = curve.patterns.recompute;
  json["greedy"] = nlohmann::ordered_json::array();
  for (const Choice& choice : curve.greedy) {
    json["greedy"].push_back(ToJson(choice));
  }
  json["fit"] = ToJson(curve.fit);
  json["torch_fit"] = nullptr;
  if (curve.torch_fit) json["torch_fit"] = ToJson(*curve.torch_fit);
  json["pareto_is_complete"] = curve.pareto_is_complete;
  json["pareto"] = nlohmann::ordered_json::array();
  for (const Choice& choice : curve.pareto) {
    nlohmann::ordered_json entry = ToJson(choice);
    entry["on_hull"] = choice.is_on_hull;
    json["pareto"].push_back(std::move(entry));
  }
  return graph::IndentedText(json);
}

// Returns the least share that is recomputed if a share is discarded: according
// to the list or, if only its corners are known, between them.
double LeastRecomputed(const Curve& curve, double discarded) {
  const double budget = 1 - discarded;
  const auto after = std::ranges::upper_bound(curve.pareto, budget + 1e-9, {},
                                              &Choice::memory_budget);
  if (after == curve.pareto.begin()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const Choice& best_within = *std::prev(after);
  if (curve.pareto_is_complete || after == curve.pareto.end()) {
    return best_within.recomputed_share;
  }
  return std::lerp(best_within.recomputed_share, after->recomputed_share,
                   (budget - best_within.memory_budget) /
                       (after->memory_budget - best_within.memory_budget));
}

std::string Drawing(const Curve& curve, const Terminal& terminal) {
  const Plot::Pen fit{"·", Plot::Style::kYellow};
  const Plot::Pen pareto{"─", Plot::Style::kGreen};
  const Plot::Pen greedy{"o", Plot::Style::kPlain};
  Plot plot;
  plot.AddFunction([&](double x) { return curve.fit.f.At(x); }, fit);
  plot.AddFunction([&](double x) { return LeastRecomputed(curve, x); }, pareto);
  for (const Choice& choice : curve.greedy) {
    plot.AddPoint(1 - choice.memory_budget, choice.recomputed_share, greedy);
  }
  plot.AddLegend(greedy, "greedy curve");
  plot.AddLegend(fit, "its fit");
  plot.AddLegend(pareto, curve.pareto_is_complete
                             ? "exact Pareto list"
                             : "convex hull of the exact Pareto list");
  if (!terminal.IsScreen()) {
    return plot.ToString(terminal, "discarded", "recomputed");
  }
  return plot.ToString(
      terminal,
      Plot::Axis::OfBytes("discarded", 0,
                          static_cast<double>(curve.sac_memory)),
      Plot::Axis::OfMs("recomputed", curve.sac_runtime));
}

std::string FitTable(const Curve& curve, const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight, kRight, kRight});
  table.AddRow({"fit", "from", "to", "slope", "intercept", "squared error"});
  const auto add = [&](const std::string& name, const MeasuredFit& fit) {
    for (size_t k = 0; k < fit.f.slopes.size(); ++k) {
      table.AddRow({k == 0 ? name : "",
                    fmt::format("{:.4f}", fit.f.breakpoints[k]),
                    fmt::format("{:.4f}", fit.f.breakpoints[k + 1]),
                    fmt::format("{:.4f}", fit.f.slopes[k]),
                    fmt::format("{:.4f}", fit.f.intercepts[k]),
                    k == 0 ? fmt::format("{:.6f}", fit.squared_error) : ""});
    }
  };
  add("best", curve.fit);
  if (curve.torch_fit) add("in the profile", *curve.torch_fit);
  return table.ToString(terminal);
}

// Returns all policies or, if there are many, the one that recomputes least
// within each twentieth of the memory.
std::vector<Choice> ShownPolicies(const Curve& curve) {
  constexpr int kParts = 20;
  if (curve.pareto.size() <= kParts) return curve.pareto;
  std::vector<Choice> choices{curve.pareto.front()};
  for (int part = 0; part <= kParts; ++part) {
    const auto after = std::ranges::upper_bound(
        curve.pareto, part / double{kParts}, {}, &Choice::memory_budget);
    if (after == curve.pareto.begin()) continue;
    if (std::prev(after)->saved_bytes > choices.back().saved_bytes) {
      choices.push_back(*std::prev(after));
    }
  }
  return choices;
}

std::string ParetoTable(const Curve& curve, const Terminal& terminal) {
  using enum Table::Align;
  Table table({kRight, kRight, kRight, kRight, kLeft});
  table.AddRow({"memory budget", "saved", "discarded", "recomputed", "hull"});
  const std::vector<Choice> choices = ShownPolicies(curve);
  for (const Choice& choice : choices) {
    table.AddRow({fmt::format("{:.4f}", choice.memory_budget),
                  graph::FormatBytes(choice.saved_bytes),
                  graph::FormatBytes(choice.discarded_bytes),
                  FormatMs(choice.recompute_ms),
                  choice.is_on_hull ? "yes" : ""});
  }
  std::string text = table.ToString(terminal);
  const std::string count =
      FormatCount(static_cast<int64_t>(curve.pareto.size()));
  if (choices.size() < curve.pareto.size()) {
    text += terminal.Dim(fmt::format("{} of {} points: the fastest in each "
                                     "twentieth of the memory; --csv lists all",
                                     choices.size(), count)) +
            "\n";
  }
  if (!curve.pareto_is_complete) {
    text += terminal.Dim(
                "the Pareto list is too long; the table lists the corners of "
                "its convex hull") +
            "\n";
  }
  return text;
}

std::string ToText(const Curve& curve, const Terminal& terminal) {
  return fmt::format("{} of {}, {} operators, SAC memory {}, recompute {}\n\n",
                     terminal.Bold(graph::OneLine(curve.module, 400)),
                     graph::OneLine(curve.model), curve.operators,
                     graph::FormatBytes(curve.sac_memory),
                     FormatMs(curve.sac_runtime)) +
         Drawing(curve, terminal) + "\n" + FitTable(curve, terminal) + "\n" +
         ParetoTable(curve, terminal);
}

int RunCurve(const CurveFlags& flags, const Terminal& terminal) {
  if (flags.csv && flags.json) {
    throw InputError("--csv: cannot be combined with --json");
  }
  const graph::Profile profile = ReadProfileOrTrace(flags.profile).profile;
  const graph::OperatorPatterns patterns = flags.patterns.Patterns();
  const ModuleStatistics statistics =
      FindStatistics(profile, flags.module, patterns);
  const int segments =
      flags.segments.empty()
          ? 2
          : static_cast<int>(ParseWhole(flags.segments, "--segments", 1, 16));
  const Curve curve = ComputeCurve(profile, statistics, segments, patterns);

  if (!flags.output.empty()) {
    const bool is_csv =
        flags.output.ends_with(".csv") || flags.output.ends_with(".csv.gz");
    graph::WriteFile(flags.output, flags.csv || (is_csv && !flags.json)
                                       ? ToCsv(curve)
                                       : ToJson(curve));
  }
  terminal.Print(flags.csv    ? ToCsv(curve)
                 : flags.json ? ToJson(curve)
                              : BrokenLines(ToText(curve, terminal), terminal));
  return kExitOk;
}

}  // namespace

Command AddModuleCurveCommand(CLI::App& program) {
  auto flags = std::make_shared<CurveFlags>();
  CLI::App* app = program.add_subcommand(
      "curve", "Show what a module recomputes for what it discards");
  app->add_option("PROFILE", flags->profile,
                  "profile or trace (.json or .json.gz)")
      ->required();
  app->add_option("MODULE", flags->module, "FQN of a module that has operators")
      ->type_name("FQN")
      ->required();
  app->add_option("--segments", flags->segments,
                  "number of segments of the fit, 1 to 16 (default 2)")
      ->type_name("N");
  flags->patterns.AddTo(*app);
  app->add_flag("--csv", flags->csv, "print CSV and nothing else");
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  AddOutput(*app, flags->output, "write CSV (.csv or .csv.gz) or JSON here");
  app->footer(
      "Example:\n  acplan module curve example:profiles/gpt2_small "
      "GPT2LMHeadModel.transformer.h.0");
  return {app, [flags](const Terminal& terminal) {
            return RunCurve(*flags, terminal);
          }};
}

}  // namespace acplan::cli
