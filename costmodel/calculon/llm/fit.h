#pragma once

#include <cstdint>
#include <string>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"

namespace acplan::costmodel {

// Why an execution is none of a model on a system.
enum class Rule : uint8_t {
  kFits,
  // The execution contradicts model or system.
  kTensorNet,
  kPipelineNet,
  kDataNet,
  kSequenceSplit,
  kHiddenSplit,
  kFeedforwardSplit,
  kHeadsSplit,
  kDatatype,
  // It is infeasible.
  kNetworkTooSmall,
  kNetworkNotFilled,
  kInterleavingTooLarge,
  kInterleavingNoFactor,
  kTooFewBlocksToOffload,
  kMem1,
  kMem2
};

struct Verdict {
  Rule rule = Rule::kFits;
  int tier = 0;  // of the network

  bool Fits() const { return rule == Rule::kFits; }
  bool IsInfeasible() const { return rule >= Rule::kNetworkTooSmall; }
};

// The first rule that is broken, memory aside.
Verdict CheckFit(const Model& model, const System& system,
                 const Execution& execution);

// "tensor_par: 8 must divide feedforward (24577)": a contradiction, without the
// names of files.
std::string DescribeContradiction(const Verdict& verdict, const Model& model,
                                  const System& system,
                                  const Execution& execution);

// The words that Calculon says it in: "Network tier0 isn't big enough". Of all
// but the rules on memory.
std::string DescribeInfeasible(const Verdict& verdict);

// The rule with its numbers: "tier 0 connects 8 processors, tensor_par 8 *
// data_par 4 on it need 32". Of all but the rules on memory.
std::string DescribeNumbers(const Verdict& verdict, const Model& model,
                            const System& system, const Execution& execution);

}  // namespace acplan::costmodel
