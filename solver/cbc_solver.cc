#include "solver/cbc_solver.h"

#include <fmt/format.h>

#include <CbcEventHandler.hpp>
#include <CbcModel.hpp>
#include <CbcSolver.hpp>
#include <ClpEventHandler.hpp>
#include <ClpSimplex.hpp>
#include <CoinPackedMatrix.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace acplan::solver {
namespace {

// Integers in a program's bounds may be off by this much.
constexpr double kIntegerTolerance = 1e-6;
// How far apart, relative to their size, two values of the objective may be
// that are meant to be the same.
constexpr double kObjectiveTolerance = 1e-6;
// A gap that is nothing but rounding.
constexpr double kRoundingGap = 1e-9;
constexpr double kReportEverySeconds = 0.1;
// CBC's objective where it has no solution is above this.
constexpr double kNoObjective = 1e49;

using Vector = std::vector<double>;

// A solution that was checked against the program.
struct Candidate {
  Vector x;
  double objective = kInfinity;
};

double Gap(double objective, double bound) {
  if (!std::isfinite(objective) || !std::isfinite(bound)) return kInfinity;
  return std::max(0.0, objective - bound) / std::max(std::abs(objective), 1e-9);
}

// One call of SolveWithCbc as the event handlers see it. COIN copies handlers
// as it likes, so what they have to remember is here.
class Watch {
 public:
  explicit Watch(const SearchLimits& limits) : limits_(limits) {}

  double Seconds() const { return clock_.Seconds(); }
  double SecondsLeft() const { return limits_.time_limit_s - Seconds(); }
  const SearchLimits& limits() const { return limits_; }

  // Whether to stop now, and why. An interrupt stays one even if its flag is
  // taken back.
  StoppedBy Poll() {
    if (stop_ == StoppedBy::kNothing) {
      if (limits_.interrupted != nullptr &&
          limits_.interrupted->load(std::memory_order_relaxed)) {
        stop_ = StoppedBy::kInterrupt;
      } else if (SecondsLeft() <= 0) {
        stop_ = StoppedBy::kTime;
      }
    }
    return stop_;
  }
  bool ShouldStop() { return Poll() != StoppedBy::kNothing; }

  void SawSolution(double objective) { best_ = std::min(best_, objective); }
  void SawBound(double bound) { bound_ = std::max(bound_, bound); }
  void SawNodes(int64_t nodes) { nodes_ = std::max(nodes_, nodes); }
  double best() const { return best_; }

  // Never throws: there are COIN's frames between here and whoever could catch.
  void Report(bool now) {
    if (!limits_.on_progress || error_) return;
    const double seconds = Seconds();
    if (!now && seconds - last_report_ < kReportEverySeconds) return;
    last_report_ = seconds;
    try {
      limits_.on_progress(SearchProgress{.best = best_,
                                         .bound = std::min(bound_, best_),
                                         .nodes = nodes_,
                                         .seconds = seconds});
    } catch (...) {
      error_ = std::current_exception();
      stop_ = StoppedBy::kInterrupt;
    }
  }
  void RethrowError() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  SearchLimits limits_;
  Stopwatch clock_;
  StoppedBy stop_ = StoppedBy::kNothing;
  double best_ = kInfinity;
  double bound_ = -kInfinity;
  int64_t nodes_ = 0;
  double last_report_ = -kInfinity;
  std::exception_ptr error_;
};

// How a program's objective was changed for COIN, whose tolerances are
// absolute.
struct ObjectiveScale {
  double factor = 1;
  double offset = 0;

