// Sequences of different lengths, several per row: positions restart in each
// sequence, attention stays inside it, and its first token is not a label.
#include <accelerate/token_collate.h>

#include "task.h"

namespace {

constexpr std::int64_t kWords = 16;
constexpr std::int64_t kRowLength = 64;
constexpr std::int64_t kWidth = 32;

// Each token is its predecessor plus one.
struct Counting {
  [[nodiscard]] std::int64_t size() const { return 256; }
  [[nodiscard]] torch::Tensor get(std::int64_t i) const {
    return (torch::arange(4 + i % 29) + i).remainder(kWords);
  }
};

struct DecoderImpl : torch::nn::Module {
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::Linear queries{nullptr}, head{nullptr};

  DecoderImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(kWords, kWidth));
    positions =
        register_module("positions", torch::nn::Embedding(kRowLength, kWidth));
    queries = register_module("queries", torch::nn::Linear(kWidth, 3 * kWidth));
    head = register_module("head", torch::nn::Linear(kWidth, kWords));
  }
  torch::Tensor forward(const accelerate::PackedBatch& batch) {
    const torch::Tensor x =
        tokens(batch.input_ids) + positions(batch.position_ids);
    const auto qkv = queries(x).unsqueeze(1).chunk(3, -1);
    const torch::Tensor mask =
        accelerate::block_attention_mask(batch.sequence_ids);
    const torch::Tensor seen =
        at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], mask);
    return head(torch::relu(x + seen.squeeze(1)));
  }
};
TORCH_MODULE(Decoder);

}  // namespace

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Decoder net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, loader] = accelerator.prepare(
      net,
      adam,
      accelerate::DataLoader(
          Counting(),
          {.batch_size = 16, .shuffle = true, .num_workers = 2},
          accelerate::PackCollate({.row_length = kRowLength})));
  double last = 0;
  std::int64_t num_sequences = 0, num_rows = 0;
  for (int epoch = 0; epoch < 30; ++epoch) {
    for (const accelerate::PackedBatch& batch : loader) {
      optimizer.zero_grad();
      // The label of the next token at each position; ignored ones are -100.
      const torch::Tensor scores =
          model(batch).narrow(1, 0, kRowLength - 1).flatten(0, 1);
      const torch::Tensor labels =
          batch.labels.narrow(1, 1, kRowLength - 1).flatten();
      const torch::Tensor loss = torch::cross_entropy_loss(
          scores, labels, {}, at::Reduction::Mean, accelerate::kIgnoredLabel);
      accelerator.backward(loss);
      optimizer.step();
      last = loss.item<double>();
      if (epoch > 0) continue;
      num_sequences += batch.sequences_in_row.sum().item<std::int64_t>();
      num_rows += batch.sequences_in_row.size(0);
    }
  }
  expect(
      sum_over_ranks(accelerator, num_sequences) == 256 &&
          sum_over_ranks(accelerator, num_rows) < 128,
      "all sequences must be read, at least two per row");
  print_on_every_rank(
      accelerator,
      std::to_string(num_sequences) + " sequences in " +
          std::to_string(num_rows) + " rows");
  accelerator.print("loss " + std::to_string(last));
  accelerator.end_training();
}
