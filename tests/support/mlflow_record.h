#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

namespace accelerate::testing {

/// The experiments in MLflow's directories, as the oracle's topic "trackers"
/// records them: {"name", "runs": [{"status", "lifecycle_stage", "run_name",
/// "params", "metrics": {NAME: [[value, step], ...]}, "tags"}]}, without the
/// default experiment and without tags that describe the machine. Generated
/// names are null.
nlohmann::json recorded_mlflow_experiments(
    const std::filesystem::path& directory);

}  // namespace accelerate::testing