  double FromCoin(double value) const { return value / factor + offset; }
};

ObjectiveScale ScaleFor(const Milp& milp) {
  double largest = 0;
  bool all_integer = true;
  for (const Milp::Column& column : milp.columns) {
    largest = std::max(largest, std::abs(column.cost));
    if (column.cost != 0 &&
        (!column.is_integer || column.cost != std::round(column.cost))) {
      all_integer = false;
    }
  }
  ObjectiveScale scale{.factor = 1, .offset = milp.objective_offset};
  // CBC makes use of an objective that can only be an integer.
  if (largest == 0 || (all_integer && largest <= 1e6)) return scale;
  // CBC takes solutions that differ by 1e-5 for equally good.
  scale.factor = std::exp2(15 - std::ilogb(largest));
  return scale;
}

struct Bounds {
  double lower;
  double upper;
};

Bounds BoundsOf(const Milp::Column& column) {
  if (!column.is_integer) return {column.lower, column.upper};
  return {std::ceil(column.lower - kIntegerTolerance),
          std::floor(column.upper + kIntegerTolerance)};
}

double ToCoin(double bound) {
  return std::isinf(bound) ? std::copysign(COIN_DBL_MAX, bound) : bound;
}

bool IsFree(const Milp::Row& row) {
  return row.lower == -kInfinity && row.upper == kInfinity;
}

bool IsEmpty(const Milp::Row& row) {
  return std::all_of(row.terms.begin(), row.terms.end(),
                     [](const Milp::Term& t) { return t.coefficient == 0; });
}

std::unique_ptr<OsiClpSolverInterface> Load(const Milp& milp,
                                            const ObjectiveScale& scale) {
  std::vector<int> rows;
  std::vector<int> columns;
  Vector coefficients;
  Vector row_lower;
  Vector row_upper;
  for (const Milp::Row& row : milp.rows) {
    if (IsFree(row) || IsEmpty(row)) continue;
    for (const Milp::Term& term : row.terms) {
      if (term.coefficient == 0) continue;
      rows.push_back(static_cast<int>(row_lower.size()));
      columns.push_back(term.column);
      coefficients.push_back(term.coefficient);
    }
    row_lower.push_back(ToCoin(row.lower));
    row_upper.push_back(ToCoin(row.upper));
  }
  Vector lower;
  Vector upper;
  Vector cost;
  for (const Milp::Column& column : milp.columns) {
    const Bounds bounds = BoundsOf(column);
    lower.push_back(ToCoin(bounds.lower));
    upper.push_back(ToCoin(bounds.upper));
    cost.push_back(column.cost * scale.factor);
  }
  CoinPackedMatrix matrix(/*colordered=*/true, rows.data(), columns.data(),
                          coefficients.data(),
                          static_cast<CoinBigIndex>(coefficients.size()));
  matrix.setDimensions(static_cast<int>(row_lower.size()),
                       static_cast<int>(milp.columns.size()));
  auto osi = std::make_unique<OsiClpSolverInterface>();
  osi->messageHandler()->setLogLevel(0);
  osi->getModelPtr()->setLogLevel(0);
  osi->loadProblem(matrix, lower.data(), upper.data(), cost.data(),
                   row_lower.data(), row_upper.data());
  osi->setObjSense(1);
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    if (milp.columns[j].is_integer) osi->setInteger(static_cast<int>(j));
  }
  return osi;
}

// Stops Clp in a linear program, where CBC asks nobody.
class LpHandler : public ClpEventHandler {
 public:
  explicit LpHandler(Watch* watch) : watch_(watch) {}
  LpHandler(const LpHandler&) = default;
  LpHandler& operator=(const LpHandler&) = default;

  ClpEventHandler* clone() const override { return new LpHandler(*this); }
  int event(Event) override { return watch_->ShouldStop() ? 0 : -1; }

 private:
  Watch* watch_;
};

enum class LpStatus { kOptimal, kInfeasible, kUnbounded, kStopped, kFailed };

LpStatus StatusOf(const ClpSimplex& clp) {
  switch (clp.status()) {
    case 0:
      return LpStatus::kOptimal;
    case 1:
      return LpStatus::kInfeasible;
    case 2:
      return LpStatus::kUnbounded;
    case 3:
    case 5:
      return LpStatus::kStopped;
    default:
      return LpStatus::kFailed;
  }
}

// Solves the linear relaxation, and once more in another way before it believes
// that there is no solution.
LpStatus SolveLp(OsiClpSolverInterface& osi, Watch& watch) {
  ClpSimplex& clp = *osi.getModelPtr();
  LpHandler handler(&watch);
  clp.passInEventHandler(&handler);
  osi.initialSolve();
  LpStatus status = StatusOf(clp);
  if (status == LpStatus::kInfeasible || status == LpStatus::kUnbounded ||
      status == LpStatus::kFailed) {
    clp.allSlackBasis(true);
    osi.setHintParam(OsiDoPresolveInInitial, false, OsiHintDo);
    osi.setHintParam(OsiDoDualInInitial, false, OsiHintDo);
    osi.initialSolve();
    status = StatusOf(clp);
  }
  if (watch.ShouldStop() && status != LpStatus::kOptimal) {
    status = LpStatus::kStopped;
  }
  const ClpEventHandler none;
  clp.passInEventHandler(&none);
  return status;
}

