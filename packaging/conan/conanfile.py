"""Conan 2 recipe. LibTorch is not a package of Conan: give its directory,

    conan create packaging/conan -c user.accelerate:libtorch=/path/to/torch

Other libraries are Debian's; `-c tools.system.package_manager:mode=install` installs them.
"""
import re
from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy
from conan.tools.system.package_manager import Apt

ROOT = Path(__file__).resolve().parent.parent.parent


class AccelerateCpp(ConanFile):
    name = "accelerate-cpp"
    license = "Apache-2.0"
    description = "Hugging Face Accelerate's training verbs for LibTorch programs"
    topics = ("libtorch", "training", "distributed")
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"

    def set_version(self):
        header = (ROOT / "include/accelerate/version.h").read_text()
        self.version = re.search(r'define ACCELERATE_VERSION "(.+)"', header)[1]

    def export_sources(self):
        for pattern in ["CMakeLists.txt", "LICENSE", "CHANGELOG.md", "cmake/*", "include/*", "src/*", "cli/*", "libexec/*", "python/*"]:
            copy(self, pattern, ROOT, self.export_sources_folder)

    def system_requirements(self):
        Apt(self).install([
            "libcli11-dev", "libyaml-cpp-dev", "nlohmann-json3-dev", "libstb-dev", "libxxhash-dev", "libprotozero-dev",
            "libsqlite3-dev", "libcurl4-openssl-dev", "libssl-dev", "libcpp-httplib-dev", "zlib1g-dev"], check=True)

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("os must be Linux")

    @property
    def libtorch(self):
        directory = self.conf.get("user.accelerate:libtorch")
        if not directory:
            raise ConanInvalidConfiguration("user.accelerate:libtorch must be the directory that holds LibTorch's include/ and lib/")
        return directory

    def generate(self):
        toolchain = CMakeToolchain(self, generator="Ninja")
        toolchain.cache_variables["ACCELERATE_LIBTORCH_DIR"] = self.libtorch
        for part in ["TESTS", "EXAMPLES", "BENCHMARKS"]:
            toolchain.cache_variables[f"ACCELERATE_BUILD_{part}"] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        # `conan export-pkg -c user.accelerate:build=DIR` packages what another build has made.
        build = self.conf.get("user.accelerate:build")
        if build:
            self.run(f'cmake --install "{build}" --prefix "{self.package_folder}"')
        else:
            CMake(self).install()

    def package_info(self):
        # Our own package files know LibTorch's flags and the components.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/accelerate"]
        self.cpp_info.libs = ["accelerate", "accelerate_safetensors"]
        self.buildenv_info.append_path("PATH", str(Path(self.package_folder, "bin")))
