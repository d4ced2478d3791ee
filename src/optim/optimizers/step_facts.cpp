#include "optim/optimizers/step_facts.h"

#include <bit>
#include <optional>
#include <typeinfo>

#include <torch/optim/rmsprop.h>

#include <accelerate/optimizers.h>

namespace accelerate::detail {

namespace {

using Facts = std::vector<std::uint64_t>;

void append(Facts& facts, double value) {
  facts.push_back(std::bit_cast<std::uint64_t>(value));
}
void append(Facts& facts, const at::Tensor& tensor) {
  facts.push_back(reinterpret_cast<std::uintptr_t>(
      tensor.defined() ? tensor.unsafeGetTensorImpl() : nullptr));
  facts.push_back(
      tensor.defined() && tensor.has_storage()
          ? reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr())
          : 0);
}

template <class Adam>
void append_adam_options(const Adam& options, Facts& facts) {
  append(facts, std::get<0>(options.betas()));
  append(facts, std::get<1>(options.betas()));
  append(facts, options.eps());
  append(facts, options.weight_decay());
  append(facts, options.amsgrad());
}
void append_options(const torch::optim::AdamWOptions& o, Facts& facts) {
  append_adam_options(o, facts);
}
void append_options(const torch::optim::AdamOptions& o, Facts& facts) {
  append_adam_options(o, facts);
}
void append_options(const torch::optim::SGDOptions& o, Facts& facts) {
  append(facts, o.momentum());
  append(facts, o.dampening());
  append(facts, o.weight_decay());
  append(facts, o.nesterov());
}
void append_options(const torch::optim::AdagradOptions& o, Facts& facts) {
  append(facts, o.lr_decay());
  append(facts, o.weight_decay());
  append(facts, o.eps());
}
void append_options(const torch::optim::RMSpropOptions& o, Facts& facts) {
  append(facts, o.alpha());
  append(facts, o.eps());
  append(facts, o.weight_decay());
  append(facts, o.momentum());
  append(facts, o.centered());
}

template <class Adam>
void append_adam_state(const Adam& state, Facts& facts) {
  append(facts, state.exp_avg());
  append(facts, state.exp_avg_sq());
  append(facts, state.max_exp_avg_sq());
}
void append_state(const torch::optim::AdamWParamState& s, Facts& facts) {
  append_adam_state(s, facts);
}
void append_state(const torch::optim::AdamParamState& s, Facts& facts) {
  append_adam_state(s, facts);
}
void append_state(const torch::optim::SGDParamState& s, Facts& facts) {
  append(facts, s.momentum_buffer());
}
void append_state(const torch::optim::AdagradParamState& s, Facts& facts) {
  append(facts, s.sum());
}
void append_state(const torch::optim::RMSpropParamState& s, Facts& facts) {
  append(facts, s.square_avg());
  append(facts, s.momentum_buffer());
  append(facts, s.grad_avg());
}

template <class Options, class State>
void append_groups(const torch::optim::Optimizer& optimizer, Facts& facts) {
  for (const auto& group : optimizer.param_groups()) {
    facts.push_back(group.params().size());
    append_options(static_cast<const Options&>(group.options()), facts);
    std::optional<std::int64_t> first_step;
    for (const at::Tensor& parameter : group.params()) {
      append(facts, parameter);
      const auto found =
          optimizer.state().find(parameter.unsafeGetTensorImpl());
      const auto* const state = found == optimizer.state().end()
          ? nullptr
          : static_cast<const State*>(found->second.get());
      facts.push_back(reinterpret_cast<std::uintptr_t>(state));
      if (state == nullptr) continue;
      append_state(*state, facts);
      // Frozen parameters are not stepped, and count by themselves.
      if (!parameter.requires_grad()) continue;
      if constexpr (requires { state->step(); }) {
        if (!first_step) first_step = state->step();
        facts.push_back(
            static_cast<std::uint64_t>(state->step() - *first_step));
      }
    }
  }
}

using Append = void (*)(const torch::optim::Optimizer&, Facts&);

Append append_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(AdamW) || type == typeid(accelerate::optim::AdamW))
    return &append_groups<AdamWOptions, AdamWParamState>;
  if (type == typeid(Adam) || type == typeid(accelerate::optim::Adam))
    return &append_groups<AdamOptions, AdamParamState>;
  if (type == typeid(SGD) || type == typeid(accelerate::optim::SGD))
    return &append_groups<SGDOptions, SGDParamState>;
  if (type == typeid(Adagrad) || type == typeid(accelerate::optim::Adagrad))
    return &append_groups<AdagradOptions, AdagradParamState>;
  if (type == typeid(RMSprop))
    return &append_groups<RMSpropOptions, RMSpropParamState>;
  return nullptr;
}

}  // namespace

bool can_be_recorded(const torch::optim::Optimizer& optimizer) {
  return append_of(optimizer) != nullptr;
}

void append_step_facts(
    const torch::optim::Optimizer& optimizer,
    std::vector<std::uint64_t>& facts) {
  if (const Append append = append_of(optimizer)) append(optimizer, facts);
}

}  // namespace accelerate::detail
