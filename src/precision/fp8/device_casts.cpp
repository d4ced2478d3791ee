#include "precision/fp8/device_casts.h"

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "base/text/text.h"
#include "kernels/device/device_kernels.h"
#include "precision/fp8/operator_casts.h"

namespace accelerate::detail {

namespace {

constexpr std::int64_t kTile = 64;
constexpr std::int64_t kThreads = 256;
constexpr std::int64_t kRowsOfBlock = 64;

// The values are those of float8_tile.cu.
enum ScaleKind : int { given_scale, amax_of_all, amax_of_columns };

std::int64_t pieces(std::int64_t size, std::int64_t piece) {
  return (size + piece - 1) / piece;
}

/// A matrix as kernels read it, and the kernels that cast it.
class DeviceCast {
 public:
  DeviceCast(const at::Tensor& matrix, at::ScalarType dtype, RoundingSeed seed)
      : source_(
            kernel_value(matrix.scalar_type()) == nullptr
                ? matrix.to(at::kFloat).contiguous()
                : matrix.contiguous()),
        dtype_(dtype),
        seed_(seed),
        rows_(matrix.size(0)),
        columns_(matrix.size(1)) {}

  /// Casts with one scale for all, or one per column.
  std::optional<Float8Matrix> cast_tiles(
      const at::Tensor& scales,
      ScaleKind kind,
      const DynamicCast& how,
      bool has_rows,
      bool has_transposed,
      const at::Tensor& amax = {}) const {
    const auto* kernel = find("float8_tile", "cast_tile");
    if (kernel == nullptr) return std::nullopt;
    Float8Matrix made;
    made.scale =
        kind == given_scale ? scales : at::empty(scales.sizes(), floats());
    at::Tensor codes, transposed;
    if (has_rows) codes = empty_codes({rows_, columns_});
    if (has_transposed) transposed = empty_codes({columns_, rows_});
    kernel->launch(
        pieces(rows_, kTile) * pieces(columns_, kTile),
        source_.const_data_ptr(),
        rows_,
        columns_,
        scales.const_data_ptr(),
        static_cast<int>(kind),
        static_cast<int>(how.power_of_2),
        kind == given_scale ? nullptr : made.scale.mutable_data_ptr<float>(),
        data_of(codes),
        data_of(transposed),
        data_of(amax),
        seed_.value_or(0));
    made.values = has_rows ? codes : transposed.t();
    if (has_rows) made.transposed_values = transposed;
    return made;
  }

  std::optional<Float8Matrix> cast_all(const DynamicCast& how, bool transposes)
      const {
    const auto amax = this->amax();
    if (!amax) return std::nullopt;
    return cast_tiles(*amax, amax_of_all, how, /*has_rows=*/true, transposes);
  }

  std::optional<Float8Matrix> cast_columns(const DynamicCast& how) const {
    const auto* kernel = find_amax("amax_of_columns");
    if (kernel == nullptr) return std::nullopt;
    const at::Tensor amax = at::zeros({1, columns_}, floats());
    // A warp reads 512 bytes of a row at a time.
    const std::int64_t together =
        512 / static_cast<std::int64_t>(source_.element_size());
    kernel->launch(
        pieces(columns_, together) * pieces(rows_, kRowsOfBlock),
        source_.const_data_ptr(),
        rows_,
        columns_,
        kRowsOfBlock,
        amax.mutable_data_ptr());
    return cast_tiles(
        amax, amax_of_columns, how, /*has_rows=*/false, /*transposed=*/true);
  }

  std::optional<Float8Matrix> cast_rows(const DynamicCast& how) const {
    const auto* kernel = find("float8_rows", "cast_rows");
    if (kernel == nullptr) return std::nullopt;
    Float8Matrix made{
        empty_codes({rows_, columns_}), at::empty({rows_, 1}, floats())};
    kernel->launch(
        num_blocks_for(source_.device(), rows_),
        source_.const_data_ptr(),
        rows_,
        columns_,
        static_cast<int>(how.power_of_2),
        made.scale.mutable_data_ptr<float>(),
        made.values.mutable_data_ptr(),
        seed_.value_or(0));
    return made;
  }

