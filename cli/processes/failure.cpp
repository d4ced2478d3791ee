#include "cli/processes/failure.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>

#include "base/text/text.h"

namespace accelerate::cli {

std::string describe_start_problem(int error_number) {
  if (error_number != EAGAIN) return std::strerror(error_number);
  return "no more processes or threads can be started; raise the limit (ulimit "
         "-u, or the container's), or end other programs";
}

std::string describe_failure(const std::exception_ptr& failure) {
  using detail::format;
  try {
    std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    return "out of memory; raise the limit (ulimit -v, or the container's), or "
           "use a smaller input";
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string reason = error.code().message();
    return error.path1().empty()
        ? format("a directory cannot be used: {}", reason)
        : format("{} cannot be used: {}", error.path1().string(), reason);
  } catch (const std::system_error& error) {
    return error.code().category() == std::generic_category()
        ? describe_start_problem(error.code().value())
        : error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace accelerate::cli
