#include "engine.h"

#include <algorithm>
#include <span>
#include <utility>

std::optional<std::int64_t> Generation::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [this] { return !tokens_.empty() || !finish_reason_.empty(); });
  if (tokens_.empty()) return std::nullopt;
  const std::int64_t token = tokens_.front();
  tokens_.pop_front();
  return token;
}

std::string Generation::finish_reason() const {
  const std::lock_guard lock(mutex_);
  return finish_reason_;
}

void Generation::cancel() { finish("cancelled"); }

void Generation::add(std::int64_t token) {
  const std::lock_guard lock(mutex_);
  tokens_.push_back(token);
  changed_.notify_all();
}

void Generation::finish(std::string reason) {
  const std::lock_guard lock(mutex_);
  if (finish_reason_.empty()) finish_reason_ = std::move(reason);
  changed_.notify_all();
}

bool Generation::is_finished() const {
  const std::lock_guard lock(mutex_);
  return !finish_reason_.empty();
}

Engine::Engine(Decoder decoder, const EngineOptions& options)
    : decoder_(std::move(decoder)),
      options_(options),
      slots_(static_cast<std::size_t>(
          options.max_batch == 0
              ? decoder_.num_slots()
              : std::min(options.max_batch, decoder_.num_slots()))),
      thread_([this] { run(); }) {}

Engine::~Engine() {
  stop();
  thread_.join();
}

void Engine::stop() {
  const std::lock_guard lock(mutex_);
  is_stopping_ = true;
  for (Sequence& sequence : waiting_) sequence.generation->finish("shutdown");
  waiting_.clear();
  changed_.notify_all();
}

void Engine::check(const GenerationRequest& request) const {
  const auto fail = [](const std::string& sentence) {
    throw std::invalid_argument(sentence);
  };
  if (request.tokens.empty()) fail("tokens must not be empty");
  for (const std::int64_t token : request.tokens) {
    if (token < 0 || token >= decoder_.vocabulary_size())
      fail(
          "tokens must be from 0 to " +
          std::to_string(decoder_.vocabulary_size() - 1) + ", but one is " +
          std::to_string(token));
  }
  if (request.max_new_tokens < 1)
    fail(
        "max_new_tokens must be at least 1, but is " +
        std::to_string(request.max_new_tokens));
  const auto num_tokens = static_cast<std::int64_t>(request.tokens.size());
  // The last token is never put into the cache.
  if (request.max_new_tokens - 1 > decoder_.max_length() - num_tokens)
    fail(
        "tokens and max_new_tokens must be at most " +
        std::to_string(decoder_.max_length() + 1) + " together, but are " +
        std::to_string(num_tokens) + " and " +
        std::to_string(request.max_new_tokens));
  const SamplingOptions& sampling = request.sampling;
  if (!(sampling.temperature >= 0)) fail("temperature must be at least 0");
  if (sampling.top_k < 0)
    fail("top_k must be at least 0, but is " + std::to_string(sampling.top_k));
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    fail("top_p must be above 0 and at most 1");
}

std::shared_ptr<Generation> Engine::submit(GenerationRequest request) {
  check(request);
  Sampler sampler(request.sampling);
  auto generation = std::make_shared<Generation>();
  const std::lock_guard lock(mutex_);
  if (is_stopping_) {
    generation->finish("shutdown");
  } else if (waiting_.size() >= options_.max_waiting) {
    throw Busy(
        "at most " + std::to_string(options_.max_waiting) +
        " requests may wait, and so many do");
  } else {
    waiting_.push_back({std::move(request), generation, std::move(sampler)});
    changed_.notify_all();
  }
  return generation;
}

void Engine::run() {
  while (admit()) {
    read_prompt();
    step();
    for (auto& slot : slots_) {
      if (slot && slot->generation->is_finished()) slot.reset();
    }
  }
  for (auto& slot : slots_) {
    if (slot) slot->generation->finish("shutdown");
  }
}

bool Engine::admit() {
  std::unique_lock lock(mutex_);
  const bool is_idle = std::none_of(
      slots_.begin(), slots_.end(), [](const auto& slot) { return !!slot; });
  if (is_idle)
    changed_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
  if (is_stopping_) return false;
  for (auto& slot : slots_) {
    if (slot || waiting_.empty()) continue;
    slot.emplace(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return true;
}

template <class Body, class Concerned>
void Engine::guard(Body&& body, Concerned&& is_concerned) {
  try {
    body();
  } catch (const std::exception& error) {
    for (auto& slot : slots_) {
      if (slot && is_concerned(*slot)) slot->generation->finish(error.what());
    }
  }
}

// A part of one prompt, so that the others need not wait for all of it.
void Engine::read_prompt() {
  const auto reading =
      std::find_if(slots_.begin(), slots_.end(), [](const auto& slot) {
        return slot && slot->is_reading();
      });
  if (reading == slots_.end()) return;
  Sequence& sequence = **reading;
  guard(
      [&] {
        const std::span<const std::int64_t> rest =
            std::span(sequence.request.tokens)
                .subspan(static_cast<std::size_t>(sequence.num_cached));
        const auto part = rest.first(std::min(
            rest.size(), static_cast<std::size_t>(options_.prefill_chunk)));
        const at::Tensor logits = decoder_.extend(
            reading - slots_.begin(), part, sequence.num_cached);
        sequence.num_cached += static_cast<std::int64_t>(part.size());
        if (!sequence.is_reading()) accept(*reading, logits);
      },
      [&](const Sequence& each) { return &each == &sequence; });
}

void Engine::step() {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> positions;
  std::size_t num_rows = 0;
  std::vector<bool> is_taking_part;
  for (const auto& slot : slots_) {
    const bool is_active = slot && !slot->generation->is_finished();
    is_taking_part.push_back(is_active && !slot->is_reading());
    tokens.push_back(is_taking_part.back() ? slot->last_token : 0);
    positions.push_back(is_active ? slot->num_cached : 0);
    if (is_taking_part.back()) num_rows = tokens.size();
  }
  if (num_rows == 0) return;
  tokens.resize(num_rows);
  positions.resize(num_rows);
  guard(
      [&] {
        const at::Tensor logits = decoder_.step(tokens, positions);
        for (std::size_t i = 0; i < num_rows; ++i) {
          if (!is_taking_part[i]) continue;
          ++slots_[i]->num_cached;
          guard(
              [&] { accept(slots_[i], logits[static_cast<std::int64_t>(i)]); },
              [&](const Sequence& each) { return &each == &*slots_[i]; });
        }
      },
      [](const Sequence& each) { return !each.is_reading(); });
}

void Engine::accept(std::optional<Sequence>& slot, const at::Tensor& logits) {
  Sequence& sequence = *slot;
  const std::int64_t token = sequence.sampler.next(
      {logits.const_data_ptr<float>(),
       static_cast<std::size_t>(logits.numel())});
  const auto& stops = sequence.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end())
    return sequence.generation->finish("stop");
  sequence.last_token = token;
  sequence.generation->add(token);
  if (++sequence.num_generated == sequence.request.max_new_tokens)
    sequence.generation->finish("length");
}
