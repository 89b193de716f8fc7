#pragma once

#include <cstdint>
#include <string>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"

namespace acplan::costmodel {

// The rules that an execution of a model on a system must keep.
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
  int tier = 0;  // the tier of the network

  bool Fits() const { return rule == Rule::kFits; }
  bool IsInfeasible() const { return rule >= Rule::kNetworkTooSmall; }
};

// Returns the first broken rule, apart from the rules on memory.
Verdict CheckFit(const Model& model, const System& system,
                 const Execution& execution);

// Describes a contradiction without the names of files: "tensor_par: 8 must divide
// feedforward (24577)".
std::string DescribeContradiction(const Verdict& verdict, const Model& model,
                                  const System& system,
                                  const Execution& execution);

// Describes a broken rule in the words of Calculon: "Network tier0 isn't big enough". Knows
// all rules except those on memory.
std::string DescribeInfeasible(const Verdict& verdict);

// Describes a broken rule with its numbers: "tier 0 connects 8 processors, tensor_par 8 *
// data_par 4 on it need 32". Knows all rules except those on memory.
std::string DescribeNumbers(const Verdict& verdict, const Model& model,
                            const System& system, const Execution& execution);

}  // namespace acplan::costmodel
