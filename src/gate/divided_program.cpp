#include <accelerate/detail/divided_program.h>

namespace accelerate::detail {

DividedProgram::~DividedProgram() = default;

}  // namespace accelerate::detail
