// Which operators of one module to save: by labels, by CBC to the optimum, and
// as PyTorch does it with PuLP. Prints Markdown; bench/README.md has the
// command and a record.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/commands.h"
#include "graph/base/file_io.h"
#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "problems/engines/operator_checkpointing.h"
#include "tests/support/reference_data.h"

namespace acplan::bench {

namespace {

using nlohmann::json;
using problems::OperatorSolution;
using solver::SearchStatus;

struct Case {
  std::string name;
  graph::SacStatistics sac;
  double share = 0;  // of the memory that may be saved
};

// Operators as they occur in transformers and convolutional networks: three in
// ten are views, most of the others stream their bytes once or thrice, the rest
// multiply matrices. No two are equal.
graph::SacStatistics RealisticOperators(int n, std::mt19937& random) {
  const auto uniform = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  constexpr double kBytesPerMs = 1.555e9;
  graph::SacStatistics sac;
  for (int k = 0; k < n; ++k) {
    const double kind = uniform(0, 1);
    if (kind < 0.3) {
      sac.func_names.emplace_back("view");
      sac.view_like_ops.push_back(k);
      sac.memory.push_back(0);
      sac.runtimes.push_back(0);
      continue;
    }
    const double bytes = 25165824 * std::exp2(uniform(-3, 2.5));
    double ms = bytes / kBytesPerMs * uniform(1, 4);
    if (kind < 0.38) {
      sac.func_names.emplace_back("native_dropout");
      sac.rand_ops.push_back(k);
    } else if (kind < 0.55) {
      sac.func_names.emplace_back("addmm");
      ms *= uniform(5, 60);
    } else if (kind < 0.60 && k > 0) {
      sac.func_names.emplace_back("add_");
      sac.inplace_ops.emplace_back(k, uniform(0, 1) < 0.2 ? k : k - 1);
    } else {
      sac.func_names.emplace_back("mul");
    }
    sac.memory.push_back(std::llround(bytes));
    sac.runtimes.push_back(ms);
  }
  sac.force_store_random = uniform(0, 1) < 0.3;
  return sac;
}

// Where the rules leave a policy.
graph::SacStatistics LegalOperators(int n, std::mt19937& random) {
  while (true) {
    graph::SacStatistics sac = RealisticOperators(n, random);
    if (graph::GroupOperators(sac).contradiction.empty()) return sac;
  }
}

std::vector<Case> RandomCases() {
  std::vector<Case> cases;
  std::mt19937 random(1);
  for (const int n : {25, 100, 1000, 3000}) {
    const graph::SacStatistics sac = LegalOperators(n, random);
    for (const double share : {0.25, 0.5, 0.75}) {
      cases.push_back({.name = "random", .sac = sac, .share = share});
    }
  }
  return cases;
}

// Of each profile the module with the most operators, and of one a layer.
std::vector<Case> RealCases() {
  std::vector<Case> cases;
  for (const auto& baseline : test_support::TorchBaselines()) {
    const graph::Module* largest = nullptr;
    for (const graph::Module& module :
         test_support::BundledProfile(baseline.profile).modules) {
      if (!module.sac ||
          !graph::GroupOperators(*module.sac).contradiction.empty()) {
        continue;
      }
      if (module.fqn == "GPT2LMHeadModel.transformer.h.0") {
        cases.push_back(
            {.name = "gpt2_small, a layer", .sac = *module.sac, .share = 0.5});
      }
      if (!largest || module.sac->memory.size() > largest->sac->memory.size()) {
        largest = &module;
      }
    }
    cases.push_back({.name = baseline.profile + ", " + largest->fqn,
                     .sac = *largest->sac,
                     .share = 0.5});
  }
  return cases;
}

struct TorchAnswer {
  std::string status;
  double seconds = 0;
  double ms = 0;
};

json ToJson(const Case& c) {
  return {{"memory", c.sac.memory},
          {"runtimes", c.sac.runtimes},
          {"view_like_ops", c.sac.view_like_ops},
          {"rand_ops", c.sac.rand_ops},
          {"inplace_ops", c.sac.inplace_ops},
          {"force_store_random", c.sac.force_store_random},
          {"memory_budget", c.share}};
}

// Empty where this Python has no PuLP.
std::vector<TorchAnswer> AskTorch(const std::vector<Case>& cases,
                                  const std::string& python) {
  const TemporaryFolder folder;
  const CommandFiles files = {.in = folder.path() / "statistics.json",
                              .out = folder.path() / "answers.json"};
  json statistics;
  for (const Case& c : cases) statistics.push_back(ToJson(c));
  graph::WriteFile(files.in, statistics.dump());
  const int exit_code =
      RunCommand({python, ACPLAN_BENCH_DIR "/torch_policy.py"}, files)
          .exit_code;
  if (exit_code == 3) return {};
  if (exit_code != 0) throw std::runtime_error("torch_policy.py failed");
  std::vector<TorchAnswer> answers;
  for (const json& entry : json::parse(graph::ReadFile(files.out))) {
    TorchAnswer answer = {.status = entry.at("status"),
                          .seconds = entry.at("seconds"),
                          .ms = entry.at("recompute_ms")};
    if (answer.status == "Optimal" && !entry.at("fits")) {
      answer.status = "over its capacity";
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

std::string Ratio(double value) {
  return value < 10 ? fmt::format("{:.2f}", value)
                    : fmt::format("{:.0f}", value);
}

std::string ByCbc(const Case& c, int64_t capacity, double labels_s,
                  double labels_ms, double limit_s) {
  solver::SearchLimits limits;
  limits.time_limit_s = limit_s;
  const OperatorSolution solved =
      problems::SolveOperatorsByCbc(c.sac, {}, capacity, limits);
  const bool limited = solved.status == SearchStatus::kFeasible ||
                       solved.status == SearchStatus::kNoSolution;
  const char* more = limited ? "> " : "";
  std::string agreement = "-";
  if (solved.status == SearchStatus::kOptimal) {
    agreement =
        std::abs(solved.policy.recompute_ms - labels_ms) <= 1e-6 * labels_ms
            ? "the same"
            : fmt::format("{:.6f} ms", solved.policy.recompute_ms);
  }
  return fmt::format("{}{:.4f} | {}{} | {}", more, solved.seconds, more,
                     Ratio(solved.seconds / labels_s), agreement);
}

std::string ByTorch(const TorchAnswer& torch, double labels_s,
                    double labels_ms) {
  std::string answer = torch.status;
  if (answer == "Optimal") {
    const double excess = torch.ms / labels_ms - 1;
    answer = std::abs(excess) < 1e-9 ? "the same"
                                     : fmt::format("{:+.4f}%", 100 * excess);
  }
  return fmt::format("{:.3f} | {} | {}", torch.seconds,
                     Ratio(torch.seconds / labels_s), answer);
}

void Report(const Case& c, const std::optional<TorchAnswer>& torch, int runs,
            double cbc_limit_s) {
  OperatorSolution solved;
  int64_t capacity = 0;
  const double labels_s = Median(runs, [&] {
    const solver::Stopwatch stopwatch;
    const graph::OperatorGroups groups = graph::GroupOperators(c.sac);
    capacity = problems::CapacityOf(groups, c.share);
    solved = problems::SolveOperators(groups, capacity);
    return stopwatch.Seconds();
  });
  const double ms = solved.policy.recompute_ms;
  fmt::print("| {} | {} | {} | {} | {:.3f} | {} | {:.6f} | {} | {} |\n", c.name,
             c.sac.memory.size(), c.share,
             solved.status == SearchStatus::kOptimal      ? "optimal"
             : solved.status == SearchStatus::kInfeasible ? "infeasible"
                                                          : "not proven",
             ms, solved.nodes, labels_s,
             ByCbc(c, capacity, labels_s, ms, cbc_limit_s),
             torch ? ByTorch(*torch, labels_s, ms) : "- | - | -");
  std::fflush(stdout);
}

}  // namespace

}  // namespace acplan::bench

int main(int argc, char** argv) {
  using namespace acplan::bench;  // NOLINT: the program's own namespace
  CLI::App app("Time to the optimal operators of one module");
  int runs = 11;
  double cbc_limit_s = 30;
  std::string python = "python3";
  app.add_option("--runs", runs, "runs by labels, the median counts");
  app.add_option("--cbc-limit", cbc_limit_s, "seconds that CBC gets");
  app.add_option("--python", python,
                 "a Python with PuLP, for PyTorch's way (3.3.2 was used)");
  CLI11_PARSE(app, argc, argv);
  std::vector<Case> cases = RandomCases();
  std::ranges::move(RealCases(), std::back_inserter(cases));
  const std::vector<TorchAnswer> torch = AskTorch(cases, python);
  if (torch.empty()) {
    fmt::print(
        "{} cannot import pulp: PyTorch's way is left out (--python names "
        "another one).\n\n",
        python);
  }
  fmt::print(
      "| case | operators | saved share | status | ms | labels | labels s "
      "| CBC s | CBC / labels | CBC's ms | PyTorch s | PyTorch / labels "
      "| PyTorch's plan |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < cases.size(); ++i) {
    Report(cases[i], torch.empty() ? std::nullopt : std::optional(torch[i]),
           runs, cbc_limit_s);
  }
}
