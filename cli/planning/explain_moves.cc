#include "cli/planning/explain_moves.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <variant>

#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "problems/model/link_limits.h"

namespace acplan::cli {
namespace {

std::optional<problems::LinkLimits> LinkOf(const LinkFlags& flags,
                                           std::string_view device) {
  if (!flags.offload.empty() || !flags.host_memory.empty())
    return flags.Parse(device);
  if (device.empty()) return std::nullopt;
  try {
    return LinkFlags{.offload = "gpu", .host_memory = ""}.Parse(device);
  } catch (const InputError&) {
    return std::nullopt;  // a device that the table does not have
  }
}

// Returns how that depends on the length of the sequence.
std::string LengthText(const problems::InputMoves& moves) {
  const std::optional<double> from = moves.HiddenFrom();
  if (!from) return "larger inputs do not change that";
  if (*from <= 0)
    return "smaller inputs do not change that, as long as kernels fill the GPU";
  return fmt::format("copies are hidden from {:.3g} times this sequence on",
                     *from);
}

}  // namespace

std::optional<MovesExplanation> ExplainMoves(
    const LinkFlags& flags, const ProfileInput& input,
    const problems::PlanningProblem& problem) {
  const auto link = LinkOf(flags, DeviceOf(input));
  const auto* trace_problem =
      std::get_if<problems::TraceProblem>(&problem.formulation);
  if (!link || trace_problem == nullptr || !problem.options.may_skip)
    return std::nullopt;
  const auto moves = problems::InputMovesOf(*trace_problem, link->rates);
  if (!moves) return std::nullopt;
  return MovesExplanation{.rates = link->rates, .moves = *moves};
}

std::string ToText(const MovesExplanation& explanation) {
  const problems::InputMoves& moves = explanation.moves;
  const auto each = [&](double ms) {
    return FormatMs(ms / static_cast<double>(moves.blocks));
  };
  std::string verdict = "so copies are hidden, and moving them costs nothing";
  if (moves.Factor() < 1)
    verdict = fmt::format("so copies are not hidden, and the step waits {}",
                          FormatMs(moves.stall_ms));
  return fmt::format(
      "\nmoving the inputs of blocks to the host (--offload) at {}:\n"
      "{} calls of {} have {}\n"
      "a copy takes {} there and {} back, a forward pass {} ({:.3g} times as "
      "long)\n{}\n{}\n",
      RatesText(explanation.rates), FormatCount(moves.blocks),
      graph::OneLine(moves.class_name, 60), graph::FormatBytes(moves.bytes),
      each(moves.send_ms), each(moves.fetch_ms), each(moves.forward_ms),
      moves.Factor(), verdict, LengthText(moves));
}

nlohmann::ordered_json ToJson(const MovesExplanation& explanation) {
  const problems::InputMoves& moves = explanation.moves;
  const std::optional<double> from = moves.HiddenFrom();
  nlohmann::ordered_json json = problems::RatesJson(explanation.rates);
  json.update({{"class", moves.class_name},
               {"blocks", moves.blocks},
               {"input_bytes", moves.bytes},
               {"forward_ms", moves.forward_ms},
               {"attention_ms", moves.attention_ms},
               {"send_ms", moves.send_ms},
               {"fetch_ms", moves.fetch_ms},
               {"stall_ms", moves.stall_ms},
               {"factor", moves.Factor()},
               {"hidden_from", from ? nlohmann::ordered_json(*from)
                                    : nlohmann::ordered_json(nullptr)}});
  return json;
}

}  // namespace acplan::cli
