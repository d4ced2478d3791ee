#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "decoder.h"
#include "sampler.h"

struct GenerationRequest {
  /// The prompt.
  std::vector<std::int64_t> tokens;
  std::int64_t max_new_tokens = 16;
  SamplingOptions sampling;
  /// Tokens that end the generation, and are not part of it.
  std::vector<std::int64_t> stop_tokens = {};
};

/// The tokens of one request while they are made. Thread-safe.
class Generation {
 public:
  /// Waits for the next token; none at the end.
  std::optional<std::int64_t> next();
  /// After the end: "stop" for a stop token, "length", "shutdown", "cancelled",
  /// or the message of an error.
  [[nodiscard]] std::string finish_reason() const;
  /// Ends the generation: its client wants no more tokens.
  void cancel();

 private:
  friend class Engine;
  void add(std::int64_t token);
  void finish(std::string reason);
  [[nodiscard]] bool is_finished() const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::int64_t> tokens_;
  std::string finish_reason_;
};

/// Too many requests wait.
class Busy : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct EngineOptions {
  /// Requests that wait for a slot. One more is refused.
  std::size_t max_waiting = 64;
  /// Requests that are computed together; 0: as many as the decoder has slots.
  std::int64_t max_batch = 0;
  /// Tokens of a prompt that are read between two steps of the others.
  std::int64_t prefill_chunk = 256;
};

/// Generates tokens for several requests at once, in steps: each step gives
/// every request in a slot of the decoder one more token. A request takes a
/// slot as soon as one is free, whatever the others are doing.
class Engine {
 public:
  explicit Engine(Decoder decoder, const EngineOptions& options = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// Thread-safe. Throws std::invalid_argument with a sentence for a request
  /// that the model cannot serve, and Busy.
  std::shared_ptr<Generation> submit(GenerationRequest request);
  /// Ends all generations, and those submitted later.
  void stop();

 private:
  struct Sequence {
    GenerationRequest request;
    std::shared_ptr<Generation> generation;
    Sampler sampler;
    /// Tokens in the decoder's cache.
    std::int64_t num_cached = 0;
    std::int64_t num_generated = 0;
    std::int64_t last_token = 0;

    [[nodiscard]] bool is_reading() const {
      return num_cached < static_cast<std::int64_t>(request.tokens.size());
    }
  };

  void check(const GenerationRequest& request) const;
  void run();
  /// Fills free slots, waiting if all of them are free. False at the end.
  bool admit();
  void read_prompt();
  void step();
  void accept(std::optional<Sequence>& slot, const at::Tensor& logits);
  /// Ends the sequences for which `is_concerned` if `body` throws.
  template <class Body, class Concerned>
  void guard(Body&& body, Concerned&& is_concerned);

  Decoder decoder_;
  EngineOptions options_;
  std::vector<std::optional<Sequence>> slots_;  // of the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sequence> waiting_;
  bool is_stopping_ = false;
  std::thread thread_;
};
