#pragma once

namespace accelerate::detail {

/// Whether this thread runs a backward: autograd's formulas, or a forward that is
/// recomputed for them.
bool is_in_backward();

/// Whether autograd's own formulas call an operator, on tensors that a forward
/// saved: they need no collectives, which have formulas of their own. A forward
/// that is recomputed inside of a backward does.
bool is_in_formula();

}  // namespace accelerate::detail
