#include "costmodel/calculon/llm/evaluation.h"

namespace acplan::costmodel {

Verdict CheckMemory(const System& system, const MemoryNeeds& memory) {
  if (memory.tier1 > system.mem1.capacity) return {Rule::kMem1};
  if (memory.tier2 > system.mem2.capacity) return {Rule::kMem2};
  return {};
}

Evaluation Evaluate(const Model& model, const System& system,
                    const Execution& execution) {
  Evaluation evaluation;
  evaluation.verdict = CheckFit(model, system, execution);
  if (!evaluation.verdict.Fits()) return evaluation;
  const Schedule schedule = ScheduleOf(model, execution);
  evaluation.block = ComputeBlockCosts(model, system, execution);
  evaluation.memory = ComputeMemoryNeeds(execution, schedule, evaluation.block);
  evaluation.verdict = CheckMemory(system, evaluation.memory);
  if (!evaluation.verdict.Fits()) return evaluation;
  evaluation.times =
      ComputeBatchTimes(system, execution, schedule, evaluation.block);
  return evaluation;
}

}  // namespace acplan::costmodel
