#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/input/file_names.h"
#include "cli/input/output_files.h"
#include "cli/pictures/rate_lines.h"
#include "cli/pictures/surface_picture.h"
#include "costmodel/calculon/results/rate_map.h"
#include "graph/base/file_io.h"

namespace acplan::cli {

namespace {

struct SurfaceFlags {
  std::string stats;
  std::string output;
  std::string title;
};

// Returns "all.3dplot.html" for "folder/all.csv.gz".
std::string DefaultOutput(const std::filesystem::path& stats) {
  std::filesystem::path name = stats.filename();
  if (name.extension() == ".gz") name = name.stem();
  return name.stem().string() + ".3dplot.html";
}

int RunSurface(const SurfaceFlags& flags, const Terminal& terminal) {
  const std::string output =
      flags.output.empty() ? DefaultOutput(flags.stats) : flags.output;
  RequireExtension(output, {".svg", ".html"});
  graph::CheckWritable(output);
  const costmodel::RateMap map = costmodel::ReadRateMap(flags.stats);
  costmodel::RequireGrid(map, flags.stats);
  graph::WriteFile(output, output.ends_with(".svg")
                               ? SurfaceSvg(map, flags.title)
                               : SurfaceHtml(map, flags.title));
  terminal.Print(fmt::format("{}writing {}\n", RateLines(map), output));
  return kExitOk;
}

}  // namespace

Command AddLlm3dplotCommand(CLI::App& program) {
  auto flags = std::make_shared<SurfaceFlags>();
  CLI::App* app = program.add_subcommand(
      "llm-3dplot",
      "Draw the sample rate over tensor and pipeline parallelism as a surface");
  app->add_option("STATS", flags->stats,
                  "results of llm-optimal-execution or llm-all-executions "
                  "(.json, .csv, either with .gz)")
      ->required();
  MarkAsOutput(app->add_option(
      "OUTPUT", flags->output,
      "picture to write: .html, which can be turned, or .svg (default: STATS's "
      "name with .3dplot.html, in the current folder)"));
  app->add_option("-t,--title", flags->title, "title of the picture");
  app->footer(
      "Example:\n  acplan calculon llm-3dplot all.csv.gz rates.html -t 'GPT-3 "
      "175B'\n"
      "Exit status: 0 written, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunSurface(*flags, terminal);
          }};
}

}  // namespace acplan::cli