// x with integers made exact and every value within its bounds.
Vector Rounded(const Milp& milp, std::span<const double> x) {
  Vector rounded(x.begin(), x.end());
  for (size_t j = 0; j < rounded.size(); ++j) {
    const Bounds bounds = BoundsOf(milp.columns[j]);
    if (milp.columns[j].is_integer) rounded[j] = std::round(rounded[j]);
    rounded[j] = std::clamp(rounded[j], bounds.lower, bounds.upper);
    if (rounded[j] == 0) rounded[j] = 0;  // -0 is no sight
  }
  return rounded;
}

std::optional<Candidate> Checked(const Milp& milp, Vector x) {
  if (!IsFeasible(milp, x)) return std::nullopt;
  const double objective = ObjectiveValue(milp, x);
  return Candidate{.x = std::move(x), .objective = objective};
}

void KeepBetter(std::optional<Candidate>& best,
                std::optional<Candidate> other) {
  if (other && (!best || other->objective < best->objective)) {
    best = std::move(other);
  }
}

// The best solution with x's values in the integer columns, rounded; the
// continuous ones are solved for anew, since those of a branch-and-bound belong
// to integers that are off by its tolerance.
std::optional<Candidate> Polished(const Milp& milp, std::span<const double> x,
                                  Watch& watch) {
  std::optional<Candidate> rounded = Checked(milp, Rounded(milp, x));
  const bool any_continuous = std::any_of(
      milp.columns.begin(), milp.columns.end(), [](const Milp::Column& column) {
        return !column.is_integer && column.lower < column.upper;
      });
  if (!any_continuous) return rounded;

  Milp fixed = milp;
  for (size_t j = 0; j < x.size(); ++j) {
    Milp::Column& column = fixed.columns[j];
    if (!column.is_integer) continue;
    const Bounds bounds = BoundsOf(column);
    column.lower = column.upper =
        std::clamp(std::round(x[j]), bounds.lower, bounds.upper);
    column.is_integer = false;
  }
  for (const double tolerance : {1e-9, 1e-7}) {
    const auto osi = Load(fixed, ScaleFor(fixed));
    osi->setDblParam(OsiPrimalTolerance, tolerance);
    if (SolveLp(*osi, watch) != LpStatus::kOptimal) continue;
    std::optional<Candidate> solved = Checked(
        milp, Rounded(milp, std::span(osi->getColSolution(), x.size())));
    // Rounded as it is, x may have a little more than it is entitled to.
    if (solved) return solved;
  }
  return rounded;
}

// What a search came to, as CBC sees it.
struct CbcRun {
  enum class End { kOptimal, kInfeasible, kStopped, kGap, kFailed };

  bool searched = false;   // the search began and ended, if by a limit
  bool cut_short = false;  // it was to stop when it ended
  int status = -1;
  int secondary_status = -1;
  double claimed = kInfinity;  // the objective that CBC says x has
  double bound = -kInfinity;
  int64_t nodes = 0;
  Vector x;
  std::optional<Candidate> seen;  // the best solution of an event
};

class CbcHandler : public CbcEventHandler {
 public:
  CbcHandler(const Milp* milp, const ObjectiveScale* scale, Watch* watch,
             CbcRun* run)
      : milp_(milp), scale_(scale), watch_(watch), run_(run) {}
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

  // CbcMain1 calls between its phases; other than 0 ends it.
  int Phase(const CbcModel& model, int phase) {
    constexpr int kAfterSearch = 4;
    if (phase < kAfterSearch) return watch_->ShouldStop() ? 1 : 0;
    if (phase > kAfterSearch) return 0;
    // A search that was stopped early enough claims to have been complete.
    run_->cut_short = watch_->ShouldStop();
    if (!run_->cut_short) SeeBound(model);
    watch_->SawNodes(model.getNodeCount());
    run_->nodes = model.getNodeCount();
    run_->searched = true;
    run_->status = model.status();
    run_->secondary_status = model.secondaryStatus();
    const double objective = model.getMinimizationObjValue();
    if (model.bestSolution() != nullptr && objective < kNoObjective) {
      run_->claimed = scale_->FromCoin(objective);
      run_->x.assign(model.bestSolution(),
                     model.bestSolution() + milp_->columns.size());
    }
    // What would follow is another solution of the relaxation with the integers
    // fixed, in which Clp's presolve has been seen to crash.
    return 1;
  }

