# An overlay port, which builds the checkout that it is in: vcpkg install accelerate-cpp --overlay-ports=packaging/vcpkg
# LibTorch is not a port: the variable ACCELERATE_LIBTORCH_DIR of the environment names the directory of its include/ and
# lib/ (pass it on with VCPKG_KEEP_ENV_VARS).
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT DEFINED ENV{ACCELERATE_LIBTORCH_DIR})
  message(FATAL_ERROR "ACCELERATE_LIBTORCH_DIR must be the directory of LibTorch's include/ and lib/, but is not set")
endif()
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS
  "-DACCELERATE_LIBTORCH_DIR=$ENV{ACCELERATE_LIBTORCH_DIR}"
  -DACCELERATE_BUILD_TESTS=OFF -DACCELERATE_BUILD_EXAMPLES=OFF -DACCELERATE_BUILD_BENCHMARKS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME accelerate CONFIG_PATH lib/cmake/accelerate)
vcpkg_fixup_pkgconfig()
vcpkg_copy_tools(TOOL_NAMES accelerate-cpp AUTO_CLEAN)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
