// Sparse gradients of replicated embeddings: ranks end with the weights of one
// process.
#include <functional>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace sparse_gradients_test {

using testing::expect_error;
using testing::run_on_ranks;
using torch::Tensor;

constexpr int kWindow = 2;
constexpr int kSteps = 3;

struct Task {
  std::string name = {};
  bool is_bag = false;
  /// A dense layer follows.
  bool has_head = true;
  /// The head is the embedding's own weight, so that its gradient is dense.
  bool is_tied = false;
  bool clips = false;
  bool clips_values = false;
  /// Only the first rank's samples reach the embedding.
  bool is_uneven = false;
  bool runs_backward_itself = false;
  bool sets_to_none = true;
  AcceleratorOptions options = {};
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Task& task) : task_(task) {
    if (task.is_bag) {
      bag = register_module(
          "bag",
          torch::nn::EmbeddingBag(
              torch::nn::EmbeddingBagOptions(6, 2).sparse(true).mode(
                  torch::kSum)));
    } else {
      words = register_module(
          "words",
          torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)));
    }
    if (task.has_head) head = register_module("head", torch::nn::Linear(2, 2));
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    // Ranks are threads, which share the random generator.
    for (Tensor& parameter : parameters()) {
      parameter.copy_(torch::arange(parameter.numel(), torch::kDouble)
                          .sin()
                          .view(parameter.sizes()));
    }
  }

  Tensor forward(const Tensor& tokens) {
    Tensor h = bag ? bag(tokens) : words(tokens).sum(1);
    if (task_.is_tied) h = torch::linear(h, words->weight.narrow(0, 0, 2));
    return head ? head(torch::tanh(h)) : torch::tanh(h);
  }

  torch::nn::Embedding words = nullptr;
  torch::nn::EmbeddingBag bag = nullptr;
  torch::nn::Linear head = nullptr;

 private:
  Task task_;
};
TORCH_MODULE(Net);

// Tokens of a rank in a micro-step; of both ranks, in order, if negative.
Tensor tokens_of(int micro_step, int rank) {
  const auto all = torch::arange(8, torch::kLong)
                       .view({4, 2})
                       .add(micro_step)
                       .pow(2)
                       .remainder(6);
  return rank < 0 ? all : all.narrow(0, 2 * rank, 2);
}

Tensor loss_of(const Task& task, const Tensor& out, int rank) {
  if (task.is_uneven && rank == 1)
    return torch::zeros({}, torch::kDouble).requires_grad_();
  return out.pow(2).sum();
}

Tensor all_of(const torch::nn::Module& module) {
  std::vector<Tensor> flat;
  for (const Tensor& parameter : module.parameters())
    flat.push_back(parameter.detach().reshape(-1).clone());
  return torch::cat(flat);
}

Tensor train_alone(const Task& task) {
  Net net(task);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kWindow; ++i) {
      const int micro_step = kWindow * step + i;
      for (int rank = 0; rank < (task.is_uneven ? 1 : 2); ++rank) {
        const Tensor loss =
            loss_of(task, net(tokens_of(micro_step, rank)), rank);
        (loss / (task.runs_backward_itself ? 2 : 2 * kWindow)).backward();
      }
    }
    if (task.clips || task.clips_values) {
      for (Tensor& parameter : net->parameters()) {
        if (parameter.grad().is_sparse())
          parameter.mutable_grad() = parameter.grad().to_dense();
      }
    }
    if (task.clips) torch::nn::utils::clip_grad_norm_(net->parameters(), 0.01);
    if (task.clips_values)
      torch::nn::utils::clip_grad_value_(net->parameters(), 0.01);
    sgd.step();
    net->zero_grad();
  }
  return all_of(*net);
}

Tensor train_on_rank(const Task& task, const WorldOptions& world) {
  AcceleratorOptions options = task.options;
  options.gradient_accumulation_steps = kWindow;
  options.world = world;
  options.world.logger = Logger([](const LogRecord&) {}, LogLevel::error);
  const Accelerator accelerator(options);
  Net net(task);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto [model, optimizer] = accelerator.prepare(net, sgd);
  const int rank = accelerator.process_index();
  for (int i = 0; i < kSteps * kWindow; ++i) {
    const auto micro_step = accelerator.accumulate(model);
    const Tensor loss = loss_of(task, model(tokens_of(i, rank)), rank);
    if (task.runs_backward_itself) {
      loss.backward();
    } else {
      accelerator.backward(loss);
    }
    if (accelerator.sync_gradients() && task.clips)
      accelerator.clip_grad_norm_(model, 0.01);
    if (accelerator.sync_gradients() && task.clips_values)
      accelerator.clip_grad_value_(model, 0.01);
    optimizer.step();
    optimizer.zero_grad(task.sets_to_none);
  }
  return all_of(*net);
}

