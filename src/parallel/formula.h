#pragma once

namespace accelerate::detail {

/// Whether this thread is running a backward: autograd's formulas, or a forward
/// recomputed for them.
bool is_in_backward();

/// Whether autograd's own formulas are calling an operator, on tensors that a
/// forward saved. They need no collectives: those have formulas of their own. A
/// forward recomputed inside a backward does need them.
bool is_in_formula();

}  // namespace accelerate::detail
