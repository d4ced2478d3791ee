// Serves tokens of a causal model over HTTP. Python exports the model once:
//
//   export_decoder_for_cpp(model, "decoder.pt2", max_batch=8, max_length=2048)
//
//   build/bin/serve decoder.pt2 --port 8000
//   curl -N localhost:8000/generate -d '{"tokens": [1, 2, 3], "stream": true}'
//
// --weights takes weights that were trained in C++ (save_model()), or any
// directory of safetensors with the model's names. Requests that arrive
// together are computed together. The program ends at SIGINT or SIGTERM.
//
//   build/bin/serve decoder.pt2 --load 200 --connections 8
//
// sends this many requests to itself, one by one and then in batches, and
// prints for both how many it answers per second, and how long that takes.

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "decoder.h"
#include "engine.h"
#include "load.h"
#include "server.h"

namespace {

struct Flags {
  std::string program;
  std::string weights;
  std::string device = "cpu";
  EngineOptions engine;
  ServerOptions server;
  LoadOptions load = {.num_requests = 0};
};

Decoder decoder_of(const Flags& flags) {
  return Decoder(
      flags.program,
      {.weights = flags.weights, .device = c10::Device(flags.device)});
}

void serve(const Flags& flags, const sigset_t& signals) {
  Engine engine(decoder_of(flags), flags.engine);
  const Server server(engine, flags.server);
  std::printf(
      "listening on http://%s:%d\n", flags.server.host.c_str(), server.port());
  std::fflush(stdout);
  int signal = 0;
  ::sigwait(&signals, &signal);
}

void measure(const Flags& flags, std::int64_t max_batch) {
  Decoder decoder = decoder_of(flags);
  const std::int64_t num_slots = decoder.num_slots();
  EngineOptions options = flags.engine;
  options.max_batch = max_batch;
  Engine engine(std::move(decoder), options);
  const Server server(engine, {.host = flags.server.host});
  LoadOptions load = flags.load;
  load.host = flags.server.host;
  load.port = server.port();
  const LoadResult result = measure_load(load);
  std::printf(
      "in batches of %d: %.1f requests/s, %.0f tokens/s, latency in ms: "
      "p50 %.1f, p90 %.1f, p99 %.1f\n",
      static_cast<int>(
          max_batch == 0 ? num_slots : std::min(max_batch, num_slots)),
      result.requests_per_second,
      result.tokens_per_second,
      result.p50,
      result.p90,
      result.p99);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Serves tokens of a causal model over HTTP.");
  app.add_option("program", flags.program, "of export_decoder_for_cpp()")
      ->required();
  app.add_option("--weights", flags.weights, "instead of the program's own");
  app.add_option("--device", flags.device, "cpu, cuda or cuda:1");
  app.add_option("--host", flags.server.host);
  app.add_option("--port", flags.server.port, "0 for any that is free");
  app.add_option(
      "--max_waiting",
      flags.engine.max_waiting,
      "requests that wait for a place in the batch");
  app.add_option(
         "--prefill_chunk",
         flags.engine.prefill_chunk,
         "tokens of a prompt that are read between two steps of the others")
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--max_batch",
         flags.engine.max_batch,
         "requests that are computed together; 0 for the program's most")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--load",
         flags.load.num_requests,
         "sends so many requests to itself, and prints how long they take")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--connections",
         flags.load.num_connections,
         "of --load: clients that each wait for their answer")
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--max_new_tokens",
         flags.load.max_new_tokens,
         "of --load: tokens of each answer")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  // Before any thread starts, so that only sigwait() sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  try {
    if (flags.load.num_requests > 0) {
      measure(flags, 1);
      measure(flags, flags.engine.max_batch);
    } else {
      serve(flags, signals);
    }
  } catch (const std::exception& error) {
    std::cerr << "serve: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
