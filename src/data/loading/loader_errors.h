#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <accelerate/batch_sequences.h>
#include <accelerate/log.h>

namespace accelerate::detail {

/// Throws DataError "sample 17: get() failed: ..." with the current exception
/// nested. Must be called in a catch block.
[[noreturn]] void throw_sample_error(std::int64_t sample, const char* verb);
[[noreturn]] void throw_batch_error(
    std::int64_t batch,
    const std::vector<std::int64_t>& samples,
    const char* verb);
/// Throws DataError for a dataset that shrank during a pass.
[[noreturn]] void throw_shrunk(std::int64_t sample, std::int64_t size);
/// Throws the ConfigError for a dataset that cannot be dispatched.
[[noreturn]] void throw_not_dispatchable();
/// Throws ConfigError if batches without tensors are to be divided.
void require_sequences(const BatchSequences& sequences, bool has_tensors);
/// Throws ConfigError about a loop that continues although its loader no longer
/// exists.
[[noreturn]] void throw_loader_gone();
/// Throws ConfigError about an iterator without a batch, since its pass has
/// ended.
[[noreturn]] void throw_no_batch();
/// Throws the Error for a new pass while a worker that was left behind is still
/// inside the stream or sampler.
[[noreturn]] void throw_stuck(const std::string& where);
void warn_left_behind(const Logger& logger, const std::string& where);

}  // namespace accelerate::detail
