#include "comm/transport/shared_memory/memory/host_memory.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <rapidcheck.h>

#include "comm/transport/adapters/reduction_encoding.h"
#include "comm/transport/shared_memory/shared_memory_connection.h"

namespace accelerate::detail {
namespace host_memory_test {

// A view of a larger tensor: dimensions in any order, with gaps and offsets.
at::Tensor random_view(at::ScalarType dtype) {
  const auto extents = *rc::gen::container<std::vector<int>>(
      *rc::gen::inRange<std::size_t>(0, 5), rc::gen::inRange(1, 7));
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> order(extents.size());
  std::iota(order.begin(), order.end(), 0);
  std::int64_t count = 1;
  for (const int extent : extents) {
    sizes.push_back(extent * 3);
    count *= extent * 3;
  }
  at::Tensor view = torch::arange(count).to(dtype).view(sizes);
  for (std::size_t d = 0; d < extents.size(); ++d) {
    const auto step = *rc::gen::inRange<std::int64_t>(1, 4);
    const auto begin = *rc::gen::inRange<std::int64_t>(0, 3);
    view = view.slice(static_cast<std::int64_t>(d), begin, sizes[d], step);
  }
  for (std::size_t d = 1; d < order.size(); ++d)
    std::swap(order[d], order[*rc::gen::inRange<std::size_t>(0, d + 1)]);
  return view.permute(order);
}

std::vector<std::byte> bytes_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.contiguous();
  std::vector<std::byte> bytes(plain.nbytes());
  if (!bytes.empty())
    std::memcpy(bytes.data(), plain.const_data_ptr(), bytes.size());
  return bytes;
}

TEST(HostMemory, CopiesAnyPieceOfAnyView) {
  EXPECT_TRUE(rc::check("pieces", [] {
    const at::ScalarType dtype = *rc::gen::element(
        at::kByte, at::kShort, at::kFloat, at::kLong, at::kComplexDouble);
    const at::Tensor view = random_view(dtype);
    const HostMemory memory = host_tensor(view).memory;
    const std::vector<std::byte> all = bytes_of(view);
    RC_ASSERT(memory.bytes() == all.size());
    const std::size_t element = view.element_size();
    const auto count = static_cast<std::size_t>(view.numel());
    const std::size_t begin =
        *rc::gen::inRange<std::size_t>(0, count + 1) * element;
    const std::size_t length =
        *rc::gen::inRange<std::size_t>(0, count + 1 - begin / element) *
        element;
    std::vector<std::byte> piece(length);
    memory.copy_out(piece.data(), begin, length);
    RC_ASSERT(std::equal(
        piece.begin(),
        piece.end(),
        all.begin() + static_cast<std::ptrdiff_t>(begin)));

    const at::Tensor other = torch::zeros_like(view).expand_as(view).clone();
    const at::Tensor target =
        torch::empty_strided(view.sizes(), view.strides(), view.options());
    target.copy_(other);
    host_tensor(target).memory.copy_in(begin, piece.data(), length);
    std::vector<std::byte> expected = bytes_of(other);
    std::copy(
        piece.begin(),
        piece.end(),
        expected.begin() + static_cast<std::ptrdiff_t>(begin));
    RC_ASSERT(bytes_of(target) == expected);
  }));
}

TEST(HostMemory, IsContiguousWhereOneCopyDoes) {
  const at::Tensor matrix = torch::zeros({6, 8});
  const auto is_contiguous = [](const at::Tensor& tensor) {
    return host_tensor(tensor).memory.contiguous() != nullptr;
  };
  EXPECT_TRUE(is_contiguous(matrix));
  EXPECT_TRUE(is_contiguous(matrix.narrow(0, 2, 3)));
  EXPECT_TRUE(is_contiguous(matrix.view({6, 1, 8, 1}).transpose(1, 3)));
  EXPECT_TRUE(is_contiguous(matrix[3]));
  EXPECT_FALSE(is_contiguous(matrix.t()));
  EXPECT_FALSE(is_contiguous(matrix.narrow(1, 2, 3)));
  EXPECT_FALSE(is_contiguous(torch::zeros({1}).expand({4})));
  EXPECT_TRUE(is_contiguous(torch::zeros({0, 3}).t()));
}

// Large enough for tiles in both dimensions, with tails.
TEST(HostMemory, TransposesInTiles) {
  const at::Tensor matrix = torch::arange(37 * 53).view({37, 53});
  const at::Tensor view = matrix.t();
  std::vector<std::byte> all(view.nbytes());
  host_tensor(view).memory.copy_out(all.data(), 0, all.size());
  EXPECT_EQ(all, bytes_of(view));
  const at::Tensor target = torch::zeros({37, 53}, at::kLong);
  host_tensor(target.t()).memory.copy_in(0, all.data(), all.size());
  EXPECT_TRUE(torch::equal(target, matrix));
}

const std::vector<at::ScalarType> kReduced{
    at::kBool,          at::kByte,
    at::kChar,          at::kShort,
    at::kUInt16,        at::kInt,
    at::kUInt32,        at::kLong,
    at::kUInt64,        at::kHalf,
    at::kBFloat16,      at::kFloat,
    at::kDouble,        at::kComplexHalf,
    at::kComplexFloat,  at::kComplexDouble,
    at::kFloat8_e4m3fn, at::kFloat8_e4m3fnuz,
    at::kFloat8_e5m2,   at::kFloat8_e5m2fnuz,
    at::kFloat8_e8m0fnu};

TEST(SharedMemoryViews, AreReducedWhereTheyLie) {
  for (const at::ScalarType dtype : kReduced) {
    const at::Tensor view = torch::empty({4, 6}, dtype).t();
    const ReductionEncoding encoding(
        shared_memory_facts(), view, ReduceOp::sum);
    EXPECT_TRUE(encoding.is_identity()) << dtype;
    EXPECT_EQ(encoding.buffer().data_ptr(), view.data_ptr()) << dtype;
    EXPECT_EQ(encoding.buffer().strides(), view.strides()) << dtype;
    const bool has_no_mean = dtype == at::kBool ||
        c10::isIntegralType(dtype, false) || c10::isFloat8Type(dtype);
    if (has_no_mean) continue;
    // A mean is a sum, divided in place.
    const ReductionEncoding mean(shared_memory_facts(), view, ReduceOp::mean);
    EXPECT_EQ(mean.buffer().data_ptr(), view.data_ptr()) << dtype;
  }
  const at::Tensor pairs = torch::ones({2, 3}, at::kComplexFloat).t();
  EXPECT_TRUE(ReductionEncoding(shared_memory_facts(), pairs, ReduceOp::sum)
                  .decode(pairs, 2)
                  .equal(pairs));
  const at::Tensor expanded = torch::zeros({1}).expand({3});
  EXPECT_FALSE(ReductionEncoding(shared_memory_facts(), expanded, ReduceOp::sum)
                   .is_identity());
}

}  // namespace host_memory_test
}  // namespace accelerate::detail
