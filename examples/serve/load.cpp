#include "load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <httplib.h>
#include <nlohmann/json.hpp>

namespace {

using Clock = std::chrono::steady_clock;

/// What all clients share.
struct Load {
  std::atomic<int> num_sent = 0;
  std::mutex mutex;
  std::vector<double> latencies;  // milliseconds
  std::size_t num_tokens = 0;
  std::string error;
};

void send_requests(const LoadOptions& options, Load& load) {
  const std::string body = nlohmann::json{
      {"tokens", options.prompt},
      {"max_new_tokens",
       options.max_new_tokens}}.dump();
  httplib::Client client(options.host, options.port);
  client.set_read_timeout(std::chrono::minutes(5));
  while (load.num_sent++ < options.num_requests) {
    const auto start = Clock::now();
    const auto answer = client.Post("/generate", body, "application/json");
    const std::chrono::duration<double, std::milli> time = Clock::now() - start;
    const std::lock_guard lock(load.mutex);
    if (!answer || answer->status != 200) {
      load.error = answer ? answer->body : to_string(answer.error());
      load.num_sent = options.num_requests;  // the others end as well
      return;
    }
    load.latencies.push_back(time.count());
    load.num_tokens += nlohmann::json::parse(answer->body).at("tokens").size();
  }
}

/// The smallest value that is not below `share` of all; `sorted` has some.
double percentile(const std::vector<double>& sorted, double share) {
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted.at(static_cast<std::size_t>(std::max(rank, 1.0)) - 1);
}

}  // namespace

LoadResult measure_load(const LoadOptions& options) {
  Load load;
  const auto start = Clock::now();
  std::vector<std::thread> clients;
  for (int i = 0; i < options.num_connections; ++i)
    clients.emplace_back([&] { send_requests(options, load); });
  for (std::thread& client : clients) client.join();
  const std::chrono::duration<double> seconds = Clock::now() - start;
  if (!load.error.empty())
    throw std::runtime_error("a request was refused: " + load.error);
  std::sort(load.latencies.begin(), load.latencies.end());
  return {
      .requests_per_second =
          static_cast<double>(load.latencies.size()) / seconds.count(),
      .tokens_per_second =
          static_cast<double>(load.num_tokens) / seconds.count(),
      .p50 = percentile(load.latencies, 0.5),
      .p90 = percentile(load.latencies, 0.9),
      .p99 = percentile(load.latencies, 0.99)};
}
