#include "tests/support/remat_milp.h"

#include <algorithm>
#include <cstddef>

namespace acplan::test_support {

using problems::RematOperator;
using problems::RematProblem;
using problems::RematValue;

namespace {

bool IsRead(const RematValue& value) { return value.last_read >= 0; }

class RematBuilder {
 public:
  RematBuilder(const RematProblem& problem, int64_t budget_bytes)
      : problem_(problem), budget_(budget_bytes) {}

  RematMilp Build() {
    AddColumns();
    AddNeeds();
    const auto operators = static_cast<int32_t>(problem_.operators.size());
    for (int32_t o = 0; o < operators; ++o)
      if (!problem_.operators[o].is_either) AddForward(o);
    const auto nodes = static_cast<int32_t>(problem_.backward_nodes.size());
    for (int32_t j = 0; j < nodes; ++j) AddBackward(j);
    return milp_;
  }

 private:
  int AddBinary(double lower, double upper, double cost = 0) {
    return milp_.program.AddColumn(
        {.lower = lower, .upper = upper, .cost = cost, .is_integer = true});
  }

  void AddColumns() {
    for (const RematValue& value : problem_.values) {
      milp_.keep.push_back(AddBinary(0, value.may_keep ? 1 : 0));
      need_.push_back(AddBinary(IsRead(value) ? 1 : 0, 1));
    }
    for (const RematOperator& op : problem_.operators) {
      again_columns_.push_back(
          AddBinary(0, op.may_run_again ? 1 : 0, op.is_either ? 0 : op.ms));
    }
  }

  void AddNeeds() {
    for (size_t o = 0; o < problem_.operators.size(); ++o) {
      for (const int32_t v : problem_.operators[o].makes) {
        milp_.program.AddRow(
            {.lower = 0,
             .terms = {
                 {again_columns_[o], 1}, {need_[v], -1}, {milp_.keep[v], 1}}});
      }
      for (const int32_t v : problem_.operators[o].reads)
        milp_.program.AddRow(
            {.lower = 0, .terms = {{need_[v], 1}, {again_columns_[o], -1}}});
    }
  }

  void AddForward(int32_t o) {
    std::vector<solver::Milp::Term> terms;
    for (size_t v = 0; v < problem_.values.size(); ++v) {
      const RematValue& value = problem_.values[v];
      if (value.maker <= o && value.live_until < o)
        terms.push_back({milp_.keep[v], static_cast<double>(value.bytes)});
    }
    AddBytes(problem_.forward_base[o], std::move(terms));
  }

  void AddBackward(int32_t j) {
    int64_t base = problem_.backward_base[j];
    std::vector<solver::Milp::Term> terms;
    for (size_t v = 0; v < problem_.values.size(); ++v) {
      const RematValue& value = problem_.values[v];
      if (j > value.last_read) continue;
      if (value.first_read <= j) {
        base += value.bytes;
      } else {
        terms.push_back({milp_.keep[v], static_cast<double>(value.bytes)});
      }
    }
    AddBytes(base, std::move(terms));
  }

  void AddBytes(int64_t base, std::vector<solver::Milp::Term> terms) {
    milp_.program.AddRow({.upper = static_cast<double>(budget_ - base),
                          .terms = std::move(terms)});
  }

  const RematProblem& problem_;
  const int64_t budget_;
  RematMilp milp_;
  std::vector<int> need_;           // by value
  std::vector<int> again_columns_;  // by operator
};

}  // namespace

RematMilp BuildRematMilp(const RematProblem& problem, int64_t budget_bytes) {
  return RematBuilder(problem, budget_bytes).Build();
}

std::vector<char> KeptBy(const RematMilp& milp, const RematProblem& problem,
                         const std::vector<double>& x) {
  std::vector<char> is_kept(problem.value_of.size(), 0);
  for (size_t v = 0; v < problem.values.size(); ++v)
    is_kept[problem.values[v].buffer] = x[milp.keep[v]] > 0.5 ? 1 : 0;
  return is_kept;
}

}  // namespace acplan::test_support
