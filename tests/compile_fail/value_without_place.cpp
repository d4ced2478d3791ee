// Refused: expression .<throw-expression>. is not a constant expression
// A message has one {} for each of its values.
#include "base/text/text.h"

std::string message(int rank, int size) {
#ifdef MUST_FAIL
  return accelerate::detail::format("rank {}", rank, size);
#else
  return accelerate::detail::format("rank {} of {}", rank, size);
#endif
}
