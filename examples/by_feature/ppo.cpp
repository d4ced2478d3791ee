// Reinforcement learning: proximal policy optimisation (Schulman et al., 2017)
// on a pole that a cart balances. Every rank plays its own environments;
// gradients and the statistics of the advantages are those of all ranks.
#include "task.h"

namespace {

constexpr int kEnvironments = 16;  // of each rank
constexpr int kSteps = 128;        // of each environment between two updates
constexpr int kLongest = 200;      // steps of an episode
constexpr double kDiscount = 0.99, kTrace = 0.95, kClip = 0.2;

struct PolicyImpl : torch::nn::Module {
  // States [n, 4] give logits [n, 2] and values [n].
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& states) {
    const torch::Tensor hidden = torch::tanh(second(torch::tanh(first(states))));
    return {actor(hidden), critic(hidden).squeeze(1)};
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 64));
  torch::nn::Linear second =
      register_module("second", torch::nn::Linear(64, 64));
  torch::nn::Linear actor = register_module("actor", torch::nn::Linear(64, 2));
  torch::nn::Linear critic =
      register_module("critic", torch::nn::Linear(64, 1));
};
TORCH_MODULE(Policy);

// Poles on carts, all moved at once (Barto, Sutton and Anderson, 1983). A state
// is position, velocity, angle and angular velocity.
class Poles {
 public:
  Poles() : states_(torch::rand({kEnvironments, 4}) * 0.1 - 0.05) {}

  [[nodiscard]] const torch::Tensor& states() const { return states_; }

  // Pushes every cart to the left (0) or right (1). Returns which episodes
  // ended; these begin again.
  torch::Tensor step(const torch::Tensor& actions) {
    const auto part = states_.unbind(1);
    const torch::Tensor force = actions * 20.0 - 10.0;
    const torch::Tensor sine = part[2].sin(), cosine = part[2].cos();
    const torch::Tensor push = (force + 0.05 * part[3].square() * sine) / 1.1;
    const torch::Tensor turn = (9.8 * sine - cosine * push) /
        (0.5 * (4.0 / 3 - 0.1 * cosine.square() / 1.1));
    const torch::Tensor pull = push - 0.05 * turn * cosine / 1.1;
    states_ = states_ +
        0.02 * torch::stack({part[1], pull, part[3], turn}, 1);
    lengths_ += 1;
    const torch::Tensor fell =
        (states_.select(1, 0).abs() > 2.4) | (states_.select(1, 2).abs() > 0.21);
    const torch::Tensor ended = fell | (lengths_ >= kLongest);
    finished_ += lengths_.masked_select(ended).sum().item<double>();
    num_finished_ += ended.sum().item<double>();
    const torch::Tensor fresh = torch::rand({kEnvironments, 4}) * 0.1 - 0.05;
    states_ = torch::where(ended.unsqueeze(1), fresh, states_);
    lengths_.masked_fill_(ended, 0);
    return ended;
  }

  // Sum and number of the lengths of the episodes that ended since the last
  // call.
  torch::Tensor take_lengths() {
    return torch::tensor(
        {std::exchange(finished_, 0.0), std::exchange(num_finished_, 0.0)});
  }

 private:
  torch::Tensor states_;
  torch::Tensor lengths_ = torch::zeros({kEnvironments});
  double finished_ = 0, num_finished_ = 0;
};

// What was played: [steps, environments, ...].
struct Rollout {
  torch::Tensor states, actions, log_probabilities, advantages, returns;
};

torch::Tensor log_probability(
    const torch::Tensor& logits,
    const torch::Tensor& actions) {
  return logits.log_softmax(1).gather(1, actions.unsqueeze(1)).squeeze(1);
}

