#include <torch/torch.h>
#include "comm/wire.h"
