#include "solver/cbc_run.h"

#include <fmt/format.h>

#include <CbcEventHandler.hpp>
#include <CbcModel.hpp>
#include <CbcSolver.hpp>
#include <CoinError.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "solver/cbc_solver.h"

// CBC runs under its driver, CbcMain1, as in the program `cbc`: the driver takes its
// options as text, and chooses heuristics and cuts. A careful run does without the driver.
// The claims of CBC (version 2.10.8) are not taken for granted:
//
// - Every solution that an event shows is rounded and checked against the program, since
//   the driver's last answer may be worse, or there may be none. The objective that comes
//   with an event need not be that of its solution, so it is computed anew.
// - The handler polls the limits at every event. CBC does not heed every event's answer,
//   but it heeds the clock, so the handler sets the time limit of all models, including
//   those of heuristics, to 0.
// - A search that was stopped early enough claims to have been complete. In that case its
//   status and its bound are ignored (was_stopped).
// - After the search the driver would solve the relaxation once more with the integers
//   fixed, and in that Clp's presolve has been seen to crash. So the handler ends the
//   driver right after the search, and takes the answer from the model.
// - Before branch and bound CBC computes the distances of rows and columns from their
//   bounds, which nothing reads. For that, Clp solves a copy of the relaxation, in which an
//   assertion has been seen to end the process. So the function that computes them is
//   replaced by an empty one: a definition in the program precedes the one of a shared
//   library.
// - Preprocessing is off: the optima that come with it are wrong for about one in a hundred
//   small random programs.
//
// The caller (cbc_solver.cc) decides from all this whether to believe the status with which
// the run ended.

namespace acplan::solver {
namespace {

// CBC's objective is above this if CBC has no solution.
constexpr double kNoObjective = 1e49;

class CbcHandler : public CbcEventHandler {
 public:
  CbcHandler(const CbcTask* task, CbcWatch* watch, CbcRun* run)
      : task_(task), watch_(watch), run_(run) {}
  CbcHandler(const CbcHandler&) = default;
  CbcHandler& operator=(const CbcHandler&) = default;

  CbcEventHandler* clone() const override { return new CbcHandler(*this); }

  CbcAction event(CbcEvent what, void*) override { return event(what); }
  CbcAction event(CbcEvent what) override {
    if (model_ == nullptr) return noAction;
    const bool main_search = model_->parentModel() == nullptr;
    if (main_search) {
      if (what == solution || what == heuristicSolution) {
        SeeSolution(*model_);
      }
      if (what == node) {
        watch_->SawNodes(model_->getNodeCount());
        SeeBound(*model_);
      }
    }
    // Heuristics that search on their own can take most of the time.
    watch_->Report(/*now=*/main_search &&
                   (what == solution || what == heuristicSolution));
    if (!watch_->ShouldStop()) return noAction;
    // CBC does not heed every event's answer, but it heeds the clock, also within
    // heuristics that search on their own.
    for (CbcModel* model = model_; model != nullptr;
         model = model->parentModel()) {
      model->setMaximumSeconds(0);
    }
    const bool may_stop =
        main_search && (what == node || what == treeStatus ||
                        what == solution || what == heuristicSolution);
    return may_stop ? stop : noAction;
  }

  // Handles the end of a phase: CbcMain1 calls this between its phases, and ends if the
  // answer is not 0.
  int Phase(const CbcModel& model, int phase) {
    constexpr int kAfterSearch = 4;
    if (phase < kAfterSearch) return watch_->ShouldStop() ? 1 : 0;
    if (phase > kAfterSearch) return 0;
    SeeEnd(model);
    // The driver would go on to solve the relaxation again with the integers fixed, in
    // which Clp's presolve has been seen to crash.
    return 1;
  }

