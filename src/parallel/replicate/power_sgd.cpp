#include "parallel/replicate/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Unlike std::hash, this is the same in all builds.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  return hash;
}

// Returns the tensor or an aligned copy. Matrix products are bitwise equal only
// if their memory is aligned alike, but a gradient's place in its bucket
// depends on the sizes of buckets, and on which parameters are trained.
at::Tensor in_aligned_memory(const at::Tensor& tensor) {
  constexpr std::uintptr_t kAlignment = 64;
  const auto address =
      reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return address % kAlignment == 0 ? tensor : tensor.clone();
}

at::Tensor orthogonal_columns(const at::Tensor& matrix, double epsilon) {
  const bool is_narrow = matrix.scalar_type() == at::kHalf ||
      matrix.scalar_type() == at::kBFloat16;
  const at::Tensor wide = is_narrow ? matrix.to(at::kFloat) : matrix.clone();
  if (epsilon == 0)
    return std::get<0>(at::linalg_qr(wide)).to(matrix.scalar_type());
  for (std::int64_t i = 0; i < wide.size(1); ++i) {
    const at::Tensor column = wide.narrow(1, i, 1);
    column.div_(column.norm() + epsilon);
    const at::Tensor rest = wide.narrow(1, i + 1, wide.size(1) - i - 1);
    if (rest.numel() > 0) rest.sub_(column.matmul(column.t().matmul(rest)));
  }
  return wide.to(matrix.scalar_type());
}

// Cuts `flat` into tensors of these shapes.
std::vector<at::Tensor> views_of(
    const at::Tensor& flat,
    const std::vector<std::array<std::int64_t, 2>>& shapes) {
  std::vector<at::Tensor> views;
  std::int64_t begin = 0;
  for (const auto& [rows, columns] : shapes) {
    views.push_back(
        flat.narrow(0, begin, rows * columns).view({rows, columns}));
    begin += rows * columns;
  }
  return views;
}

class PowerSgd final : public GradientReduction {
 public:
  PowerSgd(const PowerSGDOptions& options, NameOf name_of, bool is_batched)
      : options_(options),
        name_of_(std::move(name_of)),
        is_batched_(is_batched) {}

  FutureTensor reduce(c10d::GradBucket& bucket, const ReductionContext& context)
      override {
    const at::NoGradGuard no_grad;
    // A backward that threw may have left pending buckets.
    if (bucket.getIndex() == 0) pending_.clear();
    FutureTensor result;
    // The factors are those of real matrices.
    if (iteration_ < options_.start_power_sgd_iter ||
        bucket.getBuffer().is_complex()) {
      bucket.getBufferRef().div_(context.divisor);
      result = sum_over_ranks(bucket.getBuffer(), context);
    } else {
      begin(bucket, context);
      result = pending_.back().result;
    }
    if (bucket.isLast()) {
      send_second_factors(context);
      finish(context);
      ++iteration_;
    }
    return result;
  }

  [[nodiscard]] bool has_state() const override { return true; }
  [[nodiscard]] StateDict state_dict() const override {
    StateDict errors, factors;
    for (const auto& [name, error] : errors_) errors.set(name, error);
    for (const auto& [name, factor] : factors_) factors.set(name, factor);
    return {
        {"iteration", iteration_}, {"errors", errors}, {"factors", factors}};
  }

  void load_state_dict(const StateDict& state) override {
    std::map<std::string, at::Tensor> errors, factors;
    for (const auto& [name, value] : state.get<StateDict>("errors").values()) {
      errors.emplace(name, std::get<at::Tensor>(value).clone());
    }
    for (const auto& [name, value] : state.get<StateDict>("factors").values()) {
      factors.emplace(name, std::get<at::Tensor>(value).clone());
    }
    iteration_ = state.get<std::int64_t>("iteration");
    errors_ = std::move(errors);
    factors_ = std::move(factors);
  }

 private:
  struct Matrix {
    std::string name;
    at::Tensor gradient;
    at::Tensor p;
    at::Tensor q;
  };

  struct Pending {
    at::Tensor buffer;
    at::Tensor before;  // with error feedback: the buffer before compression
    at::Tensor square;  // batched: the buffer, padded to a square matrix
    std::vector<Matrix> matrices;
    std::vector<std::pair<std::string, at::Tensor>> slices;  // of the buffer
    std::vector<at::Tensor> uncompressed;
    at::Tensor uncompressed_sum;
    at::Tensor ps, qs;
    FutureTensor uncompressed_work, ps_work, qs_work;
    FutureTensor result;
  };

