#include <torch/torch.h>
#include "comm/transport/reduction_encoding.h"
