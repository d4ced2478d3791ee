#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/nvrtc.h"
#include "kernels/device/sources.h"
#include "support/expect_error.h"

namespace accelerate::testing::compile_test {

using detail::KernelProgram;
using detail::KnownProgram;
using detail::Nvrtc;
using ::testing::HasSubstr;

inline std::unique_ptr<Nvrtc> find_compiler(std::string& problem) {
  const std::string given = ACCELERATE_NVRTC;
  try {
    return std::make_unique<Nvrtc>(
        given.empty() ? Nvrtc::default_names() : std::vector{given});
  } catch (const Error& error) {
    problem = error.what();
    return nullptr;
  }
}

/// Tests that need NVIDIA's compiler, but no device.
class KernelSources : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string problem;
    compiler_ = find_compiler(problem);
    if (compiler_ == nullptr) {
      GTEST_SKIP() << "kernels were not compiled; set ACCELERATE_NVRTC when "
                      "configuring (pip has nvidia-cuda-nvrtc): "
                   << problem;
    }
  }

  std::unique_ptr<Nvrtc> compiler_;
};

// All programs, or, unless the tests are run in full, a different one of each
// source for each architecture.
inline std::vector<KnownProgram> programs_for(std::size_t turn) {
  std::vector<KnownProgram> all = detail::known_programs();
  if (std::getenv("RC_PARAMS") != nullptr) return all;
  std::map<std::string_view, std::vector<KnownProgram>> by_source;
  for (const KnownProgram& each : all)
    by_source[each.program.source].push_back(each);
  std::vector<KnownProgram> chosen;
  for (const auto& [source, programs] : by_source)
    chosen.push_back(programs[(5 * turn + 1) % programs.size()]);
  return chosen;
}

TEST_F(KernelSources, CompileForEachArchitectureWithTheirEntryPoints) {
  std::size_t turn = 0;
  for (const int capability : {80, 90, 100}) {
    for (const KnownProgram& known : programs_for(turn++)) {
      SCOPED_TRACE(known.program.text());
      const std::string binary = compiler_->compile(known.program, capability);
      EXPECT_TRUE(
          std::string_view(binary).starts_with("\x7f"
                                               "ELF"));
      for (const std::string_view entry : known.entries)
        EXPECT_THAT(binary, HasSubstr(std::string(".text.") += entry));
    }
  }
}

TEST_F(KernelSources, CompileToPtxForDevicesThatTheCompilerDoesNotKnow) {
  const std::string ptx = compiler_->compile(
      {"float8_amax", {"VALUE=BFloat16"}}, /*capability=*/999);
  EXPECT_THAT(ptx, HasSubstr(".entry amax("));
  EXPECT_THAT(ptx, HasSubstr(".target sm_"));
}

TEST_F(KernelSources, ShowTheCompilersMessages) {
  EXPECT_THAT(compiler_->version(), ::testing::MatchesRegex("1[0-9]\\.[0-9]+"));
  expect_error<Error>(
      [&] { (void)compiler_->compile({"float8_amax", {}}, 90); },
      "float8_amax () did not compile for compute capability 9.0: "
      "NVRTC_ERROR_COMPILATION");
  expect_error<Error>(
      [&] { (void)compiler_->compile({"float8_amax", {}}, 10); },
      "must support devices of compute capability 1.0 or older ones");
}

TEST(Kernels, NameWhatIsMissing) {
  expect_error<Error>(
      [] { (void)Nvrtc({"libnvrtc_of_nobody.so", "/nowhere/libnvrtc.so"}); },
      "NVIDIA's run-time compiler must be one of \"libnvrtc_of_nobody.so\", "
      "\"/nowhere/libnvrtc.so\", but none can be opened: ");
  // A library that is not the compiler.
  expect_error<Error>(
      [] { (void)Nvrtc({"libm.so.6"}); },
      "lacks the function \"nvrtcVersion\"");
  expect_error<InternalError>(
      [] { (void)detail::kernel_source("none"); },
      "there is no kernel source \"none\"");
}

TEST(Kernels, AreNullWhereThereIsNoDevice) {
  const KernelProgram program{"float8_amax", {"VALUE=Float32"}};
  EXPECT_EQ(detail::find_kernel(at::kCPU, program, "amax"), nullptr);
  EXPECT_EQ(detail::missing_kernels(), "");
}

TEST(Kernels, HaveNamesOfTheirOwn) {
  std::set<std::string> programs;
  std::map<std::string_view, std::string_view> source_of;
  for (const KnownProgram& known : detail::known_programs()) {
    EXPECT_TRUE(programs.insert(known.program.text()).second);
    const std::string text = detail::kernel_source(known.program.source);
    for (const std::string_view entry : known.entries) {
      EXPECT_THAT(text, HasSubstr(detail::format("KERNEL {}(", entry)));
      EXPECT_EQ(
          source_of.emplace(entry, known.program.source).first->second,
          known.program.source);
    }
  }
}

}  // namespace accelerate::testing::compile_test
