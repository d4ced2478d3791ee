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

#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>

#include "decoder.h"
#include "engine.h"
#include "server.h"

namespace {

struct Flags {
  std::string program;
  std::string weights;
  std::string device = "cpu";
  EngineOptions engine;
  ServerOptions server;
};

void serve(const Flags& flags, const sigset_t& signals) {
  Engine engine(
      Decoder(
          flags.program,
          {.weights = flags.weights, .device = c10::Device(flags.device)}),
      flags.engine);
  const Server server(engine, flags.server);
  std::printf(
      "listening on http://%s:%d\n", flags.server.host.c_str(), server.port());
  std::fflush(stdout);
  int signal = 0;
  ::sigwait(&signals, &signal);
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
  CLI11_PARSE(app, argc, argv);
  // Before any thread starts, so that only sigwait() sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  try {
    serve(flags, signals);
  } catch (const std::exception& error) {
    std::cerr << "serve: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
