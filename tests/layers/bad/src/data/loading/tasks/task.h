#include "data/loading/threads/thread.h"
