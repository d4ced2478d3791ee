#include "parallel/attention/projection.h"

#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/autograd/region.h"
#include "gate/watched_tensor.h"
#include "parallel/attention/attention_call.h"
#include "parallel/attention/number_argument.h"

namespace accelerate::detail {

namespace {

// Identifies placeholders of projections.
const char kProjectionOwner = 0;

}  // namespace

ComputedHeads ProjectedPart::heads() const {
  return is_split ? ComputedHeads{layer->split->first(), layer->split->count()}
                  : ComputedHeads{0, layer->num_heads};
}

std::int64_t ProjectedPart::own_width() const {
  return heads().count * layer->head_size;
}

at::Tensor Projection::placeholder(ProjectedPart part, bool is_query) {
  const std::int64_t sizes[] = {
      is_query ? part.query_rows : part.key_rows,
      part.own.size(1),
      part.num_parts * part.layer->width()};
  const at::ScalarType dtype = part.own.scalar_type();
  // make_shared needs a public constructor.
  const std::shared_ptr<Projection> keeper(new Projection(std::move(part)));
  return keeper->placeholder_of(sizes, dtype);
}

at::Tensor Projection::placeholder_of(
    at::IntArrayRef sizes,
    at::ScalarType dtype) {
  return make_placeholder(
      sizes,
      part_.own.options().dtype(dtype),
      {shared_from_this(), 0, &kProjectionOwner},
      format(
          "[parallel] ranks compute the attention of \"{}\" together, so that "
          "its projections have no memory here",
          part_.layer->name));
}

const ProjectedPart* Projection::find(const c10::IValue& value) {
  const TensorWatch* const watch = find_watch(value, &kProjectionOwner);
  // Only placeholders of this class have this owner.
  return watch == nullptr
      ? nullptr
      : &static_cast<const Projection&>(*watch->keeper).part_;
}

void Projection::add_bias(GatedCall& call) {
  const bool is_in_place =
      call.operation().operator_name().name == "aten::add_";
  const c10::IValue placeholder = call.arguments().front();
  call.arguments().front() = part_.own;
  call.run();
  c10::IValue& result = call.results().front();
  if (is_in_place) {
    part_.own = result.toTensor();
    result = placeholder;
    return;
  }
  ProjectedPart sum = part_;
  sum.own = result.toTensor();
  const bool is_query = placeholder.toTensor().size(0) != sum.key_rows;
  result = Projection::placeholder(std::move(sum), is_query);
}

// Divides queries, keys and values, or the last two.
void Projection::divide(GatedCall& call) {
  const std::vector<at::Tensor> own = part_.own.chunk(part_.num_parts, -1);
  c10::List<at::Tensor> parts;
  for (std::size_t i = 0; i < own.size(); ++i) {
    ProjectedPart part = part_;
    part.own = own[i];
    part.num_parts = 1;
    parts.push_back(
        Projection::placeholder(std::move(part), own.size() == 3 && i == 0));
  }
  call.replace(std::move(parts));
}

void Projection::scale(GatedCall& call) {
  const at::Tensor view = call.arguments().front().toTensor();
  ProjectedPart scaled = part_;
  scaled.scale *= number_of(call.arguments()[1]);
  const std::shared_ptr<Projection> keeper(new Projection(std::move(scaled)));
  call.replace(keeper->placeholder_of(view.sizes(), view.scalar_type()));
}

// Appends the keys or values that the module adds itself: bias_k and bias_v to
// positions x batch x columns, zeros (add_zero_attn) to heads x positions x
// elements.
void Projection::append(GatedCall& call) {
  const std::vector<at::Tensor> items =
      call.arguments().front().toTensorVector();
  const std::int64_t dim = call.arguments()[1].toInt();
  if (items.size() != 2 || find(items[0]) != &part_ || dim < 0 || dim > 1) {
    throw ConfigError(format(
        "[parallel] \"{}\" joins its projections in a way that this LibTorch's "
        "torch::nn::MultiheadAttention was not known to; set context and "
        "tensor to 1",
        part_.layer->name));
  }
  const ComputedHeads heads = part_.heads();
  const std::int64_t size = part_.layer->head_size;
  at::Tensor added = items[1];
  if (dim == 0) {
    added = added.narrow(-1, heads.first * size, heads.count * size);
  } else {
    added = added.unflatten(0, {-1, part_.layer->num_heads})
                .narrow(1, heads.first, heads.count)
                .permute({2, 0, 1, 3})
                .flatten(-2);
  }
  ProjectedPart joined = part_;
  joined.extra.push_back(added);
  std::vector<std::int64_t> sizes = items[0].sizes().vec();
  sizes[static_cast<std::size_t>(dim)] += items[1].size(dim);
  const std::shared_ptr<Projection> keeper(new Projection(std::move(joined)));
  call.replace(keeper->placeholder_of(sizes, items[0].scalar_type()));
}

void Projection::make_contiguous(GatedCall& call) {
  const at::Tensor view = call.arguments().front().toTensor();
  if (view.is_contiguous()) return call.run();
  call.replace(placeholder_of(view.sizes(), view.scalar_type()));
}

bool Projection::attend(GatedCall& call) {
  const at::Tensor queries = call.arguments()[0].toTensor();
  const ProjectedPart* const keys = find(call.arguments()[1]);
  if (find(queries) != &part_ || keys == nullptr ||
      keys->is_split != part_.is_split)
    return false;
  const auto attention = std::make_shared<AttentionCall>(part_, *keys);
  call.replace(attention->scores(
      queries.size(0) / part_.layer->num_heads,
      call.arguments()[1].toTensor().size(-1)));
  return true;
}

at::Tensor Projection::made(const at::Tensor& view) const {
  at::Tensor whole = part_.scale == 1 ? part_.own : part_.own * part_.scale;
  if (part_.is_split) {
    const SplitHeads& split = *part_.layer->split;
    whole = gather_from_region(
        whole,
        -1,
        split.group,
        GatheredGradient::equal,
        split.columns(part_.layer->head_size));
  }
  if (whole.numel() != view.numel() || part_.num_parts != 1) {
    throw ConfigError(format(
        "[parallel] ranks compute the attention of \"{}\" together, but an "
        "operator that torch::nn::MultiheadAttention was not known to call "
        "needs a projection of shape {}; set context and tensor to 1",
        part_.layer->name,
        view.sizes()));
  }
  return whole.contiguous().as_strided(
      view.sizes(), view.strides(), view.storage_offset());
}

void Projection::call(GatedCall& call) {
  const std::string& name = call.operation().operator_name().name;
  if (name == "aten::view" || name == "aten::transpose") return call.run();
  if (name == "aten::contiguous") return make_contiguous(call);
  if (name == "aten::add_" || name == "aten::add") return add_bias(call);
  if (name == "aten::chunk" && call.arguments()[1].toInt() == part_.num_parts)
    return divide(call);
  if (name == "aten::mul" && is_number(call.arguments()[1])) return scale(call);
  if (name == "aten::cat") return append(call);
  if (name == "aten::bmm" && attend(call)) return;
  for (c10::IValue& value : call.arguments()) {
    const TensorWatch* const watch = find_watch(value, &kProjectionOwner);
    if (watch != nullptr && watch->keeper.get() == this)
      value = made(value.toTensor());
  }
  call.run();
}

}  // namespace accelerate::detail
