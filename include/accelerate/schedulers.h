#pragma once

/// Learning-rate schedules with the names, options and numbers of
/// torch.optim.lr_scheduler, as functions of optimizer steps.
///
/// A schedule made with an optimizer sets its learning rates at once, and again
/// at every `step()`. Made without one it is unbound, to be combined by
/// SequentialLR or ChainedScheduler.
///
///     optim::SequentialLR schedule(
///         adamw, {100},
///         optim::LinearLR({.start_factor = 0.01, .total_iters = 100}),
///         optim::CosineAnnealingLR({.T_max = 900}));

#include <accelerate/composed_schedules.h>
#include <accelerate/lr_scheduler.h>
#include <accelerate/lr_schedules.h>
#include <accelerate/warmup.h>
