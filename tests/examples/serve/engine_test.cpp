// The engine generates Python's tokens, whatever else it generates at the same time.
#include "engine.h"

#include <limits>

#include <accelerate/error.h>
#include <accelerate/weights.h>

#include "examples/serve/decoders.h"
#include "laws/check.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::engine_test {

class RecordedDecoder : public ::testing::TestWithParam<const char*> {
 protected:
  RecordedGenerations record{GetParam()};
};

TEST_P(RecordedDecoder, GeneratesPythonsTokensAlone) {
  Engine engine(Decoder(program_path(GetParam())));
  for (std::size_t i = 0; i < record.prompts.size(); ++i) {
    const auto generation = engine.submit(record.request(i));
    EXPECT_EQ(all_tokens(*generation), record.greedy[i]) << i;
    EXPECT_EQ(generation->finish_reason(), "length");
  }
}

// The prompts have different lengths, and are more than there are slots.
TEST_P(RecordedDecoder, GeneratesPythonsTokensTogether) {
  for (const std::int64_t chunk : {256, 3, 1}) {
    Engine engine(Decoder(program_path(GetParam())), {.prefill_chunk = chunk});
    std::vector<std::shared_ptr<Generation>> generations;
    for (std::size_t i = 0; i < record.prompts.size(); ++i)
      generations.push_back(engine.submit(record.request(i)));
    for (std::size_t i = 0; i < generations.size(); ++i)
      EXPECT_EQ(all_tokens(*generations[i]), record.greedy[i])
          << i << " in chunks of " << chunk;
  }
}

TEST_P(RecordedDecoder, GeneratesTheSameInBatchesOfAnySize) {
  for (const std::int64_t max_batch : {1, 2, 1000}) {
    Engine engine(Decoder(program_path(GetParam())), {.max_batch = max_batch});
    std::vector<std::shared_ptr<Generation>> generations;
    for (std::size_t i = 0; i < record.prompts.size(); ++i)
      generations.push_back(engine.submit(record.request(i)));
    for (std::size_t i = 0; i < generations.size(); ++i)
      EXPECT_EQ(all_tokens(*generations[i]), record.greedy[i])
          << i << " in batches of " << max_batch;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Serve,
    RecordedDecoder,
    ::testing::Values("llama", "qwen3", "mistral", "gpt2"),
    [](const auto& tested) { return std::string(tested.param); });

GenerationRequest any_request() {
  const auto tokens = rc::gen::container<Tokens>(
      static_cast<std::size_t>(*rc::gen::inRange(1, 30)),
      rc::gen::inRange<std::int64_t>(0, 64));
  return {
      .tokens = *tokens,
      .max_new_tokens = *rc::gen::inRange(1, 30),
      .sampling = {
          .temperature = *rc::gen::inRange(0, 20) / 10.0,
          .top_k = *rc::gen::inRange(0, 20),
          .top_p = *rc::gen::inRange(1, 101) / 100.0,
          .seed = *rc::gen::arbitrary<std::uint64_t>()}};
}

TEST(Engine, GivesEveryRequestItsOwnTokensInAnyCompany) {
  Engine alone(Decoder(program_path("mistral")));
  Engine together(Decoder(program_path("mistral")), {.prefill_chunk = 4});
  expect_law(10, [&] {
    const int num_requests = *rc::gen::inRange(1, 9);
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < num_requests; ++i) requests.push_back(any_request());
    std::vector<std::shared_ptr<Generation>> generations;
    for (const auto& request : requests)
      generations.push_back(together.submit(request));
    for (std::size_t i = 0; i < requests.size(); ++i)
      RC_ASSERT(
          all_tokens(*generations[i]) ==
          all_tokens(*alone.submit(requests[i])));
  });
}

TEST(Engine, EndsAtStopTokensWhichItDoesNotGive) {
  const RecordedGenerations record("llama");
  Engine engine(Decoder(program_path("llama")));
  auto request = record.request(0);
  const std::int64_t stop = record.greedy[0].at(5);
  request.stop_tokens = {63 - stop, stop};
  Tokens expected;
  for (const std::int64_t token : record.greedy[0]) {
    if (token == stop || token == 63 - stop) break;
    expected.push_back(token);
  }
  const auto generation = engine.submit(request);
  EXPECT_EQ(all_tokens(*generation), expected);
  EXPECT_EQ(generation->finish_reason(), "stop");
}

TEST(Engine, FillsTheCacheToItsLastPlace) {
  Engine engine(Decoder(program_path("llama")));
  for (const std::size_t num_tokens : {1, 63, 64}) {
    GenerationRequest request{.tokens = Tokens(num_tokens, 1), .sampling = {}};
    request.max_new_tokens = 65 - static_cast<std::int64_t>(num_tokens);
    const auto generation = engine.submit(request);
    EXPECT_EQ(all_tokens(*generation).size(), request.max_new_tokens);
    EXPECT_EQ(generation->finish_reason(), "length");
  }
}

