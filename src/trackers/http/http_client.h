#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trackers/tracker_patience.h"

namespace accelerate::detail {

struct HttpClientOptions {
  /// Prefix of all requests, such as "https://host:5000".
  std::string base;
  std::string bearer_token;
  std::string user;
  std::string password;
  /// A file of certificates to trust; empty for the system's.
  std::string certificates;
  bool verifies_certificates = true;
  double timeout_seconds = 120;
  /// Number of retries of requests that fail for a transient reason.
  int most_retries = 4;
  /// The factor of waits: before the n-th retry, factor * 2^(n-1) seconds pass.
  double backoff_factor = 1;
  /// How long it may wait altogether.
  std::shared_ptr<const TrackerPatience> patience =
      std::make_shared<TrackerPatience>();
};

/// The longest answer that is read, in bytes.
inline constexpr std::size_t kMostHttpAnswerBytes = std::size_t{16} << 20U;

struct HttpAnswer {
  int status = 0;
  std::string body;
};

/// Sends requests to one server over one connection. Not thread-safe.
class HttpClient {
 public:
  using Options = HttpClientOptions;

  explicit HttpClient(Options options);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Throw Error if there is no answer after all retries, or as long as there is
  // patience, and if the answer is longer than kMostHttpAnswerBytes.
  HttpAnswer get(const std::string& path);
  HttpAnswer post_json(const std::string& path, const std::string& body);
  /// Send a body, or the contents of `file`.
  HttpAnswer put(const std::string& path, const std::string& body);
  HttpAnswer put_file(const std::string& path, const std::string& file);

 private:
  [[nodiscard]] bool wait_before(int retry) const;
  HttpAnswer with_retries(const std::function<HttpAnswer()>& attempt) const;
  HttpAnswer perform(
      const std::string& path,
      const std::vector<std::string>& headers,
      const std::function<void(void*)>& prepare);

  Options options_;
  void* curl_ = nullptr;
};

/// Percent-encodes bytes other than letters, digits and "-._~/".
std::string url_escaped(const std::string& text);

}  // namespace accelerate::detail
