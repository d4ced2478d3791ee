#pragma once

#include <stdexcept>
#include <string>

#include <accelerate/export.h>

namespace accelerate {

/// Base class of all errors of this library. LibTorch's own errors
/// (`c10::Error` and its subclasses) pass through unchanged.
///
/// The message reads "[area] what was asked - what was found - what to do".
class ACCELERATE_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~Error() override;
};

/// An error that the user can fix: in an option, a file, a variable. All
/// complaints are reported at once, and nothing has been changed.
class ACCELERATE_API ConfigError : public Error {
 public:
  using Error::Error;
  ~ConfigError() override;
};

/// A peer died, timed out or disagreed. The group that threw it is unusable
/// afterwards; end the process, or build a new World.
class ACCELERATE_API DistributedError : public Error {
 public:
  using Error::Error;
  ~DistributedError() override;
};

/// A sample could not be read, or a batch could not be collated; the message
/// names it. The dataset's own exception is nested (std::rethrow_if_nested).
class ACCELERATE_API DataError : public Error {
 public:
  using Error::Error;
  ~DataError() override;
};

/// A checkpoint is missing, incomplete or does not fit. Nothing was loaded.
class ACCELERATE_API CheckpointError : public Error {
 public:
  using Error::Error;
  ~CheckpointError() override;
};

/// A bug in this library: please report it.
class ACCELERATE_API InternalError : public Error {
 public:
  using Error::Error;
  ~InternalError() override;
};

}  // namespace accelerate