TEST(SparseGradients, TrainAsInOneProcess) {
  ReplicateOptions views, unused, fixed;
  views.gradient_as_bucket_view = true;
  unused.find_unused_parameters = true;
  fixed.static_graph = true;
  const std::vector<Task> tasks{
      {.name = "plain"},
      {.name = "bag", .is_bag = true},
      {.name = "alone", .has_head = false},
      {.name = "tied", .is_tied = true},
      {.name = "clipped", .clips = true},
      {.name = "clipped values", .clips_values = true},
      {.name = "on one rank", .has_head = false, .is_uneven = true},
      {.name = "own backward", .runs_backward_itself = true},
      {.name = "own backward, alone",
       .has_head = false,
       .runs_backward_itself = true},
      {.name = "set to zero", .sets_to_none = false},
      {.name = "views", .options = {.parallel = {.replicate_options = views}}},
      {.name = "unused",
       .options = {.parallel = {.replicate_options = unused}}},
      {.name = "static graph",
       .options = {.parallel = {.replicate_options = fixed}}},
  };
  for (const Task& task : tasks) {
    const Tensor want = train_alone(task);
    std::vector<Tensor> ends(2);
    run_on_ranks(2, [&](const WorldOptions& world) {
      ends[static_cast<std::size_t>(*world.rank)] = train_on_rank(task, world);
    });
    EXPECT_TRUE(torch::allclose(ends[0], want, 1e-12, 1e-12))
        << task.name << ": " << ends[0] << ", expected " << want;
    EXPECT_TRUE(torch::equal(ends[0], ends[1])) << task.name;
  }
}

TEST(SparseGradients, StaySparse) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    Net net(Task{.has_head = false});
    const auto model = accelerator.prepare(net);
    const int rank = accelerator.process_index();
    // Rank 0 reads rows 1 and 2, rank 1 rows 2 and 3.
    accelerator.backward(
        model(torch::tensor({{1 + rank, 2 + rank}})).sum() * (rank + 1));
    const Tensor gradient = net->words->weight.grad();
    ASSERT_TRUE(gradient.is_sparse());
    EXPECT_TRUE(torch::equal(
        gradient.coalesce().indices().view(-1), torch::tensor({1, 2, 3})));
  });
}

// A backward of another model sends nothing of this one again.
TEST(SparseGradients, AreLeftAloneUntilTheyChangeOnSomeRank) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    Net net(Task{.has_head = false});
    torch::nn::Linear other_net(2, 1);
    const auto [model, other] = accelerator.prepare(net, other_net);
    const int rank = accelerator.process_index();
    const auto loss = [&, &model = model] {
      return model(torch::tensor({{1 + rank, 2 + rank}})).sum();
    };
    accelerator.backward(loss());
    const Tensor first = net->words->weight.grad();
    accelerator.backward(other(torch::ones({1, 2})).sum());
    EXPECT_TRUE(net->words->weight.grad().is_same(first));
    const Tensor before = first.to_dense();
    {
      const auto local = accelerator.no_sync(model);
      if (rank == 1) net(torch::tensor({{5, 5}})).sum().backward();
    }
    const Tensor own = net->words->weight.grad().to_dense();
    accelerator.backward(other(torch::ones({1, 2})).sum());
    const Tensor mean = net->words->weight.grad().to_dense();
    EXPECT_TRUE(torch::equal(mean.narrow(0, 0, 5), before.narrow(0, 0, 5)));
    if (rank == 1) {
      EXPECT_TRUE(torch::equal(mean[5], own[5] / 2));
    }
    EXPECT_GT(mean[5][0].item<double>(), 0);
    // A new gradient may lie where the old one lay.
    for (int i = 0; i < 3; ++i) {
      net->zero_grad();
      accelerator.backward(loss() * (rank + 1));
      const Tensor gradient = net->words->weight.grad().coalesce();
      EXPECT_TRUE(
          torch::equal(gradient.indices().view(-1), torch::tensor({1, 2, 3})));
    }
  });
}

// Another function than an embedding's computes the sparse gradient.
struct OwnImpl : torch::nn::Module {
  Tensor forward(const Tensor& tokens) {
    return torch::embedding(table, tokens, -1, false, /*sparse=*/true);
  }
  Tensor table = register_parameter("table", torch::ones({4, 2}));
};
TORCH_MODULE(Own);

TEST(SparseGradients, OfOtherFunctionsAreNamed) {
  for (const bool runs_backward_itself : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator({.world = world});
      Own own;
      const auto model = accelerator.prepare(own);
      const Tensor loss = model(torch::tensor({1, 2})).sum();
      expect_error<ConfigError>(
          [&] {
            if (runs_backward_itself) {
              loss.backward();
            } else {
              accelerator.backward(loss);
            }
          },
          "but is that of \"table\"");
    });
  }
}

TEST(SparseGradients, RefuseWhatCannotBeAveraged) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    Net net(Task{});
    const auto model = accelerator.prepare(net);
    expect_error<ConfigError>(
        [&] { accelerator.join_uneven_inputs([] {}); },
        "cannot shadow the averaging of sparse gradients");
  });
}

}  // namespace sparse_gradients_test
}  // namespace accelerate
