#include "parallel/replicate/gradient_reduction.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include <accelerate/bucket_hook.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "parallel/replicate/power_sgd.h"

namespace accelerate::detail {

namespace {

// Runs on the thread that completes `future`.
template <class Body>
FutureTensor after(const FutureTensor& future, Body&& body) {
  return future->then(
      [body =
           std::forward<Body>(body)](c10::ivalue::Future& done) -> c10::IValue {
        const at::NoGradGuard no_grad;
        return body(c10d::detail::parseCppCommHookResult(done.value()));
      },
      c10::TensorType::get());
}

class Average final : public GradientReduction {
 public:
  FutureTensor reduce(c10d::GradBucket& bucket, const ReductionContext& context)
      override {
    bucket.getBufferRef().div_(context.divisor);
    return sum_over_ranks(bucket.getBuffer(), context);
  }
};

class CastAverage final : public GradientReduction {
 public:
  explicit CastAverage(at::ScalarType dtype) : dtype_(dtype) {}

  FutureTensor reduce(c10d::GradBucket& bucket, const ReductionContext& context)
      override {
    const at::Tensor buffer = bucket.getBuffer();
    const at::Tensor real =
        buffer.is_complex() ? at::view_as_real(buffer) : buffer;
    // Dividing before narrowing loses fewer bits.
    const at::Tensor narrow = real.div_(context.divisor).to(dtype_);
    return after(
        sum_over_ranks(narrow, context), [buffer, real](const at::Tensor& sum) {
          real.copy_(sum);
          return buffer;
        });
  }

 private:
  at::ScalarType dtype_;
};

// The user's own function.
class HookReduction final : public GradientReduction {
 public:
  explicit HookReduction(std::shared_ptr<const BucketHook> hook)
      : hook_(std::move(hook)) {}

  FutureTensor reduce(c10d::GradBucket& bucket, const ReductionContext& context)
      override {
    const at::Tensor buffer = bucket.getBuffer();
    const FutureTensor future =
        hook_->reduce(bucket, {*context.process_group, context.divisor});
    if (!future) {
      throw ConfigError(
          "[parallel] the bucket_hook must return a future, but did not; "
          "return that of the bucket's reduction, or a completed one");
    }
    return future->then(
        [buffer](c10::ivalue::Future& done) -> c10::IValue {
          return mean_in(done.value(), buffer);
        },
        c10::TensorType::get());
  }
  [[nodiscard]] bool has_state() const override {
    return hook_->state_dict != nullptr;
  }
  [[nodiscard]] StateDict state_dict() const override {
    return hook_->state_dict();
  }
  void load_state_dict(const StateDict& state) override {
    hook_->load_state_dict(state);
  }

 private:
  // LibTorch's collectives return a list of one tensor.
  static at::Tensor mean_in(
      const c10::IValue& value,
      const at::Tensor& buffer) {
    at::Tensor mean;
    if (value.isTensor()) mean = value.toTensor();
    if (value.isTensorList() && value.toTensorList().size() == 1)
      mean = value.toTensorVector()[0];
    if (mean.defined() && mean.numel() == buffer.numel() &&
        mean.scalar_type() == buffer.scalar_type()) {
      return mean;
    }
    throw ConfigError(format(
        "[parallel] the bucket_hook's future holds {}, but must hold a tensor "
        "of {} elements of {}, like the bucket's buffer",
        !mean.defined() ? value.tagKind()
                        : format(
                              "{} elements of {}",
                              mean.numel(),
                              c10::toString(mean.scalar_type())),
        buffer.numel(),
        c10::toString(buffer.scalar_type())));
  }

  std::shared_ptr<const BucketHook> hook_;
};

class CastWrapper final : public GradientReduction {
 public:
  CastWrapper(at::ScalarType dtype, std::unique_ptr<GradientReduction> inner)
      : dtype_(dtype), inner_(std::move(inner)) {}

