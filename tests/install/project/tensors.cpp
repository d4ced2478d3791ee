// A program that uses safetensors without LibTorch.
#include <cstdio>

#include <accelerate/safetensors.h>

int main() {
  using namespace accelerate::safetensors;
  Writer writer("tensors.safetensors", {{"w", Dtype::U8, {2}}});
  const std::byte data[]{std::byte{4}, std::byte{2}};
  writer.write(data);
  writer.finish();
  const Reader reader("tensors.safetensors");
  std::printf("%d\n", std::to_integer<int>(reader.bytes("w")[1]));
}
