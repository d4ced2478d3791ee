#include "params/gather/gather.h"