  FutureTensor reduce(c10d::GradBucket& bucket, const ReductionContext& context)
      override {
    const at::Tensor buffer = bucket.getBuffer();
    // There are no narrower complex numbers that a hook could compute with.
    if (buffer.is_complex()) return inner_->reduce(bucket, context);
    at::Tensor narrow = buffer.to(dtype_);
    bucket.setBuffer(narrow);
    return after(
        inner_->reduce(bucket, context),
        [buffer](const at::Tensor& mean) { return buffer.copy_(mean); });
  }
  [[nodiscard]] bool has_state() const override { return inner_->has_state(); }
  [[nodiscard]] StateDict state_dict() const override {
    return inner_->state_dict();
  }
  void load_state_dict(const StateDict& state) override {
    inner_->load_state_dict(state);
  }

 private:
  at::ScalarType dtype_;
  std::unique_ptr<GradientReduction> inner_;
};

std::unique_ptr<GradientReduction> make_hook(
    const ReplicateOptions& options,
    NameOf name_of) {
  if (options.bucket_hook)
    return std::make_unique<HookReduction>(options.bucket_hook);
  switch (options.comm_hook) {
    case CommHook::none:
      break;
    case CommHook::fp16:
      return std::make_unique<CastAverage>(at::kHalf);
    case CommHook::bf16:
      return std::make_unique<CastAverage>(at::kBFloat16);
    case CommHook::power_sgd:
      return make_power_sgd(options.power_sgd, std::move(name_of));
    case CommHook::batched_power_sgd:
      return make_batched_power_sgd(options.power_sgd, std::move(name_of));
  }
  return std::make_unique<Average>();
}

}  // namespace

std::optional<std::string> validate_reduction(const ReplicateOptions& options) {
  if (options.bucket_hook && options.comm_hook != CommHook::none) {
    return "[parallel] bucket_hook and comm_hook are both set, but a bucket is "
           "reduced once; leave one of them out";
  }
  if (options.bucket_hook) {
    const BucketHook& hook = *options.bucket_hook;
    if (!hook.reduce || !hook.state_dict != !hook.load_state_dict) {
      return "[parallel] a BucketHook must have the function `reduce`, and "
             "both or neither of state_dict and load_state_dict";
    }
  }
  if (options.comm_wrapper != CommWrapper::none && !options.bucket_hook &&
      options.comm_hook == CommHook::none) {
    return "[parallel] comm_wrapper is set without a comm_hook to wrap; choose "
           "a comm_hook, or comm_hook fp16 or bf16 for compression alone";
  }
  const PowerSGDOptions& power = options.power_sgd;
  if (power.matrix_approximation_rank < 1 || power.start_power_sgd_iter < 0 ||
      !(power.min_compression_rate > 0) ||
      !(power.orthogonalization_epsilon >= 0)) {
    return format(
        "[parallel] PowerSGD's matrix_approximation_rank must be at least 1, "
        "start_power_sgd_iter at least 0, min_compression_rate above 0 and "
        "orthogonalization_epsilon at least 0, but they are {}, {}, {} and {}",
        power.matrix_approximation_rank,
        power.start_power_sgd_iter,
        power.min_compression_rate,
        power.orthogonalization_epsilon);
  }
  return std::nullopt;
}

std::unique_ptr<GradientReduction> make_reduction(
    const ReplicateOptions& options,
    NameOf name_of) {
  auto hook = make_hook(options, std::move(name_of));
  if (options.comm_wrapper == CommWrapper::none) return hook;
  return std::make_unique<CastWrapper>(
      options.comm_wrapper == CommWrapper::fp16 ? at::kHalf : at::kBFloat16,
      std::move(hook));
}

FutureTensor sum_over_ranks(
    const at::Tensor& tensor,
    const ReductionContext& context) {
  std::vector<at::Tensor> tensors{tensor};
  return context.process_group->allreduce(tensors)->getFuture();
}

}  // namespace accelerate::detail
