#pragma once

#include <accelerate/accelerator.h>
#include <accelerate/data_loader.h>
#include <accelerate/error.h>
#include <accelerate/log.h>
#include <accelerate/model.h>
#include <accelerate/nested.h>
#include <accelerate/optimizer.h>
#include <accelerate/optimizers.h>
#include <accelerate/parallel.h>
#include <accelerate/precision.h>
#include <accelerate/scheduler.h>
#include <accelerate/schedulers.h>
#include <accelerate/state_dict.h>
#include <accelerate/world.h>
