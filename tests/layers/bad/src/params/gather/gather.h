#include "params/split/split.h"
