#include <torch/torch.h>
#include "comm/transport/wire.h"
