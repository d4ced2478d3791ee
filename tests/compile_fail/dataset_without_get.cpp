// Refused: a dataset needs size\(\) and get\(index\), or size\(\) and get_batch\(indices\), or next\(\)
#include <accelerate/data_loader.h>

struct Numbers {
  [[nodiscard]] std::int64_t size() const { return 3; }
#ifndef MUST_FAIL
  at::Tensor get(std::int64_t) const { return {}; }
#endif
};

void load() {
  accelerate::DataLoader loader(Numbers{}, {.batch_size = 2});
  for (auto& batch : loader) static_cast<void>(batch);
}