 private:
  // The objective that CBC has at an event is not always one of its solution's.
  void SeeSolution(const CbcModel& model) {
    const auto columns = static_cast<int>(milp_->columns.size());
    const double* x = model.bestSolution();
    if (x == nullptr || model.getNumCols() != columns) return;
    KeepBetter(run_->seen, Checked(*milp_, Rounded(*milp_, {x, x + columns})));
    if (run_->seen) watch_->SawSolution(run_->seen->objective);
  }
  void SeeBound(const CbcModel& model) {
    const double value = model.getBestPossibleObjValue();
    if (std::abs(value) > kNoObjective) return;
    run_->bound = std::max(run_->bound, scale_->FromCoin(value));
    watch_->SawBound(run_->bound);
  }

  const Milp* milp_;
  const ObjectiveScale* scale_;
  Watch* watch_;
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

// `osi` holds the scaled program with its relaxation solved.
CbcRun RunCbc(const Milp& milp, const OsiClpSolverInterface& osi,
              const ObjectiveScale& scale, const Candidate* start, bool careful,
              Watch& watch) {
  const SearchLimits& limits = watch.limits();
  const int columns = osi.getNumCols();
  CbcModel model(osi);
  CbcSolverUsefulData data;
  data.useSignalHandler_ = false;
  data.noPrinting_ = true;
  CbcMain0(model, data);
  model.setLogLevel(0);
  model.solver()->messageHandler()->setLogLevel(0);
  CbcRun run;
  CbcHandler handler(&milp, &scale, &watch, &run);
  model.passInEventHandler(&handler);

  std::vector<std::pair<std::string, double>> mip_start;
  for (int j = 0; j < columns; ++j) {
    std::string name = fmt::format("c{}", j);
    model.solver()->setColName(j, name);
    if (start != nullptr && osi.isInteger(j)) {
      mip_start.emplace_back(std::move(name), start->x[static_cast<size_t>(j)]);
    }
  }
  if (start != nullptr) model.setMIPStart(mip_start);

  std::vector<std::string> arguments = {"cbc", "-timeMode", "elapsed"};
  const auto add = [&arguments](const char* option, std::string value) {
    arguments.emplace_back(option);
    arguments.push_back(std::move(value));
  };
  if (std::isfinite(limits.time_limit_s)) {
    add("-seconds", fmt::format("{:.6f}", std::max(watch.SecondsLeft(), 1e-3)));
  }
  // CBC's gap is relative to the larger one of the objective and the bound.
  add("-ratioGap", fmt::format("{}", limits.gap / (1 + limits.gap)));
  if (limits.node_limit < INT_MAX) {
    add("-maxNodes", fmt::format("{}", limits.node_limit));
  }
  add("-randomSeed", fmt::format("{}", CoinSeed(limits.seed)));
  add("-randomCbcSeed", fmt::format("{}", CoinSeed(limits.seed)));
  // In 2.10.8, the optima that come with preprocessing are wrong for about one
  // in a hundred small random programs.
  add("-preprocess", "off");
  if (careful) {
    add("-integerTolerance", "1e-9");
    add("-heuristicsOnOff", "off");
    add("-cutsOnOff", "off");
  }
  arguments.emplace_back("-solve");
  arguments.emplace_back("-quit");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments)
    argv.push_back(argument.c_str());
  try {
    CbcMain1(static_cast<int>(argv.size()), argv.data(), model, PhaseCallback,
             data);
  } catch (const CoinError& error) {
    throw std::runtime_error(fmt::format("CBC failed in {}::{}: {}",
                                         error.className(), error.methodName(),
                                         error.message()));
  }

  if (!run.searched) {
    run.status = model.status();
    run.secondary_status = model.secondaryStatus();
  }
  return run;
}

