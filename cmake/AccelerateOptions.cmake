# g++ collects garbage whenever its heap has doubled, which takes a tenth of the time of files with LibTorch's headers. If
# each processor's job can have 4 GiB, collection starts later; files then take up to 2.5 GiB.
set(ACCELERATE_COMPILER_HEAP "")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  cmake_host_system_information(RESULT mebibytes QUERY TOTAL_PHYSICAL_MEMORY)
  cmake_host_system_information(RESULT processors QUERY NUMBER_OF_LOGICAL_CORES)
  math(EXPR mebibytes "${mebibytes} / ${processors}")
  if(mebibytes GREATER_EQUAL 4096)
    set(ACCELERATE_COMPILER_HEAP "SHELL:--param ggc-min-heapsize=2000000")
  endif()
endif()

# Compiler settings for our own targets.
function(accelerate_settings target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  # Applies to debug builds, too: see AccelerateLibTorch.cmake.
  target_compile_definitions(${target} PRIVATE NDEBUG)
  # Clang's -Wshadow also counts globals of other files that are compiled together.
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<CXX_COMPILER_ID:GNU>:-Wshadow> ${ACCELERATE_COMPILER_HEAP})
  if(ACCELERATE_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(ACCELERATE_SANITIZER)
    target_compile_options(${target} PRIVATE -fsanitize=${ACCELERATE_SANITIZER} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${ACCELERATE_SANITIZER})
    if(ACCELERATE_SANITIZER MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      # TSan does not see fences. Ours only order atomic accesses, which it does not report anyway.
      target_compile_options(${target} PRIVATE -Wno-tsan)
    endif()
  endif()
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
endfunction()

# accelerate_sanitizer_suppressions(TARGET): compiles the sanitizers' options and
# suppressions into a program, where the sanitizers look for them.
function(accelerate_sanitizer_suppressions target)
  if(ACCELERATE_SANITIZER)
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/sanitizer_suppressions.cpp)
  endif()
endfunction()