  // Records the outcome after the search.
  void SeeEnd(const CbcModel& model) {
    // A search that was stopped early enough claims to have been complete.
    run_->was_stopped = watch_->ShouldStop();
    if (!run_->was_stopped) SeeBound(model);
    watch_->SawNodes(model.getNodeCount());
    run_->nodes = model.getNodeCount();
    run_->has_searched = true;
    run_->status = model.status();
    run_->secondary_status = model.secondaryStatus();
    const double objective = model.getMinimizationObjValue();
    if (model.bestSolution() != nullptr && objective < kNoObjective) {
      run_->claimed = task_->scale.FromCoin(objective);
      run_->x.assign(model.bestSolution(),
                     model.bestSolution() + task_->milp.columns.size());
    }
  }

 private:
  // Records the solution of an event. Its objective is computed anew, since the one that
  // CBC has at an event may belong to another solution.
  void SeeSolution(const CbcModel& model) {
    const auto columns = static_cast<int>(task_->milp.columns.size());
    const double* x = model.bestSolution();
    if (x == nullptr || model.getNumCols() != columns) return;
    const Milp& milp = task_->milp;
    run_->best_seen = Better(std::move(run_->best_seen),
                             Checked(milp, Rounded(milp, {x, x + columns})));
    if (run_->best_seen) watch_->SawSolution(run_->best_seen->objective);
  }
  void SeeBound(const CbcModel& model) {
    const double value = model.getBestPossibleObjValue();
    if (std::abs(value) > kNoObjective) return;
    run_->bound = std::max(run_->bound, task_->scale.FromCoin(value));
    watch_->SawBound(run_->bound);
  }

