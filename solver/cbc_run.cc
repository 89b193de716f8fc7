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

// CBC is run by its driver, CbcMain1, as the program `cbc` would be: it takes
// its options as text, and is what chooses heuristics and cuts. A careful run
// does without the driver. What CBC claims is not taken for granted (2.10.8 is
// the version):
//
// - Every solution that an event shows is rounded and checked against the
//   program, since the driver's last answer may be worse, or none. The
//   objective that goes with an event need not be that of its solution, so it
//   is computed anew.
// - A limit is asked for at every event. Not every event's answer is heeded,
//   but the clock is, so the models, those of heuristics among them, get no
//   more time.
// - A search that was stopped early enough claims to have been complete: then
//   nothing of its status or bound counts (was_stopped).
// - After the search the driver would solve the relaxation once more with the
//   integers fixed, in which Clp's presolve has been seen to crash. So it is
//   ended behind the search, and the answer is taken from the model.
// - Before branch and bound it asks how far from their bounds rows and columns
//   are, which nobody reads. For that Clp solves a copy of the relaxation, and an
//   assertion in that has been seen to end the process. So nothing is computed:
//   what the program defines comes before what shared libraries do.
// - Preprocessing is off: the optima that come with it are wrong for about one
//   in a hundred small random programs.
//
// Who calls decides from all this whether the run's end is to be believed
// (cbc_solver.cc).

namespace acplan::solver {
namespace {

// CBC's objective where it has no solution is above this.
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
    // Most of the time can go by in heuristics that search on their own.
    watch_->Report(/*now=*/main_search &&
                   (what == solution || what == heuristicSolution));
    if (!watch_->ShouldStop()) return noAction;
    // Not every event's answer is heeded, but the clock is, also within
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

  // CbcMain1 calls this between its phases; another answer than 0 ends it.
  int Phase(const CbcModel& model, int phase) {
    constexpr int kAfterSearch = 4;
    if (phase < kAfterSearch) return watch_->ShouldStop() ? 1 : 0;
    if (phase > kAfterSearch) return 0;
    SeeEnd(model);
    // What would follow is another solution of the relaxation with the integers
    // fixed, in which Clp's presolve has been seen to crash.
    return 1;
  }

  // After the search.
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
  // The objective that CBC has at an event is not always one of its solution's.
  void SeeSolution(const CbcModel& model) {
    const auto columns = static_cast<int>(task_->milp.columns.size());
    const double* x = model.bestSolution();
    if (x == nullptr || model.getNumCols() != columns) return;
    const Milp& milp = task_->milp;
    run_->seen = Better(std::move(run_->seen),
                        Checked(milp, Rounded(milp, {x, x + columns})));
    if (run_->seen) watch_->SawSolution(run_->seen->objective);
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

// Seeds that mean something else to COIN (0 is the time of day) are avoided.
int CoinSeed(int seed) {
  const auto wide = static_cast<int64_t>(seed);
  return static_cast<int>((wide - INT_MIN) % 2147483646) + 1;
}

// Gives the driver, by name, the values of the integers to start from.
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
  // What is integral or feasible to within more is a solution to one part of CBC and
  // none to another, which loses all that it would find beside it. With 1e-9 for both it
  // calls programs infeasible that are not.
  add("-integerTolerance", "1e-9");
  add("-primalTolerance", "1e-8");
  arguments.emplace_back("-solve");
  arguments.emplace_back("-quit");
  return arguments;
}

// Branch and bound by itself: no driver, heuristics or cuts.
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
// Where all is one program, by the linker's --wrap.
extern "C" void __wrap__ZN21OsiClpSolverInterface18computeLargestAwayEv();
extern "C" void __wrap__ZN21OsiClpSolverInterface18computeLargestAwayEv() {}
#else
void OsiClpSolverInterface::computeLargestAway() {}
#endif
