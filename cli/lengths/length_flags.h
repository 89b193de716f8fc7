#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "problems/plan/length_steps.h"
#include "problems/plan/plan_table.h"

namespace acplan::cli {

// The arguments TRACE..., --evaluation, --lengths, --draws and --draw-seed: a run of
// batches of several lengths.
struct LengthFlags {
  std::vector<std::string> traces;
  std::vector<std::string> evaluations;
  std::string lengths;
  std::string draws;
  std::string draw_seed;

  void AddTo(CLI::App& app);
  // Reads the traces and the lengths. Throws InputError that names the flag or the
  // file.
  problems::LengthProblem Read() const;
};

// Adds --plan: the file of a table of plans, or of one plan.
void AddPlanOfBatches(CLI::App& app, std::string& path);

// Returns the table in a file; a plan becomes a table of one entry for all lengths, with
// the plan's device, if it has one, and without statements about a run. Throws InputError
// for a file with neither, and for a table or a plan of another model.
problems::PlanTable ReadTableOrPlan(const std::string& path,
                                    const problems::LengthProblem& problem);
// Refuses a plan, too.
problems::PlanTable ReadTable(const std::string& path,
                              const problems::LengthProblem& problem);

}  // namespace acplan::cli
