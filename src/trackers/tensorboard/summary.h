#pragma once

#include <array>
#include <string>
#include <string_view>

#include <accelerate/tracker.h>

#include "trackers/media/pixels.h"

namespace accelerate::detail {

// Each function returns a Summary message with one value, for EventFile::add().

/// A scalar as a float, which is what TensorBoard's dashboard shows.
std::string scalar_summary(std::string_view tag, double value);

/// A scalar as a tensor, which keeps all digits if `is_double`.
std::string
tensor_scalar_summary(std::string_view tag, double value, bool is_double);

/// A summary for the text dashboard, which reads Markdown; its tags end in
/// "/text_summary".
std::string text_summary(std::string_view tag, std::string_view text);

std::string image_summary(std::string_view tag, const Pixels& image);

std::string histogram_summary(
    std::string_view tag,
    const TrackedHistogram& histogram);

/// A value without data: the plugin's `content` has everything.
std::string plugin_summary(
    std::string_view tag,
    std::string_view plugin,
    std::string_view content);

/// The table as Markdown.
std::string markdown_table(const TrackedTable& table);

/// The Summary messages for TensorBoard's hyperparameter dashboard: the
/// experiment, the session's start and its end. Values that are none are left
/// out. Throws ConfigError for values that are not numbers, booleans or
/// strings.
std::array<std::string, 3> hparams_summaries(
    const TrackedValues& values,
    double begin);

}  // namespace accelerate::detail