  std::optional<Float8Matrix> cast_blocks(std::int64_t dim) const {
    const bool is_along_rows = dim == 1;
    const auto* kernel = find(
        "float8_blocks",
        is_along_rows ? "cast_blocks_of_rows" : "cast_blocks_of_columns");
    if (kernel == nullptr) return std::nullopt;
    const std::int64_t groups =
        pieces(is_along_rows ? columns_ : rows_, kMxBlockSize);
    Float8Matrix made;
    made.block_dim = dim;
    made.scale = is_along_rows ? at::empty({rows_, groups}, floats())
                               : at::empty({groups, columns_}, floats());
    const at::Tensor codes = is_along_rows ? empty_codes({rows_, columns_})
                                           : empty_codes({columns_, rows_});
    const std::int64_t vector =
        16 / static_cast<std::int64_t>(source_.element_size());
    const std::int64_t blocks = is_along_rows
        ? num_blocks_for(
              source_.device(),
              pieces(rows_ * groups * (kMxBlockSize / vector), kThreads))
        : groups * pieces(columns_, kThreads);
    kernel->launch(
        blocks,
        source_.const_data_ptr(),
        rows_,
        columns_,
        made.scale.mutable_data_ptr<float>(),
        codes.mutable_data_ptr(),
        seed_.value_or(0));
    made.values = is_along_rows ? codes : codes.t();
    return made;
  }

  std::optional<at::Tensor> amax() const {
    const auto* kernel = find_amax("amax");
    if (kernel == nullptr) return std::nullopt;
    at::Tensor amax = at::zeros({}, floats());
    constexpr std::int64_t kValuesOfBlock = kThreads * 16;
    kernel->launch(
        num_blocks_for(
            source_.device(), pieces(source_.numel(), kValuesOfBlock)),
        source_.const_data_ptr(),
        source_.numel(),
        amax.mutable_data_ptr());
    return amax;
  }

  [[nodiscard]] at::TensorOptions floats() const {
    return source_.options().dtype(at::kFloat);
  }

 private:
  [[nodiscard]] const DeviceKernel* find_amax(const char* entry) const {
    return find_kernel(
        source_.device(), {"float8_amax", {value_definition()}}, entry);
  }

  [[nodiscard]] const DeviceKernel* find(
      std::string_view source,
      const char* entry) const {
    return find_kernel(
        source_.device(),
        {source,
         {value_definition(),
          dtype_ == at::kFloat8_e4m3fn ? "FORMAT=E4m3" : "FORMAT=E5m2",
          seed_ ? "ROUNDING=Randomly" : "ROUNDING=ToNearest"}},
        entry);
  }

  [[nodiscard]] std::string value_definition() const {
    return format("VALUE={}", kernel_value(source_.scalar_type()));
  }

  [[nodiscard]] at::Tensor empty_codes(at::IntArrayRef sizes) const {
    return at::empty(sizes, source_.options().dtype(dtype_));
  }

  static void* data_of(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
  }

