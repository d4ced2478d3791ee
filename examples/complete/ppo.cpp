// Reinforcement learning: proximal policy optimisation (Schulman et al., 2017)
// on a pole that a cart balances (Barto, Sutton and Anderson, 1983).
//
//   accelerate-cpp launch --num_processes 2 build/bin/ppo
//
// Every rank plays environments of its own, all moved at once as tensors on its
// device; gradients and the statistics of the advantages are those of all
// ranks. On a GPU, the update is captured and replayed as one graph; on a CPU
// and with several ranks it runs plainly, and says why. An episode's return is
// its number of steps, at most 200. It rises from about 20 to more than 190,
// otherwise the program fails. ppo_run/policy gets the weights.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

namespace {

using torch::Tensor;

constexpr int kUpdates = 200;      // at most; it ends when episodes are long
constexpr int kEnvironments = 16;  // of each rank
constexpr int kSteps = 128;        // of each environment between two updates
constexpr int kLongest = 200;      // steps of an episode
constexpr double kDiscount = 0.99, kTrace = 0.95, kClip = 0.2;

struct PolicyImpl : torch::nn::Module {
  // States [n, 4] give logits [n, 2] and values [n].
  std::pair<Tensor, Tensor> forward(const Tensor& states) {
    const Tensor hidden = torch::tanh(second(torch::tanh(first(states))));
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

/// Poles on carts. A state is position, velocity, angle and angular velocity.
/// Nothing here waits for the device.
class Poles {
 public:
  explicit Poles(torch::Device device)
      : device_(device),
        states_(fresh()),
        lengths_(torch::zeros({kEnvironments}, device)),
        finished_(torch::zeros({2}, device)) {}

  [[nodiscard]] const Tensor& states() const { return states_; }

  /// Pushes every cart to the left (0) or right (1). Returns 1 where an episode
  /// ended; these begin again.
  Tensor step(const Tensor& actions) {
    const auto part = states_.unbind(1);
    const Tensor force = actions * 20.0 - 10.0;
    const Tensor sine = part[2].sin(), cosine = part[2].cos();
    const Tensor push = (force + 0.05 * part[3].square() * sine) / 1.1;
    const Tensor turn = (9.8 * sine - cosine * push) /
        (0.5 * (4.0 / 3 - 0.1 * cosine.square() / 1.1));
    const Tensor pull = push - 0.05 * turn * cosine / 1.1;
    states_ = states_ + 0.02 * torch::stack({part[1], pull, part[3], turn}, 1);
    lengths_ += 1;
    const Tensor fell = (states_.select(1, 0).abs() > 2.4) |
        (states_.select(1, 2).abs() > 0.21);
    const Tensor ended = fell | (lengths_ >= kLongest);
    finished_ += torch::stack({(lengths_ * ended).sum(), ended.sum()});
    states_ = torch::where(ended.unsqueeze(1), fresh(), states_);
    lengths_ = torch::where(ended, 0, lengths_);
    return ended.to(torch::kFloat);
  }
  /// The mean length of the episodes that ended on any rank since the last
  /// call, the same on every rank; 0 if there were none. Collective.
  double take_mean_length(const accelerate::Accelerator& accelerator) {
    const Tensor all = accelerator.reduce(finished_);
    finished_ = torch::zeros_like(finished_);
    return (all[0] / all[1].clamp_min(1)).item<double>();
  }

 private:
  [[nodiscard]] Tensor fresh() const {
    return torch::rand({kEnvironments, 4}, device_) * 0.1 - 0.05;
  }

  torch::Device device_;
  Tensor states_, lengths_, finished_;
};

/// What was played, [steps x environments, ...].
struct Rollout {
  Tensor states, actions, log_probabilities, advantages, returns;
};
/// So that the captured update can take it.
template <class Visitor>
void visit_tensors(Rollout& played, Visitor&& visitor) {
  visitor(played.states);
  visitor(played.actions);
  visitor(played.log_probabilities);
  visitor(played.advantages);
  visitor(played.returns);
}

Tensor log_probability(const Tensor& logits, const Tensor& actions) {
  return logits.log_softmax(1).gather(1, actions.unsqueeze(1)).squeeze(1);
}

/// Generalised advantage estimation (Schulman et al., 2016). The reward of
/// every step is 1.
Rollout play(Policy& policy, Poles& poles) {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> states, actions, chances, values, going_on;
  for (int step = 0; step < kSteps; ++step) {
    const auto [logits, value] = policy(poles.states());
    const Tensor action = torch::multinomial(logits.softmax(1), 1).squeeze(1);
    states.push_back(poles.states());
    actions.push_back(action);
    chances.push_back(log_probability(logits, action));
    values.push_back(value);
    going_on.push_back(1 - poles.step(action));
  }
  values.push_back(policy(poles.states()).second);
  std::vector<Tensor> advantages(kSteps);
  Tensor sum = torch::zeros_like(values[0]);
  for (int step = kSteps - 1; step >= 0; --step) {
    const Tensor surprise =
        1 + kDiscount * going_on[step] * values[step + 1] - values[step];
    sum = surprise + kDiscount * kTrace * going_on[step] * sum;
    advantages[step] = sum;
  }
  values.pop_back();
  const Tensor all = torch::cat(advantages);
  return {
      torch::cat(states),
      torch::cat(actions),
      torch::cat(chances),
      all,
      all + torch::cat(values)};
}

/// Makes the mean of all ranks' advantages 0 and their deviation 1, so that N
/// ranks take the step of one rank with all environments.
Tensor normalised(
    const accelerate::Accelerator& accelerator,
    const Tensor& advantages) {
  const auto [sum, squares] = accelerator.reduce(
      std::pair(advantages.sum(), advantages.square().sum()));
  const double count =
      static_cast<double>(advantages.numel()) * accelerator.num_processes();
  const Tensor mean = sum / count;
  return (advantages - mean) /
      ((squares / count - mean.square()).sqrt() + 1e-8);
}

/// Whether the ranks have one policy, and poles of their own.
bool are_divided(
    const accelerate::Accelerator& accelerator,
    const Policy& policy,
    const Poles& poles) {
  const Tensor weights =
      accelerator.gather(policy->first->weight.detach().unsqueeze(0));
  const Tensor states = accelerator.gather(poles.states().unsqueeze(0));
  bool as_wanted = true;
  for (int rank = 1; rank < accelerator.num_processes(); ++rank) {
    as_wanted &=
        weights[rank].equal(weights[0]) && !states[rank].equal(states[0]);
  }
  return as_wanted;
}

}  // namespace

int main() {
  const accelerate::Accelerator accelerator;
  torch::manual_seed(0);
  Policy policy;  // the same on every rank
  torch::optim::Adam adam(
      policy->parameters(), torch::optim::AdamOptions(3e-3).eps(1e-5));
  auto [model, optimizer] = accelerator.prepare(policy, adam);
  // From here on every rank draws its own numbers.
  accelerate::set_seed(1, accelerator.world(), {.device_specific = true});

  const auto update = accelerator.capture(
      [&, &model = model, &optimizer = optimizer](const Rollout& played) {
        const auto [logits, values] = model(played.states);
        const Tensor ratio =
            (log_probability(logits, played.actions) - played.log_probabilities)
                .exp();
        const Tensor gain = torch::min(
            ratio * played.advantages,
            ratio.clamp(1 - kClip, 1 + kClip) * played.advantages);
        const Tensor entropy =
            -(logits.softmax(1) * logits.log_softmax(1)).sum(1);
        const Tensor error = (values - played.returns).square();
        accelerator.backward((0.25 * error - gain - 0.01 * entropy).mean());
        accelerator.clip_grad_norm_(model, 0.5);
        optimizer.step();
        optimizer.zero_grad();
      });

  Poles poles(accelerator.device());
  double first = 0, length = 0;
  for (int round = 0; round < kUpdates && length < 0.96 * kLongest; ++round) {
    Rollout played = play(policy, poles);
    played.advantages = normalised(accelerator, played.advantages);
    // Equally many steps on every rank: nobody leaves this loop early alone.
    for (int epoch = 0; epoch < 4; ++epoch) {
      const Tensor order = torch::randperm(
          played.returns.numel(),
          torch::dtype(torch::kLong).device(accelerator.device()));
      for (const Tensor& rows : order.chunk(4)) {
        Rollout chosen = played;
        visit_tensors(
            chosen, [&rows](Tensor& all) { all = all.index_select(0, rows); });
        update(chosen);
      }
    }
    length = poles.take_mean_length(accelerator);
    if (round == 0) first = length;
    accelerator.print("update {}: return {}", round, length);
  }
  accelerator.print(
      "{}",
      update.captured() ? std::string("updates were replayed")
                        : "updates ran plainly: " + update.reason());

  // Without chance, the policy does at least as well.
  Poles judged(accelerator.device());
  for (int step = 0; step < kLongest; ++step) {
    const torch::NoGradGuard no_grad;
    judged.step(policy(judged.states()).first.argmax(1));
  }
  accelerator.print(
      "return of the best actions {}", judged.take_mean_length(accelerator));
  accelerator.save_model(model, "ppo_run/policy");
  const bool is_divided = are_divided(accelerator, policy, poles);
  accelerator.end_training();
  if (!is_divided)
    throw std::runtime_error("ranks must share the policy, and nothing else");
  if (length < 3 * first)
    throw std::runtime_error(
        "the return must rise at least threefold, but rose from " +
        std::to_string(first) + " to " + std::to_string(length));
}
