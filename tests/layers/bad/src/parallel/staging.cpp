// A copy behind the transport's back, and one that the host needs.
at::Tensor stage(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU);
}
at::Tensor sizes_of(const at::Tensor& counts) {
  // On the host: sizes of tensors.
  return counts.cpu();
}
