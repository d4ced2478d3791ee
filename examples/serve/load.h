#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct LoadOptions {
  std::string host = "127.0.0.1";
  int port = 0;
  int num_requests = 100;
  /// Clients that wait for an answer before they ask again, at least 1.
  int num_connections = 8;
  std::vector<std::int64_t> prompt = {1, 2, 3, 4};
  std::int64_t max_new_tokens = 16;
};

struct LoadResult {
  double requests_per_second = 0;
  double tokens_per_second = 0;
  /// The time from a request to its whole answer, in milliseconds: in half of
  /// all requests, in 90 and in 99 of 100, it was at most this.
  double p50 = 0, p90 = 0, p99 = 0;
};

/// Sends requests to a Server from several threads, and times them. Throws
/// std::runtime_error with what the server said if it refuses one.
LoadResult measure_load(const LoadOptions& options);
