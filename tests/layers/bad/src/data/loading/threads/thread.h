#include "data/loading/tasks/task.h"
