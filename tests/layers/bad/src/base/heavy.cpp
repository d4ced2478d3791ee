#include <ATen/core/Tensor.h>