  [[nodiscard]] bool shrinks(std::int64_t rows, std::int64_t columns) const {
    const std::int64_t rank = rank_of(rows, columns);
    return static_cast<double>((rows + columns) * rank) *
        options_.min_compression_rate <
        static_cast<double>(rows * columns);
  }
  [[nodiscard]] std::int64_t rank_of(std::int64_t rows, std::int64_t columns)
      const {
    return std::min(
        {rows,
         columns,
         static_cast<std::int64_t>(options_.matrix_approximation_rank)});
  }

  void begin(c10d::GradBucket& bucket, const ReductionContext& context) {
    Pending& now = pending_.emplace_back();
    now.buffer = bucket.getBuffer();
    now.result = c10::make_intrusive<c10::ivalue::Future>(
        c10::TensorType::get(),
        now.buffer.is_cpu() ? std::vector<at::Device>{}
                            : std::vector{now.buffer.device()});
    collect(bucket, now);
    if (options_.use_error_feedback) {
      for (const auto& [name, slice] : now.slices) {
        const auto error = errors_.find(name);
        if (error != errors_.end() && error->second.numel() == slice.numel()) {
          slice.view(-1).add_(error->second.view(-1));
        }
      }
      now.before = now.buffer.clone();
    }
    if (is_batched_) make_square(bucket, now);
    first_factors(now);
    if (!now.uncompressed.empty()) {
      std::vector<at::Tensor> flat;
      for (const at::Tensor& gradient : now.uncompressed)
        flat.push_back(gradient.view(-1));
      now.uncompressed_sum = at::cat(flat);
      now.uncompressed_work = sum_over_ranks(now.uncompressed_sum, context);
    }
    if (!now.matrices.empty()) now.ps_work = sum_over_ranks(now.ps, context);
  }

