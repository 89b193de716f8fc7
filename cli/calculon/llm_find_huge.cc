#include <fmt/format.h>

#include <string>

#include "cli/command.h"
#include "costmodel/calculon/application/huge_models.h"
#include "graph/base/number_text.h"

namespace acplan::cli {

namespace {

int RunFindHuge(const Terminal& terminal) {
  std::string csv =
      "name,hidden,feedforward,seq_size,attn_heads,attn_size,num_blocks,gbs,"
      "ratio\n";
  for (const costmodel::HugeModel& model : costmodel::HugeModels()) {
    const costmodel::Model& shape = model.shape;
    csv += fmt::format("{},{},{},{},{},{},{},{},{}\n",
                       graph::HumanText(model.parameters, 0, ""), shape.hidden,
                       shape.feedforward, shape.seq_size, shape.attn_heads,
                       shape.attn_size, shape.num_blocks, model.batch_size,
                       graph::FloatText(model.ratio));
  }
  terminal.Print(csv);
  return kExitOk;
}

}  // namespace

Command AddLlmFindHugeCommand(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "llm-find-huge",
      "Print shapes of models of up to 270T parameters, as CSV");
  app->footer("Example:\n  acplan calculon llm-find-huge");
  return {app, RunFindHuge};
}

}  // namespace acplan::cli
