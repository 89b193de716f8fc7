#include "graph/trace/operator_kinds.h"

namespace acplan::graph {

IndexedVector<OperatorId, OperatorKind> KindsOf(const Trace& trace) {
  IndexedVector<OperatorNameId, OperatorKind> of_name;
  for (const std::string& name : trace.operator_names) {
    of_name.push_back(KindOf(name));
  }
  IndexedVector<OperatorId, OperatorKind> kinds;
  for (const TraceOperator& op : trace.operators) {
    kinds.push_back(of_name[op.name]);
  }
  return kinds;
}

}  // namespace acplan::graph
