#include "data/loading/loader_errors.h"

#include <exception>

#include <c10/util/Exception.h>

#include <accelerate/detail/torch_engine.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "data/loading/worker_pool.h"

namespace accelerate::detail {

namespace {

// The message of the exception in flight, without a stack trace.
std::string current_message() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception not derived from std::exception";
  }
}

bool is_stop() {
  try {
    throw;
  } catch (const Worker::Stopped&) {
    return true;
  } catch (...) {
    return false;
  }
}

std::string list(const std::vector<std::int64_t>& samples) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < samples.size() && i < kMost; ++i) {
    text += format("{}{}", i == 0 ? "" : ", ", samples[i]);
  }
  if (samples.size() > kMost) text += ", …";
  return text;
}

}  // namespace

void throw_sample_error(std::int64_t sample, const char* verb) {
  if (is_stop()) throw;
  std::throw_with_nested(DataError(format(
      "[data] sample {}: {} failed: {}", sample, verb, current_message())));
}

void throw_batch_error(
    std::int64_t batch,
    const std::vector<std::int64_t>& samples,
    const char* verb) {
  if (is_stop()) throw;
  const std::string which =
      samples.empty() ? std::string() : format(" (samples {})", list(samples));
  std::throw_with_nested(DataError(format(
      "[data] batch {}{}: {} failed: {}",
      batch,
      which,
      verb,
      current_message())));
}

void throw_shrunk(std::int64_t sample, std::int64_t size) {
  throw DataError(format(
      "[data] sample {} cannot be read, because the dataset now has only {}: "
      "it has shrunk since the pass began; let its size() change between "
      "passes only",
      sample,
      size));
}

void throw_not_dispatchable() {
  throw ConfigError(
      "[data] dispatch_batches needs batches that can be cut and sent, "
      "default-constructible: nested tensors (nested.h) or a vector of objects "
      "(objects.h), but this loader's are neither");
}

void require_sequences(const BatchSequences& sequences, bool has_tensors) {
  if (sequences.dims.empty() || has_tensors) return;
  throw ConfigError(
      "[data] sequences are set for a loader whose batches are not nested "
      "tensors (nested.h); pass this loader sequences without dims");
}

void throw_loader_gone() {
  throw ConfigError(
      "[data] a loop continues over a loader that no longer exists; the loader "
      "must live until its last loop has ended");
}

void throw_no_batch() {
  throw ConfigError(
      "[data] an iterator was dereferenced after the end of its pass; compare "
      "it with end() first");
}

void throw_stuck(const std::string& where) {
  throw Error(format(
      "[data] a worker of an earlier pass over this loader has not returned, "
      "it is {}; a stream is read by one thread at a time, so no new pass can "
      "begin: end the process",
      where));
}

void warn_left_behind(const Logger& logger, const std::string& where) {
  logger.log(
      LogLevel::warning,
      "data",
      format(
          "a worker did not return within the timeout, it is {}; its thread "
          "was left behind",
          where));
}

void throw_unordered() {
  throw ConfigError(
      "[data] this torch::data loader has workers and enforce_ordering(false), "
      "so ranks would see batches in different orders, and each keeps only "
      "some; set enforce_ordering(true), or use accelerate::DataLoader");
}

}  // namespace accelerate::detail