  const CbcTask* task_;
  CbcWatch* watch_;
  CbcRun* run_;
};

int PhaseCallback(CbcModel* model, int phase) {
  auto* handler = dynamic_cast<CbcHandler*>(model->getEventHandler());
  return handler == nullptr ? 0 : handler->Phase(*model, phase);
}

// Maps a seed to COIN's range. Avoids the seeds that have another meaning there (0 is the
// time of day).
int CoinSeed(int seed) {
  const auto wide = static_cast<int64_t>(seed);
  return static_cast<int>((wide - INT_MIN) % 2147483646) + 1;
}

// Passes the values of the integers to start from to the driver, which matches them by
// name.
void SetStart(const CheckedSolution& start,
              const OsiClpSolverInterface& relaxation, CbcModel& model) {
  std::vector<std::pair<std::string, double>> values;
  for (int j = 0; j < relaxation.getNumCols(); ++j) {
    if (!relaxation.isInteger(j)) continue;
    values.emplace_back(fmt::format("c{}", j), start.x[static_cast<size_t>(j)]);
  }
  model.setMIPStart(values);
}

std::vector<std::string> Arguments(const CbcWatch& watch) {
  const SearchLimits& limits = watch.limits();
  std::vector<std::string> arguments = {"cbc", "-timeMode", "elapsed"};
  const auto add = [&arguments](const char* option, std::string value) {
    arguments.emplace_back(option);
    arguments.push_back(std::move(value));
  };
  if (std::isfinite(limits.time_limit_s)) {
    constexpr double kLeastSeconds = 1e-3;
    add("-seconds", fmt::format("{:.6f}", std::max(watch.clock().SecondsLeft(),
                                                   kLeastSeconds)));
  }
  // CBC's gap is relative to the larger one of the objective and the bound.
  add("-ratioGap", fmt::format("{}", limits.gap / (1 + limits.gap)));
  if (limits.node_limit < INT_MAX) {
    add("-maxNodes", fmt::format("{}", limits.node_limit));
  }
  add("-randomSeed", fmt::format("{}", CoinSeed(limits.seed)));
  add("-randomCbcSeed", fmt::format("{}", CoinSeed(limits.seed)));
  add("-preprocess", "off");
  // With looser tolerances one part of CBC accepts a point as a solution and another part
  // rejects it and loses all other solutions beside that point. With 1e-9 for both, CBC
  // calls feasible programs infeasible.
  add("-integerTolerance", "1e-9");
  add("-primalTolerance", "1e-8");
  arguments.emplace_back("-solve");
  arguments.emplace_back("-quit");
  return arguments;
}

// Runs branch and bound alone: no driver, heuristics or cuts.
CbcRun RunCarefully(const CbcTask& task, CbcWatch& watch) {
  CbcModel model(task.relaxation);
  model.setLogLevel(0);
  model.solver()->messageHandler()->setLogLevel(0);
  CbcRun run;
  CbcHandler handler(&task, &watch, &run);
  model.passInEventHandler(&handler);
  const SearchLimits& limits = watch.limits();
  if (std::isfinite(limits.time_limit_s)) {
    model.setMaximumSeconds(watch.clock().SecondsLeft());
  }
  if (limits.node_limit < INT_MAX) {
    model.setMaximumNodes(static_cast<int>(limits.node_limit));
  }
  model.setAllowableFractionGap(limits.gap / (1 + limits.gap));
  model.setIntegerTolerance(1e-9);
  model.solver()->setDblParam(OsiPrimalTolerance, task.primal_tolerance);
  if (task.start) {
    model.setBestSolution(
        task.start->x.data(), static_cast<int>(task.start->x.size()),
        (task.start->objective - task.scale.offset) * task.scale.factor);
  }
  model.branchAndBound();
  dynamic_cast<CbcHandler&>(*model.getEventHandler()).SeeEnd(model);
  return run;
}

CbcRun RunDriver(const CbcTask& task, CbcWatch& watch) {
  CbcModel model(task.relaxation);
  CbcSolverUsefulData data;
  data.useSignalHandler_ = false;
  data.noPrinting_ = true;
  CbcMain0(model, data);
  model.setLogLevel(0);
  model.solver()->messageHandler()->setLogLevel(0);
  CbcRun run;
  CbcHandler handler(&task, &watch, &run);
  model.passInEventHandler(&handler);
  for (int j = 0; j < task.relaxation.getNumCols(); ++j) {
    model.solver()->setColName(j, fmt::format("c{}", j));
  }
  if (task.start) SetStart(*task.start, task.relaxation, model);

  const std::vector<std::string> arguments = Arguments(watch);
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  CbcMain1(static_cast<int>(argv.size()), argv.data(), model, PhaseCallback,
           data);
  if (!run.has_searched) {
    run.status = model.status();
    run.secondary_status = model.secondaryStatus();
  }
  return run;
}

}  // namespace

CbcRun RunCbc(const CbcTask& task, CbcWatch& watch) {
  try {
    return task.is_careful ? RunCarefully(task, watch) : RunDriver(task, watch);
  } catch (const CoinError& error) {
    throw CbcFailure(fmt::format(" in {}::{}: {}", error.className(),
                                 error.methodName(), error.message()));
  }
}

CbcRun::End EndOf(const CbcRun& run, CbcWatch& watch) {
  using End = CbcRun::End;
  if (run.has_searched ? run.was_stopped : watch.ShouldStop()) {
    return End::kStopped;
  }
  switch (run.status) {
    case 0:
      if (run.secondary_status == 2) return End::kGap;
      return run.x.empty() ? End::kInfeasible : End::kOptimal;
    case 1:
    case 5:
      return End::kStopped;
    default:
      return End::kFailed;
  }
}

bool IsAtNodeLimit(const CbcRun& run) {
  return run.status == 1 && run.secondary_status == 3;
}

}  // namespace acplan::solver

#ifdef ACPLAN_STATIC
// In a static program, the linker's --wrap replaces the function.
extern "C" void __wrap__ZN21OsiClpSolverInterface18computeLargestAwayEv();
extern "C" void __wrap__ZN21OsiClpSolverInterface18computeLargestAwayEv() {}
#else
void OsiClpSolverInterface::computeLargestAway() {}
#endif
