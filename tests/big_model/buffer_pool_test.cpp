#include <gtest/gtest.h>

#include <utility>

#include <torch/torch.h>

#include "big_model/tiers/units/buffer_pool.h"

namespace accelerate::buffer_pool_test {

using detail::BufferPool;
using torch::Tensor;

constexpr std::uint64_t kSize = 1U << 20U;

TEST(BufferPool, GivesMemoryAgainOnceNobodyHoldsIt) {
  const torch::NoGradGuard no_grad;
  BufferPool pool(/*is_pinned=*/false);
  Tensor buffer = pool.take(kSize);
  const void* const address = buffer.const_data_ptr();
  Tensor value = buffer.narrow(0, 64, 128).view(torch::kFloat).view({4, 8});
  value.fill_(3);
  value.reset();
  pool.give_back(std::move(buffer));
  EXPECT_EQ(pool.take(kSize).const_data_ptr(), address);
}

TEST(BufferPool, LeavesMemoryToThoseWhoHoldAValueInIt) {
  const torch::NoGradGuard no_grad;
  BufferPool pool(/*is_pinned=*/false);
  Tensor buffer = pool.take(kSize);
  const void* const address = buffer.const_data_ptr();
  const Tensor value = buffer.narrow(0, 64, 128).view(torch::kFloat);
  value.fill_(3);
  pool.give_back(std::move(buffer));
  Tensor other = pool.take(kSize);
  EXPECT_NE(other.const_data_ptr(), address);
  other.fill_(1);
  EXPECT_TRUE(value.eq(3).all().item<bool>());
}

}  // namespace accelerate::buffer_pool_test