  void collect(c10d::GradBucket& bucket, Pending& now) {
    const std::vector<at::Tensor> gradients = bucket.getGradients();
    const std::vector<at::Tensor> parameters = bucket.getParameters();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor& gradient = gradients[i];
      const std::string& name = name_of_(parameters[i]);
      if (is_batched_) {
        now.slices.emplace_back(name, gradient);
        continue;
      }
      if (gradient.dim() > 1 && gradient.numel() > 0) {
        const at::Tensor matrix = gradient.view({gradient.size(0), -1});
        if (shrinks(matrix.size(0), matrix.size(1))) {
          now.slices.emplace_back(name, gradient);
          now.matrices.push_back({name, matrix, {}, {}});
          continue;
        }
      }
      now.uncompressed.push_back(gradient);
    }
  }

  static void make_square(c10d::GradBucket& bucket, Pending& now) {
    const std::int64_t size = now.buffer.numel();
    const auto side = static_cast<std::int64_t>(
        std::ceil(std::sqrt(static_cast<double>(size))));
    now.square = at::zeros({side * side}, now.buffer.options());
    now.square.narrow(0, 0, size).copy_(now.buffer);
    if (side > 0) {
      now.matrices.push_back(
          {format("bucket {}", bucket.getIndex()),
           now.square.view({side, side}),
           {},
           {}});
    }
  }

  void first_factors(Pending& now) {
    if (now.matrices.empty()) return;
    std::vector<std::array<std::int64_t, 2>> p_shapes, q_shapes;
    std::int64_t p_size = 0, q_size = 0;
    for (const Matrix& matrix : now.matrices) {
      const std::int64_t rows = matrix.gradient.size(0),
                         columns = matrix.gradient.size(1);
      const std::int64_t rank = rank_of(rows, columns);
      p_shapes.push_back({rows, rank});
      q_shapes.push_back({columns, rank});
      p_size += rows * rank;
      q_size += columns * rank;
    }
    now.ps = at::empty({p_size}, now.buffer.options());
    now.qs = at::empty({q_size}, now.buffer.options());
    const std::vector<at::Tensor> ps = views_of(now.ps, p_shapes);
    const std::vector<at::Tensor> qs = views_of(now.qs, q_shapes);
    for (std::size_t i = 0; i < now.matrices.size(); ++i) {
      Matrix& matrix = now.matrices[i];
      matrix.p = ps[i];
      matrix.q = qs[i];
      const at::Tensor start = start_of(matrix);
      matrix.p.copy_(at::matmul(
          in_aligned_memory(matrix.gradient),
          orthogonal_columns(start, options_.orthogonalization_epsilon)));
    }
  }

  at::Tensor start_of(const Matrix& matrix) const {
    const auto known = factors_.find(matrix.name);
    if (options_.warm_start && known != factors_.end() &&
        known->second.sizes() == matrix.q.sizes()) {
      return known->second.to(matrix.q.options());
    }
    // Seeded by name and step, so all ranks draw the same factors regardless of
    // the buckets.
    const std::uint64_t seed = options_.random_seed ^ hash_of(matrix.name) ^
        (static_cast<std::uint64_t>(iteration_) * 0x9e3779b97f4a7c15);
    const at::Generator generator = at::detail::createCPUGenerator(seed);
    return at::randn(
               matrix.q.sizes(),
               generator,
               at::TensorOptions().dtype(at::kFloat))
        .to(matrix.q.options());
  }

  void send_second_factors(const ReductionContext& context) {
    for (Pending& one : pending_) {
      if (!one.ps_work) continue;
      one.ps_work->waitAndThrow();
      for (Matrix& matrix : one.matrices) {
        matrix.p.copy_(
            orthogonal_columns(matrix.p, options_.orthogonalization_epsilon));
        matrix.q.copy_(at::matmul(
            in_aligned_memory(matrix.gradient).t(),
            in_aligned_memory(matrix.p)));
      }
      one.qs_work = sum_over_ranks(one.qs, context);
    }
  }

  void finish(const ReductionContext& context) {
    for (Pending& one : pending_) {
      take_uncompressed(one, context);
      if (one.qs_work) {
        one.qs_work->waitAndThrow();
        one.qs.div_(context.divisor);
        for (const Matrix& matrix : one.matrices) {
          matrix.gradient.copy_(at::matmul(
              in_aligned_memory(matrix.p), in_aligned_memory(matrix.q).t()));
          if (options_.warm_start) factors_[matrix.name] = matrix.q.clone();
        }
      }
      if (one.square.defined()) {
        one.buffer.copy_(one.square.narrow(0, 0, one.buffer.numel()));
      }
      if (options_.use_error_feedback) keep_errors(one, context);
      one.result->markCompleted(one.buffer);
    }
    pending_.clear();
  }

  static void take_uncompressed(
      const Pending& one,
      const ReductionContext& context) {
    if (!one.uncompressed_work) return;
    one.uncompressed_work->waitAndThrow();
    std::int64_t begin = 0;
    for (const at::Tensor& gradient : one.uncompressed) {
      gradient.view(-1)
          .copy_(one.uncompressed_sum.narrow(0, begin, gradient.numel()))
          .div_(context.divisor);
      begin += gradient.numel();
    }
  }

  // Scales the mean by divisor / num_ranks, so that without compression the
  // errors of all ranks add up to zero.
  void keep_errors(const Pending& one, const ReductionContext& context) {
    const at::Tensor error =
        one.before.sub_(one.buffer, context.divisor / context.num_ranks());
    const std::int64_t origin = one.buffer.storage_offset();
    for (const auto& [name, slice] : one.slices) {
      errors_[name] =
          error.narrow(0, slice.storage_offset() - origin, slice.numel())
              .view(slice.sizes());
    }
  }

  PowerSGDOptions options_;
  NameOf name_of_;
  bool is_batched_;
  std::int64_t iteration_ = 0;
  std::map<std::string, at::Tensor> errors_;
  std::map<std::string, at::Tensor> factors_;
  std::vector<Pending> pending_;
};

}  // namespace

std::unique_ptr<GradientReduction> make_power_sgd(
    const PowerSGDOptions& options,
    NameOf name_of) {
  return std::make_unique<PowerSgd>(options, std::move(name_of), false);
}

std::unique_ptr<GradientReduction> make_batched_power_sgd(
    const PowerSGDOptions& options,
    NameOf name_of) {
  return std::make_unique<PowerSgd>(options, std::move(name_of), true);
}

}  // namespace accelerate::detail