CbcRun::End EndOf(const CbcRun& run, Watch& watch) {
  using End = CbcRun::End;
  if (run.searched ? run.cut_short : watch.ShouldStop()) return End::kStopped;
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

MilpSolution Solution(std::optional<Candidate> best, double bound,
                      StoppedBy stopped_by, int64_t nodes, Watch& watch) {
  MilpSolution solution;
  solution.stopped_by = stopped_by;
  solution.nodes = nodes;
  solution.seconds = watch.Seconds();
  if (best) {
    solution.x = std::move(best->x);
    solution.objective = best->objective;
    if (stopped_by == StoppedBy::kNothing) bound = best->objective;
    solution.bound = std::min(bound, best->objective);
    solution.gap = Gap(solution.objective, solution.bound);
    const bool proven = solution.gap <= kRoundingGap;
    solution.status = proven ? MilpStatus::kOptimal : MilpStatus::kFeasible;
    if (proven) solution.stopped_by = StoppedBy::kNothing;
    watch.SawSolution(solution.objective);
  } else {
    solution.bound = bound;
  }
  watch.SawBound(solution.bound);
  watch.SawNodes(nodes);
  return solution;
}

MilpSolution NoSolution(MilpStatus status, const Watch& watch) {
  MilpSolution solution;
  solution.status = status;
  solution.seconds = watch.Seconds();
  if (status == MilpStatus::kInfeasible) solution.bound = kInfinity;
  return solution;
}

// Without rows, the columns have nothing to do with each other.
MilpSolution SolveWithoutRows(const Milp& milp, Watch& watch) {
  Vector x;
  for (const Milp::Column& column : milp.columns) {
    const Bounds bounds = BoundsOf(column);
    double value = std::clamp(0.0, bounds.lower, bounds.upper);
    if (column.cost > 0) value = bounds.lower;
    if (column.cost < 0) value = bounds.upper;
    if (std::isinf(value)) return NoSolution(MilpStatus::kUnbounded, watch);
    x.push_back(value);
  }
  const double objective = ObjectiveValue(milp, x);
  return Solution(Candidate{.x = std::move(x), .objective = objective},
                  objective, StoppedBy::kNothing, 0, watch);
}

bool IsTriviallyInfeasible(const Milp& milp) {
  return std::any_of(milp.columns.begin(), milp.columns.end(),
                     [](const Milp::Column& column) {
                       const Bounds bounds = BoundsOf(column);
                       return bounds.lower > bounds.upper;
                     }) ||
         std::any_of(milp.rows.begin(), milp.rows.end(),
                     [](const Milp::Row& row) {
                       return IsEmpty(row) && (row.lower > kIntegerTolerance ||
                                               row.upper < -kIntegerTolerance);
                     });
}

bool IsIntegral(const Milp& milp, std::span<const double> x) {
  for (size_t j = 0; j < x.size(); ++j) {
    if (milp.columns[j].is_integer &&
        std::abs(x[j] - std::round(x[j])) > 1e-9) {
      return false;
    }
  }
  return true;
}

MilpSolution SolveLocked(const Milp& milp, std::optional<Candidate> best,
                         Watch& watch);

// The relaxation is unbounded; so is the program if it has any solution.
MilpSolution SolveUnbounded(const Milp& milp,
                            const std::optional<Candidate>& best,
                            Watch& watch) {
  if (best) return NoSolution(MilpStatus::kUnbounded, watch);
  Milp any = milp;
  for (Milp::Column& column : any.columns) column.cost = 0;
  MilpSolution found = SolveLocked(any, std::nullopt, watch);
  if (!found.x.empty()) return NoSolution(MilpStatus::kUnbounded, watch);
  found.bound =
      found.status == MilpStatus::kInfeasible ? kInfinity : -kInfinity;
  return found;
}

// `best` is a known solution, if any. COIN's lock is held.
MilpSolution SolveLocked(const Milp& milp, std::optional<Candidate> best,
                         Watch& watch) {
  const SearchLimits& limits = watch.limits();
  const ObjectiveScale scale = ScaleFor(milp);
  const auto osi = Load(milp, scale);
  const auto close = [&scale](double a, double b) {
    const double size =
        std::max({std::abs(a - scale.offset), std::abs(b - scale.offset),
                  1 / scale.factor});
    return std::abs(a - b) <= kObjectiveTolerance * size;
  };

  const LpStatus lp = SolveLp(*osi, watch);
  if (lp == LpStatus::kStopped) {
    return Solution(std::move(best), -kInfinity, watch.Poll(), 0, watch);
  }
  if (lp == LpStatus::kUnbounded) return SolveUnbounded(milp, best, watch);
  if (lp == LpStatus::kInfeasible && !best) {
    return NoSolution(MilpStatus::kInfeasible, watch);
  }
  double bound = -kInfinity;
  if (lp == LpStatus::kOptimal) {
    bound = scale.FromCoin(osi->getObjValue());
    const std::span<const double> x(osi->getColSolution(), milp.columns.size());
    if (IsIntegral(milp, x)) {
      std::optional<Candidate> polished = Polished(milp, x, watch);
      if (polished && close(polished->objective, bound)) {
        KeepBetter(best, std::move(polished));
        return Solution(std::move(best), bound, StoppedBy::kNothing, 0, watch);
      }
    }
    watch.SawBound(bound);
    watch.Report(/*now=*/true);
  }
  if (best && Gap(best->objective, bound) <= limits.gap) {
    return Solution(std::move(best), bound, StoppedBy::kGap, 0, watch);
  }

  int64_t nodes = 0;
  for (const bool careful : {false, true}) {
    const CbcRun run =
        RunCbc(milp, *osi, scale, best ? &*best : nullptr, careful, watch);
    watch.RethrowError();
    nodes += run.nodes;
    std::optional<Candidate> found;
    if (!run.x.empty()) found = Polished(milp, run.x, watch);
    if (run.seen &&
        (!found || (run.seen->objective < found->objective &&
                    !close(run.seen->objective, found->objective)))) {
      found = Polished(milp, run.seen->x, watch);
    }
    // A solution is as good as CBC says and as any that was seen before.
    const bool sound = found && close(found->objective, run.claimed) &&
                       (found->objective <= watch.best() ||
                        close(found->objective, watch.best()));
    KeepBetter(best, std::move(found));

    using End = CbcRun::End;
    switch (EndOf(run, watch)) {
      case End::kStopped: {
        const bool absurd = best && run.bound > best->objective &&
                            !close(run.bound, best->objective);
        if (!absurd) bound = std::max(bound, run.bound);
        StoppedBy why = watch.Poll();
        if (why == StoppedBy::kNothing) {
          why = run.status == 1 && run.secondary_status == 3 ? StoppedBy::kNodes
                                                             : StoppedBy::kTime;
        }
        return Solution(std::move(best), bound, why, nodes, watch);
      }
      case End::kGap:
        if (!sound) break;
        bound = std::max(bound, limits.gap == 0 ? best->objective : run.bound);
        return Solution(std::move(best), bound, StoppedBy::kGap, nodes, watch);
      case End::kOptimal:
        if (!sound) break;
        bound = best->objective;
        return Solution(std::move(best), bound, StoppedBy::kNothing, nodes,
                        watch);
      case End::kInfeasible:
        if (best) break;
        return NoSolution(MilpStatus::kInfeasible, watch);
      case End::kFailed:
        break;
    }
    if (watch.ShouldStop()) {
      return Solution(std::move(best), bound, watch.Poll(), nodes, watch);
    }
  }
  throw std::runtime_error(
      "CBC failed: its answers contradict the program or each other");
}

// One at a time: CBC's driver keeps state in globals.
std::unique_lock<std::timed_mutex> LockCoin(Watch& watch) {
  static std::timed_mutex mutex;
  std::unique_lock lock(mutex, std::defer_lock);
  while (!watch.ShouldStop() &&
         !lock.try_lock_for(std::chrono::milliseconds(20))) {
  }
  return lock;
}

void ValidateLimits(const SearchLimits& limits) {
  if (std::isnan(limits.time_limit_s)) {
    throw std::invalid_argument("the time limit is not a number");
  }
  if (!(limits.gap >= 0)) {
    throw std::invalid_argument(
        fmt::format("the gap {} is not at least 0", limits.gap));
  }
  if (limits.node_limit < 0) {
    throw std::invalid_argument(
        fmt::format("the node limit {} is negative", limits.node_limit));
  }
}

MilpSolution Solve(const Milp& milp, const CbcOptions& options, Watch& watch) {
  if (IsTriviallyInfeasible(milp)) {
    return NoSolution(MilpStatus::kInfeasible, watch);
  }
  if (std::all_of(milp.rows.begin(), milp.rows.end(), [](const Milp::Row& row) {
        return IsFree(row) || IsEmpty(row);
      })) {
    return SolveWithoutRows(milp, watch);
  }
  std::optional<Candidate> best;
  if (options.warm_start && IsFeasible(milp, *options.warm_start)) {
    best = Checked(milp, Rounded(milp, *options.warm_start));
    if (best) watch.SawSolution(best->objective);
  }
  const auto lock = LockCoin(watch);
  if (!lock.owns_lock()) {
    return Solution(std::move(best), -kInfinity, watch.Poll(), 0, watch);
  }
  return SolveLocked(milp, std::move(best), watch);
}

}  // namespace

MilpSolution SolveWithCbc(const Milp& milp, const CbcOptions& options) {
  ValidateMilp(milp);
  ValidateLimits(options.limits);
  Watch watch(options.limits);
  MilpSolution solution = Solve(milp, options, watch);
  watch.Report(/*now=*/true);
  watch.RethrowError();
  return solution;
}

}  // namespace acplan::solver
