// A program that knows safetensors and no LibTorch.
#include <cstdio>

#include <accelerate/safetensors.h>

int main() {
  using namespace accelerate::safetensors;
  Writer writer("stranger.safetensors", {{"w", Dtype::U8, {2}}});
  const std::byte data[]{std::byte{4}, std::byte{2}};
  writer.write(data);
  writer.finish();
  const Reader reader("stranger.safetensors");
  std::printf("%d\n", std::to_integer<int>(reader.bytes("w")[1]));
}
