#include "pipeline/signature.h"

#include <algorithm>
#include <numeric>

#include <ATen/Functions.h>
#include <c10/util/strides.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

bool can_require_grad(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) ||
      at::isComplexType(tensor.scalar_type());
}

std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  const auto strides = c10::contiguous_strides(tensor.sizes());
  return {strides.begin(), strides.end()};
}

}  // namespace

ValueSignature signature_of(const PipelineValue& value, bool trains) {
  ValueSignature signature{{}, value.structure};
  for (const at::Tensor& tensor : value.tensors) {
    if (!tensor.defined()) {
      signature.tensors.push_back({at::ScalarType::Undefined, false, {}, {}});
      continue;
    }
    signature.tensors.push_back(
        {tensor.scalar_type(),
         trains && tensor.requires_grad() && can_require_grad(tensor),
         tensor.sizes().vec(),
         dense_strides(tensor)});
  }
  return signature;
}

std::vector<std::int64_t> numbers_of(const ValueSignature& signature) {
  std::vector<std::int64_t> numbers{
      static_cast<std::int64_t>(signature.tensors.size())};
  for (const TensorSignature& tensor : signature.tensors) {
    numbers.push_back(static_cast<std::int64_t>(tensor.dtype));
    numbers.push_back(tensor.requires_grad ? 1 : 0);
    numbers.push_back(static_cast<std::int64_t>(tensor.sizes.size()));
    numbers.insert(numbers.end(), tensor.sizes.begin(), tensor.sizes.end());
    numbers.insert(numbers.end(), tensor.strides.begin(), tensor.strides.end());
  }
  for (const char part : signature.structure)
    numbers.push_back(static_cast<unsigned char>(part));
  return numbers;
}

ValueSignature signature_in(const std::vector<std::int64_t>& numbers) {
  auto next = numbers.begin();
  ValueSignature signature;
  signature.tensors.resize(static_cast<std::size_t>(*next++));
  for (TensorSignature& tensor : signature.tensors) {
    tensor.dtype = static_cast<at::ScalarType>(*next++);
    tensor.requires_grad = *next++ != 0;
    const std::int64_t dim = *next++;
    tensor.sizes.assign(next, next + dim);
    tensor.strides.assign(next + dim, next + 2 * dim);
    next += 2 * dim;
  }
  for (; next != numbers.end(); ++next)
    signature.structure += static_cast<char>(*next);
  return signature;
}

std::string text_of(const ValueSignature& signature) {
  std::vector<std::string> texts;
  for (const TensorSignature& tensor : signature.tensors) {
    texts.push_back(
        tensor.dtype == at::ScalarType::Undefined
            ? std::string("no value")
            : format(
                  "{} {}{}",
                  c10::toString(tensor.dtype),
                  at::IntArrayRef(tensor.sizes),
                  tensor.requires_grad ? "" : " without gradient"));
  }
  return texts.empty() ? "nothing" : join(texts, ", ");
}

at::Tensor in_memory_order(
    const at::Tensor& tensor,
    const TensorSignature& signature) {
  const auto& strides = signature.strides;
  std::vector<std::int64_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return strides[a] > strides[b];
  });
  return tensor.detach().permute(order);
}

at::Tensor empty_like(const TensorSignature& signature, at::Device device) {
  if (signature.dtype == at::ScalarType::Undefined) return {};
  return at::empty_strided(
      signature.sizes,
      signature.strides,
      at::TensorOptions(signature.dtype).device(device));
}

}  // namespace accelerate::detail
