#include "data/loading/pool.h"
