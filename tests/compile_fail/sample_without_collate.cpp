// Refused: define visit_tensors\(\) for their type \(accelerate/nested\.h\), or give the DataLoader a collate function
#include <accelerate/data_loader.h>

struct Sample {
  at::Tensor image;
};
#ifndef MUST_FAIL
template <class Visitor>
void visit_tensors(Sample& sample, Visitor&& visitor) {
  visitor(sample.image);
}
#endif
struct Images {
  [[nodiscard]] std::int64_t size() const { return 3; }
  Sample get(std::int64_t) const { return {}; }
};

void load() {
  accelerate::DataLoader loader(Images{}, {.batch_size = 2});
  for (auto& batch : loader) static_cast<void>(batch);
}
