#include "gate/coded_weights.h"

#include "gate/gate_entry.h"

namespace accelerate::detail {

CodedUnit coded_unit(const at::Tensor& tensor) {
  const GateEntry* const entry = entry_of(tensor);
  if (entry == nullptr || entry->keeper == nullptr) return {};
  return {entry->keeper->as_coded_keeper(), entry->unit};
}

}  // namespace accelerate::detail
