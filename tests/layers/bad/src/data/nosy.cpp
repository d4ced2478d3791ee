#include "parallel/plan.h"
const char* home() { return getenv("HOME"); }
