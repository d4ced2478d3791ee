# Builds for arm64 with Debian's cross compiler, against a sysroot of Debian's arm64 packages, which tools/ci/arm64 makes.
# Programs run under qemu's user emulation.
#   ACCELERATE_SYSROOT   the sysroot; .deps/sysroot-aarch64 unless given
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# Leaves out notes about how g++ passed parameters before 10.1.
set(CMAKE_CXX_FLAGS_INIT -Wno-psabi)

set(ACCELERATE_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../../.deps/sysroot-aarch64 CACHE PATH "Root of the arm64 libraries")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ACCELERATE_SYSROOT)
file(REAL_PATH ${ACCELERATE_SYSROOT} CMAKE_SYSROOT)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${CMAKE_SYSROOT})