// Generalised advantage estimation (Schulman et al., 2016). The reward of every
// step is 1.
Rollout play(Policy& policy, Poles& poles) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> states, actions, chances, values, going_on;
  for (int step = 0; step < kSteps; ++step) {
    const auto [logits, value] = policy(poles.states());
    const torch::Tensor action =
        torch::multinomial(logits.softmax(1), 1).squeeze(1);
    states.push_back(poles.states());
    actions.push_back(action);
    chances.push_back(log_probability(logits, action));
    values.push_back(value);
    going_on.push_back(1 - poles.step(action).to(torch::kFloat));
  }
  values.push_back(policy(poles.states()).second);
  std::vector<torch::Tensor> advantages(kSteps);
  torch::Tensor sum = torch::zeros({kEnvironments});
  for (int step = kSteps - 1; step >= 0; --step) {
    const torch::Tensor surprise =
        1 + kDiscount * going_on[step] * values[step + 1] - values[step];
    sum = surprise + kDiscount * kTrace * going_on[step] * sum;
    advantages[step] = sum;
  }
  values.pop_back();
  const torch::Tensor all = torch::cat(advantages);
  return {
      torch::cat(states),
      torch::cat(actions),
      torch::cat(chances),
      all,
      all + torch::cat(values)};
}

}  // namespace

int main() {
  accelerate::Accelerator accelerator;
  torch::manual_seed(0);
  Policy policy;  // the same on every rank
  torch::optim::Adam adam(
      policy->parameters(), torch::optim::AdamOptions(3e-3).eps(1e-5));
  auto [model, optimizer] = accelerator.prepare(policy, adam);
  // From here on every rank draws its own numbers.
  accelerate::set_seed(1, accelerator.world(), {.device_specific = true});
  Poles poles;
  double length = 0;
  for (int update = 0; update < 200 && length < 0.96 * kLongest; ++update) {
    Rollout played = play(policy, poles);
    // The same mean and deviation on every rank, so that N ranks take the step
    // of one rank with all environments.
    const auto [sum, squares] = accelerator.reduce(
        std::pair(
            played.advantages.sum(), played.advantages.square().sum()));
    const double count = static_cast<double>(played.advantages.numel()) *
        accelerator.num_processes();
    const torch::Tensor mean = sum / count;
    played.advantages = (played.advantages - mean) /
        ((squares / count - mean.square()).sqrt() + 1e-8);
    // Equally many steps on every rank: nobody leaves this loop early alone.
    for (int epoch = 0; epoch < 4; ++epoch) {
      const torch::Tensor order = torch::randperm(kSteps * kEnvironments);
      for (const torch::Tensor& rows : order.chunk(4)) {
        const auto [logits, values] = model(played.states.index_select(0, rows));
        const torch::Tensor ratio =
            (log_probability(logits, played.actions.index_select(0, rows)) -
             played.log_probabilities.index_select(0, rows))
                .exp();
        const torch::Tensor advantage = played.advantages.index_select(0, rows);
        const torch::Tensor gain = torch::min(
            ratio * advantage,
            ratio.clamp(1 - kClip, 1 + kClip) * advantage);
        const torch::Tensor entropy =
            -(logits.softmax(1) * logits.log_softmax(1)).sum(1);
        const torch::Tensor error =
            (values - played.returns.index_select(0, rows)).square();
        optimizer.zero_grad();
        accelerator.backward(
            (0.25 * error - gain - 0.01 * entropy).mean());
        accelerator.clip_grad_norm_(model, 0.5);
        optimizer.step();
      }
    }
    // The same decision on every rank.
    const torch::Tensor lengths = accelerator.reduce(poles.take_lengths());
    if (lengths[1].item<double>() > 0)
      length = lengths[0].item<double>() / lengths[1].item<double>();
    accelerator.print(
        "update " + std::to_string(update) + ": episodes of " +
        std::to_string(static_cast<int>(length)) + " steps");
  }
  const torch::Tensor weights =
      accelerator.gather(policy->first->weight.detach().unsqueeze(0));
  const torch::Tensor states = accelerator.gather(poles.states().unsqueeze(0));
  bool are_equal = true, are_own = true;
  for (int rank = 1; rank < accelerator.num_processes(); ++rank) {
    are_equal &= weights[rank].equal(weights[0]);
    are_own &= !states[rank].equal(states[0]);
  }
  accelerator.print(
      are_equal && are_own ? "one policy, and poles of its own on every rank"
                           : "the ranks are not as they should be");
  accelerator.print("loss " + std::to_string(1 - length / kLongest));
  accelerator.end_training();
}