  at::Tensor source_;
  at::ScalarType dtype_;
  RoundingSeed seed_;
  std::int64_t rows_;
  std::int64_t columns_;
};

std::optional<Float8Matrix> cast_unchecked(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim,
    const CastUse& use) {
  const DeviceCast device(matrix, cast.dtype, use.seed);
  switch (cast.granularity) {
    case Float8Granularity::tensorwise:
      return device.cast_all(cast, use.also_transposed);
    case Float8Granularity::axiswise:
      return dim == 1 ? device.cast_rows(cast) : device.cast_columns(cast);
    case Float8Granularity::blocks:
      return device.cast_blocks(dim);
  }
  return std::nullopt;
}

bool is_equal(const Float8Matrix& found, const Float8Matrix& expected) {
  const auto codes = [](const at::Tensor& values) {
    return values.view(at::kByte);
  };
  return at::equal(found.scale, expected.scale) &&
      at::equal(codes(found.values), codes(expected.values)) &&
      (!found.transposed_values.defined() ||
       at::equal(codes(found.transposed_values), codes(expected.values.t())));
}

}  // namespace

bool device_casts_are_right(
    const at::Tensor& like,
    at::ScalarType dtype,
    Float8Granularity granularity,
    bool is_random) {
  const at::NoGradGuard no_grad;
  const auto options = like.options().dtype(at::kFloat);
  constexpr std::int64_t kRows = 80, kColumns = 100;
  const at::Tensor numbers = at::arange(kRows * kColumns, options);
  // Use values that are finite in fp16: an infinity would make the scale 0.
  const at::Tensor matrix =
      ((numbers * 37).remainder(1009) - 504)
          .mul_(at::exp2((numbers * 11).remainder(41) - 34))
          .view({kRows, kColumns})
          .to(like.scalar_type());
  const RoundingSeed seed =
      is_random ? RoundingSeed(5) : RoundingSeed(std::nullopt);
  for (const bool power_of_2 : {false, true}) {
    for (const std::int64_t dim : {0, 1}) {
      const DynamicCast cast{dtype, granularity, power_of_2};
      const auto found =
          cast_unchecked(matrix, cast, dim, {seed, /*also_transposed=*/true});
      if (!found ||
          !is_equal(*found, cast_by_operators(matrix, cast, dim, seed))) {
        return false;
      }
    }
  }
  return true;
}

namespace {

// Whether kernels can cast this tensor in this way. The first call for a device
// and each kind of cast compares them with operators.
bool has_cast(
    const at::Tensor& tensor,
    at::ScalarType dtype,
    Float8Granularity granularity,
    RoundingSeed seed) {
  if (!may_have_kernels(tensor.device()) || tensor.numel() == 0 ||
      !has_plain_memory(tensor) ||
      (dtype != at::kFloat8_e4m3fn && dtype != at::kFloat8_e5m2)) {
    return false;
  }
  if (tensor.is_cpu()) return true;  // emulated in tests
  using Kind = std::tuple<
      c10::DeviceIndex,
      at::ScalarType,
      at::ScalarType,
      Float8Granularity,
      bool>;
  static std::mutex mutex;
  static auto* const known = new std::map<Kind, bool>();
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known->try_emplace(
      Kind{
          tensor.device().index(),
          tensor.scalar_type(),
          dtype,
          granularity,
          seed.has_value()},
      false);
  if (is_new) {
    found->second =
        device_casts_are_right(tensor, dtype, granularity, seed.has_value());
    if (!found->second) {
      note_missing_kernels(format(
          "[kernels] casts of {} to {} on {} must equal LibTorch's operators, "
          "but differ or are missing",
          c10::toString(tensor.scalar_type()),
          c10::toString(dtype),
          tensor.device()));
    }
  }
  return found->second;
}

}  // namespace

std::optional<at::Tensor> device_amax(const at::Tensor& tensor) {
  if (!has_cast(
          tensor,
          at::kFloat8_e4m3fn,
          Float8Granularity::tensorwise,
          std::nullopt)) {
    return std::nullopt;
  }
  return DeviceCast(tensor.reshape({1, -1}), at::kFloat8_e4m3fn, std::nullopt)
      .amax();
}

std::optional<Float8Matrix> device_cast(
    const at::Tensor& matrix,
    const DynamicCast& cast,
    std::int64_t dim,
    const CastUse& use) {
  if (!has_cast(matrix, cast.dtype, cast.granularity, use.seed))
    return std::nullopt;
  return cast_unchecked(matrix, cast, dim, use);
}

std::optional<Float8Matrix> device_cast_with_scale(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    const at::Tensor& scale,
    const CastUse& use) {
  if (!has_cast(matrix, dtype, Float8Granularity::tensorwise, use.seed))
    return std::nullopt;
  return DeviceCast(matrix, dtype, use.seed)
      .cast_tiles(
          scale.contiguous(),
          given_scale,
          {},
          /*has_rows=*/true,
          use.also_transposed);
}

std::optional<MeasuredMatrix> device_cast_and_measure(
    const at::Tensor& matrix,
    at::ScalarType dtype,
    const at::Tensor& scale,
    const CastUse& use) {
  if (!has_cast(matrix, dtype, Float8Granularity::tensorwise, use.seed))
    return std::nullopt;
  const DeviceCast device(matrix, dtype, use.seed);
  const at::Tensor amax = at::zeros({}, device.floats());
  const auto made = device.cast_tiles(
      scale.contiguous(),
      given_scale,
      {},
      /*has_rows=*/true,
      use.also_transposed,
      amax);
  if (!made) return std::nullopt;
  return MeasuredMatrix{*made, amax};
}

}  // namespace accelerate::detail
