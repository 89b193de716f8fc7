#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/input/file_names.h"
#include "cli/input/output_files.h"
#include "cli/pictures/heatmap_picture.h"
#include "cli/pictures/rate_lines.h"
#include "costmodel/calculon/results/rate_map.h"
#include "graph/base/file_io.h"
#include "graph/base/number_text.h"

namespace acplan::cli {

namespace {

struct HeatmapFlags {
  std::string stats;
  std::string output;
  std::string title;
};

int RunHeatmap(const HeatmapFlags& flags, const Terminal& terminal) {
  RequireExtension(flags.output, {".svg", ".html"});
  const costmodel::RateMap map = costmodel::ReadRateMap(flags.stats);
  graph::WriteFile(flags.output, flags.output.ends_with(".svg")
                                     ? HeatmapSvg(map, flags.title)
                                     : HeatmapHtml(map, flags.title));
  terminal.Print(
      fmt::format("{}min={} max={} thres={}\nwriting {}\n", RateLines(map),
                  graph::FloatText(map.Least()), graph::FloatText(map.Most()),
                  graph::FloatText(DarkTextThreshold(map)), flags.output));
  return kExitOk;
}

}  // namespace

Command AddLlmHeatmapCommand(CLI::App& program) {
  auto flags = std::make_shared<HeatmapFlags>();
  CLI::App* app = program.add_subcommand(
      "llm-heatmap",
      "Draw the sample rate over tensor and pipeline parallelism");
  app->add_option("STATS", flags->stats,
                  "results of llm-optimal-execution or llm-all-executions "
                  "(.json, .csv, either with .gz)")
      ->required();
  MarkAsOutput(app->add_option("OUTPUT", flags->output,
                               "picture to write (.svg or .html)")
                   ->required());
  app->add_option("-t,--title", flags->title, "title of the picture");
  app->footer(
      "Example:\n  acplan calculon llm-heatmap all.csv.gz rates.svg -t 'GPT-3 "
      "175B'\n"
      "Exit status: 0 written, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunHeatmap(*flags, terminal);
          }};
}

}  // namespace acplan::cli
