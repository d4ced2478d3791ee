#include "pipeline/signature.h"

#include <ATen/Functions.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

bool can_require_grad(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) ||
      at::isComplexType(tensor.scalar_type());
}

}  // namespace

ValueSignature signature_of(const PipelineValue& value, bool trains) {
  ValueSignature signature{{}, value.structure};
  for (const at::Tensor& tensor : value.tensors) {
    if (!tensor.defined()) {
      signature.tensors.push_back({at::ScalarType::Undefined, false, {}});
      continue;
    }
    signature.tensors.push_back(
        {tensor.scalar_type(),
         trains && tensor.requires_grad() && can_require_grad(tensor),
         tensor.sizes().vec()});
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
    next += dim;
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

at::Tensor empty_like(const TensorSignature& signature, at::Device device) {
  if (signature.dtype == at::ScalarType::Undefined) return {};
  return at::empty(
      signature.sizes, at::TensorOptions(signature.dtype).device(device));
}

}  // namespace accelerate::detail