TEST(Engine, RefusesWhatItCannotServe) {
  Engine engine(Decoder(program_path("llama")));
  struct Case {
    GenerationRequest request;
    const char* sentence;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Case cases[] = {
      {{.tokens = {}, .sampling = {}}, "tokens must not be empty"},
      {{.tokens = {1, 64}, .sampling = {}},
       "tokens must be from 0 to 63, but one is 64"},
      {{.tokens = {-1}, .sampling = {}},
       "tokens must be from 0 to 63, but one is -1"},
      {{.tokens = {1}, .max_new_tokens = 0, .sampling = {}},
       "max_new_tokens must be at least 1, but is 0"},
      {{.tokens = {1}, .max_new_tokens = 65, .sampling = {}},
       "must be at most 65 together, but are 1 and 65"},
      {{.tokens = {1},
        .max_new_tokens = std::numeric_limits<std::int64_t>::max(),
        .sampling = {}},
       "must be at most 65 together"},
      {{.tokens = Tokens(65, 1), .max_new_tokens = 1, .sampling = {}},
       "must be at most 65 together, but are 65 and 1"},
      {{.tokens = {1}, .sampling = {.temperature = -1}},
       "temperature must be at least 0"},
      {{.tokens = {1}, .sampling = {.temperature = nan}},
       "temperature must be at least 0"},
      {{.tokens = {1}, .sampling = {.top_k = -1}},
       "top_k must be at least 0, but is -1"},
      {{.tokens = {1}, .sampling = {.top_p = 0}}, "top_p must be above 0"},
      {{.tokens = {1}, .sampling = {.top_p = 1.5}}, "and at most 1"}};
  for (const Case& bad : cases)
    expect_error<std::invalid_argument>(
        [&] { (void)engine.submit(bad.request); }, bad.sentence);
}

TEST(Engine, RefusesMoreRequestsThanMayWait) {
  Engine engine(Decoder(program_path("llama")), {.max_waiting = 0});
  expect_error<Busy>(
      [&] { (void)engine.submit({.tokens = {1}, .sampling = {}}); },
      "at most 0 requests may wait");
}

TEST(Engine, GivesTheSlotOfACancelledRequestToAnother) {
  const RecordedGenerations record("llama");
  Engine engine(Decoder(program_path("llama")));
  for (int i = 0; i < 8; ++i) {
    const auto generation =
        engine.submit({.tokens = {5}, .max_new_tokens = 60, .sampling = {}});
    EXPECT_TRUE(generation->next());
    generation->cancel();
  }
  EXPECT_EQ(all_tokens(*engine.submit(record.request(2))), record.greedy[2]);
}

TEST(Engine, EndsAllRequestsWhenItStops) {
  Engine engine(Decoder(program_path("llama")));
  std::vector<std::shared_ptr<Generation>> generations;
  for (int i = 0; i < 20; ++i)
    generations.push_back(engine.submit(
        {.tokens = {1, 2}, .max_new_tokens = 60, .sampling = {}}));
  engine.stop();
  generations.push_back(engine.submit({.tokens = {1}, .sampling = {}}));
  for (const auto& generation : generations) {
    const auto num_tokens = all_tokens(*generation).size();
    EXPECT_TRUE(generation->finish_reason() == "shutdown" || num_tokens == 60U);
  }
  EXPECT_EQ(generations.back()->finish_reason(), "shutdown");
}

/// A model that was trained in C++: the class and sizes of the decoder "llama".
class TrainedModel {
 public:
  TrainedModel() : net_(load_exported(path())) {}

  static std::filesystem::path path() {
    return std::filesystem::path(ACCELERATE_TRAINING_PROGRAMS) / "llama.pt2";
  }
  void train() {
    torch::optim::SGD sgd(net_->parameters(), 1.0);
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      const auto ids = torch::arange(16).view({2, 8}) + step;
      net_->forward(ids, torch::ones_like(ids), ids)["loss"].backward();
      sgd.step();
    }
  }
  void fill(double value) {
    const torch::NoGradGuard no_gradients;
    for (auto& parameter : net_->parameters()) parameter.fill_(value);
  }
  torch::Tensor logits_after(const Tokens& tokens) {
    net_->eval();
    const torch::NoGradGuard no_gradients;
    const auto ids = torch::tensor(tokens).unsqueeze(0);
    return net_->forward(ids, torch::ones_like(ids), ids)["logits"][0][-1];
  }
  std::filesystem::path save() {
    save_model(*net_, directory_.path());
    return directory_.path();
  }

 private:
  TemporaryDirectory directory_;
  ExportedModel net_;
};

TEST(Decoder, LoadsWeightsThatWereTrainedHere) {
  TrainedModel trained;
  trained.train();
  Decoder decoder(program_path("llama"), {.weights = trained.save()});
  const Tokens tokens = {4, 8, 15, 16, 23, 42};
  const auto expected = trained.logits_after(tokens);
  EXPECT_TRUE(
      torch::allclose(decoder.extend(2, tokens, 0), expected, 1e-4, 1e-5));
  // The same in two parts, the second of which has one token.
  (void)decoder.extend(1, std::span(tokens).first(5), 0);
  const Tokens last = {0, 42};
  const Tokens positions = {0, 5};
  EXPECT_TRUE(
      torch::allclose(decoder.step(last, positions)[1], expected, 1e-4, 1e-5));
}

TEST(Decoder, RefusesAnotherKindOfProgram) {
  expect_error<ConfigError>(
      [] { (void)Decoder(TrainedModel::path()); },
      "must be a program of export_decoder_for_cpp()");
}

TEST(Engine, EndsARequestWithTheErrorThatItMeets) {
  TrainedModel trained;
  trained.fill(std::numeric_limits<double>::quiet_NaN());
  Engine engine(Decoder(program_path("llama"), {.weights = trained.save()}));
  const auto generation = engine.submit({.tokens = {1}, .sampling = {}});
  EXPECT_EQ(all_tokens(*generation), Tokens());
  EXPECT_EQ(
      generation->finish_reason(),
      "the model computes logits that are not finite");
}

}  // namespace accelerate::testing::engine_test
