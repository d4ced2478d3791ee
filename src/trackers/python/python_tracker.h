#pragma once

#include <memory>
#include <string_view>

#include "trackers/tracker_request.h"

namespace accelerate::detail {

/// A tracker that makes its calls in the Python package of that name: wandb,
/// trackio, comet_ml, aim, clearml or swanlab. init_kwargs are the arguments of
/// the package's function that begins a run, plus `python`, the interpreter;
/// without it, ACCELERATE_PYTHON or python3 is used.
std::unique_ptr<GeneralTracker> make_python_tracker(
    const TrackerRequest& request,
    std::string_view package);

}  // namespace accelerate::detail
