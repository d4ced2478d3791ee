#include <accelerate/optimizers.h>

namespace accelerate::optim {

Elementwise::~Elementwise() = default;

Parameterwise::~Parameterwise() = default;

}  // namespace accelerate::optim
