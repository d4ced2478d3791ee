#include "parallel/plan/plan.h"
const char* home() { return getenv("HOME"); }
const char* message() { return "[gossip] a file was not found"; }
