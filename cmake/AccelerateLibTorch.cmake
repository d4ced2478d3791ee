# Finds LibTorch and defines the imported targets accelerate::c10,
# accelerate::torch_cpu and, if LibTorch has it, accelerate::torch_cuda. Searches, in this order: ACCELERATE_LIBTORCH_DIR,
# Torch_DIR, CMAKE_PREFIX_PATH, the torch package of the active Python.
#
# Does not use find_package(Torch): with a CUDA build of LibTorch, it requires the
# entire CUDA toolkit and links libtorch.so, which loads CUDA even for programs
# that stay on the CPU.
set(ACCELERATE_LIBTORCH_OLDEST 2.11.0)

function(_accelerate_libtorch_candidates result)
  set(found "")
  if(ACCELERATE_LIBTORCH_DIR)
    # An explicit directory is the only one considered.
    set(${result} "${ACCELERATE_LIBTORCH_DIR}" PARENT_SCOPE)
    return()
  endif()
  set(prefixes ${Torch_DIR} ${CMAKE_PREFIX_PATH})
  if(DEFINED ENV{Torch_DIR})
    list(APPEND prefixes $ENV{Torch_DIR})
  endif()
  if(DEFINED ENV{CMAKE_PREFIX_PATH})
    string(REPLACE ":" ";" more "$ENV{CMAKE_PREFIX_PATH}")
    list(APPEND prefixes ${more})
  endif()
  foreach(prefix IN LISTS prefixes)
    # Users can give the directory itself, its share/cmake, or its share/cmake/Torch.
    list(APPEND found "${prefix}" "${prefix}/../.." "${prefix}/../../..")
  endforeach()
  find_program(_accelerate_python NAMES python3 python NO_CACHE)
  if(_accelerate_python)
    execute_process(
      COMMAND ${_accelerate_python} -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE site OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(site)
      list(APPEND found "${site}")
    endif()
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

function(_accelerate_libtorch_version directory result)
  set(header "${directory}/include/torch/headeronly/version.h")
  if(NOT EXISTS "${header}")
    set(header "${directory}/include/torch/csrc/api/include/torch/version.h")
  endif()
  set(version "")
  if(EXISTS "${header}" AND EXISTS "${directory}/lib/libtorch_cpu.so" AND EXISTS "${directory}/lib/libc10.so")
    file(STRINGS "${header}" lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE ".* ([0-9]+)$" "\\1" part "${line}")
      list(APPEND version ${part})
    endforeach()
    string(REPLACE ";" "." version "${version}")
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

function(accelerate_find_libtorch)
  if(TARGET accelerate::torch_cpu)
    return()
  endif()
  _accelerate_libtorch_candidates(candidates)
  set(too_old "")
  foreach(candidate IN LISTS candidates)
    get_filename_component(directory "${candidate}" ABSOLUTE)
    _accelerate_libtorch_version("${directory}" version)
    if(version AND version VERSION_LESS ACCELERATE_LIBTORCH_OLDEST)
      list(APPEND too_old "${directory} is ${version}")
    elseif(version)
      break()
    endif()
    set(version "")
  endforeach()
  if(NOT version)
    set(where "${candidates}")
    if(NOT where)
      set(where "nowhere: nothing was given and the active Python has no torch")
    endif()
    message(FATAL_ERROR
      "LibTorch ${ACCELERATE_LIBTORCH_OLDEST} or newer was not found (too old: ${too_old}; looked in: ${where}). "
      "Run tools/bootstrap and configure with tools/configure, or give the directory that holds include/ and lib/ "
      "by -DACCELERATE_LIBTORCH_DIR=/path/to/libtorch")
  endif()
  message(STATUS "LibTorch ${version}: ${directory}")
  set(ACCELERATE_LIBTORCH_DIRECTORY "${directory}" PARENT_SCOPE)
  set(ACCELERATE_LIBTORCH_VERSION "${version}" PARENT_SCOPE)

  add_library(accelerate::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(accelerate::c10 PROPERTIES
    IMPORTED_LOCATION "${directory}/lib/libc10.so")
  add_library(accelerate::torch_cpu SHARED IMPORTED GLOBAL)
  set_target_properties(accelerate::torch_cpu PROPERTIES
    IMPORTED_LOCATION "${directory}/lib/libtorch_cpu.so"
    INTERFACE_LINK_LIBRARIES accelerate::c10)
  # LibTorch's RecordFunction has an extra member without NDEBUG, and the wheel is
  # built with NDEBUG: programs built without it would misread the object.
  target_compile_definitions(accelerate::c10 INTERFACE NDEBUG)
  foreach(target accelerate::c10 accelerate::torch_cpu)
    target_include_directories(${target} SYSTEM INTERFACE
      "${directory}/include" "${directory}/include/torch/csrc/api/include")
  endforeach()
  # For programs that compute on CUDA devices. Loading this library registers the
  # kernels; no symbol of it is used, so the linker would drop it.
  if(EXISTS "${directory}/lib/libtorch_cuda.so")
    add_library(accelerate::torch_cuda INTERFACE IMPORTED GLOBAL)
    target_link_libraries(accelerate::torch_cuda INTERFACE
      "-Wl,--push-state,--no-as-needed" "${directory}/lib/libtorch_cuda.so" "-Wl,--pop-state" accelerate::torch_cpu)
  endif()
  # The wheel's CPU library needs two CUDA libraries, which its own RPATH finds
  # at run time; the linker need not see them.
  target_link_options(accelerate::torch_cpu INTERFACE LINKER:--allow-shlib-undefined)
endfunction()
