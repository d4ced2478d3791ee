#include <torch/torch.h>
#include "comm/transport/adapters/reduction_encoding.h"
