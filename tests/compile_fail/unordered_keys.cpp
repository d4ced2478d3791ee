// Refused: visited in the order of its keys
// Tensors of an unordered_map are visited in the order of its keys.
#include <compare>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include <accelerate/nested.h>

struct Camera {
  int number;
#ifdef MUST_FAIL
  bool operator==(const Camera& other) const = default;
#else
  auto operator<=>(const Camera& other) const = default;
#endif
};
struct CameraHash {
  std::size_t operator()(const Camera& camera) const {
    return static_cast<std::size_t>(camera.number);
  }
};

std::vector<at::Tensor> images_of(
    const std::unordered_map<Camera, at::Tensor, CameraHash>& images) {
  return accelerate::tensors_of(images);
}
