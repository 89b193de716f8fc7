#include "cli/training/tower_text.h"

#include <fmt/format.h>

#include "cli/terminal/human_numbers.h"
#include "costmodel/training/layer/tower_operations.h"

namespace acplan::cli {

std::string TowersText(const costmodel::TrainingJob& job) {
  const costmodel::TrainingStrategy& s = job.strategy;
  std::string text;
  for (const costmodel::Tower& tower : job.shape.towers) {
    if (tower.is_encoder) {
      text += fmt::format(
          "encoder: {:.4g} million of these parameters, reads {} {} per "
          "sequence\n",
          StackParameters(tower) / 1e6, FormatCount(s.source),
          tower.patches > 0 ? "frames" : "tokens");
      continue;
    }
    const double parameters = costmodel::StackParameters(tower) +
                              static_cast<double>(tower.projector_parameters);
    const int64_t patches = costmodel::PatchesOf(tower, s);
    const std::string_view state = TrainsTowers(s) ? "trained"
                                   : TrainsProjectors(s)
                                       ? "frozen except its projector"
                                       : "frozen";
    text += fmt::format("{}: {:.4g} million of these parameters, {}; ",
                        tower.name, parameters / 1e6, state);
    text += s.images == 0
                ? "text only (--images sets the images of a sequence)\n"
                : fmt::format(
                      "{} of {} patches ({} tokens) per sequence, which "
                      "no measured run of the cost model reads\n",
                      s.images == 1 ? std::string("an image")
                                    : FormatCount(s.images) + " images",
                      FormatCount(patches),
                      FormatCount(ImageTokens(tower, patches)));
  }
  return text;
}

}  // namespace acplan::cli
