#include "params/box.h"
