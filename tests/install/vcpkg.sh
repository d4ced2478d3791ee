#!/usr/bin/env bash
# vcpkg.sh SOURCE BUILD LIBTORCH CXX: with vcpkg (VCPKG=/path, or on the PATH), installs the port. Without it, which no
# registry of ours has, checks what can be checked: the manifests agree with each other and with the version, and the
# portfile does its steps, with stand-ins for vcpkg's functions that install the build under test.
set -euo pipefail
source=$1 build=$2 libtorch=$3 cxx=$4
port=$source/packaging/vcpkg/accelerate-cpp
export ACCELERATE_LIBTORCH_DIR=$libtorch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
vcpkg=${VCPKG:-vcpkg}
if command -v "$vcpkg" >/dev/null; then
  VCPKG_KEEP_ENV_VARS=ACCELERATE_LIBTORCH_DIR "$vcpkg" install accelerate-cpp --overlay-ports="$source/packaging/vcpkg" --x-install-root="$work/installed"
  exit
fi
python3 - "$source" "$port" <<'EOF'
import json, pathlib, re, sys
source, port = map(pathlib.Path, sys.argv[1:])
manifest, overlay = (json.loads((place / "vcpkg.json").read_text()) for place in (source, port))
version = re.search(r'define ACCELERATE_VERSION "(.+)"', (source / "include/accelerate/version.h").read_text())[1]
assert manifest["version"] == overlay["version"] == version, (manifest["version"], overlay["version"], version)
plain = [name for name in overlay["dependencies"] if isinstance(name, str)]
assert plain == manifest["dependencies"], "the dependencies of both manifests must be equal"
EOF
cat >"$work/port.cmake" <<EOF
set(CURRENT_PACKAGES_DIR "$work/packages")
set(PORT accelerate-cpp)
function(vcpkg_cmake_configure)
  cmake_parse_arguments(arg "" "SOURCE_PATH" "OPTIONS" \${ARGN})
  if(NOT EXISTS "\${arg_SOURCE_PATH}/CMakeLists.txt")
    message(FATAL_ERROR "SOURCE_PATH must be the checkout, but is \${arg_SOURCE_PATH}")
  endif()
  file(READ "$build/CMakeCache.txt" cache)
  foreach(option IN LISTS arg_OPTIONS)
    string(REGEX REPLACE "-D([A-Z_]+)=.*" "\\\\1" name "\${option}")
    if(NOT cache MATCHES "\${name}:")
      message(FATAL_ERROR "\${name} must be a setting of the build, but is not")
    endif()
  endforeach()
endfunction()
function(vcpkg_cmake_install)
  execute_process(COMMAND cmake --install "$build" --prefix "\${CURRENT_PACKAGES_DIR}" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(arg "" "PACKAGE_NAME;CONFIG_PATH" "" \${ARGN})
  if(NOT EXISTS "\${CURRENT_PACKAGES_DIR}/\${arg_CONFIG_PATH}/\${arg_PACKAGE_NAME}Config.cmake")
    message(FATAL_ERROR "no package file in \${arg_CONFIG_PATH}")
  endif()
endfunction()
function(vcpkg_fixup_pkgconfig)
endfunction()
function(vcpkg_copy_tools)
  cmake_parse_arguments(arg "AUTO_CLEAN" "" "TOOL_NAMES" \${ARGN})
  foreach(tool IN LISTS arg_TOOL_NAMES)
    if(NOT EXISTS "\${CURRENT_PACKAGES_DIR}/bin/\${tool}")
      message(FATAL_ERROR "no tool \${tool}")
    endif()
  endforeach()
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(arg "" "" "FILE_LIST" \${ARGN})
  file(COPY \${arg_FILE_LIST} DESTINATION "\${CURRENT_PACKAGES_DIR}/share/\${PORT}")
endfunction()
include("$port/portfile.cmake")
EOF
cmake -P "$work/port.cmake"
ls "$work/packages/share/accelerate-cpp/usage" "$work/packages/share/accelerate-cpp/LICENSE" >/dev/null
echo "the port's steps work with stand-ins; vcpkg itself was not there"
